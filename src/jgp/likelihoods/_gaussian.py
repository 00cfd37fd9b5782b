"""Gaussian observation noise."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jgp._constraints import NON_NEGATIVE
from jgp._types import as_float
from jgp.likelihoods._base import AbstractLikelihood, check_method
from jgp.likelihoods._predictive import Normal


class Gaussian(AbstractLikelihood):
    """y = f + ε, ε ~ N(0, noise_variance), one output for each latent.

    Args:
        noise_variance: σ², a variance and not a standard deviation; zero is exact
            interpolation.
    """

    noise_variance: Float[Array, ""] = eqx.field(
        default=1.0, converter=as_float, metadata=NON_NEGATIVE
    )
    num_latents: int | None = eqx.field(default=None, init=False, static=True)

    def __check_init__(self):
        if self.noise_variance.ndim != 0:
            raise ValueError(
                f"noise_variance: got shape {self.noise_variance.shape}, wanted a "
                "scalar."
            )

    def log_prob(self, f: Float[Array, " C"], y: Array) -> Float[Array, ""]:
        """Log N(y; f, σ²I) at one point."""
        variance = self.noise_variance
        square = (jnp.reshape(y, f.shape) - f) ** 2 / variance
        return -jnp.sum(square + jnp.log(2 * jnp.pi * variance)) / 2

    def observe(self, f: Float[Array, "n C"]) -> Normal:
        """N(f, σ²)."""
        f = f[:, 0] if f.shape[1] == 1 else f
        return Normal(f, jnp.broadcast_to(self.noise_variance, f.shape))

    def predict(
        self,
        mean: Float[Array, "n C"],
        covariance: Float[Array, "n C C"],
        *,
        method: str | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Normal:
        """N(mean, variance + σ²), in closed form."""
        del key
        check_method(method, ("closed_form",))
        variance = jnp.diagonal(covariance, axis1=1, axis2=2) + self.noise_variance
        if mean.shape[1] == 1:
            return Normal(mean[:, 0], variance[:, 0])
        return Normal(mean, variance)

    def check_shape(self, shape: tuple[int, ...], num_latents: int) -> None:
        """(n,) for one latent and (n, C) for several."""
        wanted = "(n,)" if num_latents == 1 else f"(n, {num_latents})"
        right = len(shape) == 1 if num_latents == 1 else shape[1:] == (num_latents,)
        if not right:
            raise ValueError(f"y: got shape {shape}, wanted {wanted}.")

    def targets(self, y: Any, num_latents: int) -> np.ndarray:
        """Finite numbers, (n,) for one latent and (n, C) for several."""
        y = np.asarray(y)
        self.check_shape(y.shape, num_latents)
        if not np.issubdtype(y.dtype, np.number) and y.dtype != bool:
            raise ValueError(f"y: got dtype {y.dtype}, wanted numbers.")
        if not np.all(np.isfinite(y)):
            raise ValueError(
                f"y: got {np.sum(~np.isfinite(y))} values that are NaN or infinite, "
                "wanted finite numbers."
            )
        return y
