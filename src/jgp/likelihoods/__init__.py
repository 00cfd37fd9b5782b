"""Likelihoods: p(y | f) point by point."""

from jgp.likelihoods._base import AbstractLikelihood as AbstractLikelihood
from jgp.likelihoods._categorical import MultinomialProbit as MultinomialProbit
from jgp.likelihoods._categorical import Softmax as Softmax
from jgp.likelihoods._gaussian import AbstractGaussian as AbstractGaussian
from jgp.likelihoods._gaussian import CorrelatedGaussian as CorrelatedGaussian
from jgp.likelihoods._gaussian import FixedNoiseGaussian as FixedNoiseGaussian
from jgp.likelihoods._gaussian import Gaussian as Gaussian
from jgp.likelihoods._gaussian import (
    HeteroscedasticGaussian as HeteroscedasticGaussian,
)
from jgp.likelihoods._predictive import Categorical as Categorical
from jgp.likelihoods._predictive import Normal as Normal
