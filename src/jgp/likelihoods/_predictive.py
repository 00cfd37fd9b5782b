"""Predictive distributions of observations."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jgp._normal import ndtr, normal_density
from jgp._parameters import is_concrete


class Categorical(eqx.Module):
    """A distribution over classes at each input.

    Args:
        probs: Class probabilities; each row sums to 1.
    """

    probs: Float[Array, "n C"]

    def log_prob(self, y: Int[Array, " n"]) -> Float[Array, " n"]:
        """The log probability of a label at each input.

        Raises:
            ValueError: for another number of labels, or labels outside 0 to C − 1.
        """
        y = jnp.asarray(y)
        n, num_classes = self.probs.shape
        if y.shape != (n,) or not jnp.issubdtype(y.dtype, jnp.integer):
            raise ValueError(
                f"y: got shape {y.shape} of {y.dtype}, wanted ({n},) integers."
            )
        if is_concrete(y) and np.any((np.asarray(y) < 0) | (y >= num_classes)):
            raise ValueError(
                f"y: got labels {np.unique(y)}, wanted 0 to {num_classes - 1}."
            )
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

    @property
    def stddev(self) -> Float[Array, "n *C"]:
        """Standard deviations."""
        return jnp.sqrt(self.variance)

    def cdf(self, y: Float[Array, "n *C"]) -> Float[Array, "n *C"]:
        """P(Y <= y) of each output; of observations, their PIT values."""
        return ndtr(self.standardised(y))

    def quantile(self, level: float | Float[Array, ""]) -> Float[Array, "n *C"]:
        """The value that each output stays below with a probability in (0, 1)."""
        check_level(level)
        return self.mean + self.stddev * ndtri(jnp.asarray(level, self.mean.dtype))

    def interval(
        self, level: float = 0.95
    ) -> tuple[Float[Array, "n *C"], Float[Array, "n *C"]]:
        """The ends of the central interval of a probability in (0, 1)."""
        check_level(level)
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def standardised(self, y: Float[Array, "n *C"]) -> Float[Array, "n *C"]:
        """(y − mean)/stddev; without variance 0 on the mean and ±inf off it."""
        y = self._checked(y)
        error = y - self.mean
        certain = self.variance == 0
        ratio = error / self._safe_stddev
        return jnp.where(certain & (error != 0), jnp.sign(error) * jnp.inf, ratio)

    def crps(self, y: Float[Array, "n *C"]) -> Float[Array, "n *C"]:
        """The continuous ranked probability score of each output; less is better.

        σ[z(2Φ(z) − 1) + 2φ(z) − 1/√π], in units of y (Gneiting & Raftery 2007, eq. 21);
        the absolute error where there is no variance.
        """
        sigma, error = self._safe_stddev, self._checked(y) - self.mean
        z = error / sigma
        spread = 2 * normal_density(z) - 1 / math.sqrt(math.pi)
        score = error * (2 * ndtr(z) - 1) + sigma * spread
        return jnp.where(self.variance == 0, jnp.abs(error), score)

    @property
    def _safe_stddev(self) -> Float[Array, "n *C"]:
        # The root of 0 has no derivative, also where its value is not used.
        return jnp.sqrt(jnp.where(self.variance == 0, 1, self.variance))

    def _checked(self, y: Any) -> Float[Array, "n *C"]:
        """Observations, of which a wrong shape would broadcast to nonsense."""
        y = jnp.asarray(y, self.mean.dtype)
        if self.mean.shape not in (y.shape, ()) and y.shape != ():
            raise ValueError(f"y: got shape {y.shape}, wanted {self.mean.shape}.")
        return y

    def sample(self, *, key: PRNGKeyArray, num: int) -> Float[Array, "num n *C"]:
        """Independent draws of each output."""
        check_number(num)
        normals = jax.random.normal(key, (num, *self.mean.shape), self.mean.dtype)
        return self.mean[None] + self.stddev[None] * normals

    def log_prob(self, y: Float[Array, "n *C"]) -> Float[Array, " n"]:
        """The log density of the observation at each input, summed over outputs."""
        # Without variance the density is a point mass: +inf on it and −inf off it.
        certain = self.variance == 0
        variance = jnp.where(certain, 1, self.variance)
        error = self._checked(y) - self.mean
        log_density = -(error**2 / variance + jnp.log(2 * jnp.pi * variance)) / 2
        mass = jnp.where(error == 0, jnp.inf, -jnp.inf)
        log_density = jnp.where(certain, mass, log_density)
        return jnp.sum(log_density, axis=tuple(range(1, log_density.ndim)))


def check_number(num: Any) -> None:
    """Raise a `ValueError` unless a number of draws is an integer >= 0."""
    if not isinstance(num, int | np.integer) or isinstance(num, bool) or num < 0:
        raise ValueError(f"num: got {num!r}, wanted an integer >= 0.")


def check_level(level: Any) -> None:
    """Raise a `ValueError` unless a probability, where it can be read, is in (0, 1)."""
    number = isinstance(level, int | float | np.number | np.ndarray | jax.Array)
    right = number and np.ndim(level) == 0
    if right and is_concrete(level):
        right = 0 < float(level) < 1
    if not right:
        raise ValueError(f"level: got {level}, wanted a probability in (0, 1).")
