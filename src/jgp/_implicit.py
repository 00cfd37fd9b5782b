"""The implicit derivative of fixed points.

At z = F(z, θ), by the implicit function theorem,

    dz = (I − ∂F/∂z)⁻¹ ∂F/∂θ dθ,

whatever path (damping, acceleration, line search) led there. The rule is written
with the differentiable solution itself, so it can be differentiated again.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PyTree

from jgp import _lapack
from jgp._fixed_point import FixedPoint

# Below this many unknowns the tangent equation is solved by a dense LU.
DENSE_SIZE = 500


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
    return _lapack.solve(matrix, b)


def _solve_gmres(matvec: Callable, b: Float[Array, " k"]) -> Float[Array, " k"]:
    tolerance = 10 * float(jnp.finfo(b.dtype).eps) ** 0.75
    dz, _ = jax.scipy.sparse.linalg.gmres(
        matvec, b, tol=tolerance, atol=0.0, restart=50, maxiter=10
    )
    error = jnp.linalg.norm(matvec(dz) - b)
    missed = error > 100 * tolerance * jnp.linalg.norm(b)
    return jnp.where(missed, jnp.nan, dz)
