"""The laws that jgp's own kernels are held to, for kernels written by users."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, PyTree

from jgp._parameters import cast
from jgp.kernels import AbstractKernel, check_dimension, diagonal, gram

__all__ = ["check_kernel"]

# Points whose pairs are evaluated one at a time.
FEW = 4


def check_kernel(kernel: AbstractKernel, x: Float[ArrayLike, "n d"]) -> None:
    """Hold a kernel to the laws that inference relies on.

    Args:
        kernel: The kernel; its floating leaves are cast to the dtype of `x`.
        x: At least two points at which to examine it. Ten or so of them, of the
            spread that the kernel is meant for, are enough.

    Raises:
        AssertionError: starting with the name of the law that fails: shape, dtype,
            symmetry, positive semidefiniteness, diagonal, jit, vmap, stacking,
            flattening, gradient.
        ValueError: if the kernel does not take points of this dimension.
    """
    x = jnp.asarray(x)
    kernel = cast(kernel, x.dtype)
    check_dimension(kernel, x.shape[1])
    K = np.asarray(gram(kernel, x))
    # A value is a few rounded operations away from the truth; relative to the largest.
    rounding = 100 * np.finfo(K.dtype).eps * np.max(np.abs(K))

    _law("shape", K.shape == (len(x), len(x)), f"gram has shape {K.shape}")
    _law("dtype", K.dtype == x.dtype, f"got {K.dtype} from {x.dtype} points")
    rectangle = np.asarray(gram(kernel, x, x))
    _close("symmetry", rectangle, rectangle.T, rounding)
    lowest = np.min(np.linalg.eigvalsh(K))
    _law(
        "positive semidefiniteness",
        lowest >= -len(x) * rounding,
        f"the least eigenvalue is {lowest}",
    )
    _close("diagonal", diagonal(kernel, x), np.diagonal(K), rounding)
    _close("jit", eqx.filter_jit(gram)(kernel, x), K, rounding)
    pair = eqx.filter_jit(lambda k, a, b: k(a, b))
    loop = [[pair(kernel, a, b) for b in x[:FEW]] for a in x[:FEW]]
    _close("vmap", np.asarray(loop), K[:FEW, :FEW], rounding)
    _check_stacking(kernel, x, K, rounding)
    leaves, structure = jax.tree.flatten(kernel)
    rebuilt = jax.tree.unflatten(structure, leaves)
    _close("flattening", eqx.filter_jit(gram)(rebuilt, x), K, rounding)
    _check_gradient(kernel, x[:FEW])


def _check_stacking(
    kernel: AbstractKernel, x: Float[Array, "n d"], K: np.ndarray, rounding: float
) -> None:
    """Kernels of one structure can be stacked leaf by leaf and mapped over."""
    arrays, static = eqx.partition(kernel, eqx.is_array)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), arrays)
    both = jax.vmap(lambda leaf: gram(eqx.combine(leaf, static), x), axis_size=2)
    for each in jax.jit(both)(stacked):
        _close("stacking", each, K, rounding)


def _check_gradient(kernel: AbstractKernel, x: Float[Array, "n d"]) -> None:
    """Directional derivatives against central differences, coincident points included.

    The points and the parameters move at once: the points of the first argument along
    a fixed direction, each parameter in proportion to itself. Where a kernel has a kink
    at coincident points, both sides give the mean of the one-sided derivatives: the
    central difference up to a term in h, which extrapolation takes away.
    """
    parameters, static = eqx.partition(kernel, eqx.is_inexact_array)
    sway = jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape)
    directions = {
        "the inputs": (sway, jax.tree.map(jnp.zeros_like, parameters)),
        "the parameters": (jnp.zeros_like(x), jax.tree.map(_proportional, parameters)),
    }

    @jax.jit
    def derivatives(direction: PyTree, h: Array) -> tuple[Array, ...]:
        def along(t: Array) -> Array:
            at = jax.tree.map(lambda v, dv: v + t * dv, (x, parameters), direction)
            return gram(eqx.combine(at[1], static), at[0], x)

        def central(h: Array) -> Array:
            return (along(h) - along(-h)) / (2 * h)

        zero, one = jnp.zeros_like(h), jnp.ones_like(h)
        value, forward = jax.jvp(along, (zero,), (one,))
        difference = 2 * central(h / 2) - central(h)
        return value, forward, jax.jacrev(along)(zero), difference

    # The step that balances truncation, h², against rounding, eps/h.
    eps = float(np.finfo(x.dtype).eps)
    h = jnp.asarray(eps ** (1 / 3), x.dtype)
    for name, direction in directions.items():
        value, forward, reverse, difference = map(np.asarray, derivatives(direction, h))
        finite = np.all(np.isfinite(forward)) and np.all(np.isfinite(reverse))
        _law("gradient", finite, f"not finite in {name}: {forward}, {reverse}")
        scale = np.max(np.abs(forward)) + np.max(np.abs(value))
        _close("gradient", reverse, forward, 100 * eps * scale)
        _close("gradient", forward, difference, 100 * eps ** (2 / 3) * scale)


def _proportional(leaf: Array) -> Array:
    return jnp.where(leaf == 0, jnp.ones_like(leaf), leaf)


def _close(law: str, got: Any, wanted: Any, tolerance: float) -> None:
    error = np.max(np.abs(np.asarray(got) - np.asarray(wanted)))
    _law(law, error <= tolerance, f"off by {error}, more than {tolerance}")


def _law(name: str, holds: Any, detail: str) -> None:
    if not holds:
        raise AssertionError(f"{name}: {detail}.")
