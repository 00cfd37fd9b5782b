"""Directions of limited-memory BFGS, by optax."""

from typing import Any

import jax
import optax
from jaxtyping import Array, Float

MEMORY = 10

_LBFGS = optax.chain(optax.scale_by_lbfgs(memory_size=MEMORY), optax.scale(-1.0))


def lbfgs_memory(raw: Float[Array, " d"]) -> Any:
    """The memory at a start, empty."""
    # optax mixes integer widths, which strict promotion forbids.
    with jax.numpy_dtype_promotion("standard"):
        return _LBFGS.init(raw)


@jax.jit
def lbfgs_direction(
    gradient: Float[Array, " d"], memory: Any, raw: Float[Array, " d"]
) -> Any:
    """The direction of descent at a point, and the memory with that point."""
    with jax.numpy_dtype_promotion("standard"):
        return _LBFGS.update(gradient, memory, raw)
