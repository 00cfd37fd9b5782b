import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jgp._fixed_point import (
    DENSE_SIZE,
    PATIENCE,
    default_tolerance,
    fixed_point,
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


def tanh_map(z, theta):
    """A contraction in z, nonlinear in both; the auxiliary depends on both too."""
    return jnp.tanh(jnp.asarray(A) @ z + theta), jnp.sum(z**2) + jnp.sum(theta * z)


def precisely(update, window=5):
    def run(params, controls):
        return iterate(
            update,
            controls,
            params,
            rtol=jnp.array(1e-14),
            atol=jnp.array(1e-14),
            max_steps=jnp.array(200, jnp.int32),
            damping=jnp.array(1.0),
            window=window,
        )

    return run


def solution(theta):
    found = fixed_point(precisely(tanh_map), tanh_map, theta, jnp.zeros(3))
    return found.value, found.auxiliary


THETA = jnp.asarray(B) / 5


def test_first_derivatives_are_the_implicit_function_theorems():
    z, _ = solution(THETA)
    slope = np.diag(1 - np.asarray(z) ** 2)
    wanted = np.linalg.solve(np.eye(3) - slope @ A, slope)
    forward, auxiliary = jax.jit(jax.jacfwd(solution))(THETA)
    reverse, _ = jax.jit(jax.jacrev(solution))(THETA)
    np.testing.assert_allclose(forward, wanted, atol=1e-12)
    np.testing.assert_allclose(reverse, wanted, atol=1e-12)
    total = np.asarray(2 * z + THETA) @ wanted + np.asarray(z)
    np.testing.assert_allclose(auxiliary, total, atol=1e-12)


def test_second_derivatives():
    def value(theta):
        z, auxiliary = solution(theta)
        return jnp.sum(jnp.sin(z)) + auxiliary

    check_grads(
        jax.jit(value), (THETA,), order=2, modes=("fwd", "rev"), rtol=1e-5, atol=1e-5
    )
    # Through the scalar z = a z + b: z = b/(1 − a), with ∂²z/∂a² = 2b/(1 − a)³.

    def scalar(a):
        def update(z, a):
            return a * z + 3.0, None

        found = fixed_point(precisely(update), update, a, jnp.zeros(1))
        return found.value[0]

    a = jnp.asarray(0.4)
    third = jax.jit(jax.grad(jax.grad(jax.grad(scalar))))(a)
    np.testing.assert_allclose(third, 18 / 0.6**4, rtol=1e-10)


def test_derivatives_do_not_depend_on_the_path():
    # The rule is that of the plain update, however the run got there.
    def by(theta, damping):
        def run(params, controls):
            return iterate(
                tanh_map,
                controls,
                params,
                rtol=jnp.array(1e-14),
                atol=jnp.array(1e-14),
                max_steps=jnp.array(500, jnp.int32),
                damping=jnp.array(damping),
                window=0,
            )

        return fixed_point(run, tanh_map, theta, jnp.ones(3)).value

    slow = jax.jacrev(lambda t: by(t, 0.4))(THETA)
    fast = jax.jacrev(lambda t: solution(t)[0])(THETA)
    np.testing.assert_allclose(slow, fast, atol=1e-11)


def test_derivatives_under_vmap():
    thetas = jnp.stack([THETA, -THETA, 2 * THETA])
    jacobian = jax.jit(jax.jacrev(lambda t: solution(t)[0]))
    batched = jax.jit(jax.vmap(jax.jacrev(lambda t: solution(t)[0])))(thetas)
    for got, theta in zip(batched, thetas, strict=True):
        np.testing.assert_allclose(got, jacobian(theta), atol=1e-11)


def test_derivatives_of_a_two_cycle_are_finite():
    # I − ∂F = diag(2, ½, ⅘): a Neumann series would not converge.
    def value(offset):
        params = jnp.asarray(CYCLE), offset
        return fixed_point(precisely(affine), affine, params, jnp.zeros(3)).value

    jacobian = jax.jacrev(value)(jnp.asarray(B))
    np.testing.assert_allclose(jacobian, np.diag([0.5, 2.0, 1.25]), atol=1e-12)


@pytest.mark.parametrize("size", [DENSE_SIZE - 1, DENSE_SIZE + 1])
def test_many_unknowns(size):
    # Tridiagonal, diagonally dominant: GMRES takes over above DENSE_SIZE.
    def update(z, params):
        scale, offset = params
        neighbours = jnp.roll(z, 1) + jnp.roll(z, -1)
        return scale * jnp.sin(neighbours) + offset, None

    offset = jnp.asarray(np.linspace(-1, 1, size))
    weights = jnp.asarray(np.cos(np.arange(size)))

    def value(scale):
        params = scale, offset
        found = fixed_point(precisely(update), update, params, jnp.zeros(size))
        return weights @ found.value

    scale, step = jnp.asarray(0.3), 1e-4
    f, slope = jax.jit(value), jax.jit(jax.grad(value))
    curvature = jax.jit(jax.jacfwd(jax.grad(value)))
    numeric = (f(scale + step) - f(scale - step)) / (2 * step)
    np.testing.assert_allclose(slope(scale), numeric, rtol=1e-6)
    numeric = (slope(scale + step) - slope(scale - step)) / (2 * step)
    np.testing.assert_allclose(curvature(scale), numeric, rtol=1e-6)


def test_a_failed_solve_gives_nan_and_not_a_wrong_number():
    # At θ = 1 every z is a fixed point, at no other θ is there any: I − ∂F = 0.
    for size in (3, DENSE_SIZE + 1):

        def update(z, theta):
            return z + (theta - 1), None

        def value(theta, size=size):
            run = precisely(update, window=0)
            return fixed_point(run, update, theta, jnp.ones(size)).value.sum()

        found, slope = jax.jit(jax.value_and_grad(value))(jnp.asarray(1.0))
        assert float(found) == size
        assert not np.isfinite(slope)


# Newton maps.


def square_root(z, theta):
    """A Newton step for z² = θ."""
    return (z + theta / z) / 2, z * theta


def test_newton_step_for_a_square_root():
    def value(theta):
        run = precisely(square_root, window=0)
        found = fixed_point(run, square_root, theta, jnp.ones(1), newton=True)
        return found.value[0], found.auxiliary[0]

    for theta in (0.25, 2.0, 9.0):
        theta = jnp.asarray(theta)
        (root, product), slopes = jax.jvp(value, (theta,), (jnp.ones(()),))
        np.testing.assert_allclose(root, np.sqrt(theta), rtol=1e-14)
        np.testing.assert_allclose(product, theta**1.5, rtol=1e-14)
        wanted = [0.5 / np.sqrt(theta), 1.5 * np.sqrt(theta)]
        np.testing.assert_allclose(slopes, wanted, rtol=1e-12)
        second = jax.jacfwd(jax.jacrev(value))(theta)
        wanted = [-0.25 * theta**-1.5, 0.75 / np.sqrt(theta)]
        np.testing.assert_allclose(second, wanted, rtol=1e-11)


def test_newton_step_for_a_system():
    # g(z, θ) = z + z³ + Mz − θ = 0, with M antisymmetric; ∂g/∂z is never singular.
    M = jnp.asarray([[0.0, 0.5, -0.2], [-0.5, 0.0, 0.3], [0.2, -0.3, 0.0]])

    def g(z, theta):
        return z + z**3 + M @ z - theta

    def update(z, theta):
        jacobian = jax.jacfwd(g)(z, theta)
        return z - jnp.linalg.solve(jacobian, g(z, theta)), jnp.sum(z * theta)

    def value(theta):
        run = precisely(update, window=0)
        found = fixed_point(run, update, theta, jnp.zeros(3), newton=True)
        return jnp.sum(jnp.sin(found.value)) + found.auxiliary

    def by_the_general_rule(theta):
        found = fixed_point(precisely(update, 0), update, theta, jnp.zeros(3))
        return jnp.sum(jnp.sin(found.value)) + found.auxiliary

    theta = jnp.asarray([1.0, -2.0, 0.3])
    z = fixed_point(precisely(update, 0), update, theta, jnp.zeros(3)).value
    np.testing.assert_allclose(g(z, theta), 0, atol=1e-13)
    inverse = np.linalg.inv(np.eye(3) + 3 * np.diag(np.asarray(z) ** 2) + np.asarray(M))
    wanted = np.asarray(jnp.cos(z) + theta) @ inverse + np.asarray(z)
    np.testing.assert_allclose(jax.grad(value)(theta), wanted, rtol=1e-12)
    check_grads(
        jax.jit(value), (theta,), order=2, modes=("fwd", "rev"), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(
        jax.jit(jax.hessian(value))(theta),
        jax.jit(jax.hessian(by_the_general_rule))(theta),
        atol=1e-10,
    )
