"""The posterior over latent functions: again a process."""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from jgp._linalg import semidefinite_root
from jgp._process import AbstractProcess
from jgp.inference._data import check_inputs
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


class AbstractFactor(eqx.Module):
    """The matrix M that prediction takes off the prior: k** − k*ᵀ M k*."""

    @abc.abstractmethod
    def times(self, v: Float[Array, "n C"]) -> Float[Array, "n C"]:
        """M v."""

    @abc.abstractmethod
    def marginal_reduction(self, k: Float[Array, "C n m"]) -> Float[Array, "m C C"]:
        """kᵀMk for each of m points."""

    @abc.abstractmethod
    def joint_reduction(self, k: Float[Array, "C n m"]) -> Float[Array, "m C m C"]:
        """kᵀMk between all pairs of m points."""


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
    ) -> Categorical | Normal:
        """The distribution of observations at each input."""


class GaussianPosterior(AbstractPosterior):
    """A Gaussian process conditioned on Gaussian sites or observations.

    Its mean is m₀(x*) + k*ᵀb and its covariance k** − k*ᵀMk*.

    Args:
        process: The prior.
        x: Training inputs.
        weights: b.
        factor: M; (K + T⁻)⁻ for sites, (K + N)⁻¹ for exact regression.
    """

    process: AbstractProcess
    x: Float[Array, "n d"]
    weights: Float[Array, "n C"]
    factor: AbstractFactor

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
    ) -> Categorical | Normal:
        """The distribution of observations at each input."""
        return _predict(
            self, likelihood, check_inputs(x_new, self.x, self.process), key, method
        )


def _squeeze(values: Float[Array, "*n C"]) -> Float[Array, "*shape"]:
    """Without the class axis where there is but one latent."""
    return values[..., 0] if values.shape[-1] == 1 else values


@eqx.filter_jit
def _marginals(posterior: GaussianPosterior, x_new: Float[Array, "m d"]):
    process, x = posterior.process, posterior.x
    num_latents = process.num_latents

    def one(point):
        k = process.covariance(x, point[None])
        k = jnp.broadcast_to(k, (num_latents, x.shape[0], 1))
        mean = process.mean(point[None])[0]
        mean = mean + jnp.einsum("ci,ic->c", k[:, :, 0], posterior.weights)
        prior = jnp.broadcast_to(process.variance(point[None])[:, 0], (num_latents,))
        covariance = jnp.diag(prior) - posterior.factor.marginal_reduction(k)[0]
        return mean, _with_valid_variance(covariance)

    chunk = max(1, CHUNK_SIZE // max(1, num_latents * x.shape[0]))
    return lax.map(one, x_new, batch_size=chunk)


def _with_valid_variance(covariance: Float[Array, "C C"]) -> Float[Array, "C C"]:
    """Symmetric, and with rounding errors below zero put to zero on the diagonal."""
    covariance = (covariance + covariance.T) / 2
    variance = jnp.diagonal(covariance)
    return covariance + jnp.diag(jnp.maximum(variance, 0) - variance)


@eqx.filter_jit
def _joint(posterior: GaussianPosterior, x_new: Float[Array, "m d"]):
    process, x = posterior.process, posterior.x
    num_latents = process.num_latents
    k = process.covariance(x, x_new)
    k = jnp.broadcast_to(k, (num_latents, *k.shape[1:]))
    prior = process.covariance(x_new)
    prior = jnp.broadcast_to(prior, (num_latents, *prior.shape[1:]))
    mean = process.mean(x_new) + jnp.einsum("cim,ic->mc", k, posterior.weights)
    identity = jnp.eye(num_latents, dtype=k.dtype)
    covariance = jnp.einsum("cml,cd->mcld", prior, identity)
    covariance = covariance - posterior.factor.joint_reduction(k)
    matrix = _with_valid_variance(covariance.reshape(mean.size, mean.size))
    return mean, matrix.reshape(covariance.shape)


@eqx.filter_jit
def _sample(posterior: GaussianPosterior, x_new: Array, key: PRNGKeyArray, num: int):
    mean, covariance = _joint(posterior, x_new)
    size = mean.size
    root = semidefinite_root(covariance.reshape(size, size))
    normals = jax.random.normal(key, (num, size), mean.dtype)
    return mean[None] + (normals @ root.T).reshape(num, *mean.shape)


@eqx.filter_jit
def _predict(posterior: GaussianPosterior, likelihood, x_new, key, method):
    mean, covariance = _marginals(posterior, x_new)
    return likelihood.predict(mean, covariance, method=method, key=key)
