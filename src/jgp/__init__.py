"""Gaussian processes and probabilistic numerics in JAX."""

from jgp import conjugate as conjugate
from jgp import kernels as kernels
from jgp import likelihoods as likelihoods
from jgp import means as means
from jgp import priors as priors
from jgp import sampling as sampling
from jgp._bayes_factor import BayesFactor as BayesFactor
from jgp._bayes_factor import log_bayes_factor as log_bayes_factor
from jgp._coregionalised import CoregionalisedProcess as CoregionalisedProcess
from jgp._coregionalised import coregionalised as coregionalised
from jgp._correction import evidence_correction as evidence_correction
from jgp._cross_validation import KFold as KFold
from jgp._fit import Fit as Fit
from jgp._fit import fit as fit
from jgp._hyperparameter_draws import HyperparameterDraws as HyperparameterDraws
from jgp._hyperparameter_draws import (
    sample_hyperparameters as sample_hyperparameters,
)
from jgp._information import Information as Information
from jgp._information import fisher_information as fisher_information
from jgp._left_out import LeftOut as LeftOut
from jgp._model import Model as Model
from jgp._model import bound as bound
from jgp._model import freeze as freeze
from jgp._model import log_prior as log_prior
from jgp._model import tie as tie
from jgp._model import with_prior as with_prior
from jgp._objective import LogDensity as LogDensity
from jgp._objective import log_density as log_density
from jgp._parameters import constraints as constraints
from jgp._parameters import from_real as from_real
from jgp._parameters import table as table
from jgp._parameters import to_real as to_real
from jgp._process import GaussianProcess as GaussianProcess
from jgp._process import IndependentProcess as IndependentProcess
from jgp._process import independent as independent
from jgp._profile import Profile as Profile
from jgp._profile import profile as profile
from jgp._results import RESULTS as RESULTS
from jgp._results import InferenceError as InferenceError
from jgp._results import InferenceWarning as InferenceWarning
from jgp._runs import Restart as Restart
from jgp._selection import Criticism as Criticism
from jgp._selection import criticise as criticise
from jgp._selection import leave_one_out as leave_one_out
from jgp.inference import Approximation as Approximation
from jgp.inference import Evidence as Evidence
from jgp.inference import condition as condition
from jgp.inference import evidence as evidence
from jgp.inference import exact as exact
from jgp.inference import exact_banded as exact_banded
from jgp.inference import expectation_propagation as expectation_propagation
from jgp.inference import laplace as laplace
from jgp.inference import nested_ep as nested_ep
from jgp.inference import sample_posterior as sample_posterior
