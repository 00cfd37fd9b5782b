"""Fixed points: accelerated iteration, a status, and the implicit derivative.

`iterate` runs z ← F(z, θ) with Anderson acceleration in a bounded loop and reports
how it ended. `fixed_point` gives the solution of any such run its derivative by the
implicit function theorem: at z = F(z, θ),

    dz = (I − ∂F/∂z)⁻¹ ∂F/∂θ dθ,

whatever path (damping, acceleration, line search) led there. The rule is written
with the differentiable solution itself, so it can be differentiated again.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from jgp._results import RESULTS

# Below this many unknowns the tangent equation is solved by a dense LU.
DENSE_SIZE = 500
# A residual this many times the best one so far means the iteration left the basin.
GROWTH = 10.0
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
    When the residual grows tenfold or stalls (a two-cycle), the iteration restarts at
    its best point with half the damping η.

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
            damping=s.damping,
            # The first point may be far from all others: its step teaches nothing.
            history=jnp.where(s.step > 1, jnp.minimum(s.history + 1, window), 0),
            steps_z=_push(s.steps_z, z - s.z),
            steps_r=_push(s.steps_r, image - z - (s.image - s.z)),
        )

    def propose(s: _State) -> _State:
        """The next point: accelerated, plain, or back at the best one, damped."""
        lost = (s.residual > GROWTH * s.best) | (s.stalled >= STALL)
        eta = jnp.where(lost, s.damping / 2, s.damping)
        z = jnp.where(lost, s.best_z, s.z)
        r = jnp.where(lost, s.best_image, s.image) - z
        history = jnp.where(lost, 0, s.history)
        following = z + eta * r
        if window:
            used = jnp.arange(window, dtype=jnp.int32) < history
            mixed = _anderson_step(following, r, eta, s.steps_z, s.steps_r, used)
            ok = feasible(unravel(mixed)) & jnp.all(jnp.isfinite(mixed))
            following = jnp.where(ok, mixed, following)
        # The next difference is taken from the point that was stepped from.
        return eqx.tree_at(
            lambda s: (s.following, s.z, s.image, s.stalled, s.damping, s.history),
            s,
            (following, z, z + r, jnp.where(lost, 0, s.stalled), eta, history),
        )

    def unfinished(s: _State):
        improving = s.step - s.best_step < PATIENCE
        return (s.residual > 1) & (s.step < max_steps) & improving

    def advance(s: _State) -> _State:
        proposed = propose(s)
        restart = s.step == 0
        following = jnp.where(restart, flat, proposed.following)
        return evaluate(eqx.tree_at(lambda s: s.following, proposed, following))

    differences = jnp.zeros((window, flat.size), flat.dtype)
    start = _State(
        zero, flat, zeros, zeros, nothing, infinity, infinity, infinity, zeros, zeros,
        zero, zero, damping, zero, differences, differences,
    )  # fmt: skip
    last = lax.while_loop(unfinished, advance, start)
    return FixedPoint(
        unravel(last.z),
        last.auxiliary,
        last.step,
        last.residual,
        _status(last, max_steps, damping),
    )


def _push(rows: Float[Array, "window k"], row: Float[Array, " k"]):
    """The rows moved down by one, with `row` first."""
    return jnp.concatenate([row[None], rows])[: rows.shape[0]]


def _status(last: _State, max_steps: Array, damping: Array) -> RESULTS:
    result = RESULTS.where(
        last.step < max_steps, RESULTS.stagnated, RESULTS.max_steps_reached
    )
    result = RESULTS.where(last.damping < damping, RESULTS.oscillating, result)
    diverged = last.residual > GROWTH * last.first
    result = RESULTS.where(diverged, RESULTS.diverged, result)
    result = RESULTS.where(jnp.isinf(last.residual), RESULTS.non_finite, result)
    return RESULTS.where(last.residual <= 1, RESULTS.successful, result)


def _anderson_step(plain, r, eta, steps_z, steps_r, used):
    """Z + η r − (ΔZ + η ΔR) γ, γ from regularised normal equations.

    The regularisation, a few eps of the trace, only bounds γ when the differences
    are nearly dependent; unused rows of the window get γ = 0.
    """
    steps_r = jnp.where(used[:, None], steps_r, 0)
    normal = steps_r @ steps_r.T
    eps = 10 * jnp.finfo(r.dtype).eps
    ridge = eps * jnp.trace(normal) + jnp.finfo(r.dtype).tiny
    normal = normal + ridge * jnp.eye(normal.shape[0], dtype=r.dtype)
    gamma = jnp.linalg.solve(normal, steps_r @ r)
    return plain - gamma @ (steps_z + eta * steps_r)


def fixed_point(
    run: Callable[[PyTree, PyTree], FixedPoint],
    update: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    params: PyTree,
    controls: PyTree,
    *,
    newton: bool = False,
) -> FixedPoint:
    r"""The fixed point that `run(params, controls)` finds, with implicit derivatives.

    Forward and reverse mode, to any order, under `vmap`. The derivative reaches
    `value` and `auxiliary`; the status, the step count and the residual have none.
    The tangent equation (I − ∂F/∂z) dz = ∂F/∂θ dθ is solved by LU below
    `DENSE_SIZE` unknowns and by GMRES above; a GMRES that misses its tolerance gives
    NaN tangents rather than wrong ones.

    Args:
        run: Finds z = F(z, θ) by any path; not differentiated.
        update: F as (z, θ) to (F(z, θ), auxiliary): the plain step, undamped and
            with true Hessians, whatever `run` did.
        params: θ, everything that F depends on; closures are not differentiated.
        controls: What else `run` needs (starting point, tolerances).
        newton: Declares F a Newton step. For F(z) = z − (∂g/∂z)⁻¹ g(z, θ),
            ∂F/∂z = 0 wherever g = 0, for every θ: along the solution path the
            implicit solve is the identity. The rule below then needs no linear
            solve, and since it is applied to itself at the solution, again with
            ∂F/∂z = 0, it is exact to every order.
    """
    return _solution(params, controls, run=run, update=update, newton=newton)


@eqx.filter_custom_jvp
def _solution(params, controls, *, run, update, newton):
    del update, newton
    return run(params, controls)


@_solution.def_jvp
def _solution_jvp(primals, tangents, *, run, update, newton):
    (params, controls), (dparams, _) = primals, tangents
    found = _solution(params, controls, run=run, update=update, newton=newton)
    flat, unravel = ravel_pytree(found.value)
    moves = jax.tree.map(lambda d: d is not None, dparams, is_leaf=lambda d: d is None)
    moving, still = eqx.partition(params, moves)

    def step(z, moving):
        image, auxiliary = update(unravel(z), eqx.combine(moving, still))
        return ravel_pytree(image)[0], eqx.filter(auxiliary, eqx.is_inexact_array)

    _, linear = jax.linearize(step, flat, moving)
    # Under jit the linear map is traced once, however often it is applied.
    linear = jax.jit(linear)
    nowhere, nothing = jnp.zeros_like(flat), jax.tree.map(jnp.zeros_like, moving)
    forcing, _ = linear(nowhere, dparams)
    dflat = forcing
    if not newton:
        dflat = _solve_tangent(lambda v: v - linear(v, nothing)[0], forcing)
    _, dauxiliary = linear(dflat, dparams)
    tangent = eqx.tree_at(
        lambda f: (f.value, f.auxiliary),
        jax.tree.map(lambda _: None, found),
        (unravel(dflat), dauxiliary),
        is_leaf=lambda leaf: leaf is None,
    )
    return found, tangent


def _solve_tangent(matvec: Callable, b: Float[Array, " k"]) -> Float[Array, " k"]:
    solve = _solve_dense if b.size < DENSE_SIZE else _solve_gmres
    return lax.custom_linear_solve(matvec, b, solve, transpose_solve=solve)


def _solve_dense(matvec: Callable, b: Float[Array, " k"]) -> Float[Array, " k"]:
    matrix = jax.vmap(matvec, in_axes=1, out_axes=1)(jnp.eye(b.size, dtype=b.dtype))
    return jnp.linalg.solve(matrix, b)


def _solve_gmres(matvec: Callable, b: Float[Array, " k"]) -> Float[Array, " k"]:
    tolerance = 10 * float(jnp.finfo(b.dtype).eps) ** 0.75
    dz, _ = jax.scipy.sparse.linalg.gmres(
        matvec, b, tol=tolerance, atol=0.0, restart=50, maxiter=10
    )
    error = jnp.linalg.norm(matvec(dz) - b)
    missed = error > 100 * tolerance * jnp.linalg.norm(b)
    return jnp.where(missed, jnp.nan, dz)
