"""Likelihoods: p(y | f) point by point."""

from jgp.likelihoods import _gaussian_terms as _gaussian_terms
from jgp.likelihoods._averaged import Averaged as Averaged
from jgp.likelihoods._base import AbstractLikelihood as AbstractLikelihood
from jgp.likelihoods._beta import Beta as Beta
from jgp.likelihoods._binary import BernoulliLogit as BernoulliLogit
from jgp.likelihoods._binary import BernoulliProbit as BernoulliProbit
from jgp.likelihoods._categorical import MultinomialProbit as MultinomialProbit
from jgp.likelihoods._categorical import Softmax as Softmax
from jgp.likelihoods._counts import NegativeBinomial as NegativeBinomial
from jgp.likelihoods._counts import Poisson as Poisson
from jgp.likelihoods._expectations import expected_log_prob as expected_log_prob
from jgp.likelihoods._gaussian import AbstractGaussian as AbstractGaussian
from jgp.likelihoods._gaussian import CorrelatedGaussian as CorrelatedGaussian
from jgp.likelihoods._gaussian import FixedNoiseGaussian as FixedNoiseGaussian
from jgp.likelihoods._gaussian import Gaussian as Gaussian
from jgp.likelihoods._gaussian import (
    HeteroscedasticGaussian as HeteroscedasticGaussian,
)
from jgp.likelihoods._latent_noise import LatentNoiseGaussian as LatentNoiseGaussian
from jgp.likelihoods._latent_noise import NoisePredictive as NoisePredictive
from jgp.likelihoods._mixture import (
    AbstractNumberLikelihood as AbstractNumberLikelihood,
)
from jgp.likelihoods._mixture import Predictive as Predictive
from jgp.likelihoods._one_latent import AbstractOneLatent as AbstractOneLatent
from jgp.likelihoods._one_latent import Tilted as Tilted
from jgp.likelihoods._one_latent import tilted_moments as tilted_moments
from jgp.likelihoods._ordinal import OrdinalProbit as OrdinalProbit
from jgp.likelihoods._predictive import Categorical as Categorical
from jgp.likelihoods._predictive import Normal as Normal
from jgp.likelihoods._robust import LaplaceNoise as LaplaceNoise
from jgp.likelihoods._robust import StudentT as StudentT
from jgp.likelihoods._weighted import Weighted as Weighted
