"""Conversion of user input to floating arrays, and checks of counts and keys."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike


def as_float(x: ArrayLike) -> Array:
    """A strongly typed floating array with the values of `x`.

    A floating array keeps its dtype; Python numbers, integers and booleans get
    JAX's default float. The dtype is always explicit: a weakly typed leaf would
    make every compiled function trace again after the first optimiser step.

    Raises:
        ValueError: for what is no array of real numbers.
    """
    try:
        # NumPy would read "a" as the name of a dtype.
        array = jnp.asarray(object() if isinstance(x, str) else x)
    except TypeError as error:
        raise ValueError(
            f"got {x!r} ({type(x).__name__}), wanted a number or an array of numbers."
        ) from error
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ValueError("got complex numbers, wanted real ones.")
    floating = jnp.issubdtype(array.dtype, jnp.floating)
    return jnp.asarray(array, array.dtype if floating else jnp.result_type(float))


def is_floating(x: Any) -> bool:
    """Whether `x` is an array of floating dtype."""
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)


def positive_integer(name: str, value: Any, *, least: int = 1) -> np.ndarray:
    """A count as an int32 array; `ValueError` unless an integer >= `least` fits."""
    integral = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not integral or value < least:
        raise ValueError(f"{name}: got {value!r}, wanted an integer >= {least}.")
    largest = np.iinfo(np.int32).max
    if value > largest:
        raise ValueError(f"{name}: got {value!r}, wanted an integer <= {largest}.")
    return np.asarray(value, np.int32)


def check_key(key: Any) -> None:
    """`ValueError` for what is no PRNG key, or several."""
    right = isinstance(key, jax.Array)
    if right and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        right = key.ndim == 0
    elif right:
        right = key.dtype == np.uint32 and key.shape == (2,)
    if not right:
        array = isinstance(key, jax.Array)
        got = f"{key.dtype} of shape {key.shape}" if array else repr(key)
        raise ValueError(f"key: got {got}, wanted a PRNG key.")
