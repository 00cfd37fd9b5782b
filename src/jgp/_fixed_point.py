"""Fixed points z = F(z, θ) by accelerated iteration, in a bounded loop with a status.

`jgp._implicit` gives the solution its derivatives.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, PyTree

from jgp import _lapack
from jgp._results import RESULTS

# A residual this many times the best one so far: the differences kept come from where
# F bends, and all but the latest would send the next step astray.
RISING = 2.0
# A residual this many times the best one so far means the iteration left the basin. It
# is large because a good iteration may have to cross a hump: with empty sites to start
# from, the first change is small beside those that follow.
GROWTH = 1e3
# An iteration that fails with this many times its first residual went the wrong way.
DIVERGED = 10.0
# Steps without a new best residual after which the iteration is damped, and after
# which it is given up.
STALL = 15
PATIENCE = 60


class FixedPoint(eqx.Module):
    """Where an iteration ended.

    Args:
        value: z, at which `residual` was measured.
        auxiliary: What F computed beside its value at z.
        num_steps: Evaluations of F.
        residual: max |F(z) − z| / (atol + rtol |F(z)|); success when at most 1.
        result: A status.
    """

    value: PyTree
    auxiliary: PyTree
    num_steps: Int[Array, ""]
    residual: Float[Array, ""]
    result: RESULTS


def default_tolerance(dtype: Any) -> float:
    """1e-6 in float64, 1e-4 in float32."""
    return 1e-6 if jnp.finfo(dtype).bits == 64 else 1e-4


def scaled_change(
    new: Float[Array, " k"], old: Float[Array, " k"], rtol: Array, atol: Array
) -> Float[Array, ""]:
    """Max |new − old| / (atol + rtol |new|), the residual of every iteration."""
    change = jnp.abs(new - old)
    scaled = jnp.where(change == 0, 0, change / (atol + rtol * jnp.abs(new)))
    return jnp.max(scaled, initial=0.0)


def empty_like(function: Callable[[Any], PyTree], argument: Any) -> PyTree:
    """Zeros in the shape of `function(argument)`, which is not computed.

    With them a loop can hold the outcome of its body before the first pass, and the
    body, the costly thing to compile, stands there only once.
    """
    shape = jax.eval_shape(function, argument)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)


class _State(eqx.Module):
    step: Int[Array, ""]
    following: Float[Array, " k"]
    z: Float[Array, " k"]
    image: Float[Array, " k"]
    auxiliary: PyTree
    residual: Float[Array, ""]
    first: Float[Array, ""]
    best: Float[Array, ""]
    best_z: Float[Array, " k"]
    best_image: Float[Array, " k"]
    best_step: Int[Array, ""]
    stalled: Int[Array, ""]
    ended: Float[Array, ""]
    returned: Bool[Array, ""]
    damping: Float[Array, ""]
    history: Int[Array, ""]
    steps_z: Float[Array, "window k"]
    steps_r: Float[Array, "window k"]


def iterate(
    update: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    init: PyTree,
    params: PyTree,
    *,
    rtol: Array,
    atol: Array,
    max_steps: Int[Array, ""],
    damping: Array,
    window: int = 5,
    feasible: Callable[[PyTree], Array] = lambda z: jnp.array(True),
) -> FixedPoint:
    r"""Iterate z ← F(z, θ) by Anderson acceleration until it stops changing.

    With residuals r_t = F(z_t) − z_t and the last differences ΔZ, ΔR, the next
    iterate is z + η r − (ΔZ + η ΔR) γ, γ = argmin ‖r − ΔR γ‖ (Walker & Ni 2011). The
    plain step z + η r is taken instead where the accelerated one is not `feasible`.
    While the residual is above twice the best one, only the latest difference is used.
    When it grows a thousandfold or stalls (a two-cycle), the iteration restarts at its
    best point with half the damping η. Iterations that do not converge end with an
    evaluation at their best point, which is what is returned.

    Args:
        update: (z, θ) to (F(z, θ), auxiliary), the auxiliary belonging to z.
        init: The first z.
        params: θ, all that F depends on beside z.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        max_steps: Bound on the evaluations of F, at least 1.
        damping: η in (0, 1]; 1 is undamped.
        window: Differences kept; 0 is the plain iteration.
        feasible: Whether a z lies in the domain of F.
    """
    flat, unravel = ravel_pytree(init)
    zeros, zero = jnp.zeros_like(flat), jnp.array(0, jnp.int32)
    infinity = jnp.array(jnp.inf, flat.dtype)
    nothing = empty_like(lambda z: update(unravel(z), params)[1], flat)

    def evaluate(s: _State) -> _State:
        """F at the proposed point, and the differences from the point before."""
        z, step = s.following, s.step + 1
        image, auxiliary = update(unravel(z), params)
        image, _ = ravel_pytree(image)
        residual = scaled_change(image, z, rtol, atol)
        residual = jnp.where(jnp.isfinite(residual), residual, infinity)
        better = residual < s.best
        return _State(
            step=step,
            following=z,
            z=z,
            image=image,
            auxiliary=auxiliary,
            residual=residual,
            first=jnp.where(s.step == 0, residual, s.first),
            best=jnp.where(better, residual, s.best),
            best_z=jnp.where(better, z, s.best_z),
            best_image=jnp.where(better, image, s.best_image),
            best_step=jnp.where(better, step, s.best_step),
            stalled=jnp.where(better, 0, s.stalled + 1),
            ended=jnp.where(s.returned, s.ended, residual),
            returned=s.returned,
            damping=s.damping,
            # The first point may be far from all others: its step teaches nothing.
            history=jnp.where(s.step > 1, jnp.minimum(s.history + 1, window), 0),
            steps_z=push(s.steps_z, z - s.z),
            steps_r=push(s.steps_r, image - z - (s.image - s.z)),
        )

    def propose(s: _State) -> _State:
        """The next point: accelerated, plain, or back at the best one, damped."""
        lost = (s.residual > GROWTH * s.best) | (s.stalled >= STALL)
        eta = jnp.where(lost, s.damping / 2, s.damping)
        z = jnp.where(lost, s.best_z, s.z)
        r = jnp.where(lost, s.best_image, s.image) - z
        rising = s.residual > RISING * s.best
        history = jnp.where(rising, jnp.minimum(s.history, 1), s.history)
        history = jnp.where(lost, 0, history)
        following = z + eta * r
        if window:
            used = jnp.arange(window, dtype=jnp.int32) < history
            mixed = anderson_step(following, r, eta, s.steps_z, s.steps_r, used)
            ok = feasible(unravel(mixed)) & jnp.all(jnp.isfinite(mixed))
            following = jnp.where(ok, mixed, following)
        # The next difference is taken from the point that was stepped from.
        return eqx.tree_at(
            lambda s: (s.following, s.z, s.image, s.stalled, s.damping, s.history),
            s,
            (following, z, z + r, jnp.where(lost, 0, s.stalled), eta, history),
        )

    def going(s: _State):
        return (s.step < max_steps) & (s.step - s.best_step < PATIENCE)

    def unfinished(s: _State):
        better_before = (s.best < s.residual) & ~s.returned
        return (s.residual > 1) & (going(s) | better_before)

    def advance(s: _State) -> _State:
        proposed, returned = propose(s), ~going(s)
        following = jnp.where(s.step == 0, flat, proposed.following)
        following = jnp.where(returned, s.best_z, following)
        return evaluate(
            eqx.tree_at(
                lambda s: (s.following, s.returned), proposed, (following, returned)
            )
        )

    differences = jnp.zeros((window, flat.size), flat.dtype)
    start = _State(
        zero, flat, zeros, zeros, nothing, infinity, infinity, infinity, zeros, zeros,
        zero, zero, infinity, jnp.array(False), damping, zero, differences, differences,
    )  # fmt: skip
    last = lax.while_loop(unfinished, advance, start)
    return FixedPoint(
        unravel(last.z),
        last.auxiliary,
        _num_steps(last),
        last.residual,
        _status(last, max_steps, damping),
    )


def _num_steps(last: _State) -> Int[Array, ""]:
    """Steps, without the return to the best point."""
    return last.step - last.returned.astype(last.step.dtype)


def push(rows: Float[Array, "window k"], row: Float[Array, " k"]):
    """The rows moved down by one, with `row` first."""
    return jnp.concatenate([row[None], rows])[: rows.shape[0]]


def _status(last: _State, max_steps: Array, damping: Array) -> RESULTS:
    before_bound = _num_steps(last) < max_steps
    result = RESULTS.where(before_bound, RESULTS.stagnated, RESULTS.max_steps_reached)
    result = RESULTS.where(last.damping < damping, RESULTS.oscillating, result)
    diverged = last.ended > DIVERGED * last.first
    result = RESULTS.where(diverged, RESULTS.diverged, result)
    result = RESULTS.where(jnp.isinf(last.ended), RESULTS.non_finite, result)
    return RESULTS.where(last.residual <= 1, RESULTS.successful, result)


def anderson_step(plain, r, eta, steps_z, steps_r, used):
    """Z + η r − (ΔZ + η ΔR) γ, γ from regularised normal equations.

    The regularisation, a few eps of the trace, only bounds γ when the differences
    are nearly dependent; unused rows of the window get γ = 0.
    """
    steps_r = jnp.where(used[:, None], steps_r, 0)
    normal = steps_r @ steps_r.T
    eps = 10 * jnp.finfo(r.dtype).eps
    ridge = eps * jnp.trace(normal) + jnp.finfo(r.dtype).tiny
    normal = normal + ridge * jnp.eye(normal.shape[0], dtype=r.dtype)
    gamma = _lapack.solve(normal, steps_r @ r)
    return plain - gamma @ (steps_z + eta * steps_r)
