"""Kernel matrices: one kernel of single points, batched by `vmap`."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from jgp._types import as_float
from jgp.kernels._base import (
    AbstractKernel,
    Constant,
    Power,
    Product,
    Scaled,
    Sum,
    check_domain,
)
from jgp.kernels._periodic import Periodic
from jgp.kernels._stationary import AbstractStationary
from jgp.kernels._transforms import Warped


def gram(
    kernel: AbstractKernel,
    x: Float[ArrayLike, "n d"],
    z: Float[ArrayLike, "m d"] | None = None,
) -> Float[Array, "n m"]:
    """The matrix of covariances between points x and points z, or x and itself.

    Args:
        kernel: The kernel.
        x: Points; a vector is read as n points of dimension 1.
        z: Points; left out, the matrix is square and exactly symmetric.

    Raises:
        ValueError: if the dimensions of x, z and the kernel disagree, or points lie
            outside the kernel's domain.
    """
    x = as_points(x, "x")
    check_domain(kernel, x, "x")
    if z is None:
        K = kernel.matrix(x, x)
        if _exactly_symmetric(kernel):
            return K
        # k(x, z) and k(z, x) may differ in the last digit. Not `where(mask, K, K.T)`,
        # which XLA takes minutes to compile for 1000 points on a CPU; and without the
        # barrier it evaluates the kernel twice.
        K = lax.optimization_barrier(K)
        return jnp.tril(K) + jnp.tril(K, -1).T
    z = as_points(z, "z")
    if x.shape[1] != z.shape[1]:
        raise ValueError(
            f"z: got points of dimension {z.shape[1]}, wanted {x.shape[1]}, the "
            "dimension of x."
        )
    check_domain(kernel, z, "z")
    return kernel.matrix(x, z)


def diagonal(kernel: AbstractKernel, x: Float[ArrayLike, "n d"]) -> Float[Array, " n"]:
    """The variances k(x, x) of points: the diagonal of `gram(kernel, x)`, in O(n).

    Raises:
        ValueError: if the dimensions of x and the kernel disagree.
    """
    x = as_points(x, "x")
    check_domain(kernel, x, "x")
    return jax.vmap(lambda point: kernel(point, point))(x)


def _exactly_symmetric(kernel: AbstractKernel) -> bool:
    """Whether each operation of the kernel is the same for (x, z) as for (z, x)."""
    match kernel:
        case Sum() | Product():
            return all(map(_exactly_symmetric, kernel.kernels))
        case Scaled() | Power() | Warped():
            return _exactly_symmetric(kernel.kernel)
    return isinstance(kernel, AbstractStationary | Constant | Periodic)


def as_points(x: Float[ArrayLike, "n d"], name: str) -> Float[Array, "n d"]:
    """Points as a floating (n, d) array; a vector becomes (n, 1).

    Raises:
        ValueError: if `x` is neither a vector nor a matrix.
    """
    x = as_float(x)
    if x.ndim not in (1, 2):
        raise ValueError(f"{name}: got shape {x.shape}, wanted (n, d).")
    return x[:, None] if x.ndim == 1 else x
