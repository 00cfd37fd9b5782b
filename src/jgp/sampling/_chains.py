"""Running one chain of any sampler; several chains are a `vmap` over keys."""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import PRNGKeyArray, PyTree


class Chain(NamedTuple):
    """Draws of one chain, one `info` a step after warm-up, and its last state."""

    draws: PyTree
    infos: PyTree
    state: PyTree


def run(
    step: Callable[..., tuple[Any, Any]],
    state: PyTree,
    *,
    key: PRNGKeyArray,
    num_samples: int,
    num_warmup: int,
    thinning: int = 1,
    collect: Callable[[Any], Any] = operator.attrgetter("position"),
    warmup_step: Callable[..., tuple[Any, Any]] | None = None,
) -> Chain:
    """Run one chain by `lax.scan`; compiles under `jit`, batches under `vmap`.

    What warm-up adapts belongs to the state: with the pair (chain, log scale) as the
    state, `warmup_step` returns both, and `step` only reads the scale.

    Args:
        step: `step(state, key=key)` returns the next state and an info.
        state: The state to start from, any pytree.
        key: A typed random key. Step t, warm-up included, uses `fold_in(key, t)`, so
            thinning and the number of samples do not change the path of the chain.
        num_samples: Draws to keep.
        num_warmup: Steps before the first draw, whose infos are dropped.
        thinning: Steps from one draw to the next.
        collect: What of a state to keep as a draw; its position by default.
        warmup_step: `warmup_step(state, iteration, key=key)` in place of `step` during
            warm-up, with the number of earlier steps.

    Returns:
        The draws with a leading axis of length `num_samples`, the infos of every step
        after warm-up (leading axis `num_samples * thinning`), and the last state,
        from which another run can go on with another key.

    Raises:
        ValueError: If a count is negative or `thinning` is less than 1.
    """
    for name, count, least in (
        ("num_samples", num_samples, 0),
        ("num_warmup", num_warmup, 0),
        ("thinning", thinning, 1),
    ):
        if count < least:
            raise ValueError(f"{name}: expected at least {least}, got {count}.")

    def warmup(state, iteration):
        step_key = jax.random.fold_in(key, iteration)
        if warmup_step is None:
            return step(state, key=step_key)[0], None
        return warmup_step(state, iteration, key=step_key)[0], None

    def advance(state, iteration):
        return step(state, key=jax.random.fold_in(key, iteration))

    def sample(state, iterations):
        state, infos = lax.scan(advance, state, iterations)
        return state, (collect(state), infos)

    state, _ = lax.scan(warmup, state, jnp.arange(num_warmup))
    iterations = num_warmup + jnp.arange(num_samples * thinning)
    state, (draws, infos) = lax.scan(
        sample, state, iterations.reshape(num_samples, thinning)
    )
    infos = jax.tree.map(
        lambda leaf: leaf.reshape(num_samples * thinning, *leaf.shape[2:]), infos
    )
    return Chain(draws, infos, state)
