"""Predictions of likelihoods of one latent: averages over mixtures of Gaussians."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from jgp._cubature import gauss_hermite
from jgp._parameters import is_concrete
from jgp.likelihoods._base import check_method
from jgp.likelihoods._one_latent import (
    AbstractOneLatent,
    gaussian_panels,
    real_targets,
    tilted_moments,
)
from jgp.likelihoods._predictive import check_number

# Integrals over one latent that are held in memory at once, of about 500 nodes each.
CHUNK_SIZE = 512
# Of a Gaussian so narrow that the panels' nodes would be equal up to rounding.
NUM_NODES = 20


class Predictive(eqx.Module):
    """The distribution of observations whose latent is a mixture of Gaussians.

    Args:
        likelihood: p(y | f), of one latent.
        latent_mean: Means of the S components at each input, of equal weight.
        latent_variance: Their variances; zero is a latent that is known.
    """

    likelihood: AbstractOneLatent
    latent_mean: Float[Array, "n S"]
    latent_variance: Float[Array, "n S"]

    @property
    def mean(self) -> Float[Array, " n"]:
        """The mean of y at each input; NaN where it has none."""
        return _moments(self)[0]

    @property
    def variance(self) -> Float[Array, " n"]:
        """The variance of y at each input, by the law of total variance."""
        return _moments(self)[1]

    @property
    def stddev(self) -> Float[Array, " n"]:
        """The standard deviation of y at each input."""
        return jnp.sqrt(self.variance)

    def log_prob(self, y: Array) -> Float[Array, " n"]:
        """The log density, or log probability, of an observation at each input.

        Raises:
            ValueError: for another number of observations than inputs, and for those
                that the likelihood cannot give.
        """
        num, dtype = self.latent_mean.shape[0], self.latent_mean.dtype
        if np.shape(y) != (num,):
            raise ValueError(f"y: got shape {np.shape(y)}, wanted ({num},).")
        given = self.likelihood.targets(y, 1) if is_concrete(y) else y
        return _log_prob(self, jnp.asarray(given).astype(dtype))

    def sample(self, *, key: PRNGKeyArray, num: int) -> Array:
        """(num, n) draws, independent between inputs."""
        check_number(num)
        return _sample(self, key, num)


class AbstractNumberLikelihood(AbstractOneLatent):
    """p(y | f) of one latent, of numbers.

    What a likelihood of one's own is a subclass of: it needs `log_density`,
    `log_concave`, `conditional_mean`, `conditional_variance` and `sample`, and
    `targets` where not every finite number will do.
    """

    def targets(self, y: Any, num_latents: int) -> np.ndarray:
        """Finite numbers."""
        del num_latents
        return real_targets(y, "finite numbers")

    def observe(self, f: Float[Array, "n 1"]) -> Predictive:
        """The distribution of y at inputs whose latent is f."""
        return Predictive(self, f, jnp.zeros_like(f))

    def predict(
        self,
        mean: Float[Array, "n 1"],
        covariance: Float[Array, "n 1 1"],
        *,
        method: str | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Predictive:
        """The distribution of y at inputs whose latent is N(mean, covariance)."""
        del key
        check_method(method, ("panels",))
        return Predictive(self, mean, covariance[:, :, 0])


@functools.singledispatch
def observed_moments(
    likelihood: AbstractOneLatent,
    mean: Float[Array, " n"],
    variance: Float[Array, " n"],
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Mean and variance of y where the latent is N(m, v), v >= 0.

    By panels over `conditional_mean` and `conditional_variance`, taken to change about
    f = 0 over distances of 1; register a case for a closed form.
    """

    def moments(f):
        centre = likelihood.conditional_mean(f)
        return centre, likelihood.conditional_variance(f)

    def square(f):
        centre, within = moments(f)
        return centre, (centre - average[:, None]) ** 2 + within

    average, _ = gaussian_expectation(moments, mean, variance)
    return average, gaussian_expectation(square, mean, variance)[1]


def gaussian_expectation(
    function: Callable[[Array], Any],
    mean: Float[Array, " n"],
    variance: Float[Array, " n"],
) -> Any:
    """E[g(f)], f ~ N(mᵢ, vᵢ), for g smooth but for f about 0, over distances of 1.

    Args:
        function: g, from (n, q) numbers to arrays of that shape, in any tree.
        mean: m.
        variance: v, zero too.
    """
    known, wide = _narrow(mean, variance)
    features = jnp.zeros_like(mean)[:, None], jnp.ones_like(mean)[:, None]
    about = gaussian_panels(mean, wide, features)

    def expectation(nodes, weights):
        return jax.tree.map(
            lambda values: jnp.sum(weights * values, axis=1), function(nodes)
        )

    near = expectation(*_hermite(mean, variance, known))
    far = expectation(*about)
    return jax.tree.map(lambda a, b: jnp.where(known, a, b), near, far)


def _narrow(mean: Array, variance: Array) -> tuple[Array, Array]:
    """Where √v is next to rounding of m, and the variances with 1 in these places."""
    narrow = variance <= jnp.finfo(mean.dtype).eps * mean**2
    return narrow, jnp.where(narrow, 1, variance)


def _hermite(mean: Array, variance: Array, narrow: Array) -> tuple[Array, Array]:
    """Nodes (n, q) and weights (1, q) about narrow Gaussians, by Gauss-Hermite."""
    nodes, weights = gauss_hermite(NUM_NODES, mean.dtype)
    # The root of 0 has no derivative.
    usable = narrow & (variance > 0)
    scale = jnp.where(usable, jnp.sqrt(jnp.where(usable, variance, 1)), 0)
    return mean[:, None] + scale[:, None] * nodes[None], weights[None]


def log_normaliser(
    likelihood: AbstractOneLatent,
    mean: Float[Array, " n"],
    variance: Float[Array, " n"],
    y: Array,
) -> Float[Array, " n"]:
    """Log E[p(yᵢ | f)], f ~ N(mᵢ, vᵢ), v >= 0."""
    known, wide = _narrow(mean, variance)
    nodes, weights = _hermite(mean, variance, known)
    weights = jnp.broadcast_to(weights, nodes.shape)
    near = likelihood.log_density(nodes, y[:, None])
    near = jax.nn.logsumexp(near, axis=1, b=weights)
    far = tilted_moments(likelihood, mean, wide, y).log_normaliser
    return jnp.where(known, near, far)


def in_chunks(function: Callable, *arrays: Float[Array, " n"]) -> Any:
    """`function` of arrays (n,), which acts point by point, in bounded memory."""
    if arrays[0].shape[0] <= CHUNK_SIZE:
        return function(*arrays)

    def one(values):
        outcome = function(*(value[None] for value in values))
        return jax.tree.map(lambda v: v[0], outcome)

    return lax.map(one, arrays, batch_size=CHUNK_SIZE)


@eqx.filter_jit
def _log_prob(predictive: Predictive, y: Float[Array, " n"]) -> Float[Array, " n"]:
    shape = predictive.latent_mean.shape
    each = in_chunks(
        functools.partial(log_normaliser, predictive.likelihood),
        predictive.latent_mean.ravel(),
        predictive.latent_variance.ravel(),
        jnp.repeat(y, shape[1]),
    ).reshape(shape)
    return jax.nn.logsumexp(each, axis=1) - float(np.log(shape[1]))


@eqx.filter_jit
def _moments(predictive: Predictive) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    shape = predictive.latent_mean.shape
    means, variances = in_chunks(
        functools.partial(observed_moments, predictive.likelihood),
        predictive.latent_mean.ravel(),
        predictive.latent_variance.ravel(),
    )
    means, variances = means.reshape(shape), variances.reshape(shape)
    mean = jnp.mean(means, axis=1)
    if shape[1] == 1:
        return mean, variances[:, 0]
    between = jnp.mean((means - mean[:, None]) ** 2, axis=1)
    infinite = jnp.any(jnp.isinf(means), axis=1)
    between = jnp.where(infinite, jnp.inf, between)
    return mean, jnp.mean(variances, axis=1) + between


@eqx.filter_jit
def _sample(predictive: Predictive, key: PRNGKeyArray, num: int) -> Array:
    component_key, latent_key, observation_key = jax.random.split(key, 3)
    n, num_components = predictive.latent_mean.shape
    mean, variance = predictive.latent_mean, predictive.latent_variance
    chosen = jax.random.randint(component_key, (n, num), 0, num_components)
    mean = jnp.take_along_axis(mean, chosen, axis=1)
    stddev = jnp.sqrt(jnp.take_along_axis(variance, chosen, axis=1))
    f = mean + stddev * jax.random.normal(latent_key, (n, num), mean.dtype)
    return predictive.likelihood.sample(f.T, key=observation_key)
