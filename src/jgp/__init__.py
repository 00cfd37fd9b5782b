"""Gaussian processes and probabilistic numerics in JAX."""

from jgp import kernels as kernels
from jgp import likelihoods as likelihoods
from jgp import means as means
from jgp import sampling as sampling
from jgp._coregionalised import CoregionalisedProcess as CoregionalisedProcess
from jgp._coregionalised import coregionalised as coregionalised
from jgp._fit import Fit as Fit
from jgp._fit import fit as fit
from jgp._model import Model as Model
from jgp._model import freeze as freeze
from jgp._parameters import constraints as constraints
from jgp._parameters import from_real as from_real
from jgp._parameters import table as table
from jgp._parameters import to_real as to_real
from jgp._process import GaussianProcess as GaussianProcess
from jgp._process import IndependentProcess as IndependentProcess
from jgp._process import independent as independent
from jgp._results import RESULTS as RESULTS
from jgp._results import InferenceError as InferenceError
from jgp.inference import Approximation as Approximation
from jgp.inference import condition as condition
from jgp.inference import evidence as evidence
from jgp.inference import exact as exact
from jgp.inference import laplace as laplace
from jgp.inference import nested_ep as nested_ep
from jgp.inference import sample_posterior as sample_posterior
