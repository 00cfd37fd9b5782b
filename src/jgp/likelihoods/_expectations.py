r"""Expected log likelihoods E[log p(y | f)] under Gaussian latents.

What variational inference needs of a likelihood. The derivatives in the mean and the
covariance of f are those of the rule itself: the nodes move with them, f = m + Rz with
S = RRᵀ and constant z, so that E[∇log p] and ½E[∇²log p] (Bonnet's and Price's
theorems; Opper & Archambeau 2009) belong to the very bound that is maximised.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jgp._cubature import gauss_hermite_product, normal_lattice
from jgp._linalg import diagonal_matrices, inverse
from jgp._normal import LOG_SQRT_2PI
from jgp.likelihoods._base import AbstractLikelihood
from jgp.likelihoods._categorical import MultinomialProbit, Softmax
from jgp.likelihoods._class_probabilities import (
    contrasts_against_others,
    covariance_root,
)
from jgp.likelihoods._counts import Poisson
from jgp.likelihoods._gaussian import AbstractGaussian
from jgp.likelihoods._latent_noise import LatentNoiseGaussian
from jgp.likelihoods._log_sum_exp import expected_log_sum_exp
from jgp.likelihoods._one_latent import AbstractOneLatent, gaussian_panels
from jgp.likelihoods._robust import LaplaceNoise
from jgp.likelihoods._weighted import Weighted

# Nodes of Gauss-Hermite for one dimension and, a side, for two; points of half of the
# lattice for more.
NODES = {1: 64, 2: 24}
LATTICE_POINTS = 509


@functools.singledispatch
def expected_log_prob(
    likelihood: AbstractLikelihood,
    mean: Float[Array, "n C"],
    covariance: Float[Array, "n C *C"],
    y: Array,
) -> Float[Array, " n"]:
    """E[log p(yᵢ | fᵢ)] at every point, fᵢ ~ N(meanᵢ, covarianceᵢ).

    For several latents a fixed rule: the product of Gauss-Hermite for two, a lattice
    for more. Register a case where there is a closed form, or where log p has a kink in
    f, which a rule does not differentiate twice.

    Args:
        likelihood: The likelihood of all points.
        mean: The means of the latents.
        covariance: Their variances (n, C) where they are independent, or covariances
            (n, C, C).
        y: The observations.
    """
    z, weights = _rule(mean.shape[1], mean.dtype)
    if covariance.ndim == 2:
        deviations = jnp.sqrt(covariance)[None] * z[:, None]
    else:
        root = jax.vmap(covariance_root)(covariance)
        deviations = jnp.einsum("ncd,qd->qnc", root, z)
    at_nodes = jax.vmap(lambda f: likelihood.log_probs(f, y))
    return weights @ at_nodes(mean[None] + deviations)


def _rule(dimension: int, dtype: Any) -> tuple[Float[Array, "q d"], Float[Array, " q"]]:
    """Nodes and weights for N(0, I)."""
    if dimension in NODES:
        return gauss_hermite_product(NODES[dimension], dimension, dtype)
    z = jnp.asarray(_symmetric_lattice(dimension), dtype)
    return z, jnp.full(z.shape[0], 1 / z.shape[0], dtype)


@functools.cache
def _symmetric_lattice(dimension: int) -> np.ndarray:
    """A lattice and its mirror image, of covariance I: exact to the third degree."""
    with jax.ensure_compile_time_eval():
        half = np.asarray(normal_lattice(LATTICE_POINTS, dimension, jnp.float32))
    z = np.concatenate([half, -half]).astype(np.float64)
    root = np.linalg.cholesky(z.T @ z / z.shape[0])
    return np.linalg.solve(root, z.T).T


def variances(covariance: Float[Array, "n C *C"]) -> Float[Array, "n C"]:
    """The variances of all latents."""
    if covariance.ndim == 2:
        return covariance
    return jnp.diagonal(covariance, axis1=1, axis2=2)


@expected_log_prob.register(Softmax)
@expected_log_prob.register(MultinomialProbit)
def _by_contrasts(likelihood, mean, covariance, y):
    """Over the C − 1 contrasts f_y − f_k, on which alone log p depends.

    For `Softmax` of independent latents E[f_y] − E[log Σ exp f] (`_log_sum_exp`).
    """
    if isinstance(likelihood, Softmax) and covariance.ndim == 2:
        observed = jnp.take_along_axis(mean, y[:, None], axis=1)[:, 0]
        return observed - expected_log_sum_exp(mean, covariance)
    full = diagonal_matrices(covariance) if covariance.ndim == 2 else covariance
    z, weights = _rule(mean.shape[1] - 1, mean.dtype)
    first = jnp.zeros((), y.dtype)

    def one(m, S, label):
        h = contrasts_against_others(m, S, label)
        points = h.mean[None] + z @ covariance_root(h.covariance).T
        # As if the label were the first class, of latent 0.
        f = jnp.pad(-points, ((0, 0), (1, 0)))
        return weights @ jax.vmap(likelihood.log_prob, (0, None))(f, first)

    return jax.vmap(one)(mean, full, y)


@expected_log_prob.register
def _(likelihood: AbstractOneLatent, mean, covariance, y):
    """By the panels of `_one_latent`."""
    m, v = mean[:, 0], variances(covariance)[:, 0]
    locations, scales = lax.stop_gradient(likelihood).features(y)
    features = locations.astype(m.dtype), scales.astype(m.dtype)
    held_m, held_v = lax.stop_gradient((m, v))
    nodes, weights = gaussian_panels(held_m, held_v, features)
    z = (nodes - held_m[:, None]) / jnp.sqrt(held_v)[:, None]
    # Of nodes far from 0 the differences round: their mean is 0.
    z = z - jnp.sum(weights * z, axis=1, keepdims=True)
    f = m[:, None] + jnp.sqrt(v)[:, None] * z
    return jnp.sum(weights * likelihood.log_density(f, y[:, None]), axis=1)


@expected_log_prob.register
def _(likelihood: AbstractGaussian, mean, covariance, y):
    """Log N(y; m, N) − ½tr(N⁻¹S)."""
    if likelihood.correlated:
        noise = likelihood.covariances(mean.shape)
        full = covariance
        if covariance.ndim == 2:
            full = diagonal_matrices(covariance)
        precision = jax.vmap(lambda N: inverse(N)[0])(noise)
        excess = jnp.sum(precision * full, axis=(1, 2))
    else:
        noise = likelihood.variances(mean.shape)
        excess = jnp.sum(variances(covariance) / noise, axis=1)
    return likelihood.log_probs(mean, y) - excess / 2


@expected_log_prob.register
def _(likelihood: Poisson, mean, covariance, y):
    """E[exp f] = exp(m + v/2), of which log p is linear."""
    m, v = mean[:, 0], variances(covariance)[:, 0]
    linear = likelihood.log_density(m, y)
    return linear + jnp.exp(m) - jnp.exp(m + v / 2)


@expected_log_prob.register
def _(likelihood: LaplaceNoise, mean, covariance, y):
    """E|y − f| is the mean of a folded normal."""
    error = y.astype(mean.dtype) - mean[:, 0]
    v = variances(covariance)[:, 0]
    s = jnp.sqrt(v)
    z = error / s
    density = jnp.exp(-(z**2) / 2 - LOG_SQRT_2PI)
    folded = 2 * s * density + error * lax.erf(z / jnp.sqrt(2.0).astype(s.dtype))
    return -folded / likelihood.scale - jnp.log(2 * likelihood.scale)


@expected_log_prob.register
def _(likelihood: LatentNoiseGaussian, mean, covariance, y):
    """E[exp(−2f₂)(y − f₁)²]: f under exp(−2f₂) is N(m − 2S₂, S), as a tilt."""
    error = y.astype(mean.dtype) - mean[:, 0]
    v = variances(covariance)
    shared = jnp.zeros_like(error) if covariance.ndim == 2 else covariance[:, 0, 1]
    square = (error + 2 * shared) ** 2 + v[:, 0]
    precision = jnp.exp(-2 * mean[:, 1] + 2 * v[:, 1])
    return -square * precision / 2 - mean[:, 1] - LOG_SQRT_2PI


@expected_log_prob.register
def _(likelihood: Weighted, mean, covariance, y):
    """The weight times that of the likelihood."""
    base = expected_log_prob(likelihood.likelihood, mean, covariance, y)
    return likelihood.powers(mean.shape[0]) * base
