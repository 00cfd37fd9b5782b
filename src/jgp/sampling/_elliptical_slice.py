r"""Elliptical slice sampling: a target with a Gaussian prior, nothing to tune.

The target is $\mathcal N(f; m, \Sigma)\,\exp(\text{log_likelihood}(f))$. The prior
enters only through draws of $\mathcal N(0, \Sigma)$, so whoever can draw without
forming $\Sigma$ never has to.

References:
    Murray, Adams & MacKay 2010, Elliptical slice sampling, AISTATS, fig. 2.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from jgp._types import as_float, check_key, positive_integer
from jgp.sampling._target import evaluate, evaluate_start, match


class State(NamedTuple):
    """A position of the chain and its log likelihood."""

    position: PyTree[Array]
    log_likelihood: Float[Array, ""]


class Info(NamedTuple):
    """What one step did.

    `moved` is False when `max_steps` evaluations found no point of the slice and the
    chain stayed where it was; `angle` is then 0. A chain whose angles are all near 0
    has a likelihood much narrower than its prior and mixes slowly.
    """

    num_evaluations: Int[Array, ""]
    angle: Float[Array, ""]
    moved: Bool[Array, ""]


class _Bracket(NamedTuple):
    """The search along the ellipse; `angle` is the next candidate, in [low, high]."""

    low: Float[Array, ""]
    high: Float[Array, ""]
    angle: Float[Array, ""]
    candidate: State
    found: Bool[Array, ""]
    num_evaluations: Int[Array, ""]


def init(position: PyTree, log_likelihood: Callable[[Any], Array]) -> State:
    """The state of a chain that starts at `position`.

    Args:
        position: An array or a pytree of arrays, of any shapes.
        log_likelihood: Maps a position to a scalar; NaN counts as −inf.

    Raises:
        ValueError: If it is not finite at the start.
    """
    position = jax.tree.map(as_float, position)
    return State(position, evaluate_start(log_likelihood, position))


def step(
    state: State,
    log_likelihood: Callable[[Any], Array],
    draw: Callable[[PRNGKeyArray], Any],
    mean: PyTree | None = None,
    *,
    key: PRNGKeyArray,
    max_steps: int = 100,
) -> tuple[State, Info]:
    r"""One elliptical slice step, which leaves the target invariant.

    Args:
        state: The state of the chain, from `init` or the step before.
        log_likelihood: Maps a position to a scalar; NaN counts as −inf.
        draw: Maps a key to a draw of the *centred* prior $\mathcal N(0, \Sigma)$, in
            the structure and shapes of the position.
        mean: The prior mean, in the structure and shapes of the position; 0 if None.
        key: A typed random key.
        max_steps: The most likelihood evaluations before the chain stays where it is.

    Raises:
        ValueError: If a draw or the mean differs from the position in structure or
            shape, or `log_likelihood` is not scalar.
    """
    check_key(key)
    max_steps = int(positive_integer("max_steps", max_steps))
    key_draw, key_level, key_angle, key_shrink = jax.random.split(key, 4)
    position, level = state
    dtype = level.dtype
    direction = match(draw(key_draw), position, "A draw of the prior")
    if mean is None:
        mean = jax.tree.map(jnp.zeros_like, position)
    mean = match(mean, position, "The prior mean")
    # The level is drawn by −log of a uniform being exponential: never log(0).
    threshold = level - jax.random.exponential(key_level, dtype=dtype)

    def on_ellipse(angle):
        def leaf(f, v, m):
            theta = angle.astype(f.dtype)
            return m + (f - m) * jnp.cos(theta) + v * jnp.sin(theta)

        return jax.tree.map(leaf, position, direction, mean)

    def attempt(bracket):
        candidate_position = on_ellipse(bracket.angle)
        log_value = evaluate(log_likelihood, candidate_position).astype(dtype)
        # Equality belongs to the slice (a threshold may round to the level itself, as
        # it must on plateaus of large values), but zero likelihood never does.
        found = (log_value >= threshold) & (log_value > -jnp.inf)
        negative = bracket.angle < 0
        low = jnp.where(negative, bracket.angle, bracket.low)
        high = jnp.where(negative, bracket.high, bracket.angle)
        count = bracket.num_evaluations
        u = jax.random.uniform(jax.random.fold_in(key_shrink, count), dtype=dtype)
        return _Bracket(
            low,
            high,
            jnp.where(found, bracket.angle, low + u * (high - low)),
            State(candidate_position, log_value),
            found,
            count + 1,
        )

    def searching(bracket):
        return ~bracket.found & (bracket.num_evaluations < max_steps)

    angle = jax.random.uniform(key_angle, dtype=dtype, maxval=2 * jnp.pi)
    start = _Bracket(
        angle - 2 * jnp.pi,
        angle,
        angle,
        state,
        jnp.asarray(False),
        jnp.asarray(0, jnp.int32),
    )
    end = lax.while_loop(searching, attempt, start)
    new = jax.tree.map(lambda a, b: jnp.where(end.found, a, b), end.candidate, state)
    angle = jnp.where(end.found, end.angle, 0.0)
    return new, Info(end.num_evaluations, angle, end.found)
