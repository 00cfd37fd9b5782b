r"""Gaussian noise whose scale is a second latent function.

Given f₂ everything about f₁ and y is Gaussian: for latents N(m, V) with β = V₁₂/V₂₂,

    E[p(y | f)] = ∫ N(f₂; m₂, V₂₂) N(y; m₁ + β(f₂ − m₂), V₁₁ − βV₁₂ + exp(2f₂)) df₂,

one integral, taken over panels about the mean of f₂ and about the scale of noise that
would explain y (Goldberg, Williams & Bishop 1998 for the model).
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jgp._normal import LOG_SQRT_2PI
from jgp.likelihoods._base import AbstractLikelihood, check_method
from jgp.likelihoods._mixture import in_chunks
from jgp.likelihoods._one_latent import log_gaussian_panels, real_targets
from jgp.likelihoods._predictive import Normal, check_number


class NoisePredictive(eqx.Module):
    """The distribution of y = f₁ + exp(f₂)ε under a mixture of Gaussians over f.

    Args:
        latent_mean: Means of the S components at each input, of equal weight.
        latent_covariance: Their covariances; zero where the latents are known.
    """

    latent_mean: Float[Array, "n S 2"]
    latent_covariance: Float[Array, "n S 2 2"]

    @property
    def mean(self) -> Float[Array, " n"]:
        """The mean of y at each input."""
        return jnp.mean(self.latent_mean[..., 0], axis=1)

    @property
    def variance(self) -> Float[Array, " n"]:
        """The variance of y, with E[exp(2f₂)] = exp(2m₂ + 2S₂₂)."""
        mean, S = self.latent_mean, self.latent_covariance
        noise = jnp.exp(2 * (mean[..., 1] + S[..., 1, 1]))
        between = (mean[..., 0] - self.mean[:, None]) ** 2
        return jnp.mean(S[..., 0, 0] + noise + between, axis=1)

    @property
    def stddev(self) -> Float[Array, " n"]:
        """The standard deviation of y at each input."""
        return jnp.sqrt(self.variance)

    def log_prob(self, y: Float[Array, " n"]) -> Float[Array, " n"]:
        """The log density of an observation at each input.

        Raises:
            ValueError: for another number of observations than inputs.
        """
        shape = self.latent_mean.shape[:2]
        if np.shape(y) != shape[:1]:
            raise ValueError(f"y: got shape {np.shape(y)}, wanted ({shape[0]},).")
        return _log_prob(self, jnp.asarray(y).astype(self.latent_mean.dtype))

    def sample(self, *, key: PRNGKeyArray, num: int) -> Float[Array, "num n"]:
        """Draws, independent between inputs."""
        check_number(num)
        return _sample(self, key, num)


class LatentNoiseGaussian(AbstractLikelihood):
    """y = f₁ + exp(f₂)ε, ε standard normal: f₂ is the log standard deviation.

    Two latents a point, not log-concave. The prior mean of the second latent is where
    the noise is by default, as in
    `jgp.independent([k, k], mean=[means.Zero(), means.Constant(-2.0)])`.
    """

    @property
    def num_latents(  # pyright: ignore[reportIncompatibleVariableOverride]
        self,
    ) -> int | None:
        """Two."""
        return 2

    def log_prob(self, f: Float[Array, " 2"], y: Array) -> Float[Array, ""]:
        """Log p(y | f) at one point."""
        z = (jnp.asarray(y).astype(f.dtype) - f[0]) * jnp.exp(-f[1])
        return -(z**2) / 2 - f[1] - LOG_SQRT_2PI

    def observe(self, f: Float[Array, "n 2"]) -> Normal:
        """N(f₁, exp(2f₂)) at each input."""
        return Normal(f[:, 0], jnp.exp(2 * f[:, 1]))

    def predict(
        self,
        mean: Float[Array, "n 2"],
        covariance: Float[Array, "n 2 2"],
        *,
        method: str | None = None,
        key: PRNGKeyArray | None = None,
    ) -> NoisePredictive:
        """The distribution of y at inputs whose latents are N(mean, covariance)."""
        del key
        check_method(method, ("panels",))
        return NoisePredictive(mean[:, None], covariance[:, None])

    def check_shape(self, shape: tuple[int, ...], num_latents: int) -> None:
        """(n,)."""
        del num_latents
        if len(shape) != 1:
            raise ValueError(f"y: got shape {shape}, wanted (n,).")

    def targets(self, y: Any, num_latents: int) -> np.ndarray:
        """Finite numbers."""
        del num_latents
        return real_targets(y, "finite numbers")


def log_normaliser(
    mean: Float[Array, " 2"], covariance: Float[Array, "2 2"], y: Array
) -> Float[Array, ""]:
    """Log E[p(y | f)] at one point, f ~ N(mean, covariance)."""
    return jax.nn.logsumexp(_tilted(mean, covariance, y)[0])


def tilted_points(
    mean: Float[Array, " 2"], covariance: Float[Array, "2 2"], y: Array
) -> tuple[Float[Array, "2 q"], Float[Array, " q"]]:
    """Points and weights with the moments of p(y | f)N(f) up to the fifth order.

    Given f₂ the tilted f₁ is Gaussian, for which three points are enough.
    """
    log_weights, nodes, centre, variance = _tilted(mean, covariance, y)
    root = jnp.sqrt(3 * variance)
    first = jnp.concatenate([centre, centre - root, centre + root])
    p = jax.nn.softmax(log_weights)
    weights = jnp.concatenate([2 * p / 3, p / 6, p / 6])
    return jnp.stack([first, jnp.tile(nodes, 3)]), weights


def _tilted(mean: Array, covariance: Array, y: Array) -> tuple[Array, ...]:
    """Log weights of nodes in f₂, and mean and variance of f₁ given y and each."""
    V, eps = covariance, jnp.finfo(mean.dtype).eps
    # A scale of noise known to rounding is known.
    variance = jnp.maximum(V[1, 1], eps * (1 + mean[1] ** 2))
    beta = V[0, 1] / variance
    rest = jnp.maximum(V[0, 0] - beta * V[0, 1], 0)
    error = jnp.asarray(y).astype(mean.dtype) - mean[0]
    place = jnp.log(error**2 + rest + eps) / 2
    features = place[None, None], jnp.ones_like(place)[None, None]
    nodes, log_weights = log_gaussian_panels(mean[1:], variance[None], features)
    nodes, log_weights = nodes[0], log_weights[0]
    shift = beta * (nodes - mean[1])
    # Variances by their logarithms: exp(2f₂) overflows under a broad prior.
    log_rest = jnp.log(jnp.maximum(rest, jnp.finfo(mean.dtype).tiny))
    log_total = jnp.logaddexp(log_rest, 2 * nodes)
    square = (error - shift) ** 2 * jnp.exp(-log_total)
    gain = jnp.exp(log_rest - log_total)
    log_weights = log_weights - (square + log_total) / 2 - LOG_SQRT_2PI
    centre = mean[0] + shift + gain * (error - shift)
    return log_weights, nodes, centre, rest * (1 - gain)


@eqx.filter_jit
def _log_prob(predictive: NoisePredictive, y: Float[Array, " n"]) -> Array:
    shape = predictive.latent_mean.shape[:2]
    each = in_chunks(
        jax.vmap(log_normaliser),
        predictive.latent_mean.reshape(-1, 2),
        predictive.latent_covariance.reshape(-1, 2, 2),
        jnp.repeat(y, shape[1]),
    ).reshape(shape)
    return jax.nn.logsumexp(each, axis=1) - math.log(shape[1])


@eqx.filter_jit
def _sample(predictive: NoisePredictive, key: PRNGKeyArray, num: int) -> Array:
    component_key, latent_key, observation_key = jax.random.split(key, 3)
    mean, S = predictive.latent_mean, predictive.latent_covariance
    n, num_components, _ = mean.shape
    chosen = jax.random.randint(component_key, (num, n), 0, num_components)
    rows = jnp.arange(n)[None]
    mean, S = mean[rows, chosen], S[rows, chosen]
    z = jax.random.normal(latent_key, (num, n, 2), mean.dtype)
    # The second latent first, then the other given it.
    stddev = jnp.sqrt(S[..., 1, 1])
    slope = S[..., 0, 1] / jnp.where(stddev > 0, stddev, 1)
    rest = jnp.sqrt(jnp.maximum(S[..., 0, 0] - slope**2, 0))
    scale = jnp.exp(mean[..., 1] + stddev * z[..., 1])
    epsilon = jax.random.normal(observation_key, (num, n), mean.dtype)
    return mean[..., 0] + slope * z[..., 1] + rest * z[..., 0] + scale * epsilon
