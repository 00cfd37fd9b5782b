"""What samplers ask of the functions they are given.

A log density returns one number, and NaN counts as −inf: a point at which it cannot
be computed is never visited. A random direction has the structure of the position.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jgp._parameters import is_concrete
from jgp._types import as_float


def evaluate(
    log_density: Callable[[Any], Array], position: PyTree[Array]
) -> Float[Array, ""]:
    """The log density at `position`, −inf where it is NaN."""
    value = as_float(log_density(position))
    if value.shape != ():
        raise ValueError(
            "A log density or log likelihood must return a scalar: expected shape (), "
            f"got {value.shape}."
        )
    return jnp.where(jnp.isnan(value), -jnp.inf, value)


def evaluate_start(
    log_density: Callable[[Any], Array], position: PyTree[Array]
) -> Float[Array, ""]:
    """The log density where a chain is to start.

    Raises:
        ValueError: where it is known not to be finite: a chain could stay there for
            ever.
    """
    value = evaluate(log_density, position)
    if is_concrete(value) and not jnp.isfinite(value):
        raise ValueError(
            f"position: the log density at the start is {value} (NaN counts as -inf), "
            "expected a finite number."
        )
    return value


def match(tree: PyTree, position: PyTree[Array], name: str) -> PyTree[Array]:
    """The arrays of `tree` in the dtypes of `position`, whose shapes they must have."""
    expected, got = jax.tree.structure(position), jax.tree.structure(tree)
    if expected != got:
        raise ValueError(
            f"{name} must have the tree structure of the position: expected "
            f"{expected}, got {got}."
        )

    def cast(leaf, like):
        # Broadcasting a wrong shape would sample from another distribution in silence.
        if jnp.shape(leaf) != like.shape:
            raise ValueError(
                f"{name} must have the shape of the position: expected {like.shape}, "
                f"got {jnp.shape(leaf)}."
            )
        kind = jnp.asarray(leaf).dtype
        if _rank(kind) > _rank(like.dtype):
            raise ValueError(
                f"{name}: got {kind}, which {like.dtype} of the position cannot hold. "
                "Start from a position of that kind."
            )
        return jnp.asarray(leaf, like.dtype)

    return jax.tree.map(cast, tree, position)


def _rank(dtype: Any) -> int:
    """How much numbers of a kind can say: truth values, integers, floats."""
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next(i for i, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind))
