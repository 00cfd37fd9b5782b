"""Inference: model and data to an approximation, by verbs of one signature."""

from jgp.inference._approximation import Approximation as Approximation
from jgp.inference._banded import exact_banded as exact_banded
from jgp.inference._bound import elbo as elbo
from jgp.inference._condition import condition as condition
from jgp.inference._draws import DrawsPosterior as DrawsPosterior
from jgp.inference._ep import expectation_propagation as expectation_propagation
from jgp.inference._estimate import Evidence as Evidence
from jgp.inference._evidence import evidence as evidence
from jgp.inference._exact import exact as exact
from jgp.inference._gaussian_posterior import GaussianPosterior as GaussianPosterior
from jgp.inference._laplace import laplace as laplace
from jgp.inference._mcmc import sample_posterior as sample_posterior
from jgp.inference._nested_ep import nested_ep as nested_ep
from jgp.inference._site_draws import whitened_deviation as whitened_deviation
from jgp.inference._site_posterior import site_posterior as site_posterior
from jgp.inference._sites import DenseSites as DenseSites
from jgp.inference._sites import DiagonalSites as DiagonalSites
from jgp.inference._sites import RankOneSites as RankOneSites
from jgp.inference._sites import SignedSites as SignedSites
from jgp.inference._variational import variational as variational
