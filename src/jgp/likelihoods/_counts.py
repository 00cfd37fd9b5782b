"""Likelihoods of counts, with the logarithm of their mean as the latent."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, PRNGKeyArray

from jgp._constraints import POSITIVE
from jgp._types import as_float
from jgp.likelihoods._log_gamma import log_gamma_ratio
from jgp.likelihoods._mixture import AbstractNumberLikelihood, observed_moments
from jgp.likelihoods._one_latent import real_targets


class AbstractCount(AbstractNumberLikelihood):
    """p(y | f) of integers y >= 0 with mean exp f."""

    @property
    def log_concave(self) -> bool:
        """It is."""
        return True

    def conditional_mean(self, f: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Exp f."""
        return jnp.exp(f)

    def targets(self, y: Any, num_latents: int) -> np.ndarray:
        """Integers >= 0, of any numeric dtype."""
        del num_latents

        def right(y):
            return (y >= 0) & (y == np.floor(y))

        return real_targets(y, "integers >= 0", right)


class Poisson(AbstractCount):
    """p(y | f) = μʸ exp(−μ)/y!, μ = exp f."""

    def log_density(self, f: Float[Array, "*n"], y: Array) -> Float[Array, "*n"]:
        """Log p(y | f), elementwise."""
        y = jnp.asarray(y).astype(f.dtype)
        # Far beyond any count the rate grows linearly, so that no integral over a wide
        # prior meets the infinities of exp; p(y | f) is zero there either way.
        last = 0.9 * float(np.log(jnp.finfo(f.dtype).max))
        beyond = jnp.maximum(f - last, 0)
        rate = jnp.exp(jnp.minimum(f, last)) * (1 + beyond)
        return y * f - rate - gammaln(y + 1)

    def features(
        self, y: Float[Array, " n"]
    ) -> tuple[Float[Array, "n 1"], Float[Array, "n 1"]]:
        """About log y, over distances of 1/√y."""
        y = as_float(y)[:, None]
        return jnp.log(jnp.maximum(y, 1)), 1 / jnp.sqrt(jnp.maximum(y, 1))

    def conditional_variance(self, f: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Exp f."""
        return jnp.exp(f)

    def sample(self, f: Float[Array, "*n"], *, key: PRNGKeyArray) -> Float[Array, "*n"]:
        """A count for each f."""
        return jax.random.poisson(key, jnp.exp(f)).astype(f.dtype)


class NegativeBinomial(AbstractCount):
    """Counts of mean μ = exp f and variance μ + αμ², α the dispersion.

    p(y | f) = Γ(y + r)/(Γ(r) y!) (r/(r + μ))ʳ (μ/(r + μ))ʸ with r = 1/α (NB2 of
    Cameron & Trivedi 2013); a Poisson rate that is gamma distributed about exp f.

    Args:
        dispersion: α > 0; the Poisson distribution as it goes to 0.
    """

    dispersion: Float[Array, ""] = eqx.field(converter=as_float, metadata=POSITIVE)

    def __check_init__(self):
        check_scalar(self.dispersion, "dispersion")

    def log_density(self, f: Float[Array, "*n"], y: Array) -> Float[Array, "*n"]:
        """Log p(y | f), elementwise."""
        y = jnp.asarray(y).astype(f.dtype)
        size = 1 / self.dispersion
        # Of Γ(y + r)/Γ(r) the factor rʸ goes with (μ/(r + μ))ʸ.
        ratio = log_gamma_ratio(jnp.broadcast_to(size, y.shape), y)
        odds = jax.nn.softplus(f + jnp.log(self.dispersion))
        return ratio - gammaln(y + 1) + y * f - (y + size) * odds

    def features(
        self, y: Float[Array, " n"]
    ) -> tuple[Float[Array, "n 2"], Float[Array, "n 2"]]:
        """About log y, over the width of p there; about −log α, over distances of 1."""
        y = as_float(y)[:, None]
        dispersion = self.dispersion.astype(y.dtype)
        at = jnp.log(jnp.maximum(y, 1))
        width = jnp.sqrt((1 + dispersion * y) / jnp.maximum(y, 1))
        knee = jnp.broadcast_to(-jnp.log(dispersion), y.shape)
        return (
            jnp.concatenate([at, knee], axis=1),
            jnp.concatenate([jnp.minimum(width, 1), jnp.ones_like(y)], axis=1),
        )

    def conditional_variance(self, f: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """μ + αμ²."""
        return jnp.exp(f) + self.dispersion * jnp.exp(2 * f)

    def sample(self, f: Float[Array, "*n"], *, key: PRNGKeyArray) -> Float[Array, "*n"]:
        """A count for each f: a Poisson count of a gamma distributed rate."""
        gamma_key, poisson_key = jax.random.split(key)
        size = jnp.broadcast_to(1 / self.dispersion, f.shape).astype(f.dtype)
        shares = jax.random.gamma(gamma_key, size, dtype=f.dtype) / size
        counts = jax.random.poisson(poisson_key, jnp.exp(f) * shares)
        return counts.astype(f.dtype)


@observed_moments.register
def _(likelihood: AbstractCount, mean, variance):
    """Moments of exp f, f ~ N(m, v), in closed form, and the law of total variance."""
    average = jnp.exp(mean + variance / 2)
    between = jnp.exp(2 * mean + variance) * jnp.expm1(variance)
    if isinstance(likelihood, NegativeBinomial):
        square = jnp.exp(2 * (mean + variance))
        return average, average + likelihood.dispersion * square + between
    return average, average + between


def check_scalar(value: Array, name: str) -> None:
    """Raise a `ValueError` unless a parameter is a scalar."""
    if value.shape != ():
        raise ValueError(f"{name}: got shape {value.shape}, wanted a scalar.")
