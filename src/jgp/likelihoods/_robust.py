"""Likelihoods of real observations with tails heavier than Gaussian noise."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jgp._constraints import POSITIVE
from jgp._types import as_float
from jgp.likelihoods._counts import check_scalar
from jgp.likelihoods._log_gamma import log_gamma_ratio
from jgp.likelihoods._mixture import AbstractNumberLikelihood, observed_moments


class AbstractNoise(AbstractNumberLikelihood):
    """y = f + ε, ε independent noise of a scale."""

    scale: eqx.AbstractVar[Float[Array, ""]]

    def features(
        self, y: Float[Array, " n"]
    ) -> tuple[Float[Array, "n 1"], Float[Array, "n 1"]]:
        """About y, over distances of the scale."""
        y = as_float(y)[:, None]
        return y, jnp.broadcast_to(self.scale.astype(y.dtype), y.shape)


class StudentT(AbstractNoise):
    """y = f + scale·t, t of Student's distribution (Jylänki et al. 2011).

    Not log-concave: observations far from the others are given up.

    Args:
        degrees_of_freedom: ν > 0; Gaussian noise as it grows. The mean is f for ν > 1
            and does not exist (NaN) below; the variance is infinite for ν <= 2.
        scale: In units of y; the variance is scale²·ν/(ν − 2).
    """

    degrees_of_freedom: Float[Array, ""] = eqx.field(
        converter=as_float, metadata=POSITIVE
    )
    scale: Float[Array, ""] = eqx.field(converter=as_float, metadata=POSITIVE)

    def __check_init__(self):
        check_scalar(self.degrees_of_freedom, "degrees_of_freedom")
        check_scalar(self.scale, "scale")

    @property
    def log_concave(self) -> bool:
        """It is not."""
        return False

    def log_density(self, f: Float[Array, "*n"], y: Array) -> Float[Array, "*n"]:
        """Log p(y | f), elementwise."""
        nu, y = self.degrees_of_freedom, jnp.asarray(y).astype(f.dtype)
        # Γ((ν + 1)/2)/(Γ(ν/2)√(ν/2)), so that √(πν) leaves √(2π).
        constant = log_gamma_ratio(nu / 2, jnp.full_like(nu, 0.5))
        constant = constant - jnp.log(2 * jnp.pi) / 2 - jnp.log(self.scale)
        square = ((y - f) / self.scale) ** 2
        return constant - (nu + 1) / 2 * jnp.log1p(square / nu)

    def conditional_mean(self, f: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """The latent itself, or NaN where there is no mean."""
        return jnp.where(self.degrees_of_freedom > 1, f, jnp.nan)

    def conditional_variance(self, f: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """scale²·ν/(ν − 2), or infinite."""
        nu = self.degrees_of_freedom
        finite = nu > 2
        ratio = nu / jnp.where(finite, nu - 2, 1)
        return jnp.full_like(f, 1) * jnp.where(finite, self.scale**2 * ratio, jnp.inf)

    def sample(self, f: Float[Array, "*n"], *, key: PRNGKeyArray) -> Float[Array, "*n"]:
        """A draw of the noise about each f."""
        nu = self.degrees_of_freedom.astype(f.dtype)
        return f + self.scale * jax.random.t(key, nu, f.shape, f.dtype)


class LaplaceNoise(AbstractNoise):
    """p(y | f) = exp(−|y − f|/scale)/(2·scale).

    Args:
        scale: In units of y; the variance is 2·scale².
    """

    scale: Float[Array, ""] = eqx.field(converter=as_float, metadata=POSITIVE)

    def __check_init__(self):
        check_scalar(self.scale, "scale")

    @property
    def log_concave(self) -> bool:
        """It is, with a kink at y."""
        return True

    def log_density(self, f: Float[Array, "*n"], y: Array) -> Float[Array, "*n"]:
        """Log p(y | f), elementwise."""
        y = jnp.asarray(y).astype(f.dtype)
        return -jnp.abs(y - f) / self.scale - jnp.log(2 * self.scale)

    def conditional_mean(self, f: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """The latent itself."""
        return f

    def conditional_variance(self, f: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """2·scale²."""
        return jnp.full_like(f, 2) * self.scale**2

    def sample(self, f: Float[Array, "*n"], *, key: PRNGKeyArray) -> Float[Array, "*n"]:
        """A draw of the noise about each f."""
        return f + self.scale * jax.random.laplace(key, f.shape, f.dtype)


@observed_moments.register
def _(likelihood: AbstractNoise, mean, variance):
    """The noise is independent of f: variances add."""
    noise = likelihood.conditional_variance(mean)
    return likelihood.conditional_mean(mean), variance + noise
