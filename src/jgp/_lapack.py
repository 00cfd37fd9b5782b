"""Dense factorisations and solves that are safe to run side by side.

On CPU, XLA splits a LAPACK call on a batch of matrices over its thread pool and waits
for the parts inside a thread of the same pool. Two or more such calls that do not
depend on each other then wait for ever, on as many cores. A call on one matrix is not
split, so on CPU a batch is a loop of calls; elsewhere it is one batched call.
No other module calls LAPACK.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float

# The size at which an inverse by halves hands over to LAPACK, and below which products
# with triangular factors are made whole; measured on CPU.
BLOCK = 64
WHOLE = 200


def one_by_one(function: Callable) -> Callable:
    """`function` of single matrices that under `vmap` is a loop on CPU.

    It has no derivative of its own: whoever calls it gives one.
    """
    mapped = custom_vmap(function)

    @mapped.def_vmap
    def _(axis_size, in_batched, *args):
        if axis_size == 1:
            one = (a[0] if b else a for a, b in zip(args, in_batched, strict=True))
            out = jax.tree.map(lambda leaf: leaf[None], mapped(*one))
        else:
            args = [
                a if b else jnp.broadcast_to(a, (axis_size, *a.shape))
                for a, b in zip(args, in_batched, strict=True)
            ]
            out = lax.platform_dependent(
                *args,
                cpu=lambda *args: lax.map(lambda each: mapped(*each), args),
                default=jax.vmap(function),
            )
        return out, jax.tree.map(lambda _: True, out)

    return functools.wraps(function)(mapped)


@one_by_one
def cholesky(K: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The lower factor, NaN where K is not positive definite; not differentiable."""
    # LAPACK wants columns; the transpose of a symmetric matrix is its rows as they lie.
    return lax.linalg.cholesky(K.T, symmetrize_input=False)


@one_by_one
def eigh(S: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Eigenvalues, ascending, and eigenvectors in columns; not differentiable."""
    eigenvalues, vectors = jnp.linalg.eigh(S, symmetrize_input=False)
    return eigenvalues, vectors


@one_by_one
def qr(W: Float[Array, "n p"]) -> tuple[Float[Array, "n p"], Float[Array, "p p"]]:
    """Q of orthonormal columns and R, upper triangular; not differentiable."""
    return jnp.linalg.qr(W)


@one_by_one
def solve(A: Float[Array, "n n"], b: Float[Array, " n"]) -> Float[Array, " n"]:
    """A⁻¹ b by LU; not differentiable."""
    return jnp.linalg.solve(A, b)


@one_by_one
def inverse_and_root(
    A: Float[Array, "n n"],
) -> tuple[Float[Array, "n n"], Float[Array, "n n"], Float[Array, ""]]:
    """A⁻¹, R with A⁻¹ = RᵀR, and log|A| of a positive definite matrix.

    R = L⁻¹ of the Cholesky factor L: errors of κ·eps in A⁻¹, κ the condition number,
    and of √κ·eps in R. Halves by Schur complements are a little faster, with errors of
    κ²·eps. Not differentiable.
    """
    lower = lax.linalg.cholesky(A.T, symmetrize_input=False)
    log_A = 2 * jnp.sum(jnp.log(jnp.diagonal(lower)))
    upper = _upper_inverse(lower.T)
    return _upper_product(upper), upper.T, log_A


def inverse(A: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    """A⁻¹ and log|A| of a positive definite matrix; not differentiable."""
    A_inverse, _, log_A = inverse_and_root(A)
    return A_inverse, log_A


@one_by_one
def inverse_root(
    A: Float[Array, "n n"],
) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    """L⁻¹ and log|A|, L the Cholesky factor of A, by halves; not differentiable.

    The blocks of L⁻¹ are L₁₁⁻¹, −L₂₂⁻¹L₂₁L₁₁⁻¹ and L₂₂⁻¹ with L₂₁ = A₂₁L₁₁⁻ᵀ and L₂₂
    the factor of A₂₂ − L₂₁L₂₁ᵀ.
    """
    return _inverse_root(A)


@one_by_one
def inverse_from_lower(lower: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """(LLᵀ)⁻¹ from L, by halves; not differentiable.

    U = Lᵀ, whose rows are the columns that LAPACK wrote, is inverted by halves, and so
    is its inverse multiplied by the transpose: fewer than n³ operations, nearly all in
    matrix products, and as accurate as substitution.
    """
    return _upper_product(_upper_inverse(lower.T))


def _upper_inverse(upper: Array) -> Array:
    half = upper.shape[0] // 2
    if upper.shape[0] <= BLOCK:
        identity = jnp.eye(upper.shape[0], dtype=upper.dtype)
        return lax.linalg.triangular_solve(upper, identity, left_side=True)
    first = _upper_inverse(upper[:half, :half])
    second = _upper_inverse(upper[half:, half:])
    zeros = jnp.zeros((upper.shape[0] - half, half), upper.dtype)
    corner = -_times_upper(_upper_times(first, upper[:half, half:]), second)
    return jnp.block([[first, corner], [zeros, second]])


def _upper_product(R: Array) -> Array:
    """RRᵀ of an upper triangular R."""
    half = R.shape[0] // 2
    if R.shape[0] <= 2 * BLOCK:
        return R @ R.T
    first, corner, second = R[:half, :half], R[:half, half:], R[half:, half:]
    below = _upper_times(second, corner.T)
    above = _upper_product(first) + _symmetric_product(corner, corner.T)
    return jnp.block([[above, below.T], [below, _upper_product(second)]])


def _upper_times(R: Array, B: Array) -> Array:
    """RB of an upper triangular R, without most of its zeros."""
    half = R.shape[0] // 2
    if R.shape[0] < WHOLE:
        return R @ B
    first = _upper_times(R[:half, :half], B[:half]) + R[:half, half:] @ B[half:]
    return jnp.concatenate([first, _upper_times(R[half:, half:], B[half:])])


def _times_upper(B: Array, R: Array) -> Array:
    """BR of an upper triangular R, without most of its zeros."""
    half = R.shape[0] // 2
    if R.shape[0] < WHOLE:
        return B @ R
    second = B[:, :half] @ R[:half, half:] + _times_upper(B[:, half:], R[half:, half:])
    return jnp.concatenate([_times_upper(B[:, :half], R[:half, :half]), second], 1)


def _symmetric_product(B: Array, C: Array) -> Array:
    """BC where it is known to be symmetric, most of its symmetric half once."""
    half = B.shape[0] // 2
    if B.shape[0] < WHOLE:
        return B @ C
    right = B[:half] @ C[:, half:]
    first = _symmetric_product(B[:half], C[:, :half])
    return jnp.block(
        [[first, right], [right.T, _symmetric_product(B[half:], C[:, half:])]]
    )


def _inverse_root(A: Array) -> tuple[Array, Array]:
    half = A.shape[0] // 2
    if A.shape[0] <= BLOCK:
        lower = lax.linalg.cholesky(A, symmetrize_input=False)
        identity = jnp.eye(A.shape[0], dtype=A.dtype)
        root = lax.linalg.triangular_solve(lower, identity, left_side=True, lower=True)
        return root, 2 * jnp.sum(jnp.log(jnp.diagonal(lower)))
    first, log_first = _inverse_root(A[:half, :half])
    L21 = A[half:, :half] @ first.T
    remainder = A[half:, half:] - _symmetric_product(L21, L21.T)
    second, log_second = _inverse_root(remainder)
    zeros = jnp.zeros((half, A.shape[0] - half), A.dtype)
    blocks = [[first, zeros], [-second @ (L21 @ first), second]]
    return jnp.block(blocks), log_first + log_second


def triangular_solve(
    lower: Float[Array, "n n"], b: Float[Array, "n m"], *, transpose: bool = False
) -> Float[Array, "n m"]:
    """L⁻¹ b, or L⁻ᵀ b, differentiable to any order."""

    def matvec(x):
        return (lower.T if transpose else lower) @ x

    def forward(_, b):
        return _substitute(lower, b, transpose)

    def backward(_, b):
        return _substitute(lower, b, not transpose)

    return lax.custom_linear_solve(matvec, b, forward, transpose_solve=backward)


def _substitute(lower: Array, b: Array, transpose: bool) -> Array:
    return (_substitute_backward if transpose else _substitute_forward)(lower, b)


def _substitution(transpose: bool) -> Callable:
    def one(lower, b):
        return lax.linalg.triangular_solve(
            lower, b, left_side=True, lower=True, transpose_a=transpose
        )

    each = one_by_one(one)
    mapped = custom_vmap(one)

    @mapped.def_vmap
    def _(axis_size, in_batched, lower, b):
        # Right-hand sides that share a factor are columns of one call.
        if not in_batched[0]:
            n, m = b.shape[1:]
            columns = jnp.moveaxis(b, 0, 1).reshape(n, axis_size * m)
            solved = mapped(lower, columns).reshape(n, axis_size, m)
            return jnp.moveaxis(solved, 1, 0), True
        return jax.vmap(each, in_axes=(0, 0 if in_batched[1] else None))(lower, b), True

    return mapped


_substitute_forward, _substitute_backward = map(_substitution, (False, True))
