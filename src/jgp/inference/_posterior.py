"""The posterior over latent functions: again a process."""

import abc
from typing import NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from jgp._linalg import semidefinite_root
from jgp._process import AbstractProcess, class_diagonal
from jgp.inference._data import check_inputs
from jgp.inference._factor import AbstractFactor, CholeskyFactor
from jgp.likelihoods import AbstractLikelihood, Categorical, Normal

# Cross-covariances held at once while predicting: 2²⁴ numbers, 128 MB in float64.
CHUNK_SIZE = 2**24


class Marginals(NamedTuple):
    """Latent moments at each input: (n,) for one latent, (n, C) for several.

    `covariance` is (n, C, C), between the latents of an input, with C = 1 for one.
    """

    mean: Float[Array, "n *C"]
    variance: Float[Array, "n *C"]
    covariance: Float[Array, "n C C"]


class Joint(NamedTuple):
    """Latent moments over all inputs: (n,), (n, n) for one latent, else with C.

    Several latents: mean (n, C) and covariance (n, C, n, C).
    """

    mean: Float[Array, "n *C"]
    covariance: Float[Array, "n *rest"]


class AbstractPosterior(eqx.Module):
    """A posterior over the latent functions, at any inputs."""

    @abc.abstractmethod
    def marginals(self, x_new: ArrayLike) -> Marginals:
        """Mean and variance at each input."""

    @abc.abstractmethod
    def joint(self, x_new: ArrayLike) -> Joint:
        """Mean and covariance over all inputs together."""

    @abc.abstractmethod
    def sample(
        self, x_new: ArrayLike, *, key: PRNGKeyArray, num: int
    ) -> Float[Array, "num n *C"]:
        """Joint draws of the latent functions at the inputs."""

    @abc.abstractmethod
    def predict(
        self,
        likelihood: AbstractLikelihood,
        x_new: ArrayLike,
        *,
        key: PRNGKeyArray | None = None,
        method: str | None = None,
        noise_variance: ArrayLike | None = None,
    ) -> Categorical | Normal:
        """The distribution of observations at each input."""


class AbstractGaussianPosterior(AbstractPosterior):
    """A Gaussian process again, from its moments at one point and over several."""

    process: eqx.AbstractVar[AbstractProcess]
    x: eqx.AbstractVar[Float[Array, "n d"]]

    @abc.abstractmethod
    def moments_at(self, point: Float[Array, " d"]) -> tuple[Array, Array]:
        """Mean (C,) and covariance (C, C) of the latents at a point."""

    @abc.abstractmethod
    def moments_over(self, x_new: Float[Array, "m d"]) -> tuple[Array, Array]:
        """Mean (m, C) and covariance (m, C, m, C) of the latents at points."""

    def marginals(self, x_new: ArrayLike) -> Marginals:
        """Mean and variance at each input, in chunks of bounded memory.

        Args:
            x_new: (m, d), or (m,) for d = 1; m = 0 works.

        Raises:
            ValueError: for inputs of the wrong dimension, or not finite.
        """
        mean, covariance = _marginals(self, check_inputs(x_new, self.x, self.process))
        variance = jnp.diagonal(covariance, axis1=1, axis2=2)
        return Marginals(_squeeze(mean), _squeeze(variance), covariance)

    def joint(self, x_new: ArrayLike) -> Joint:
        """Mean and covariance over all inputs together; O((mC)²) memory.

        Args:
            x_new: (m, d), or (m,) for d = 1.
        """
        mean, covariance = _joint(self, check_inputs(x_new, self.x, self.process))
        if mean.shape[1] == 1:
            return Joint(mean[:, 0], covariance[:, 0, :, 0])
        return Joint(mean, covariance)

    def sample(
        self, x_new: ArrayLike, *, key: PRNGKeyArray, num: int
    ) -> Float[Array, "num n *C"]:
        """Joint draws of the latent functions at the inputs.

        Args:
            x_new: (m, d), or (m,) for d = 1.
            key: A PRNG key.
            num: Number of draws.
        """
        draws = _sample(self, check_inputs(x_new, self.x, self.process), key, num)
        return _squeeze(draws)

    def predict(
        self,
        likelihood: AbstractLikelihood,
        x_new: ArrayLike,
        *,
        key: PRNGKeyArray | None = None,
        method: str | None = None,
        noise_variance: ArrayLike | None = None,
    ) -> Categorical | Normal:
        """The distribution of observations at each input."""
        points = check_inputs(x_new, self.x, self.process)
        there = likelihood.at(points, noise_variance)
        return _predict(self, there, points, key, method)


class GaussianPosterior(AbstractGaussianPosterior):
    """A Gaussian process of independent latents, conditioned on sites or data.

    Its mean is m₀(x*) + k*ᵀb and its covariance k** − k*ᵀMk*, and with a trend what
    its unknown coefficients add.

    Args:
        process: The prior.
        x: Training inputs.
        weights: b.
        factor: M; (K + T⁻)⁻ for sites, (K + N)⁻¹ for exact regression.
        coefficients: β̂ of the trend, or None.
    """

    process: AbstractProcess
    x: Float[Array, "n d"]
    weights: Float[Array, "n C"]
    factor: AbstractFactor
    coefficients: Float[Array, "p C"] | None = None

    def moments_at(self, point: Float[Array, " d"]) -> tuple[Array, Array]:
        """Mean (C,) and covariance (C, C) of the latents at a point."""
        at = point[None]
        k, mean = self._cross(at)
        num_latents = self.process.num_latents
        prior = jnp.broadcast_to(self.process.variance(at)[:, 0], (num_latents,))
        covariance = jnp.diag(prior) - self.factor.marginal_reduction(k)[0]
        if self.coefficients is not None:
            root = cast(CholeskyFactor, self.factor).trend_root(k, at)
            covariance = covariance + jnp.diag(jnp.sum(root**2, axis=1)[:, 0])
        return mean[0], covariance

    def moments_over(self, x_new: Float[Array, "m d"]) -> tuple[Array, Array]:
        """Mean (m, C) and covariance (m, C, m, C) of the latents at points."""
        k, mean = self._cross(x_new)
        prior = self.process.joint_covariance(x_new)
        covariance = prior - self.factor.joint_reduction(k)
        if self.coefficients is not None:
            root = cast(CholeskyFactor, self.factor).trend_root(k, x_new)
            own = class_diagonal(root.mT @ root)
            covariance = covariance + own
        return mean, covariance

    def _cross(self, x_new: Float[Array, "m d"]) -> tuple[Array, Array]:
        """k* for each latent, and the mean."""
        process, num_latents = self.process, self.process.num_latents
        k = process.covariance(self.x, x_new)
        k = jnp.broadcast_to(k, (num_latents, *k.shape[1:]))
        mean = process.mean(x_new) + jnp.einsum("cim,ic->mc", k, self.weights)
        if self.coefficients is not None:
            trend = cast(CholeskyFactor, self.factor).trend
            assert trend is not None
            mean = mean + trend.at(x_new) @ self.coefficients
        return k, mean


class CoupledPosterior(AbstractGaussianPosterior):
    """Latents conditioned together, where the prior or the noise couples them.

    Args:
        process: The prior.
        x: Training inputs.
        weights: b, so that the mean is m₀(x*) + Σ k(x*, xᵢ)bᵢ, k a (C, C) block.
        factor: The factor of the (nC, nC) covariance of the observations.
    """

    process: AbstractProcess
    x: Float[Array, "n d"]
    weights: Float[Array, "n C"]
    factor: CholeskyFactor

    def moments_at(self, point: Float[Array, " d"]) -> tuple[Array, Array]:
        """Mean (C,) and covariance (C, C) of the latents at a point."""
        mean, covariance = self.moments_over(point[None])
        return mean[0], covariance[0, :, 0, :]

    def moments_over(self, x_new: Float[Array, "m d"]) -> tuple[Array, Array]:
        """Mean (m, C) and covariance (m, C, m, C) of the latents at points."""
        k = self.process.joint_covariance(self.x, x_new)
        mean = self.process.mean(x_new) + jnp.einsum("icmd,ic->md", k, self.weights)
        white = self.factor.whiten(k.reshape(1, self.weights.size, mean.size))[0]
        prior = self.process.joint_covariance(x_new)
        return mean, prior - (white.T @ white).reshape(prior.shape)


def _squeeze(values: Float[Array, "*n C"]) -> Float[Array, "*shape"]:
    """Without the class axis where there is but one latent."""
    return values[..., 0] if values.shape[-1] == 1 else values


@eqx.filter_jit
def _marginals(posterior: AbstractGaussianPosterior, x_new: Float[Array, "m d"]):
    def one(point):
        mean, covariance = posterior.moments_at(point)
        return mean, _with_valid_variance(covariance)

    held = posterior.process.num_latents * posterior.x.shape[0]
    if isinstance(posterior, CoupledPosterior):
        held = held * posterior.process.num_latents
    return lax.map(one, x_new, batch_size=max(1, CHUNK_SIZE // max(1, held)))


def _with_valid_variance(covariance: Float[Array, "C C"]) -> Float[Array, "C C"]:
    """Symmetric, and with rounding errors below zero put to zero on the diagonal."""
    covariance = (covariance + covariance.T) / 2
    variance = jnp.diagonal(covariance)
    return covariance + jnp.diag(jnp.maximum(variance, 0) - variance)


@eqx.filter_jit
def _joint(posterior: AbstractGaussianPosterior, x_new: Float[Array, "m d"]):
    mean, covariance = posterior.moments_over(x_new)
    matrix = _with_valid_variance(covariance.reshape(mean.size, mean.size))
    return mean, matrix.reshape(covariance.shape)


@eqx.filter_jit
def _sample(
    posterior: AbstractGaussianPosterior, x_new: Array, key: PRNGKeyArray, num: int
):
    mean, covariance = _joint(posterior, x_new)
    size = mean.size
    root = semidefinite_root(covariance.reshape(size, size))
    normals = jax.random.normal(key, (num, size), mean.dtype)
    return mean[None] + (normals @ root.T).reshape(num, *mean.shape)


@eqx.filter_jit
def _predict(posterior: AbstractGaussianPosterior, likelihood, x_new, key, method):
    mean, covariance = _marginals(posterior, x_new)
    return likelihood.predict(mean, covariance, method=method, key=key)
