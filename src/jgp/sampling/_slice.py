r"""Slice sampling: uniform draws under the density, along one line at a time.

Given the height $u \sim U(0, P(f))$ the next point on a line is uniform on the slice
$\{P \ge u\}$: an interval of the line is stepped out until its ends lie beyond the
slice, and shrinks towards the present point at each draw outside. No step is rejected,
and the width only says how many evaluations that takes.

References:
    Neal 2003, Slice sampling, Annals of Statistics 31, figs. 3 and 5.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray, PyTree

from jgp._parameters import is_concrete
from jgp._types import check_key, positive_integer
from jgp.sampling._metropolis import State, init
from jgp.sampling._target import evaluate, match

__all__ = ["Info", "State", "init", "step", "step_along"]

# Shrinkings of an interval: one that has not come upon the slice by then is the point.
MAX_SHRINKINGS = 200


class Info(NamedTuple):
    """What one step did.

    `length` is the mean length of the stepped-out intervals in widths: if it is often
    `max_steps_out`, the width is too small. `moved` is False where a line was shrunk to
    its point.
    """

    num_evaluations: Int[Array, ""]
    length: Float[Array, ""]
    moved: Bool[Array, ""]


def step(
    state: State,
    log_density: Callable[[Any], Array],
    width: ArrayLike | PyTree = 1.0,
    *,
    key: PRNGKeyArray,
    max_steps_out: int = 20,
) -> tuple[State, Info]:
    """Move every coordinate once, in order, each along its own axis.

    Args:
        state: The state of the chain, from `init` or the step before.
        log_density: Maps a position to a scalar, up to a constant; NaN counts as −inf.
        width: The typical size of the slice: one number, or one for each coordinate in
            the structure and shapes of the position. Positive.
        key: A typed random key.
        max_steps_out: The most widths that an interval reaches.

    Raises:
        ValueError: If the widths differ from the position in structure or shape, or are
            known not to be positive, or `max_steps_out` is less than 1.
    """
    check_key(key)
    flat, unravel = ravel_pytree(state.position)
    if isinstance(width, int | float) or jnp.shape(width) == ():
        widths = jnp.full(flat.shape, width, flat.dtype)
    else:
        widths, _ = ravel_pytree(match(width, state.position, "The widths"))

    if is_concrete(widths) and not bool(jnp.all(widths > 0)):
        raise ValueError(f"width: expected positive numbers, got {width}.")

    def density(flat):
        return log_density(unravel(flat))

    def coordinate(carry, i):
        flat, level = carry
        axis = jnp.zeros_like(flat).at[i].set(widths[i])
        line_key = jax.random.fold_in(key, i)
        flat, level, info = _along(flat, level, density, axis, line_key, max_steps_out)
        return (flat, level), info

    start = (flat, state.log_density)
    (flat, level), infos = lax.scan(coordinate, start, jnp.arange(flat.size))
    return State(unravel(flat), level), _together(infos)


def step_along(
    state: State,
    log_density: Callable[[Any], Array],
    draw: Callable[[PRNGKeyArray], Any],
    *,
    key: PRNGKeyArray,
    max_steps_out: int = 20,
) -> tuple[State, Info]:
    """Move once, along a random direction.

    Args:
        state: The state of the chain, from `init` or the step before.
        log_density: Maps a position to a scalar, up to a constant; NaN counts as −inf.
        draw: Maps a key to a direction of the length of the typical slice, in the
            structure and shapes of the position; its distribution must not depend on
            the position. Draws of a Gaussian of the target's covariance serve all
            directions alike.
        key: A typed random key.
        max_steps_out: The most lengths that an interval reaches.

    Raises:
        ValueError: If a direction differs from the position in structure or shape, or
            `max_steps_out` is less than 1.
    """
    check_key(key)
    direction_key, line_key = jax.random.split(key)
    direction = match(draw(direction_key), state.position, "A direction")
    flat, unravel = ravel_pytree(state.position)

    def density(flat):
        return log_density(unravel(flat))

    flat, level, info = _along(
        flat,
        state.log_density,
        density,
        ravel_pytree(direction)[0],
        line_key,
        max_steps_out,
    )
    return State(unravel(flat), level), info


class _Line(NamedTuple):
    """The search along a line, in units of the direction; the point is at 0."""

    low: Float[Array, ""]
    high: Float[Array, ""]
    place: Float[Array, ""]
    level: Float[Array, ""]
    found: Bool[Array, ""]
    num_drawn: Int[Array, ""]


def _along(
    flat: Float[Array, " d"],
    level: Float[Array, ""],
    log_density: Callable[[Array], Array],
    direction: Float[Array, " d"],
    key: PRNGKeyArray,
    max_steps_out: int,
) -> tuple[Float[Array, " d"], Float[Array, ""], Info]:
    max_steps_out = int(positive_integer("max_steps_out", max_steps_out))
    dtype = level.dtype
    height_key, place_key, share_key, shrink_key = jax.random.split(key, 4)
    # −log of a uniform is exponential: never log(0).
    threshold = level - jax.random.exponential(height_key, dtype=dtype)

    def value(place):
        point = flat + place.astype(flat.dtype) * direction
        return evaluate(log_density, point).astype(dtype)

    def inside(log_value):
        # Equality belongs to the slice, but zero density never does.
        return (log_value >= threshold) & (log_value > -jnp.inf)

    def step_out(end, sign, most):
        def outward(carry):
            end, steps = carry
            return end + sign, steps + 1

        def going(carry):
            end, steps = carry
            return (steps < most) & inside(value(end))

        return lax.while_loop(going, outward, (end, jnp.zeros((), jnp.int32)))

    # Where the interval lies about the point, and how its growth is shared out, are
    # random: each point of the slice must be as likely to find the same interval.
    low = -jax.random.uniform(place_key, dtype=dtype)
    left = jax.random.randint(share_key, (), 0, max_steps_out, jnp.int32)
    low, steps_left = step_out(low, -1.0, left)
    high, steps_right = step_out(
        low + steps_left.astype(dtype) + 1, 1.0, max_steps_out - 1 - left
    )
    length = high - low

    def shrink(line):
        u = jax.random.uniform(
            jax.random.fold_in(shrink_key, line.num_drawn), dtype=dtype
        )
        place = line.low + u * (line.high - line.low)
        log_value = value(place)
        return _Line(
            jnp.where(place < 0, place, line.low),
            jnp.where(place < 0, line.high, place),
            place,
            log_value,
            inside(log_value),
            line.num_drawn + 1,
        )

    def searching(line):
        return ~line.found & (line.num_drawn < MAX_SHRINKINGS)

    zero = jnp.zeros((), dtype)
    start = _Line(low, high, zero, level, jnp.asarray(False), jnp.zeros((), jnp.int32))
    end = lax.while_loop(searching, shrink, start)
    place = jnp.where(end.found, end.place, 0)
    level = jnp.where(end.found, end.level, level)
    # Each way out costs an evaluation more than it has steps, unless it had to stop.
    right = max_steps_out - 1 - left
    ended = [(steps_left < left), (steps_right < right)]
    count = steps_left + steps_right + end.num_drawn
    count = count + sum(e.astype(jnp.int32) for e in ended)
    new = flat + place.astype(flat.dtype) * direction
    return new, level, Info(count, length, end.found)


def _together(infos: Info) -> Info:
    return Info(
        jnp.sum(infos.num_evaluations, dtype=jnp.int32),
        jnp.mean(infos.length),
        jnp.all(infos.moved),
    )
