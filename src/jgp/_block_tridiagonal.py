r"""Symmetric block-tridiagonal matrices: N blocks of b rows, in O(Nb³) time.

A matrix S is kept as its diagonal blocks Sᵢᵢ and those left of them, Sᵢ,ᵢ₋₁, the first
of which is zero; its Cholesky factor L, block-bidiagonal, likewise (Rue & Held 2005,
§2.4, for bands):

    Lᵢ,ᵢ₋₁ = Sᵢ,ᵢ₋₁Lᵢ₋₁⁻ᵀ,    LᵢLᵢᵀ = Sᵢᵢ − Lᵢ,ᵢ₋₁Lᵢ,ᵢ₋₁ᵀ.

A vector k that is zero beyond block i has v = L⁻¹k with vⱼ₊₁ = −Bⱼ₊₁vⱼ from there on,
Bⱼ = Lⱼ⁻¹Lⱼ,ⱼ₋₁. What all of these add to kᵀS⁻¹k = ‖v‖² is one recursion from the end,

    ‖vᵢ‖² + ‖vᵢ₊₁‖² + … = vᵢᵀUᵢvᵢ,    Uᵢ = I + Bᵢ₊₁ᵀUᵢ₊₁Bᵢ₊₁,

a sum of squares, where S⁻¹ itself would lose digits. From the same U come the blocks
of Z = S⁻¹ in the band, in the whitened form of Takahashi's equations (Takahashi, Fagan
& Chin 1973; Erisman & Tinney 1975):

    Zᵢᵢ = Lᵢ⁻ᵀUᵢLᵢ⁻¹,    Zᵢ,ᵢ₋₁ = −Lᵢ⁻ᵀUᵢBᵢLᵢ₋₁⁻¹.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jgp import _lapack
from jgp._linalg import LADDER, solve_lower, solve_upper


class BlockCholesky(eqx.Module):
    """The factor L of a block-tridiagonal S.

    Args:
        lower: Lᵢ.
        left: Lᵢ,ᵢ₋₁; the first is zero.
        tails: Uᵢ.
        counts: Which rows of S count; the others are those of a diagonal.
    """

    lower: Float[Array, "N b b"]
    left: Float[Array, "N b b"]
    tails: Float[Array, "N b b"]
    counts: Bool[Array, "N b"]

    def solve(self, v: Float[Array, "N b"]) -> Float[Array, "N b"]:
        """S⁻¹v, by substitution forth and back."""

        def step(carry, block):
            lower, left, white = block
            solved = solve_upper(lower, (white - carry)[:, None])[:, 0]
            return left.T @ solved, solved

        white = whiten(self.lower, self.left, v)
        blocks = (self.lower, self.left, white)
        return lax.scan(step, jnp.zeros_like(v[0]), blocks, reverse=True)[1]

    def log_determinant(self) -> Float[Array, ""]:
        """log|S| of the rows that count."""
        diagonal = jnp.diagonal(self.lower, axis1=1, axis2=2)
        return 2 * jnp.sum(jnp.log(jnp.where(self.counts, diagonal, 1)))

    def inverse(self) -> tuple[Float[Array, "N b b"], Float[Array, "N b b"]]:
        """Zᵢᵢ and Zᵢ,ᵢ₋₁ (zero for the first) of Z = S⁻¹."""
        identity = jnp.eye(self.lower.shape[1], dtype=self.lower.dtype)

        # One after the other: products of batches are twice as slow on CPU.
        def step(before, block):
            lower, left, tail = block
            root = solve_lower(lower, identity)
            half = root.T @ tail
            return root, (half @ root, -half @ (root @ (left @ before)))

        return lax.scan(step, identity, (self.lower, self.left, self.tails))[1]


def whiten(
    lower: Float[Array, "N b b"], left: Float[Array, "N b b"], v: Float[Array, "N b"]
) -> Float[Array, "N b"]:
    """L⁻¹v, or that of some blocks in a row before which v is zero."""

    def step(before, block):
        lower, left, v = block
        white = solve_lower(lower, (v - left @ before)[:, None])[:, 0]
        return white, white

    return lax.scan(step, jnp.zeros_like(v[0]), (lower, left, v))[1]


def factorise(
    diagonal: Float[Array, "N b b"],
    left: Float[Array, "N b b"],
    counts: Bool[Array, "N b"],
) -> tuple[BlockCholesky, Float[Array, ""], Bool[Array, ""]]:
    """The factor of S with the jitter ladder of `_linalg.cholesky`.

    Args:
        diagonal: Sᵢᵢ.
        left: Sᵢ,ᵢ₋₁; the first has to be zero.
        counts: Which rows count; the others must be a diagonal of their mean.

    Returns:
        The factor, the jitter added to the whole diagonal, and whether it is finite.
        Differentiable to any order; the jitter counts as a constant.
    """
    lower, beside, jitter = _cholesky(diagonal, left)
    ok = jnp.all(jnp.isfinite(lower))
    return BlockCholesky(lower, beside, _tails(lower, beside), counts), jitter, ok


@jax.custom_jvp
def _cholesky(diagonal: Float[Array, "N b b"], left: Float[Array, "N b b"]):
    identity = jnp.eye(diagonal.shape[1], dtype=diagonal.dtype)
    mean = jnp.mean(jnp.diagonal(diagonal, axis1=1, axis2=2))
    # One rung for all blocks: that of a Schur complement alone, which may be tiny,
    # would not cover the rounding errors of the difference that it is.
    ladder = jnp.asarray(LADDER, diagonal.dtype) * jnp.finfo(diagonal.dtype).eps * mean

    def attempt(rung):
        def step(before, block):
            S, beside = block
            across = solve_lower(before, beside.T).T
            schur = S + ladder[rung] * identity - across @ across.T
            lower = _lapack.cholesky(schur)
            return lower, (lower, across)

        return rung, lax.scan(step, identity, (diagonal, left))[1]

    def failed(state):
        rung, (lower, _) = state
        return (rung < len(LADDER) - 1) & ~jnp.all(jnp.isfinite(lower))

    rung, factor = lax.while_loop(failed, lambda s: attempt(s[0] + 1), attempt(0))
    return *factor, ladder[rung]


@_cholesky.defjvp
def _cholesky_jvp(primals, tangents):
    r"""The equations of the factor, differentiated; see `_linalg.cholesky` for dL.

    dLᵢ,ᵢ₋₁ = (dSᵢ,ᵢ₋₁ − Lᵢ,ᵢ₋₁dLᵢ₋₁ᵀ)Lᵢ₋₁⁻ᵀ and, with C = dSᵢᵢ − dLᵢ,ᵢ₋₁Lᵢ,ᵢ₋₁ᵀ −
    Lᵢ,ᵢ₋₁dLᵢ,ᵢ₋₁ᵀ, dLᵢ = LᵢΦ(Lᵢ⁻¹CLᵢ⁻ᵀ), Φ the lower triangle, its diagonal halved.
    """
    lower, left, jitter = _cholesky(*primals)
    identity = jnp.eye(lower.shape[1], dtype=lower.dtype)
    halved = jnp.tril(jnp.ones_like(identity)) - identity / 2
    before = jnp.concatenate([identity[None], lower[:-1]])

    def step(dbefore, block):
        lower, before, left, dS, dbeside = block
        dleft = solve_lower(before, (dbeside - left @ dbefore.T).T).T
        cross = dleft @ left.T
        change = (dS + dS.T) / 2 - cross - cross.T
        inner = solve_lower(lower, solve_lower(lower, change).T)
        dlower = lower @ (halved * inner)
        return dlower, (dlower, dleft)

    blocks = (lower, before, left, *tangents)
    _, (dlower, dleft) = lax.scan(step, jnp.zeros_like(identity), blocks)
    return (lower, left, jitter), (dlower, dleft, jnp.zeros_like(jitter))


def _tails(
    lower: Float[Array, "N b b"], left: Float[Array, "N b b"]
) -> Float[Array, "N b b"]:
    """Uᵢ, from the last block back."""
    identity = jnp.eye(lower.shape[1], dtype=lower.dtype)

    def step(beyond, block):
        lower, left = block
        tail = identity + beyond
        B = solve_lower(lower, left)
        return B.T @ tail @ B, tail

    return lax.scan(step, jnp.zeros_like(identity), (lower, left), reverse=True)[1]


@eqx.filter_custom_jvp
def log_density(
    diagonal: Float[Array, "N b b"],
    left: Float[Array, "N b b"],
    r: Float[Array, "N b"],
    factor: BlockCholesky,
) -> Float[Array, ""]:
    """Log N(r; 0, S) of the rows of S that count; the rest of r has to be zero."""
    square = jnp.sum(r * factor.solve(r))
    constant = jnp.sum(factor.counts, dtype=r.dtype) * jnp.log(2 * jnp.pi)
    return -(square + factor.log_determinant() + constant) / 2


@log_density.def_jvp
def _log_density_jvp(primals, tangents):
    """½tr((wwᵀ − S⁻¹)dS) − wᵀdr, w = S⁻¹r, of which the band of S⁻¹ is enough.

    The factor carries its own derivative to second order.
    """
    diagonal, left, r, factor = primals
    ddiagonal, dleft, dr, _ = tangents
    w = factor.solve(r)
    Z, Z_left = factor.inverse()
    tangent = jnp.zeros((), r.dtype)
    if ddiagonal is not None:
        outer = w[:, :, None] * w[:, None, :]
        tangent = tangent + jnp.sum((outer - Z) * ddiagonal) / 2
    if dleft is not None:
        # Once for the block itself and once for its transpose.
        before = jnp.concatenate([jnp.zeros_like(w[:1]), w[:-1]])
        outer = w[:, :, None] * before[:, None, :]
        tangent = tangent + jnp.sum((outer - Z_left) * dleft)
    if dr is not None:
        tangent = tangent - jnp.sum(w * dr)
    return log_density(diagonal, left, r, factor), tangent
