"""What drivers ask of steps, of states and of draws."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree

from jgp._types import is_floating

# Parts of a state that must be finite for a chain to go on.
STARTS = {"position", "log_density", "log_likelihood"}


def check_steps(step: Any, warmup_step: Any) -> None:
    """`ValueError` for steps that cannot be called as such."""
    _check_callable(step, "step", "state")
    if warmup_step is not None:
        _check_callable(warmup_step, "warmup_step", "state", "iteration")


def moved(found: Any, like: PyTree, name: str) -> tuple[Any, Any]:
    """What a step returned: a pair of a state as the one before, and an info.

    Raises:
        ValueError: for anything else, before `lax.scan` would say so of its carry.
    """
    if not isinstance(found, tuple) or len(found) != 2:
        raise ValueError(
            f"{name}: returned {_told(found)}, wanted the pair (state, info)."
        )
    new = found[0]
    expected, got = _shapes(like), _shapes(new)
    if expected != got:
        raise ValueError(
            f"{name}: returned the state {got}, wanted {expected}, as the one it got."
        )
    return found


def check_starts(state: PyTree) -> None:
    """`ValueError` where a chain of stacked states cannot go on from its state.

    Looks at what is called `position`, `log_density` or `log_likelihood`: under `vmap`
    their values were not yet known to `evaluate_start`.
    """
    for path, leaf in jtu.tree_flatten_with_path(state)[0]:
        names = {getattr(key, "name", getattr(key, "key", None)) for key in path}
        if not (names & STARTS and jnp.issubdtype(leaf.dtype, jnp.floating)):
            continue
        finite = np.isfinite(leaf).all(axis=tuple(range(1, leaf.ndim)))
        if not finite.all():
            chain = int(np.argmin(finite))
            raise ValueError(
                f"state: chain {chain} starts where {jtu.keystr(path)[1:]} is not "
                "finite, expected finite numbers."
            )


def are_finite(draws: PyTree) -> bool:
    """Whether all floating numbers among draws are finite."""
    leaves = [leaf for leaf in jax.tree.leaves(draws) if is_floating(leaf)]
    return all(bool(np.all(np.isfinite(np.asarray(leaf)))) for leaf in leaves)


def stand_still(draws: PyTree) -> bool:
    """Whether all draws of some chain are one and the same."""
    leaves = [leaf for leaf in jax.tree.leaves(draws) if leaf.shape[1] > 1]
    if not leaves:
        return False
    same = [np.all(v == v[:, :1], axis=tuple(range(1, v.ndim))) for v in leaves]
    return bool(np.any(np.all(same, axis=0)))


def _check_callable(step: Any, name: str, *given: str) -> None:
    """`ValueError` for what cannot be called with such arguments."""
    wanted = ", ".join([*given, "key=key"])
    try:
        inspect.signature(step).bind(*given, key=None)
    except TypeError as error:
        raise ValueError(
            f"{name}: got {step!r}, wanted what can be called as {name}({wanted}): "
            f"{error}."
        ) from error
    except ValueError:
        # A builtin may not tell its signature.
        return


def _shapes(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda a: (jnp.shape(a), jnp.asarray(a).dtype.name), tree)


def _told(found: Any) -> str:
    return f"a tuple of {len(found)}" if isinstance(found, tuple) else repr(found)
