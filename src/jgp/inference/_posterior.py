"""The posterior over latent functions: again a process."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from jgp._linalg import semidefinite_root
from jgp._parameters import cast
from jgp._process import AbstractProcess
from jgp.inference._data import check_inputs
from jgp.likelihoods import (
    AbstractLikelihood,
    Categorical,
    NoisePredictive,
    Normal,
    Predictive,
)
from jgp.likelihoods._predictive import check_number

# Cross-covariances held at once while predicting: 2²² numbers, 32 MB in float64.
CHUNK_SIZE = 2**22


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
    ) -> Categorical | Normal | NoisePredictive | Predictive:
        """The distribution of observations at each input."""


class AbstractGaussianPosterior(AbstractPosterior):
    """A Gaussian process again, from its moments at one point and over several."""

    process: eqx.AbstractVar[AbstractProcess]
    x: eqx.AbstractVar[Float[Array, "n d"]]

    @property
    def held(self) -> int:
        """The numbers that a new point holds in memory while it is predicted."""
        return self.process.num_latents * self.x.shape[0]

    @abc.abstractmethod
    def moments_at(self, point: Float[Array, " d"]) -> tuple[Array, Array]:
        """Mean (C,) and covariance (C, C) of the latents at a point."""

    @abc.abstractmethod
    def moments_over(self, x_new: Float[Array, "m d"]) -> tuple[Array, Array]:
        """Mean (m, C) and covariance (m, C, m, C) of the latents at points."""

    def component(self, which: int | Sequence[int]) -> Self:
        """The posterior of some terms of an additive process, without the mean.

        Args:
            which: The number of a term of the kernel (or of the coregionalised
                process), or several.

        Raises:
            ValueError: if there are no such terms.
        """
        if isinstance(which, int | np.integer) and not isinstance(which, bool):
            which = (int(which),)
        elif not isinstance(which, tuple | list):
            raise ValueError(f"which: got {which!r}, wanted a number or several.")
        if getattr(self, "rest", None) is not None:
            raise ValueError("posterior: got that of a component, wanted the whole.")
        chosen, rest = cast(self.process.split(which), self.x.dtype)
        change = {"rest": rest} if hasattr(self, "rest") else {}
        return dataclasses.replace(self, process=chosen, **change)

    def marginals(self, x_new: ArrayLike) -> Marginals:
        """Mean and variance at each input, in chunks of bounded memory.

        Args:
            x_new: (m, d), or (m,) for d = 1; m = 0 works.

        Raises:
            ValueError: for inputs of the wrong dimension, or not finite.
        """
        mean, covariance = _marginals(self, check_inputs(x_new, self.x, self.process))
        variance = jnp.diagonal(covariance, axis1=1, axis2=2)
        return Marginals(squeeze(mean), squeeze(variance), covariance)

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
        check_number(num)
        draws = _sample(self, check_inputs(x_new, self.x, self.process), key, num)
        return squeeze(draws)

    def predict(
        self,
        likelihood: AbstractLikelihood,
        x_new: ArrayLike,
        *,
        key: PRNGKeyArray | None = None,
        method: str | None = None,
        noise_variance: ArrayLike | None = None,
    ) -> Categorical | Normal | NoisePredictive | Predictive:
        """The distribution of observations at each input."""
        points = check_inputs(x_new, self.x, self.process)
        there = likelihood.at(points, noise_variance)
        return _predict(self, there, points, key, method)


def squeeze(values: Float[Array, "*n C"]) -> Float[Array, "*shape"]:
    """Without the class axis where there is but one latent."""
    return values[..., 0] if values.shape[-1] == 1 else values


@eqx.filter_jit
def _marginals(posterior: AbstractGaussianPosterior, x_new: Float[Array, "m d"]):
    def one(point):
        mean, covariance = posterior.moments_at(point)
        return mean, with_valid_variance(covariance)

    batch = max(1, CHUNK_SIZE // max(1, posterior.held))
    return lax.map(one, x_new, batch_size=batch)


def with_valid_variance(covariance: Float[Array, "C C"]) -> Float[Array, "C C"]:
    """Symmetric, and with rounding errors below zero put to zero on the diagonal."""
    covariance = (covariance + covariance.T) / 2
    variance = jnp.diagonal(covariance)
    return covariance + jnp.diag(jnp.maximum(variance, 0) - variance)


@eqx.filter_jit
def _joint(posterior: AbstractGaussianPosterior, x_new: Float[Array, "m d"]):
    mean, covariance = posterior.moments_over(x_new)
    matrix = with_valid_variance(covariance.reshape(mean.size, mean.size))
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
