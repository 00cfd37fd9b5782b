"""Predictive distributions of observations."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Categorical(eqx.Module):
    """A distribution over classes at each input.

    Args:
        probs: Class probabilities; each row sums to 1.
    """

    probs: Float[Array, "n C"]

    def log_prob(self, y: Int[Array, " n"]) -> Float[Array, " n"]:
        """The log probability of a label at each input."""
        return jnp.log(jnp.take_along_axis(self.probs, y[:, None], axis=1)[:, 0])

    @property
    def mode(self) -> Int[Array, " n"]:
        """The most probable class at each input."""
        return jnp.argmax(self.probs, axis=1)


class Normal(eqx.Module):
    """A normal distribution at each input (and output), independent of the others.

    Args:
        mean: Means.
        variance: Variances, observation noise included.
    """

    mean: Float[Array, "n *C"]
    variance: Float[Array, "n *C"]

    def log_prob(self, y: Float[Array, "n *C"]) -> Float[Array, " n"]:
        """The log density of the observation at each input, summed over outputs."""
        # Without variance the density is a point mass: +inf on it and −inf off it.
        certain = self.variance == 0
        variance = jnp.where(certain, 1, self.variance)
        error = y - self.mean
        log_density = -(error**2 / variance + jnp.log(2 * jnp.pi * variance)) / 2
        mass = jnp.where(error == 0, jnp.inf, -jnp.inf)
        log_density = jnp.where(certain, mass, log_density)
        return log_density if log_density.ndim == 1 else jnp.sum(log_density, axis=1)
