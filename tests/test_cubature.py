import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy.special import ndtr

from jgp._cubature import (
    expectation,
    gauss_hermite,
    gauss_hermite_product,
    generating_vector,
    lattice,
    normal_lattice,
)


@pytest.mark.float32
def test_gauss_hermite_is_exact_for_moments():
    nodes, weights = gauss_hermite(6)
    rtol = 200 * float(jnp.finfo(nodes.dtype).eps)
    for power, moment in ((0, 1), (2, 1), (4, 3), (8, 105), (10, 945)):
        np.testing.assert_allclose(weights @ nodes**power, moment, rtol=rtol)
    assert nodes.dtype == weights.dtype == jnp.zeros(()).dtype


@pytest.mark.float32
def test_dtype_is_the_one_asked_for():
    for rule in (gauss_hermite(3, jnp.float32)[0], lattice(5, 2, jnp.float32)):
        assert rule.dtype == jnp.float32


def test_product_rule():
    nodes, weights = gauss_hermite_product(4, 3)
    assert nodes.shape == (64, 3)
    value = weights @ (nodes[:, 0] ** 2 * nodes[:, 1] ** 4 * (1 + nodes[:, 2]))
    np.testing.assert_allclose(value, 3, rtol=1e-13)


@pytest.mark.float32
def test_expectation_of_a_closed_form_broadcast_over_arrays():
    mean = jnp.array([[0.0, 1.0], [-2.0, 0.3]])
    variance = jnp.array([[1.0, 0.5], [2.0, 0.0]])
    # E Φ(a x) = Φ(a m/√(1 + a²s²)); `a` has the shape of the mean, as labels do.
    a = jnp.array([[1.0, -1.0], [0.5, 1.0]])
    got = jax.jit(
        lambda m, v: expectation(lambda x: jax.scipy.special.ndtr(a * x), m, v)
    )(mean, variance)
    expected = ndtr(np.asarray(a * mean / jnp.sqrt(1 + a**2 * variance), np.float64))
    # 20 nodes: 1e-9 at a·s = 1, by the width of Φ.
    atol = 1e-8 if mean.dtype == jnp.float64 else 3e-7
    np.testing.assert_allclose(got, expected, atol=atol)


@pytest.mark.slow
def test_expectation_derivatives():
    def value(mean, variance):
        return expectation(jnp.exp, mean, variance)

    check_grads(value, (jnp.array(0.2), jnp.array(0.7)), order=2, rtol=1e-6)
    # E exp(x) = exp(m + s²/2): the derivative in s² is half the value.
    slope = jax.grad(value, argnums=1)(jnp.array(0.2), jnp.array(0.7))
    np.testing.assert_allclose(slope, 0.5 * np.exp(0.55), rtol=1e-12)


def worst_case(points, generator, z):
    """The criterion of `generating_vector`, from its definition."""
    x = np.outer(np.arange(points), [*generator, z]) % points / points
    kernel = -((2 * np.pi) ** 4) / 24 * (x**4 - 2 * x**3 + x**2 - 1 / 30)
    return np.sum(np.prod(1 + 0.5 * kernel, axis=1))


@pytest.mark.parametrize("points", [31, 101])
def test_fast_construction_equals_the_search_it_replaces(points):
    generator = generating_vector(points, 5)
    for j in range(5):
        errors = [worst_case(points, generator[:j], z) for z in range(1, points)]
        chosen = worst_case(points, generator[:j], generator[j])
        np.testing.assert_allclose(chosen, min(errors), rtol=1e-12)


@pytest.mark.float32
def test_lattice_lies_in_the_open_cube_and_projects_evenly(key):
    for points in (
        lattice(1021, 50),
        lattice(1021, 3, tent=True),
        lattice(1021, 50, key=key),
    ):
        assert np.all((points > 0) & (points < 1))
        counts = np.histogram(np.asarray(points[:, -1]), 10, range=(0, 1))[0]
        # One point an interval of length 1/1021 before the tent, two after.
        assert np.all(abs(counts - 102.1) <= 2.1)


def test_lattice_error_falls_faster_than_the_number_of_points():
    def error(num_points):
        x = lattice(num_points, 4)
        return abs(jnp.mean(jnp.prod(1 + 0.5 * jnp.cos(2 * jnp.pi * x) ** 3, 1)) - 1)

    assert error(1021) < 1e-4
    assert error(16381) < 1e-8


def test_normal_lattice_moments():
    x = normal_lattice(4093, 4)
    np.testing.assert_allclose(jnp.mean(x, axis=0), 0, atol=1e-3)
    # The unbounded tails limit the second moments: about 1/num_points, times log.
    np.testing.assert_allclose(x.T @ x / 4093, np.eye(4), atol=5e-3)


def test_random_shift_is_unbiased(key):
    def estimate(k):
        return jnp.mean(jnp.prod(lattice(251, 3, key=k) ** 3, axis=1))

    values = jax.vmap(estimate)(jax.random.split(key, 200))
    standard_error = jnp.std(values) / np.sqrt(200)
    assert abs(jnp.mean(values) - 1 / 64) < 4 * standard_error
    assert standard_error < 1e-4


def test_composite_number_of_points_is_refused():
    with pytest.raises(ValueError, match="num_points: got 1000, wanted a prime"):
        lattice(1000, 2)
