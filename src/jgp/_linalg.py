"""Cholesky factorisation with the one jitter policy, and blocked inverses.

Every factorisation of a covariance matrix in jgp passes through `cholesky`.
It first tries the matrix as it is; if that fails it adds a multiple of the mean
diagonal, climbing a short ladder that depends on the dtype alone, and returns
the jitter it used. If the ladder's top fails too, `ok` is False: callers turn
that into `RESULTS.not_positive_definite`; nothing grows in silence.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

# Multiples of eps times the mean diagonal: none, then about n·eps, then up to 1e-9
# (float64) or 1e-3 (float32), above which a covariance is no longer the user's.
LADDER = (0.0, 2.0**5, 2.0**9, 2.0**13)
# The size at which a blocked inverse hands over to LAPACK; measured on CPU.
BLOCK = 64


class Cholesky(NamedTuple):
    """A lower factor of K + jitter·I; `ok` is False if none was found."""

    lower: Float[Array, "*batch n n"]
    jitter: Float[Array, "*batch"]
    ok: Bool[Array, "*batch"]


def cholesky(K: Float[Array, "*batch n n"]) -> Cholesky:
    """Factorise symmetric positive semidefinite matrices with the jitter ladder.

    Args:
        K: Symmetric matrices; a leading batch is factorised element by element.

    Returns:
        The factors, the jitter added to each diagonal (0 almost always), and
        whether each factor is finite. Differentiable to any order in K; the
        jitter counts as a constant.
    """
    lower, jitter = jnp.vectorize(_cholesky, signature="(n,n)->(n,n),()")(K)
    return Cholesky(lower, jitter, jnp.all(jnp.isfinite(lower), axis=(-2, -1)))


@jax.custom_jvp
def _cholesky(K: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    if K.shape[-1] == 0:
        return K, jnp.zeros((), K.dtype)
    eps = jnp.finfo(K.dtype).eps
    ladder = jnp.asarray(LADDER, K.dtype) * eps * jnp.mean(jnp.diagonal(K))
    identity = jnp.eye(K.shape[-1], dtype=K.dtype)

    def attempt(rung):
        jittered = K + ladder[rung] * identity
        return rung, lax.linalg.cholesky(jittered, symmetrize_input=False)

    def failed(state):
        rung, lower = state
        return (rung < len(LADDER) - 1) & ~jnp.all(jnp.isfinite(lower))

    rung, lower = lax.while_loop(failed, lambda s: attempt(s[0] + 1), attempt(0))
    return lower, ladder[rung]


@_cholesky.defjvp
def _cholesky_jvp(primals, tangents):
    r"""DL = L Φ(L⁻¹ dK L⁻ᵀ), Φ the lower triangle with its diagonal halved.

    From dK = dL Lᵀ + L dLᵀ: L⁻¹dL is lower triangular and adds with its transpose
    to L⁻¹ dK L⁻ᵀ (Murray 2016, eq. 8).
    """
    (K,), (dK,) = primals, tangents
    lower, jitter = _cholesky(K)
    dK = (dK + dK.mT) / 2
    inner = solve_lower(lower, solve_lower(lower, dK).mT)
    phi = jnp.tril(inner) - jnp.diag(jnp.diagonal(inner) / 2)
    return (lower, jitter), (lower @ phi, jnp.zeros_like(jitter))


def semidefinite_root(S: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """R with RRᵀ = S, eigenvalues below zero put to zero.

    For drawing from covariances that are differences of nearly equal matrices: their
    rounding errors are relative to the terms, and no jitter relative to S covers them.
    Not meant to be differentiated.
    """
    eigenvalues, vectors = jnp.linalg.eigh(S)
    return vectors * jnp.sqrt(jnp.maximum(eigenvalues, 0))[None]


def solve_lower(
    lower: Float[Array, "*batch n n"], b: Float[Array, "*batch n m"]
) -> Float[Array, "*batch n m"]:
    """L⁻¹ b for lower triangular L."""
    return lax.linalg.triangular_solve(lower, b, left_side=True, lower=True)


def solve_upper(
    lower: Float[Array, "*batch n n"], b: Float[Array, "*batch n m"]
) -> Float[Array, "*batch n m"]:
    """L⁻ᵀ b for lower triangular L."""
    return lax.linalg.triangular_solve(
        lower, b, left_side=True, lower=True, transpose_a=True
    )


def log_determinant(lower: Float[Array, "*batch n n"]) -> Float[Array, "*batch"]:
    """log|LLᵀ| from the factor L."""
    diagonal = jnp.diagonal(lower, axis1=-2, axis2=-1)
    return 2 * jnp.sum(jnp.log(diagonal), axis=-1)


def apply_blocks(
    blocks: Float[Array, "C m n"], v: Float[Array, "n C"]
) -> Float[Array, "m C"]:
    """Each block times its column of `v`; a single block serves all columns."""
    return jnp.einsum("cij,cj->ci", blocks, v.T).T


def diagonal_matrices(v: Float[Array, "*batch n"]) -> Float[Array, "*batch n n"]:
    """Matrices with `v` on their diagonals."""
    return jnp.vectorize(jnp.diag, signature="(n)->(n,n)")(v)


def inverse(
    A: Float[Array, "*batch n n"],
) -> tuple[Float[Array, "*batch n n"], Float[Array, "*batch"]]:
    """A⁻¹ and log|A| of positive definite matrices, by halves.

    With the Schur complement S = A₂₂ − A₂₁A₁₁⁻¹A₁₂ and X = A₂₁A₁₁⁻¹, the blocks of the
    inverse are A₁₁⁻¹ + XᵀS⁻¹X, −S⁻¹X and S⁻¹. Nearly all of the 4n³/3 operations are
    matrix products, several times faster than triangular solves on every device.
    Meant for well-conditioned matrices such as I + D½KD½; a matrix that is not
    positive definite gives NaN.
    """
    n = A.shape[-1]
    if n <= BLOCK:
        lower, log_A = inverse_root(A)
        return lower.mT @ lower, log_A
    half = n // 2
    first, log_first = inverse(A[..., :half, :half])
    A21 = A[..., half:, :half]
    X = A21 @ first
    second, log_second = inverse(A[..., half:, half:] - X @ A21.mT)
    Y = second @ X
    top = jnp.concatenate([first + X.mT @ Y, -Y.mT], axis=-1)
    bottom = jnp.concatenate([-Y, second], axis=-1)
    return jnp.concatenate([top, bottom], axis=-2), log_first + log_second


def inverse_root(
    A: Float[Array, "*batch n n"],
) -> tuple[Float[Array, "*batch n n"], Float[Array, "*batch"]]:
    """L⁻¹ and log|A|, L the Cholesky factor of A, by halves.

    The blocks of L⁻¹ are L₁₁⁻¹, −L₂₂⁻¹L₂₁L₁₁⁻¹ and L₂₂⁻¹ with L₂₁ = A₂₁L₁₁⁻ᵀ and L₂₂
    the factor of A₂₂ − L₂₁L₂₁ᵀ. A matrix that is not positive definite gives NaN.
    """
    n = A.shape[-1]
    if n <= BLOCK:
        lower = lax.linalg.cholesky(A, symmetrize_input=False)
        identity = jnp.broadcast_to(jnp.eye(n, dtype=A.dtype), A.shape)
        return solve_lower(lower, identity), log_determinant(lower)
    half = n // 2
    first, log_first = inverse_root(A[..., :half, :half])
    L21 = A[..., half:, :half] @ first.mT
    second, log_second = inverse_root(A[..., half:, half:] - L21 @ L21.mT)
    zeros = jnp.zeros((*A.shape[:-2], half, n - half), A.dtype)
    top = jnp.concatenate([first, zeros], axis=-1)
    bottom = jnp.concatenate([-second @ (L21 @ first), second], axis=-1)
    return jnp.concatenate([top, bottom], axis=-2), log_first + log_second
