import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jgp._fixed_point import (
    PATIENCE,
    default_tolerance,
    iterate,
    scaled_change,
)
from jgp._results import RESULTS

DOUBLE = jnp.result_type(float) == jnp.float64
A = np.array([[0.5, 0.2, 0.0], [0.1, -0.3, 0.2], [0.0, 0.2, 0.4]])
B = np.array([1.0, 2.0, 3.0])


def affine(z, params):
    matrix, offset = params
    return matrix @ z + offset, jnp.sum(z)


def maps(function):
    return lambda z, params: (function(z), jnp.sum(z))


@functools.partial(jax.jit, static_argnames=("update", "window"))
def run(init, params, controls, *, update, window):
    tolerance, max_steps, damping = controls
    return iterate(
        update,
        init,
        params,
        rtol=tolerance,
        atol=tolerance,
        max_steps=max_steps,
        damping=damping,
        window=window,
    )


def solve(
    matrix=A,
    offset=B,
    init=(0.0, 0.0, 0.0),
    *,
    update=affine,
    tolerance=1e-10 if DOUBLE else 1e-5,
    max_steps=500,
    damping=1.0,
    window=5,
):
    params = jnp.asarray(matrix), jnp.asarray(offset)
    controls = (
        jnp.asarray(tolerance, float),
        jnp.asarray(max_steps, jnp.int32),
        jnp.asarray(damping, float),
    )
    return run(jnp.asarray(init), params, controls, update=update, window=window)


def is_(found, result):
    return bool(found.result == result)


@pytest.mark.float32
@pytest.mark.parametrize(("window", "bound"), [(0, 40), (1, 25), (5, 9)])
def test_contractions_are_solved(window, bound):
    found = solve(window=window)
    assert is_(found, RESULTS.successful)
    # A residual at most 1 means |F(z) − z| <= tol (1 + |F|), and ‖(I − A)⁻¹‖ is 2.4.
    solution = np.linalg.solve(np.eye(3) - A, B)
    tolerance = 1e-9 if DOUBLE else 3e-4
    np.testing.assert_allclose(found.value, solution, atol=20 * tolerance)
    assert int(found.num_steps) <= bound
    # The auxiliary belongs to the value that is returned.
    np.testing.assert_allclose(found.auxiliary, jnp.sum(found.value), rtol=1e-6)


@pytest.mark.float32
def test_residual_is_that_of_the_value():
    found = solve(max_steps=4, window=0, tolerance=1e-3)
    assert is_(found, RESULTS.max_steps_reached)
    assert int(found.num_steps) == 4
    # After four evaluations of F the value is F³(0).
    z = np.zeros(3)
    for _ in range(3):
        z = A @ z + B
    np.testing.assert_allclose(found.value, z, rtol=1e-5)
    image = A @ z + B
    wanted = np.max(np.abs(image - z) / (1e-3 + 1e-3 * np.abs(image)))
    np.testing.assert_allclose(found.residual, wanted, rtol=1e-4)
    change = scaled_change(*map(jnp.asarray, (image, z, 1e-3, 1e-3)))
    np.testing.assert_allclose(change, wanted, rtol=1e-5)
    empty = scaled_change(jnp.zeros(0), jnp.zeros(0), jnp.ones(()), jnp.ones(()))
    assert float(empty) == 0


def test_tolerances_depend_on_the_dtype():
    assert default_tolerance(jnp.float64) == 1e-6
    assert default_tolerance(jnp.float32) == 1e-4


@pytest.mark.float32
def test_a_start_at_the_solution_is_one_step():
    found = solve(init=np.linalg.solve(np.eye(3) - A, B), tolerance=1e-5)
    assert is_(found, RESULTS.successful)
    assert int(found.num_steps) == 1


def test_damping_slows_the_plain_iteration_to_the_same_point():
    plain, damped = solve(window=0), solve(window=0, damping=0.5)
    assert is_(damped, RESULTS.successful)
    assert int(damped.num_steps) > int(plain.num_steps)
    np.testing.assert_allclose(plain.value, damped.value, atol=1e-8)


CYCLE = np.diag([-1.0, 0.5, 0.2])


def test_a_two_cycle_is_broken():
    # From 0 the plain iteration gives z₁ = 0, 1, 0, 1, …; the fixed point is ½.
    accelerated = solve(CYCLE)
    assert is_(accelerated, RESULTS.successful)
    assert int(accelerated.num_steps) <= 10
    np.testing.assert_allclose(accelerated.value, B / (1 - np.diag(CYCLE)), atol=1e-8)
    # Without acceleration, halved damping after a stall finds it too, later.
    plain = solve(CYCLE, window=0)
    assert is_(plain, RESULTS.successful)
    assert int(plain.num_steps) > 15
    np.testing.assert_allclose(plain.value, accelerated.value, atol=1e-8)
    # And before that it has not converged.
    early = solve(CYCLE, window=0, max_steps=14)
    assert float(early.value[0]) in (0.0, 1.0)
    assert not is_(early, RESULTS.successful)
    assert float(early.residual) > 1


@pytest.mark.parametrize("eigenvalue", [-3.0, -1.5, 1.5, 3.0])
def test_expansions_are_solved_by_acceleration(eigenvalue):
    found = solve(eigenvalue * np.eye(3))
    assert is_(found, RESULTS.successful)
    np.testing.assert_allclose(found.value, B / (1 - eigenvalue), atol=1e-7)


@pytest.mark.float32
def test_max_steps_is_reported_as_such():
    found = solve(0.999 * np.eye(3), window=0, max_steps=7)
    assert is_(found, RESULTS.max_steps_reached)
    assert int(found.num_steps) == 7
    assert is_(solve(max_steps=1), RESULTS.max_steps_reached)


@pytest.mark.float32
@pytest.mark.parametrize("window", [0, 5])
def test_a_map_without_finite_values_is_non_finite(window):
    found = solve(offset=np.full(3, np.nan), window=window)
    assert is_(found, RESULTS.non_finite)
    assert int(found.num_steps) <= PATIENCE
    overflow = solve(update=maps(lambda z: jnp.exp(z) + 1e30), window=window)
    assert not is_(overflow, RESULTS.successful)


@pytest.mark.float32
@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize(
    "function",
    [lambda z: jnp.where(z > 0, -1.0, 1.0), lambda z: jnp.exp(z) + 1],
    ids=["jump", "no fixed point"],
)
def test_what_has_no_solution_never_succeeds(function, window):
    found = solve(update=maps(function), window=window)
    hopeless = (RESULTS.oscillating, RESULTS.diverged, RESULTS.non_finite)
    assert any(is_(found, result) for result in hopeless)
    # It is given up long before max_steps.
    assert int(found.num_steps) < 500


@pytest.mark.float32
def test_without_success_the_best_point_is_returned():
    # Every plain step of this map leads further away than the start.
    start = (1.0, -2.0, 0.5)
    found = solve(-3.0 * np.eye(3), init=start, window=0, max_steps=4)
    assert is_(found, RESULTS.max_steps_reached)
    assert int(found.num_steps) == 4
    np.testing.assert_array_equal(np.asarray(found.value), np.float32(start))
    assert float(found.auxiliary) == -0.5
    # And this one leaves the numbers altogether.
    lost = solve(update=maps(lambda z: z - jnp.sqrt(z) / 2), init=(1.0, 0.3, 0.2))
    assert not is_(lost, RESULTS.successful)
    assert np.all(np.isfinite(np.asarray(lost.value)))


def test_growth_without_bound_is_no_success():
    # The residual is relative to |F|, and stays bounded while z grows.
    found = solve(3.0 * np.eye(3), window=0, max_steps=200)
    assert float(jnp.max(jnp.abs(found.value))) > 1e10
    assert not is_(found, RESULTS.successful)


def test_a_zero_that_stays_zero_has_converged_without_absolute_tolerance():
    change = scaled_change(*map(jnp.asarray, ([0.0, 1.0], [0.0, 1.0], 1e-6, 0.0)))
    assert float(change) == 0


def test_infeasible_steps_are_not_taken():
    # √z needs z >= 0; acceleration from the right of the root at 1 would undershoot.
    seen = []

    def update(z, params):
        jax.debug.callback(lambda v: seen.append(float(v.min())), z)
        return jnp.sqrt(z) * params, None

    found = iterate(
        update,
        jnp.array([1e-6, 50.0]),
        jnp.ones(()),
        rtol=jnp.array(1e-10),
        atol=jnp.array(1e-10),
        max_steps=jnp.array(200, jnp.int32),
        damping=jnp.array(1.0),
        feasible=lambda z: jnp.all(z > 0),
    )
    jax.effects_barrier()
    assert is_(found, RESULTS.successful)
    np.testing.assert_allclose(found.value, 1, atol=1e-9)
    assert min(seen) > 0


def test_pytrees_and_dtypes_are_kept():
    def update(z, params):
        return {"a": 0.5 * z["a"] + params, "b": (z["a"][0] * 0.1,)}, z

    found = jax.jit(
        lambda p: iterate(
            update,
            {"a": jnp.zeros(2, jnp.float32), "b": (jnp.zeros((), jnp.float32),)},
            p,
            rtol=jnp.array(1e-5, jnp.float32),
            atol=jnp.array(1e-5, jnp.float32),
            max_steps=jnp.array(100, jnp.int32),
            damping=jnp.array(1.0, jnp.float32),
        )
    )(jnp.array([1.0, 2.0], jnp.float32))
    assert is_(found, RESULTS.successful)
    np.testing.assert_allclose(found.value["a"], [2, 4], rtol=1e-4)
    np.testing.assert_allclose(found.value["b"][0], 0.2, rtol=1e-4)
    assert {leaf.dtype for leaf in jax.tree.leaves(found.value)} == {
        jnp.dtype(jnp.float32)
    }
    assert found.residual.dtype == jnp.float32


# Implicit derivatives.
