r"""What exact regression keeps of its data: the factor of S = K + N, and a trend.

With a flat prior on the coefficients of p features H (Rasmussen & Williams 2006, §2.7)

    A = HᵀS⁻¹H,   β̂ = A⁻¹HᵀS⁻¹r,   P = S⁻¹ − S⁻¹H A⁻¹ HᵀS⁻¹,   w = Pr,

    log p(y) = −½rᵀw − ½log|S| − ½log|A| − ½(n − p) log 2π
    d log p = ½tr((wwᵀ − P)dS) − wᵀdr + tr((β̂wᵀ − A⁻¹HᵀS⁻¹)dH),

which for p = 0 is Alg. 2.1. With S = LLᵀ and the orthonormal L⁻¹H = QRᵀ, A = RRᵀ and
P = L⁻ᵀ(I − QQᵀ)L⁻¹, so that nothing is squared. A missing observation is a row and a
column of S put to a multiple of the identity, with r = 0 there, and left out of all
sums.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jgp._linalg import (
    Cholesky,
    cholesky,
    diagonal_matrices,
    inverse_from_factor,
    orthonormal,
    solve_lower,
    solve_upper,
)
from jgp._results import RESULTS, unless, worst


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


class Trend(eqx.Module):
    """The features of a flat prior, as the data see them.

    Args:
        features: h, of single points.
        basis: Q of orthonormal columns, L⁻¹H = QRᵀ.
        root: R, the Cholesky factor of A = HᵀS⁻¹H.
    """

    features: Callable
    basis: Float[Array, "C n p"]
    root: Float[Array, "C p p"]

    def coefficients(self, white: Float[Array, "C n m"]) -> Float[Array, "C p m"]:
        """A⁻¹HᵀS⁻¹v from L⁻¹v."""
        return solve_upper(_like(self.root, white), self.basis.mT @ white)

    def at(self, x: Float[Array, "m d"]) -> Float[Array, "m p"]:
        """The features of points."""
        return jax.vmap(self.features)(x).astype(x.dtype)


class CholeskyFactor(AbstractFactor):
    """S⁻¹, or P with a trend, by its Cholesky factors; a leading 1 serves all latents.

    Exact regression keeps triangular factors rather than an inverse: without noise
    K is close to singular, and variances are differences of nearly equal numbers.

    Args:
        lower: L, LLᵀ = S.
        observed: Which observations there are; all where None.
        trend: The features of a flat prior, or None.
        noise: The noise variances, where the noise is independent.
    """

    lower: Float[Array, "C n n"]
    observed: Bool[Array, "C n"] | None = None
    trend: Trend | None = None
    noise: Float[Array, "n C"] | None = None

    def whiten(self, v: Float[Array, "C n m"]) -> Float[Array, "C n m"]:
        """L⁻¹v, of the observations there are."""
        if self.observed is not None:
            v = jnp.where(self.observed[:, :, None], v, 0)
        if self.lower.shape[0] == 1:
            num_latents, num_points, width = v.shape
            columns = jnp.moveaxis(v, 0, 1).reshape(num_points, num_latents * width)
            solved = solve_lower(self.lower[0], columns)
            solved = solved.reshape(num_points, num_latents, width)
            return jnp.moveaxis(solved, 1, 0)
        return solve_lower(self.lower, v)

    def times(self, v: Float[Array, "n C"]) -> Float[Array, "n C"]:
        """S⁻¹v, or Pv."""
        white = self.whiten(v.T[:, :, None])
        if self.trend is not None:
            white = white - self.trend.basis @ (self.trend.basis.mT @ white)
        solved = solve_upper(_like(self.lower, white), white)[:, :, 0].T
        if self.observed is None:
            return solved
        return jnp.where(self.observed.T, solved, 0)

    def coefficients(self, v: Float[Array, "n C"]) -> Float[Array, "p C"]:
        """β̂ = A⁻¹HᵀS⁻¹v."""
        assert self.trend is not None
        return self.trend.coefficients(self.whiten(v.T[:, :, None]))[:, :, 0].T

    def inverse(self, S: Float[Array, "C n n"]) -> Float[Array, "C n n"]:
        """S⁻¹ or P, of the S that this is the factor of."""
        S_inverse = inverse_from_factor(S, self.lower)
        if self.trend is None:
            return S_inverse
        half = self.trend_half()
        return S_inverse - half.mT @ half

    def trend_half(self) -> Float[Array, "C p n"]:
        """A⁻½HᵀS⁻¹."""
        assert self.trend is not None
        return solve_upper(self.lower, self.trend.basis).mT

    def log_determinant(self, num_latents: int) -> Float[Array, ""]:
        """log|S| + log|A|, summed over latents."""
        diagonal = jnp.diagonal(self.lower, axis1=1, axis2=2)
        if self.observed is not None:
            diagonal = jnp.where(self.observed, diagonal, 1)
        diagonals = [diagonal]
        if self.trend is not None:
            diagonals.append(jnp.diagonal(self.trend.root, axis1=1, axis2=2))
        each = [2 * jnp.sum(jnp.log(d), axis=1) for d in diagonals]
        return jnp.sum(jnp.broadcast_to(jnp.asarray(sum(each)), (num_latents,)))

    def num_observed(self, num_latents: int) -> Float[Array, ""]:
        """The observations, less the coefficients that they determine."""
        num_points, dtype = self.lower.shape[1], self.lower.dtype
        count = jnp.asarray(num_points * num_latents, dtype)
        if self.observed is not None:
            count = jnp.sum(self.observed, dtype=dtype)
        if self.trend is not None:
            count = count - num_latents * self.trend.basis.shape[2]
        return count

    def marginal_reduction(self, k: Float[Array, "C n m"]) -> Float[Array, "m C C"]:
        """kᵀS⁻¹k for each of m points, without the trend."""
        return diagonal_matrices(jnp.sum(self.whiten(k) ** 2, axis=1).T)

    def joint_reduction(self, k: Float[Array, "C n m"]) -> Float[Array, "m C m C"]:
        """kᵀS⁻¹k between all pairs of m points, without the trend."""
        white = self.whiten(k)
        identity = jnp.eye(k.shape[0], dtype=k.dtype)
        return jnp.einsum("cim,cil,cd->mcld", white, white, identity)

    def trend_root(
        self, k: Float[Array, "C n m"], h: Float[Array, "p m"]
    ) -> Float[Array, "C p m"]:
        """V with VᵀV the variance that the unknown coefficients add.

        A⁻½(h* − HᵀS⁻¹k*), Rasmussen & Williams 2006, eq. 2.42.
        """
        trend = self.trend
        assert trend is not None
        white = self.whiten(k)
        columns = jnp.broadcast_to(h[None], (white.shape[0], *h.shape))
        return solve_lower(_like(trend.root, white), columns) - trend.basis.mT @ white


def factorise(
    S: Float[Array, "C n n"],
    observed: Bool[Array, "C n"] | None,
    features: Callable | None,
    x: Float[Array, "n d"],
    noise: Float[Array, "n C"] | None = None,
    known: tuple[Array, Array, RESULTS] | None = None,
) -> tuple[Array, Array | None, CholeskyFactor, Array, RESULTS]:
    """S as it is factorised, H, the factor, the jitter and how it ended.

    `known` is the Cholesky factor of the first observations with its jitter and status.
    """
    if observed is not None:
        pairs = observed[:, :, None] & observed[:, None, :]
        scale = lax.stop_gradient(jnp.mean(jnp.diagonal(S, axis1=1, axis2=2)))
        identity = jnp.eye(S.shape[1], dtype=S.dtype)[None]
        S = jnp.where(pairs, S, scale * identity)
    if known is None:
        lower, jitter, ok = cholesky(S)
        result = unless(jnp.all(ok), RESULTS.not_positive_definite)
    else:
        lower, jitter, ok = _grown(S, known[0])
        result = worst(known[2], unless(jnp.all(ok), RESULTS.not_positive_definite))
        jitter = jnp.maximum(jitter, known[1])
    factor, H = CholeskyFactor(lower, observed, None, noise), None
    if features is not None:
        H = jax.vmap(features)(x).astype(x.dtype)[None]
        trend, told = _trend(features, factor.whiten(_like(H, lower)), lower)
        factor = CholeskyFactor(lower, observed, trend, noise)
        result = worst(result, unless(told, RESULTS.undetermined))
    return S, H, factor, jnp.max(jitter, initial=0.0), result


def _trend(
    features: Callable, whitened: Float[Array, "C n p"], lower: Float[Array, "C n n"]
) -> tuple[Trend, Bool[Array, ""]]:
    """The trend, and whether the data tell its features apart.

    Features that are combinations of others have no flat posterior. Their columns,
    each of length 1, then leave nothing of some column but the rounding errors of H,
    as whitening enlarges them.
    """
    n, _, dtype = *whitened.shape[1:], whitened.dtype
    lengths = jnp.linalg.norm(lax.stop_gradient(whitened), axis=1)
    lengths = jnp.where(lengths > 0, lengths, 1)
    basis, root = jnp.vectorize(orthonormal, signature="(n,p)->(n,p),(p,p)")(
        whitened / lengths[:, None]
    )
    pivots = jnp.diagonal(lower, axis1=1, axis2=2)
    enlarged = jnp.max(pivots, axis=1) / jnp.min(pivots, axis=1)
    least = jnp.min(jnp.diagonal(root, axis1=1, axis2=2), axis=1, initial=1)
    told = jnp.all(least > n * jnp.finfo(dtype).eps * enlarged)
    return Trend(features, basis, lengths[:, :, None] * root), told


def _grown(S: Float[Array, "C n n"], lower: Float[Array, "B k k"]) -> Cholesky:
    """The factor of S from that of its first k rows.

    L₂₁ = S₂₁L₁₁⁻ᵀ and L₂₂L₂₂ᵀ = S₂₂ − L₂₁L₂₁ᵀ.
    """
    k = lower.shape[1]
    lower = jnp.broadcast_to(lower, (S.shape[0], k, k))
    white = solve_lower(lower, S[:, :k, k:])
    corner, jitter, ok = cholesky(S[:, k:, k:] - white.mT @ white)
    top = jnp.concatenate([lower, jnp.zeros_like(white)], axis=2)
    below = jnp.concatenate([white.mT, corner], axis=2)
    return Cholesky(jnp.concatenate([top, below], axis=1), jitter, ok)


@eqx.filter_custom_jvp
def log_marginal(
    S: Float[Array, "C n n"],
    r: Float[Array, "n C"],
    H: Float[Array, "1 n p"] | None,
    factor: CholeskyFactor,
) -> Float[Array, ""]:
    """Log p(y) from S, r = y − m₀, the features H and the factor of all that."""
    del H
    num_latents = r.shape[1]
    square = jnp.sum(r * factor.times(r))
    constant = factor.num_observed(num_latents) * jnp.log(2 * jnp.pi)
    return -(square + factor.log_determinant(num_latents) + constant) / 2


@log_marginal.def_jvp
def _log_marginal_jvp(primals, tangents):
    """The explicit rule; the factor carries its own derivative to second order."""
    S, r, H, factor = primals
    dS, dr, dH, _ = tangents
    weights = factor.times(r).T
    tangent = jnp.zeros((), r.dtype)
    if dS is not None:
        gradient = weights[:, :, None] * weights[:, None, :] - factor.inverse(S)
        tangent = tangent + jnp.sum(gradient * dS) / 2
    if dr is not None:
        tangent = tangent - jnp.sum(weights.T * dr)
    if dH is not None:
        solved = solve_upper(factor.trend.root, factor.trend_half())
        both = factor.coefficients(r).T[:, :, None] * weights[:, None, :] - solved
        tangent = tangent + jnp.sum(both * dH.mT)
    return log_marginal(S, r, H, factor), tangent


def _like(root: Float[Array, "C n n"], v: Float[Array, "C n m"]) -> Array:
    """The factors, one for each block of `v`."""
    return jnp.broadcast_to(root, (v.shape[0], *root.shape[1:]))
