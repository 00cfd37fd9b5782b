"""Cholesky factorisation with the one jitter policy, solves and inverses.

Every factorisation of a covariance matrix in jgp passes through `cholesky`.
It first tries the matrix as it is; if that fails it adds a multiple of the mean
diagonal, climbing a short ladder that depends on the dtype alone, and returns
the jitter it used. If the ladder's top fails too, `ok` is False: callers turn
that into `RESULTS.not_positive_definite`; nothing grows in silence.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jgp import _lapack

# Multiples of eps times the mean diagonal: none, then about n·eps, then up to 1e-9
# (float64) or 1e-3 (float32), above which a covariance is no longer the user's.
LADDER = (0.0, 2.0**5, 2.0**9, 2.0**13)


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
    return Cholesky(lower, jitter, _succeeded(lower))


@jax.custom_jvp
def _cholesky(K: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    if K.shape[-1] == 0:
        return K, jnp.zeros((), K.dtype)
    eps = jnp.finfo(K.dtype).eps
    ladder = jnp.asarray(LADDER, K.dtype) * eps * jnp.mean(jnp.diagonal(K))
    diagonal = jnp.arange(K.shape[-1])

    def climb(state):
        # In place: the identity, made once outside the loop, costs as much as K.
        rung = state[0] + 1
        return rung, _lapack.cholesky(K.at[diagonal, diagonal].add(ladder[rung]))

    def failed(state):
        rung, lower = state
        return (rung < len(LADDER) - 1) & ~_succeeded(lower)

    first = (0, _lapack.cholesky(K))
    rung, lower = lax.while_loop(failed, climb, first)
    return lower, ladder[rung]


def _succeeded(lower: Float[Array, "*batch n n"]) -> Bool[Array, "*batch"]:
    # What is not finite in a row makes the diagonal of the factor so.
    diagonal = jnp.diagonal(lower, axis1=-2, axis2=-1)
    return jnp.all(jnp.isfinite(diagonal), axis=-1)


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
    dlower = lower @ _halved_lower(inner)
    return (lower, jitter), (dlower, jnp.zeros_like(jitter))


@jax.custom_jvp
def semidefinite_root(S: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The symmetric R with RR = S, eigenvalues below zero put to zero.

    For drawing from covariances that are differences of nearly equal matrices: their
    rounding errors are relative to the terms, and no jitter relative to S covers them.
    Differentiable to any order; directions without variance have no derivative.
    """
    eigenvalues, vectors = _lapack.eigh(S)
    return (vectors * jnp.sqrt(jnp.maximum(eigenvalues, 0))[None]) @ vectors.T


@semidefinite_root.defjvp
def _semidefinite_root_jvp(primals, tangents):
    """R dR + dR R = dS, solved in the eigenvectors of R."""
    (S,), (dS,) = primals, tangents
    R = semidefinite_root(S)

    def sylvester(X):
        return R @ X + X @ R

    def solve(_, Y):
        eigenvalues, V = _lapack.eigh(lax.stop_gradient(R))
        sums = eigenvalues[:, None] + eigenvalues[None]
        floor = S.shape[-1] * jnp.finfo(S.dtype).eps * jnp.max(sums, initial=0)
        solved = jnp.where(sums > floor, V.T @ Y @ V / sums, 0)
        return V @ solved @ V.T

    dS = (dS + dS.T) / 2
    return R, lax.custom_linear_solve(sylvester, dS, solve, symmetric=True)


@jax.custom_jvp
def orthonormal(
    W: Float[Array, "n p"],
) -> tuple[Float[Array, "n p"], Float[Array, "p p"]]:
    """Q and a lower triangular L of positive diagonal with W = QLᵀ, n >= p.

    L is the Cholesky factor of WᵀW, found without squaring the condition number.
    Differentiable to any order where W has full rank.
    """
    Q, R = _lapack.qr(W)
    sign = jnp.where(jnp.diagonal(R) < 0, -1, 1).astype(W.dtype)
    return Q * sign[None], R.T * sign[None]


@orthonormal.defjvp
def _orthonormal_jvp(primals, tangents):
    """DL = L Φ(Z + Zᵀ) and dQ = dW L⁻ᵀ − Q Φ(Z + Zᵀ)ᵀ, Z = Qᵀ dW L⁻ᵀ."""
    (W,), (dW,) = primals, tangents
    Q, lower = orthonormal(W)
    change = solve_lower(lower, dW.T).T
    Z = Q.T @ change
    halved = _halved_lower(Z + Z.T)
    return (Q, lower), (change - Q @ halved.T, lower @ halved)


def solve_lower(
    lower: Float[Array, "*batch n n"], b: Float[Array, "*batch n m"]
) -> Float[Array, "*batch n m"]:
    """L⁻¹ b for lower triangular L, zero above its diagonal."""
    return jnp.vectorize(_lapack.triangular_solve, signature="(n,n),(n,m)->(n,m)")(
        lower, b
    )


def solve_upper(
    lower: Float[Array, "*batch n n"], b: Float[Array, "*batch n m"]
) -> Float[Array, "*batch n m"]:
    """L⁻ᵀ b for lower triangular L, zero above its diagonal."""
    transposed = functools.partial(_lapack.triangular_solve, transpose=True)
    return jnp.vectorize(transposed, signature="(n,n),(n,m)->(n,m)")(lower, b)


def cholesky_solve(
    lower: Float[Array, "*batch n n"], b: Float[Array, "*batch n m"]
) -> Float[Array, "*batch n m"]:
    """(LLᵀ)⁻¹ b from the factor L."""
    return solve_upper(lower, solve_lower(lower, b))


def log_determinant(lower: Float[Array, "*batch n n"]) -> Float[Array, "*batch"]:
    """log|LLᵀ| from the factor L."""
    diagonal = jnp.diagonal(lower, axis1=-2, axis2=-1)
    return 2 * jnp.sum(jnp.log(diagonal), axis=-1)


def apply_blocks(
    blocks: Float[Array, "C m n"], v: Float[Array, "n C"]
) -> Float[Array, "m C"]:
    """Each block times its column of `v`; a single block serves all columns."""
    return jnp.einsum("cij,cj->ci", blocks, v.T).T


def lower_times(
    lower: Float[Array, "n n"], B: Float[Array, "C n m"]
) -> Float[Array, "C n m"]:
    """LB of each block B, without most of the zeros of a large L.

    On CPU one block after the other: the batched product moves its operands first.
    """

    def one_after_the_other(lower, B):
        return lax.map(functools.partial(_lower_times, lower), B)

    def together(lower, B):
        return jax.vmap(_lower_times, in_axes=(None, 0))(lower, B)

    return lax.platform_dependent(lower, B, cpu=one_after_the_other, default=together)


def _lower_times(lower: Float[Array, "n n"], B: Float[Array, "n m"]) -> Array:
    half = lower.shape[0] // 2
    if lower.shape[0] < _lapack.WHOLE:
        return lower @ B
    first = _lower_times(lower[:half, :half], B[:half])
    second = _lower_times(lower[half:, half:], B[half:])
    return jnp.concatenate([first, lower[half:, :half] @ B[:half] + second])


def diagonal_matrices(v: Float[Array, "*batch n"]) -> Float[Array, "*batch n n"]:
    """Matrices with `v` on their diagonals."""
    return jnp.vectorize(jnp.diag, signature="(n)->(n,n)")(v)


def inverse(
    A: Float[Array, "*batch n n"],
) -> tuple[Float[Array, "*batch n n"], Float[Array, "*batch"]]:
    """A⁻¹ and log|A| of positive definite matrices.

    Meant for well-conditioned matrices such as I + D½KD½; a matrix that is not
    positive definite gives NaN. Differentiable to any order.
    """
    return jnp.vectorize(_inverse, signature="(n,n)->(n,n),()")(A)


def inverse_and_root(
    A: Float[Array, "*batch n n"],
) -> tuple[
    Float[Array, "*batch n n"], Float[Array, "*batch n n"], Float[Array, "*batch"]
]:
    """As `inverse`, with R between: A⁻¹ = RᵀR. R is a constant of derivatives."""
    return jnp.vectorize(_inverse_and_root, signature="(n,n)->(n,n),(n,n),()")(A)


def inverse_root(
    A: Float[Array, "*batch n n"],
) -> tuple[Float[Array, "*batch n n"], Float[Array, "*batch"]]:
    """L⁻¹ and log|A|, L the Cholesky factor of A; otherwise like `inverse`."""
    return jnp.vectorize(_inverse_root, signature="(n,n)->(n,n),()")(A)


def inverse_from_factor(
    S: Float[Array, "*batch n n"], lower: Float[Array, "*batch n n"]
) -> Float[Array, "*batch n n"]:
    """S⁻¹ of positive definite matrices with the factor L at hand, S = LLᵀ.

    Its derivative is taken in S alone, to any order.
    """
    lower = lax.stop_gradient(lower)
    return jnp.vectorize(_inverse_from_factor, signature="(n,n),(n,n)->(n,n)")(S, lower)


@jax.custom_jvp
def _inverse_from_factor(S: Float[Array, "n n"], lower: Float[Array, "n n"]) -> Array:
    del S
    return _lapack.inverse_from_lower(lower)


@_inverse_from_factor.defjvp
def _inverse_from_factor_jvp(primals, tangents):
    """dS⁻¹ = −S⁻¹ dS S⁻¹."""
    (S, lower), (dS, _) = primals, tangents
    S_inverse = _inverse_from_factor(S, lower)
    return S_inverse, -S_inverse @ dS @ S_inverse


@jax.custom_jvp
def _inverse(A: Float[Array, "n n"]) -> tuple[Array, Array]:
    return _lapack.inverse(A)


@_inverse.defjvp
def _inverse_jvp(primals, tangents):
    """dA⁻¹ = −A⁻¹ dA A⁻¹ and d log|A| = tr(A⁻¹ dA)."""
    (A,), (dA,) = primals, tangents
    A_inverse, log_A = _inverse(A)
    product = A_inverse @ dA
    return (A_inverse, log_A), (-product @ A_inverse, jnp.trace(product))


@jax.custom_jvp
def _inverse_and_root(A: Float[Array, "n n"]) -> tuple[Array, Array, Array]:
    return _lapack.inverse_and_root(A)


@_inverse_and_root.defjvp
def _inverse_and_root_jvp(primals, tangents):
    """As for `_inverse`."""
    (A,), (dA,) = primals, tangents
    A_inverse, R, log_A = _inverse_and_root(A)
    product = A_inverse @ dA
    change = -product @ A_inverse, jnp.zeros_like(R), jnp.trace(product)
    return (A_inverse, R, log_A), change


@jax.custom_jvp
def _inverse_root(A: Float[Array, "n n"]) -> tuple[Array, Array]:
    return _lapack.inverse_root(A)


@_inverse_root.defjvp
def _inverse_root_jvp(primals, tangents):
    """For R = L⁻¹, dR = −Φ(R dA Rᵀ) R and d log|A| = tr(R dA Rᵀ); see `_cholesky`."""
    (A,), (dA,) = primals, tangents
    R, log_A = _inverse_root(A)
    inner = R @ ((dA + dA.T) / 2) @ R.T
    return (R, log_A), (-_halved_lower(inner) @ R, jnp.trace(inner))


def _halved_lower(A: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """Φ: the lower triangle with its diagonal halved."""
    return jnp.tril(A) - jnp.diag(jnp.diagonal(A) / 2)
