"""Running chains of any sampler: one compiled scan, or a long run in chunks."""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import ArrayLike, PRNGKeyArray, PyTree

from jgp._types import check_key, positive_integer
from jgp.sampling._steps import check_steps, moved


class Chain(NamedTuple):
    """Draws of one chain, one `info` a step after warm-up, and its last state."""

    draws: PyTree
    infos: PyTree
    state: PyTree


def scan(
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
        ValueError: If a count is none, `thinning` below 1, `key` no key, or a step no
            step.
    """
    check_key(key)
    positive_integer("num_samples", num_samples, least=0)
    positive_integer("num_warmup", num_warmup, least=0)
    positive_integer("thinning", thinning)
    check_steps(step, warmup_step)
    warm = step if warmup_step is None else warmup_step
    state = warm_up(warm, state, key, 0, num_warmup, told=warmup_step is not None)
    draws, infos, state = sample(
        step, state, key, num_warmup, num_samples, thinning, collect
    )
    return Chain(draws, infos, state)


def warm_up(
    step: Callable[..., tuple[Any, Any]],
    state: PyTree,
    key: PRNGKeyArray,
    start: ArrayLike,
    num: int,
    *,
    told: bool,
) -> PyTree:
    """The state after steps start, …, start + num − 1, told their number if wanted."""

    def advance(state, iteration):
        step_key = jax.random.fold_in(key, iteration)
        numbered = (iteration,) if told else ()
        name = "warmup_step" if told else "step"
        return moved(step(state, *numbered, key=step_key), state, name)[0], None

    return lax.scan(advance, state, start + jnp.arange(num))[0]


def sample(
    step: Callable[..., tuple[Any, Any]],
    state: PyTree,
    key: PRNGKeyArray,
    start: ArrayLike,
    num: int,
    thinning: int,
    collect: Callable[[Any], Any],
) -> tuple[PyTree, PyTree, PyTree]:
    """Draws, the infos of every step from the one numbered `start`, and the state."""

    def advance(state, iteration):
        step_key = jax.random.fold_in(key, iteration)
        return moved(step(state, key=step_key), state, "step")

    def draw(state, iterations):
        state, infos = lax.scan(advance, state, iterations)
        return state, (collect(state), infos)

    iterations = start + jnp.arange(num * thinning)
    state, (draws, infos) = lax.scan(draw, state, iterations.reshape(num, thinning))
    infos = jax.tree.map(
        lambda leaf: leaf.reshape(num * thinning, *leaf.shape[2:]), infos
    )
    return draws, infos, state


@eqx.filter_jit
def warmed(step, told, state, keys, start, num):
    """`warm_up` of several chains."""

    def one(state, key):
        return warm_up(step, state, key, start, num, told=told)

    return jax.vmap(one)(state, keys)


@eqx.filter_jit
def sampled(fixed, state, total, keys, start, num):
    """`sample` of several chains, or what draws add to a total; for `run`."""
    step, collect, update, thinning = fixed

    def one(state, total, key):
        if update is None:
            draws, infos, state = sample(
                step, state, key, start, num, thinning, collect
            )
            return state, total, draws, infos

        def draw(carry, first):
            state, total = carry
            draws, infos, state = sample(step, state, key, first, 1, thinning, collect)
            only = jax.tree.map(lambda leaf: leaf[0], draws)
            return (state, update(total, only)), infos

        firsts = start + thinning * jnp.arange(num)
        (state, total), infos = lax.scan(draw, (state, total), firsts)
        infos = jax.tree.map(
            lambda leaf: leaf.reshape(num * thinning, *leaf.shape[2:]), infos
        )
        return state, total, None, infos

    return jax.vmap(one)(state, total, keys)
