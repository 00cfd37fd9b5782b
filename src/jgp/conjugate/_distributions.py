"""Student's t and the inverse gamma, by the one integral of this package."""

import dataclasses
import math

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, ArrayLike, Float

from jgp import _parameters
from jgp._constraints import COVARIANCES, NON_NEGATIVE, POSITIVE
from jgp._linalg import cholesky, log_determinant, solve_lower
from jgp._types import as_float

# From here on the series of log Γ is exact to rounding.
SERIES_FROM = 8.0
SERIES = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


class StudentT(eqx.Module):
    """Student's t distribution, elementwise.

    Args:
        df: Degrees of freedom ν > 0, a scalar or of the shape of `mean`.
        mean: The centre: the median, and for ν > 1 the mean.
        scale: Of the shape of `mean`, >= 0 (all mass at the centre); not a deviation.
    """

    df: Float[Array, "*n"] = eqx.field(converter=as_float, metadata=POSITIVE)
    mean: Float[Array, "*n"] = eqx.field(converter=as_float)
    scale: Float[Array, "*n"] = eqx.field(converter=as_float, metadata=NON_NEGATIVE)

    def __check_init__(self):
        _check_shape("scale", self.scale, self.mean.shape)
        _check_shape("df", self.df, (), self.mean.shape)
        _parameters.check_parameters(self, "StudentT")

    @property
    def variance(self) -> Float[Array, "*n"]:
        """scale² ν/(ν − 2) for ν > 2, infinite for 1 < ν <= 2, NaN for ν <= 1."""
        df = self.df.astype(self.scale.dtype)
        finite = self.scale**2 * (df / jnp.where(df > 2, df - 2, 1))
        return jnp.where(df > 2, finite, jnp.where(df > 1, jnp.inf, jnp.nan))

    def log_prob(self, x: ArrayLike) -> Float[Array, "*n"]:
        """The log density at points of the shape of `mean`; a scalar serves all."""
        x = as_float(x)
        if self.mean.shape:
            _check_shape("x", x, (), self.mean.shape)
        t = _parameters.cast(self, x.dtype)
        certain, error = t.scale == 0, x - t.mean
        scale, half = jnp.where(certain, 1, t.scale), t.df / 2
        square = (error / scale) ** 2
        log_density = log_marginal(half, half, 1, square, 2 * jnp.log(scale))
        mass = jnp.where(error == 0, jnp.inf, -jnp.inf)
        return jnp.where(certain, mass, log_density)


class MultivariateStudentT(eqx.Module):
    """The multivariate t distribution; leading axes are a batch of them.

    Args:
        df: Degrees of freedom ν > 0, a scalar or one for each of the batch.
        mean: The centre, and for ν > 1 the mean.
        shape_matrix: Symmetric positive definite; ν/(ν − 2) times it is the
            covariance, for ν > 2.
    """

    df: Float[Array, "*batch"] = eqx.field(converter=as_float, metadata=POSITIVE)
    mean: Float[Array, "*batch d"] = eqx.field(converter=as_float)
    shape_matrix: Float[Array, "*batch d d"] = eqx.field(
        converter=as_float, metadata=COVARIANCES
    )

    def __check_init__(self):
        if self.mean.ndim == 0:
            raise ValueError("mean: got a scalar, wanted shape (d,), or (..., d).")
        wanted = (*self.mean.shape, self.mean.shape[-1])
        _check_shape("shape_matrix", self.shape_matrix, wanted)
        _check_shape("df", self.df, (), self.mean.shape[:-1])
        _parameters.check_parameters(self, "MultivariateStudentT")

    def log_prob(self, x: ArrayLike) -> Float[Array, "*batch"]:
        """The log density at `x`, of the shape of `mean`."""
        x = as_float(x)
        _check_shape("x", x, self.mean.shape)
        t = _parameters.cast(self, x.dtype)
        lower, half = cholesky(t.shape_matrix).lower, t.df / 2
        whitened = solve_lower(lower, (x - t.mean)[..., None])[..., 0]
        square, log_det = jnp.sum(whitened**2, axis=-1), log_determinant(lower)
        return log_marginal(half, half, x.shape[-1], square, log_det)


class InverseGamma(eqx.Module):
    """The distribution of density ∝ v^(−shape − 1) exp(−scale/v) over v > 0.

    Args:
        shape: a > 0, a scalar.
        scale: b > 0, a scalar.
    """

    shape: Float[Array, ""] = eqx.field(converter=as_float, metadata=POSITIVE)
    scale: Float[Array, ""] = eqx.field(converter=as_float, metadata=POSITIVE)

    def __check_init__(self):
        check_scalars(self)

    @property
    def mean(self) -> Float[Array, ""]:
        """b/(a − 1) for a > 1, else infinite."""
        a = self.shape.astype(self.scale.dtype)
        return jnp.where(a > 1, self.scale / jnp.where(a > 1, a - 1, 1), jnp.inf)

    def log_prob(self, v: ArrayLike) -> Float[Array, "*n"]:
        """The log density at points of any shape; −inf for v <= 0."""
        v = as_float(v)
        p, inside = _parameters.cast(self, v.dtype), v > 0
        a, v = p.shape, jnp.where(inside, v, 1)
        u = (p.scale / v - a) / a  # b/v = a(1 + u): stable for large a
        constant = jnp.log(a / (2 * math.pi)) / 2 - _stirling_remainder(a)
        log_density = a * (jnp.log1p(u) - u) + constant - jnp.log(v)
        return jnp.where(inside, log_density, -jnp.inf)


@eqx.filter_jit
def log_marginal(shape: Array, scale: Array, num, square, log_det) -> Array:
    """The integral of this package, from a, b, n, rᵀS⁻¹r and log|S|.

    With Stirling's formula for both Γ, so that nothing large cancels for large a.
    """
    half = num / 2
    after = shape + half
    # log Γ(a + n/2) − log Γ(a) − (n/2) log a:
    gammas = (after - 0.5) * jnp.log1p(half / shape) - half
    gammas = gammas + _stirling_remainder(after) - _stirling_remainder(shape)
    constant = half * jnp.log(shape / (2 * math.pi * scale)) - log_det / 2
    return gammas + constant - after * jnp.log1p(square / (2 * scale))


def _stirling_remainder(a: Array) -> Array:
    """Log Γ(a) − (a − ½) log a + a − ½ log 2π, which falls like 1/(12a)."""
    large = a >= SERIES_FROM
    b, c = jnp.where(large, a, SERIES_FROM), jnp.where(large, SERIES_FROM, a)
    series = sum(term / b ** (2 * i + 1) for i, term in enumerate(SERIES))
    direct = gammaln(c) - (c - 0.5) * jnp.log(c) + c - math.log(2 * math.pi) / 2
    return jnp.where(large, series, direct)


def check_scalars(module) -> None:
    for field in dataclasses.fields(module):
        _check_shape(field.name, getattr(module, field.name), ())
    _parameters.check_parameters(module, type(module).__name__)


def _check_shape(name: str, value: Array, *wanted: tuple[int, ...]) -> None:
    if value.shape not in wanted:
        accepted = " or ".join(map(str, dict.fromkeys(wanted)))
        raise ValueError(f"{name}: got shape {value.shape}, wanted {accepted}.")
