"""Kernel matrices: one kernel of single points, batched by `vmap`."""

import equinox as eqx
import jax
from jaxtyping import Array, ArrayLike, Float

from jgp._types import as_float
from jgp.kernels._base import AbstractKernel
from jgp.kernels._domain import check_domain


def gram(
    kernel: AbstractKernel,
    x: Float[ArrayLike, "n d"],
    z: Float[ArrayLike, "m d"] | None = None,
) -> Float[Array, "n m"]:
    """The matrix of covariances between points x and points z, or x and itself.

    Args:
        kernel: The kernel.
        x: Points; a vector is read as n points of dimension 1.
        z: Points; left out, they are x. That matrix is symmetric to the last digit or
            the one before, and factorisations here read its lower triangle alone.

    Raises:
        ValueError: if the dimensions of x, z and the kernel disagree, or points lie
            outside the kernel's domain.
    """
    x = as_points(x, "x")
    check_domain(kernel, x, "x")
    if z is None:
        return _matrix(kernel, x, x)
    z = as_points(z, "z")
    if x.shape[1] != z.shape[1]:
        raise ValueError(
            f"z: got points of dimension {z.shape[1]}, wanted {x.shape[1]}, the "
            "dimension of x."
        )
    check_domain(kernel, z, "z")
    return _matrix(kernel, x, z)


@eqx.filter_jit
def _matrix(
    kernel: AbstractKernel, x: Float[Array, "n d"], z: Float[Array, "m d"]
) -> Float[Array, "n m"]:
    return kernel.matrix(x, z)


def diagonal(kernel: AbstractKernel, x: Float[ArrayLike, "n d"]) -> Float[Array, " n"]:
    """The variances k(x, x) of points: the diagonal of `gram(kernel, x)`, in O(n).

    Raises:
        ValueError: if the dimensions of x and the kernel disagree.
    """
    x = as_points(x, "x")
    check_domain(kernel, x, "x")
    return _diagonal(kernel, x)


@eqx.filter_jit
def _diagonal(kernel: AbstractKernel, x: Float[Array, "n d"]) -> Float[Array, " n"]:
    return jax.vmap(lambda point: kernel(point, point))(x)


def as_points(x: Float[ArrayLike, "n d"], name: str) -> Float[Array, "n d"]:
    """Points as a floating (n, d) array; a vector becomes (n, 1).

    Raises:
        ValueError: if `x` is neither a vector nor a matrix.
    """
    x = as_float(x)
    if x.ndim not in (1, 2):
        raise ValueError(f"{name}: got shape {x.shape}, wanted (n, d).")
    return x[:, None] if x.ndim == 1 else x
