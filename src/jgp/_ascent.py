"""Fixed points that are reached uphill, in a bounded loop with a status."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from jgp._fixed_point import (
    PATIENCE,
    RISING,
    FixedPoint,
    anderson_step,
    empty_like,
    push,
    scaled_change,
)
from jgp._results import RESULTS

# The shortest step before the ascent is given up.
SHORTEST = 2.0**-30
# A merit is a difference of sums: a change of as many of its rounding units is none.
SLACK = 1e4


class _State(eqx.Module):
    step: Int[Array, ""]
    z: Float[Array, " k"]
    image: Float[Array, " k"]
    auxiliary: PyTree
    merit: Float[Array, ""]
    residual: Float[Array, ""]
    best: Float[Array, ""]
    gained: Float[Array, ""]
    best_step: Int[Array, ""]
    size: Float[Array, ""]
    following: Float[Array, " k"]
    mixed: Bool[Array, ""]
    history: Int[Array, ""]
    steps_z: Float[Array, "window k"]
    steps_r: Float[Array, "window k"]


def ascend(
    update: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    init: PyTree,
    params: PyTree,
    *,
    merit: Callable[[Any], Array],
    rtol: Array,
    atol: Array,
    max_steps: Int[Array, ""],
    window: int = 5,
    feasible: Callable[[PyTree], Array] = lambda z: jnp.array(True),
) -> FixedPoint:
    r"""Climb by z ← z + γ(F(z) − z), γ halved where the merit falls, then doubled.

    F is a step that goes uphill when it is short enough, as a natural gradient is. An
    Anderson step (`jgp._fixed_point.iterate`) is tried before the plain one once two
    points are known. What lowers the merit, or makes it or F no number, is not stepped
    on: the plain step from the last good point follows, then shorter ones. The status
    is `stagnated` when no step longer than 2⁻³⁰ climbs, `non_finite` when the start has
    no merit.

    Args:
        update: (z, θ) to (F(z, θ), auxiliary), the auxiliary belonging to z.
        init: The first z.
        params: θ, all that F depends on beside z.
        merit: What rises, of the auxiliary.
        rtol: Relative tolerance on F(z) − z.
        atol: Absolute tolerance.
        max_steps: Bound on the evaluations of F, at least 1.
        window: Differences kept; 0 takes plain steps alone.
        feasible: Whether a z lies in the domain of F.
    """
    flat, unravel = ravel_pytree(init)
    dtype, zero = flat.dtype, jnp.array(0, jnp.int32)
    infinity = jnp.array(jnp.inf, dtype)
    slack = SLACK * float(jnp.finfo(dtype).eps)
    nothing = empty_like(lambda z: update(unravel(z), params)[1], flat)

    def advance(s: _State) -> _State:
        z, step = s.following, s.step + 1
        image, auxiliary = update(unravel(z), params)
        image, _ = ravel_pytree(image)
        value = merit(auxiliary)
        residual = scaled_change(image, z, rtol, atol)
        usable = jnp.isfinite(value) & jnp.isfinite(residual)
        least = slack * jnp.maximum(jnp.abs(s.merit), 1)
        # Where the merit tells no more than rounding, the residual decides.
        level = (value >= s.merit - least) & (residual <= RISING * s.best)
        climbed = usable & (~(value <= s.merit + least) | level)

        def kept(new, old):
            return jax.tree.map(lambda a, b: jnp.where(climbed, a, b), new, old)

        steps_z, steps_r = s.steps_z, s.steps_r
        pushed = push(steps_z, z - s.z), push(steps_r, image - z - (s.image - s.z))
        steps_z, steps_r = kept(pushed, (steps_z, steps_r))
        grown = jnp.where(s.step > 0, jnp.minimum(s.history + 1, window), 0)
        history = jnp.where(climbed, grown, 0)
        # A mixed step that fails says nothing about the plain one.
        longer = jnp.where(s.mixed, s.size, jnp.minimum(2 * s.size, 1))
        shorter = jnp.where(s.mixed, s.size, s.size / 2)
        size = jnp.where(climbed, longer, shorter)
        z, image = kept((z, image), (s.z, s.image))
        residual = jnp.where(climbed, residual, s.residual)
        better = climbed & ((residual < s.best) | ~(value <= s.gained + least))
        plain = z + size * (image - z)
        mixed = anderson_step(
            plain,
            image - z,
            size,
            steps_z,
            steps_r,
            jnp.arange(window, dtype=jnp.int32) < history,
        )
        usable = feasible(unravel(mixed)) & jnp.all(jnp.isfinite(mixed))
        accelerate = (history > 0) & usable
        return _State(
            step=step,
            z=z,
            image=image,
            auxiliary=jax.tree.map(
                lambda a, b: jnp.where(climbed | (s.step == 0), a, b),
                auxiliary,
                s.auxiliary,
            ),
            merit=jnp.where(climbed, value, s.merit),
            residual=residual,
            best=jnp.minimum(residual, s.best),
            gained=jnp.where(better, value, s.gained),
            best_step=jnp.where(better, step, s.best_step),
            size=size,
            following=jnp.where(accelerate, mixed, plain),
            mixed=accelerate,
            history=history,
            steps_z=steps_z,
            steps_r=steps_r,
        )

    def unfinished(s: _State):
        begun = (s.step == 0) | jnp.isfinite(s.merit)
        improving = (s.step - s.best_step < PATIENCE) & (s.size > SHORTEST)
        return begun & improving & (s.residual > 1) & (s.step < max_steps)

    differences = jnp.zeros((window, flat.size), dtype)
    start = _State(
        step=zero,
        z=flat,
        image=flat,
        auxiliary=nothing,
        merit=-infinity,
        residual=infinity,
        best=infinity,
        gained=-infinity,
        best_step=zero,
        size=jnp.ones((), dtype),
        following=flat,
        mixed=jnp.array(False),
        history=zero,
        steps_z=differences,
        steps_r=differences,
    )
    last = lax.while_loop(unfinished, advance, start)
    result = RESULTS.where(
        last.step < max_steps, RESULTS.stagnated, RESULTS.max_steps_reached
    )
    result = RESULTS.where(jnp.isfinite(last.merit), result, RESULTS.non_finite)
    result = RESULTS.where(last.residual <= 1, RESULTS.successful, result)
    return FixedPoint(unravel(last.z), last.auxiliary, last.step, last.residual, result)
