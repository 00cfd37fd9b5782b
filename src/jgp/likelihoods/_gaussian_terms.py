"""Gaussian noise as a term of EP, in closed form."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp.likelihoods._gaussian import AbstractGaussian
from jgp.likelihoods._one_latent import Tilted, tilted_moments


@tilted_moments.register
def _(
    likelihood: AbstractGaussian,
    mean: Float[Array, " n"],
    variance: Float[Array, " n"],
    y: Array,
    power: Float[Array, " n"] | None = None,
) -> Tilted:
    """N(y; f, σ²)^η is √(2πσ²/η) (2πσ²)^{−η/2} N(y; f, σ²/η)."""
    noise = likelihood.variances((mean.shape[0], 1))[:, 0]
    eta = jnp.ones_like(mean) if power is None else power
    widened = noise / eta
    total = variance + widened
    error = y - mean
    log_normaliser = -(error**2 / total + jnp.log(2 * jnp.pi * total)) / 2
    constant = jnp.log(2 * jnp.pi * widened) - eta * jnp.log(2 * jnp.pi * noise)
    return Tilted(
        log_normaliser + constant / 2, error / total, 1 / total, widened / total
    )
