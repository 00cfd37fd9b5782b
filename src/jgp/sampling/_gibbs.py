"""Gibbs sampling: named blocks of a position, each moved given all the others.

A block may be drawn from its conditional distribution, or moved by any step that leaves
that invariant (Metropolis within Gibbs), as the rest of the position is at hand.

References:
    Geman & Geman 1984, Stochastic relaxation, Gibbs distributions, and the Bayesian
    restoration of images, IEEE PAMI 6.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree

from jgp._types import check_key
from jgp.sampling._target import match


class State(NamedTuple):
    """A position of the chain: a mapping, named tuple or module with named blocks."""

    position: PyTree[Array]


class Info(NamedTuple):
    """Whether each block changed, by name."""

    moved: dict[str, Bool[Array, ""]]


def init(position: PyTree) -> State:
    """The state of a chain that starts at `position`.

    Args:
        position: A dict, a named tuple or a module, whose entries or attributes are the
            blocks; arrays of any dtype.
    """
    return State(jax.tree.map(jnp.asarray, position))


def step(
    state: State,
    updates: Mapping[str, Callable[..., Any]],
    *,
    key: PRNGKeyArray,
) -> tuple[State, Info]:
    """Move the blocks one after another, in the order of `updates`.

    Args:
        state: The state of the chain, from `init` or the step before.
        updates: By block, `update(position, key=key)`, which returns a draw of the
            block given the others in `position`, or any move of it that leaves this
            conditional distribution invariant. A block without one stays as it is.
        key: A typed random key.

    Raises:
        ValueError: If a name is no block of the position, there is none, or an update
            returns another structure or shape than its block has, or numbers that the
            block cannot hold (floats for one that starts with integers).
    """
    if not updates:
        raise ValueError("updates: expected an update of at least one block, got none.")
    check_key(key)
    position, moved = state.position, {}
    for number, (name, update) in enumerate(updates.items()):
        old = _block(position, name)
        new = update(position, key=jax.random.fold_in(key, number))
        new = match(new, old, f"updates[{name!r}]: the new block")
        pairs = zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True)
        changed = [jnp.any(a != b) for a, b in pairs]
        moved[name] = jnp.any(jnp.stack(changed)) if changed else jnp.asarray(False)
        position = _replaced(position, name, new)
    return State(position), Info(moved)


def _block(position: PyTree, name: str) -> PyTree:
    if isinstance(position, Mapping):
        blocks = dict(position)
    elif isinstance(position, tuple):
        blocks = position._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    else:
        blocks = vars(position)
    if name not in blocks:
        raise ValueError(f"updates: got the block {name!r}, wanted one of {[*blocks]}.")
    return blocks[name]


def _replaced(position: PyTree, name: str, block: PyTree) -> PyTree:
    if isinstance(position, Mapping):
        return {**position, name: block}
    if isinstance(position, tuple):
        return position._replace(**{name: block})  # pyright: ignore[reportAttributeAccessIssue]
    return eqx.tree_at(lambda p: getattr(p, name), position, block)
