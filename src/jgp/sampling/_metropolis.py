r"""Metropolis–Hastings for any log density: random walks, and any other proposal.

References:
    Roberts, Gelman & Gilks 1997, Weak convergence and optimal scaling of random walk
    Metropolis algorithms, Annals of Applied Probability 7.
    Andrieu & Thoms 2008, A tutorial on adaptive MCMC, Statistics and Computing 18.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, PRNGKeyArray, PyTree

from jgp._types import as_float, check_key
from jgp.sampling._target import evaluate, evaluate_start, match

# The gain iteration^−DECAY: its sum diverges, so that any scale can be reached, and its
# squares' sum converges, so that the scale settles (Robbins & Monro 1951).
DECAY = 0.6


class State(NamedTuple):
    """A position of the chain and its log density."""

    position: PyTree[Array]
    log_density: Float[Array, ""]


class Info(NamedTuple):
    """The probability with which the proposal was accepted, and whether it was."""

    acceptance: Float[Array, ""]
    accepted: Bool[Array, ""]


def init(position: PyTree, log_density: Callable[[Any], Array]) -> State:
    """The state of a chain that starts at `position`.

    Args:
        position: An array or a pytree of arrays, of any shapes.
        log_density: Maps a position to a scalar, up to a constant; NaN counts as −inf.

    Raises:
        ValueError: If it is not finite at the start.
    """
    position = jax.tree.map(as_float, position)
    return State(position, evaluate_start(log_density, position))


def step(
    state: State,
    log_density: Callable[[Any], Array],
    propose: Callable[[PRNGKeyArray], Any],
    scale: ArrayLike = 1.0,
    *,
    key: PRNGKeyArray,
) -> tuple[State, Info]:
    """One random-walk step, which leaves the target invariant.

    Args:
        state: The state of the chain, from `init` or the step before.
        log_density: Maps a position to a scalar, up to a constant; NaN counts as −inf
            and is rejected.
        propose: Maps a key to a draw of a distribution symmetric about 0, in the
            structure and shapes of the position.
        scale: What the proposed step is multiplied by; may be traced.
        key: A typed random key.

    Raises:
        ValueError: If a proposal differs from the position in structure or shape, or
            `log_density` or `scale` is not scalar.
    """
    if jnp.shape(scale) != ():
        raise ValueError(
            f"scale must be a scalar: expected (), got {jnp.shape(scale)}."
        )

    def walk(position, *, key):
        increment = match(propose(key), position, "A proposal")
        return jax.tree.map(
            lambda f, d: f + jnp.asarray(scale, f.dtype) * d, position, increment
        )

    return step_by(state, log_density, walk, key=key)


def step_by(
    state: State,
    log_density: Callable[[Any], Array],
    propose: Callable[..., Any],
    log_proposal: Callable[[Any, Any], Array] | None = None,
    *,
    key: PRNGKeyArray,
) -> tuple[State, Info]:
    """One step by any proposal, which leaves the target invariant.

    Args:
        state: The state of the chain, from `init` or the step before.
        log_density: As for `step`.
        propose: `propose(position, key=key)` draws a position to go to. One that looks
            at no position makes an independence sampler.
        log_proposal: `log_proposal(new, old)` is the log density of proposing `new` at
            `old`, up to a constant; None for a symmetric proposal.
        key: A typed random key.

    Raises:
        ValueError: If a proposal differs from the position in structure or shape, a
            log density is not scalar, or `key` is no key.
    """
    check_key(key)
    key_propose, key_accept = jax.random.split(key)
    old = state.position
    position = match(propose(old, key=key_propose), old, "A proposal")
    dtype = state.log_density.dtype
    value = evaluate(log_density, position).astype(dtype)
    log_ratio = value - state.log_density
    if log_proposal is not None:
        forth = evaluate(functools.partial(log_proposal, position), old)
        back = evaluate(functools.partial(log_proposal, old), position)
        log_ratio = log_ratio + (back - forth).astype(dtype)
    # From nowhere to nowhere (−inf − (−inf)) is no move, nor is to where nothing is.
    possible = (value > -jnp.inf) & ~jnp.isnan(log_ratio)
    acceptance = jnp.where(possible, jnp.exp(jnp.minimum(log_ratio, 0.0)), 0.0)
    accepted = jax.random.uniform(key_accept, dtype=dtype) < acceptance
    candidate = State(position, value)
    new = jax.tree.map(lambda a, b: jnp.where(accepted, a, b), candidate, state)
    return new, Info(acceptance, accepted)


def adapt_scale(
    log_scale: ArrayLike,
    acceptance: ArrayLike,
    iteration: ArrayLike,
    target: float = 0.234,
) -> Float[Array, ""]:
    """The log scale after one Robbins–Monro step toward the target acceptance.

    For warm-up only: a chain that keeps adapting does not keep its target invariant.

    Args:
        log_scale: Logarithm of the scale given to `step`.
        acceptance: The acceptance probability of that step, `Info.acceptance`.
        iteration: The number of earlier adaptations, from 0.
        target: 0.234 is optimal in high dimension, 0.44 in one.
    """
    log_scale = as_float(log_scale)
    dtype = log_scale.dtype
    gain = (jnp.asarray(iteration, dtype) + 1) ** (-DECAY)
    return log_scale + gain * (jnp.asarray(acceptance, dtype) - target)
