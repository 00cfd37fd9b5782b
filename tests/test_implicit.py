import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jgp._fixed_point import iterate
from jgp._implicit import DENSE_SIZE, fixed_point
from tests.test_fixed_point import CYCLE, A, B, affine


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


@pytest.mark.long
@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.long
@pytest.mark.slow
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
