"""The beta likelihood of proportions."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, PRNGKeyArray

from jgp._constraints import POSITIVE
from jgp._types import as_float
from jgp.likelihoods._counts import check_scalar
from jgp.likelihoods._mixture import AbstractNumberLikelihood
from jgp.likelihoods._one_latent import real_targets


class Beta(AbstractNumberLikelihood):
    """Proportions y in (0, 1) of mean μ = 1/(1 + exp(−f)).

    Their variance is μ(1 − μ)/(1 + φ): the beta distribution of shapes μφ and (1 − μ)φ
    (Ferrari & Cribari-Neto 2004). Not log-concave: as f goes to −∞, log p − f
    goes like exp f times a constant, positive for y near 1.

    Args:
        precision: φ > 0.
    """

    precision: Float[Array, ""] = eqx.field(converter=as_float, metadata=POSITIVE)

    def __check_init__(self):
        check_scalar(self.precision, "precision")

    @property
    def log_concave(self) -> bool:
        """It is not."""
        return False

    def log_density(self, f: Float[Array, "*n"], y: Array) -> Float[Array, "*n"]:
        """Log p(y | f), elementwise."""
        y = jnp.asarray(y).astype(f.dtype)
        logarithm = jnp.log(self.precision)
        # Γ(a) = Γ(1 + a)/a, as the logarithm of a is finite where a is not above 0.
        log_a = logarithm - jax.nn.softplus(-f)
        log_b = logarithm - jax.nn.softplus(f)
        a, b = jnp.exp(log_a), jnp.exp(log_b)
        gammas = gammaln(self.precision) - gammaln(1 + a) - gammaln(1 + b)
        powers = (a - 1) * jnp.log(y) + (b - 1) * jnp.log1p(-y)
        return gammas + log_a + log_b + powers

    def features(
        self, y: Float[Array, " n"]
    ) -> tuple[Float[Array, "n 2"], Float[Array, "n 2"]]:
        """About logit y, over the width of p there; about 0, over distances of 1."""
        y = as_float(y)[:, None]
        at = jnp.log(y) - jnp.log1p(-y)
        width = 1 / jnp.sqrt(1 + self.precision.astype(y.dtype) * y * (1 - y))
        return (
            jnp.concatenate([at, jnp.zeros_like(y)], axis=1),
            jnp.concatenate([width, jnp.ones_like(y)], axis=1),
        )

    def conditional_mean(self, f: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """μ."""
        return jax.nn.sigmoid(f)

    def conditional_variance(self, f: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """μ(1 − μ)/(1 + φ)."""
        return jax.nn.sigmoid(f) * jax.nn.sigmoid(-f) / (1 + self.precision)

    def sample(self, f: Float[Array, "*n"], *, key: PRNGKeyArray) -> Float[Array, "*n"]:
        """A proportion for each f."""
        a = (self.precision * jax.nn.sigmoid(f)).astype(f.dtype)
        b = (self.precision * jax.nn.sigmoid(-f)).astype(f.dtype)
        return jax.random.beta(key, a, b, dtype=f.dtype)

    def targets(self, y: Any, num_latents: int) -> np.ndarray:
        """Numbers above 0 and below 1."""
        del num_latents
        return real_targets(y, "numbers in (0, 1)", lambda y: (y > 0) & (y < 1))
