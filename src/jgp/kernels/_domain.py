"""Checks that a kernel takes the points it is given, before anything is computed."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp._parameters import is_concrete
from jgp._types import is_floating
from jgp.kernels._base import AbstractKernel


def check_dimension(kernel: AbstractKernel, d: int) -> None:
    """Check, without computing anything, that a kernel takes points of dimension d.

    Raises:
        ValueError: naming the parameter that disagrees with d, what was got and what
            was wanted; or if the kernel's value is not a scalar.
    """
    leaves, structure = jax.tree.flatten(kernel)
    abstract = tuple(
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if hasattr(leaf, "dtype") else leaf
        for leaf in leaves
    )
    shape = _value_shape(structure, abstract, d)
    if shape != ():
        raise ValueError(
            f"kernel: got a value of shape {shape} between two points, wanted a scalar."
        )


# Tracing a kernel takes milliseconds, and every inference asks this of every kernel.
@functools.lru_cache(maxsize=256)
def _value_shape(structure: Any, leaves: tuple, d: int) -> tuple[int, ...]:
    kernel = jax.tree.unflatten(structure, leaves)
    dtypes = [leaf.dtype for leaf in leaves if is_floating(leaf)] or [float]
    point = jax.ShapeDtypeStruct((d,), jnp.result_type(*dtypes))
    # Only shapes are asked for: a kernel in another precision is not an error here.
    with jax.numpy_dtype_promotion("standard"):
        return eqx.filter_eval_shape(
            lambda k, x, z: k(x, z), kernel, point, point
        ).shape


def check_domain(kernel: AbstractKernel, x: Float[Array, "n d"], name: str) -> None:
    """Check the dimension of points and, where they can be read, their values.

    Raises:
        ValueError: naming what disagrees, what was got and what was wanted.
    """
    check_dimension(kernel, x.shape[1])
    if is_concrete(x):
        kernel.check_inputs(x, name)
