"""Normal data with unknown mean, unknown variance, or both."""

import abc
import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jgp import _parameters
from jgp._constraints import POSITIVE
from jgp._types import as_float
from jgp.conjugate._distributions import (
    InverseGamma,
    StudentT,
    check_scalars,
    log_marginal,
)
from jgp.likelihoods import Normal


class AbstractConjugate(eqx.Module):
    """A prior of independent normal data; scalar parameters, batches by `vmap`."""

    def __check_init__(self):
        check_scalars(self)

    @abc.abstractmethod
    def update(self, y: ArrayLike) -> "AbstractConjugate":
        """The posterior given observations (n,), the prior of the next ones."""

    @abc.abstractmethod
    def log_evidence(self, y: ArrayLike) -> Float[Array, ""]:
        """Log p(y) of observations (n,) together."""

    @abc.abstractmethod
    def predictive(self) -> Normal | StudentT:
        """The distribution of one more observation; `log_prob` takes (m,) points."""


class NormalNormal(AbstractConjugate):
    """An unknown mean ~ N(mean, variance) of data with known noise.

    Cabral 2021, §2.2.4, where variance = noise_variance/m.

    Args:
        mean: The prior mean.
        variance: The prior variance, > 0.
        noise_variance: The variance of each observation about the mean, > 0.
    """

    mean: Float[Array, ""] = eqx.field(converter=as_float)
    variance: Float[Array, ""] = eqx.field(converter=as_float, metadata=POSITIVE)
    noise_variance: Float[Array, ""] = eqx.field(converter=as_float, metadata=POSITIVE)

    def update(self, y: ArrayLike) -> "NormalNormal":
        """The precisions 1/variance and n/noise add, and weigh the means."""
        y, p = _data(self, y)
        mean, _, log_det = _unknown_mean(y, p.mean, p.noise_variance / p.variance)
        return NormalNormal(mean, p.variance * jnp.exp(-log_det), p.noise_variance)

    def log_evidence(self, y: ArrayLike) -> Float[Array, ""]:
        """Log N(y; mean·1, noise·(I + 11ᵀ/κ)), κ = noise/variance."""
        y, p = _data(self, y)
        noise = p.noise_variance
        _, square, log_det = _unknown_mean(y, p.mean, noise / p.variance)
        log_scale = y.size * jnp.log(2 * math.pi * noise)
        return -(square / noise + log_det + log_scale) / 2

    def predictive(self) -> Normal:
        """N(mean, variance + noise_variance)."""
        return Normal(self.mean, self.variance + self.noise_variance)


class InverseGammaNormal(AbstractConjugate):
    """An unknown variance ~ InverseGamma(shape, scale) of data with known mean.

    Cabral 2021, §2.2.4, where shape = m/2 + 1 and scale = mσ²/2.

    Args:
        mean: The known mean.
        shape: a > 0.
        scale: b > 0.
    """

    mean: Float[Array, ""] = eqx.field(converter=as_float)
    shape: Float[Array, ""] = eqx.field(converter=as_float, metadata=POSITIVE)
    scale: Float[Array, ""] = eqx.field(converter=as_float, metadata=POSITIVE)

    def update(self, y: ArrayLike) -> "InverseGammaNormal":
        """InverseGamma(a + n/2, b + ½Σ(y − mean)²)."""
        y, p = _data(self, y)
        scale = p.scale + jnp.sum((y - p.mean) ** 2) / 2
        return InverseGammaNormal(p.mean, p.shape + y.size / 2, scale)

    def log_evidence(self, y: ArrayLike) -> Float[Array, ""]:
        """The integral of this package for S = I."""
        y, p = _data(self, y)
        return log_marginal(p.shape, p.scale, y.size, jnp.sum((y - p.mean) ** 2), 0.0)

    def predictive(self) -> StudentT:
        """Student's t of 2a degrees of freedom and scale √(b/a)."""
        return StudentT(2 * self.shape, self.mean, jnp.sqrt(self.scale / self.shape))


class NormalInverseGamma(AbstractConjugate):
    """Unknown mean and variance: v ~ InverseGamma(shape, scale), μ ~ N(mean, v/κ).

    Murphy 2007, "Conjugate Bayesian analysis of the Gaussian distribution", §6; Cabral
    2021, §2.2.4, where the posterior scale is printed with (s + n)/2 instead of s/2.

    Args:
        mean: m, the prior mean.
        precision_scale: κ > 0, the number of observations that m is worth.
        shape: a > 0.
        scale: b > 0.
    """

    mean: Float[Array, ""] = eqx.field(converter=as_float)
    precision_scale: Float[Array, ""] = eqx.field(converter=as_float, metadata=POSITIVE)
    shape: Float[Array, ""] = eqx.field(converter=as_float, metadata=POSITIVE)
    scale: Float[Array, ""] = eqx.field(converter=as_float, metadata=POSITIVE)

    def update(self, y: ArrayLike) -> "NormalInverseGamma":
        """κ + n, a + n/2 and b + ½Σ(y − ȳ)² + ½(ȳ − m)² κn/(κ + n)."""
        y, p = _data(self, y)
        mean, square, _ = _unknown_mean(y, p.mean, p.precision_scale)
        worth, shape = p.precision_scale + y.size, p.shape + y.size / 2
        return NormalInverseGamma(mean, worth, shape, p.scale + square / 2)

    def log_evidence(self, y: ArrayLike) -> Float[Array, ""]:
        """The integral of this package for S = I + 11ᵀ/κ."""
        y, p = _data(self, y)
        _, square, log_det = _unknown_mean(y, p.mean, p.precision_scale)
        return log_marginal(p.shape, p.scale, y.size, square, log_det)

    def predictive(self) -> StudentT:
        """Student's t of 2a degrees of freedom and scale √(b(1 + 1/κ)/a)."""
        square = self.scale * (1 + 1 / self.precision_scale) / self.shape
        return StudentT(2 * self.shape, self.mean, jnp.sqrt(square))

    def marginals(self) -> tuple[StudentT, InverseGamma]:
        """Of μ alone, Student's t of 2a and scale √(b/(aκ)), and of v alone."""
        square = self.scale / (self.shape * self.precision_scale)
        mean = StudentT(2 * self.shape, self.mean, jnp.sqrt(square))
        return mean, InverseGamma(self.shape, self.scale)


@eqx.filter_jit
def _unknown_mean(y: Float[Array, " n"], mean: Array, worth: Array):
    """For S = I + 11ᵀ/κ: the posterior mean, rᵀS⁻¹r by Sherman–Morrison, log|S|."""
    average = jnp.sum(y) / max(y.size, 1)
    shift, ratio = average - mean, y.size / worth
    square = jnp.sum((y - average) ** 2) + y.size * shift**2 / (1 + ratio)
    return mean + ratio / (1 + ratio) * shift, square, jnp.log1p(ratio)


def _data(prior, y: ArrayLike):
    """Finite observations (n,), and the prior in their dtype."""
    try:
        given = y if isinstance(y, Array) else np.asarray(y)
        if np.issubdtype(given.dtype, np.complexfloating):
            raise TypeError("complex numbers")
        array = as_float(given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"y: got {y!r}, no array of numbers, wanted (n,).") from error
    if array.ndim != 1:
        raise ValueError(f"y: got shape {array.shape}, wanted (n,).")
    if _parameters.is_concrete(array) and not np.all(np.isfinite(np.asarray(array))):
        raise ValueError("y: got values that are NaN or infinite, wanted finite ones.")
    return array, _parameters.cast(prior, array.dtype)
