"""Class probabilities: likelihoods of classes averaged over Gaussian latents."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jgp._cubature import gauss_hermite_product, normal_lattice
from jgp._linalg import cholesky, cholesky_solve
from jgp._normal import ndtr
from jgp._orthant import log_orthant_probability, orthant_probability
from jgp.likelihoods._inner_ep import Contrasts, latent_contrasts, log_normaliser

NODES_A_SIDE = 20
# Four times the variance of a contrast up to which 20 nodes are good to 1e-6.
BROAD = 40.0
LATTICE_POINTS = 4093
MONTE_CARLO_DRAWS = 20_000


def probit_by_inner_ep(
    mean: Float[Array, "n C"], covariance: Float[Array, "n C C"]
) -> Float[Array, "n C"]:
    """E[p(y = j | f)] by the normaliser of inner EP for each class, renormalised."""

    def one(m, S, label):
        return log_normaliser(latent_contrasts(m, S, label), label)

    return jax.nn.softmax(_over_classes(one, mean, covariance), axis=1)


def probit_by_orthant(
    mean: Float[Array, "n C"],
    covariance: Float[Array, "n C C"],
    *,
    key: PRNGKeyArray | None = None,
) -> Float[Array, "n C"]:
    """E[p(y = j | f)] as the orthant probability of g_k = u + f_j − f_k + e_k.

    u and e_k are independent unit normals, so g ~ N(h, H + 11ᵀ + I).
    """

    def one(m, S, label):
        h = contrasts_against_others(m, S, label)
        unit = jnp.eye(h.mean.shape[0], dtype=m.dtype)
        return orthant_probability(h.mean, h.covariance + 1 + unit, key=key)

    probabilities = _over_classes(one, mean, covariance)
    return probabilities / jnp.sum(probabilities, axis=1, keepdims=True)


def probit_by_monte_carlo(
    mean: Float[Array, "n C"],
    covariance: Float[Array, "n C C"],
    *,
    key: PRNGKeyArray,
    num_draws: int = MONTE_CARLO_DRAWS,
) -> Float[Array, "n C"]:
    """E[p(y = j | f)] by draws of (f, u) with C − 1 control variates.

    The control variates Φ(u + f_j − f_k) have expectation Φ(h_k/√(2 + H_kk)); their
    coefficients are fitted by least squares (Cabral 2021, §4.5.1, with the
    expectation put right). Renormalised.
    """
    num_classes = mean.shape[1]
    latent_key, auxiliary_key = jax.random.split(key)
    e = jax.random.normal(latent_key, (num_draws, num_classes), mean.dtype)
    u = jax.random.normal(auxiliary_key, (num_draws, 1), mean.dtype)

    def one(m, S, label):
        h = contrasts_against_others(m, S, label)
        f = m[None] + e @ covariance_root(S).T
        others = other_classes(label, num_classes)
        controls = ndtr(u + f[:, label][:, None] - f[:, others])
        expected = ndtr(h.mean / jnp.sqrt(2 + jnp.diagonal(h.covariance)))
        values = jnp.prod(controls, axis=1)
        centred = controls - jnp.mean(controls, axis=0, keepdims=True)
        normal = centred.T @ centred
        ridge = 10 * jnp.finfo(m.dtype).eps * jnp.trace(normal)
        ridge = ridge + jnp.finfo(m.dtype).tiny
        normal = normal + ridge * jnp.eye(num_classes - 1, dtype=m.dtype)
        products = (centred.T @ values)[:, None]
        coefficients = cholesky_solve(cholesky(normal).lower, products)[:, 0]
        return jnp.mean(values - (controls - expected[None]) @ coefficients)

    probabilities = jnp.clip(_over_classes(one, mean, covariance), 0, 1)
    return probabilities / jnp.sum(probabilities, axis=1, keepdims=True)


def softmax_by_cubature(
    mean: Float[Array, "n C"],
    covariance: Float[Array, "n C C"],
    *,
    key: PRNGKeyArray | None = None,
) -> Float[Array, "n C"]:
    """E[softmax(f)], which depends on f only through C − 1 contrasts.

    Gauss-Hermite, 20 nodes a side, for C <= 3; beyond, a fixed lattice. Twenty nodes do
    not resolve the logistic step under a contrast of standard deviation above about 3
    (the error reaches 0.02): there the lattice serves for C <= 3 too.
    """
    num_contrasts = mean.shape[1] - 1
    nodes = normal_lattice(LATTICE_POINTS, num_contrasts, mean.dtype, key=key)
    weights = jnp.full(nodes.shape[0], 1 / nodes.shape[0], mean.dtype)
    by_lattice = _softmax_average(mean, covariance, nodes, weights)
    if num_contrasts > 2 or key is not None:
        return by_lattice
    rule = gauss_hermite_product(NODES_A_SIDE, num_contrasts, mean.dtype)
    variance = jnp.diagonal(covariance, axis1=1, axis2=2)
    # An upper bound on the variance of any contrast.
    broad = 2 * jnp.sum(variance, axis=1, keepdims=True) > BROAD
    return jnp.where(broad, by_lattice, _softmax_average(mean, covariance, *rule))


def _softmax_average(mean, covariance, nodes, weights) -> Float[Array, "n C"]:
    num_contrasts = mean.shape[1] - 1

    def one(m, S):
        # h_k = f_C − f_k for the last class C, so that f − f_C = (−h, 0).
        h = contrasts_against_others(m, S, jnp.array(num_contrasts, jnp.int32))
        points = h.mean[None] + nodes @ covariance_root(h.covariance).T
        logits = jnp.pad(-points, ((0, 0), (0, 1)))
        return weights @ jax.nn.softmax(logits, axis=1)

    return jax.vmap(one)(mean, covariance)


def other_classes(label: Int[Array, ""], num_classes: int) -> Int[Array, " C-1"]:
    """The classes other than `label`, ascending."""
    others = jnp.arange(num_classes - 1, dtype=label.dtype)
    return others + (others >= label).astype(label.dtype)


def contrast_matrix(label: Int[Array, ""], num_classes: int, dtype: DTypeLike) -> Array:
    """B (C−1, C) with Bf the contrasts f_y − f_k for the other classes k."""
    identity = jnp.eye(num_classes, dtype=dtype)
    return identity[label][None] - identity[other_classes(label, num_classes)]


def log_orthant(
    mean: Float[Array, " C-1"], covariance: Float[Array, "C-1 C-1"]
) -> Float[Array, ""]:
    """Log E[p(y | f)] of the multinomial probit for contrasts N(mean, covariance).

    u and e_k are independent unit normals, so g ~ N(h, H + 11ᵀ + I).
    """
    unit = jnp.eye(mean.shape[0], dtype=mean.dtype)
    return log_orthant_probability(mean, covariance + 1 + unit)


def contrasts_against_others(
    mean: Float[Array, " C"], covariance: Float[Array, "C C"], label: Int[Array, ""]
) -> Contrasts:
    """The C − 1 contrasts of the label against the other classes."""
    others = other_classes(label, mean.shape[0])
    h = latent_contrasts(mean, covariance, label)
    return Contrasts(h.mean[others], h.covariance[others[:, None], others[None, :]])


def covariance_root(S: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """A lower factor of S, zero and singular matrices included.

    A Cholesky factor has a smooth derivative where eigenvalues coincide, as those of
    exchangeable classes do; an eigenvalue root has not.
    """
    floor = float(jnp.finfo(S.dtype).eps) ** 2
    return cholesky(S + floor * jnp.eye(S.shape[0], dtype=S.dtype)).lower


def _over_classes(function, mean: Array, covariance: Array) -> Float[Array, "n C"]:
    labels = jnp.arange(mean.shape[1], dtype=jnp.int32)
    over_labels = jax.vmap(function, in_axes=(None, None, 0))
    return jax.vmap(over_labels, in_axes=(0, 0, None))(mean, covariance, labels)
