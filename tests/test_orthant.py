import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from scipy.special import ndtr

from jgp._orthant import log_orthant_probability, orthant_probability
from tests.cases import slow_unless

REFERENCE = Path(__file__).parent / "reference" / "class_probabilities.json"
probabilities = jax.jit(jax.vmap(orthant_probability))


def contrast_problem(mean, covariance, label):
    """N(m_j − m_k, I + 11ᵀ + BSBᵀ): class j wins under probit noise."""
    num_classes = mean.shape[0]
    contrasts = np.delete(-np.eye(num_classes), label, axis=0)
    contrasts[:, label] = 1
    noise = np.eye(num_classes - 1) + 1
    return contrasts @ mean, noise + contrasts @ covariance @ contrasts.T


def by_one_integral(mean, diagonal, common):
    """P(g > 0) for covariance diag(v) + c·11ᵀ: one integral over the common part."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    x, w = 9 * nodes, 9 * weights * np.exp(-0.5 * (9 * nodes) ** 2)
    limit = (mean + np.sqrt(common) * x[:, None]) / np.sqrt(diagonal)
    return w @ np.prod(ndtr(limit), axis=1) / np.sqrt(2 * np.pi)


def test_class_probabilities_of_the_multinomial_probit():
    reference = json.loads(REFERENCE.read_text())
    mean, covariance = map(np.array, (reference["mean"], reference["covariance"]))
    expected = np.array(reference["probability"])
    for label in range(3):
        problems = [
            contrast_problem(m, S, label) for m, S in zip(mean, covariance, strict=True)
        ]
        m, S = map(jnp.asarray, map(np.stack, zip(*problems, strict=True)))
        # Two dimensions are exact; the reference is quadrature to 1e-10.
        np.testing.assert_allclose(probabilities(m, S), expected[:, label], atol=1e-9)


@pytest.mark.float32
@pytest.mark.parametrize("dimension", slow_unless([1, 3], [1, 2, 3, 5]))
def test_independent_coordinates_with_a_common_part(dimension):
    rng = np.random.default_rng(dimension)
    mean = rng.normal(size=(4, dimension))
    diagonal = rng.uniform(0.5, 2, size=(4, dimension))
    common = np.array([0.0, 0.3, 1.0, 20.0])
    covariance = np.eye(dimension) * diagonal[:, None] + common[:, None, None]
    expected = [*map(by_one_integral, mean, diagonal, common)]
    got = probabilities(jnp.asarray(mean, float), jnp.asarray(covariance, float))
    # The default number of points is chosen for errors below 1e-6.
    np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("dimension", [7, 9])
def test_many_classes(dimension):
    mean = np.random.default_rng(0).normal(size=(2, dimension))
    covariance = np.broadcast_to(np.eye(dimension) + 1, (2, dimension, dimension))
    expected = [by_one_integral(m, np.ones(dimension), 1.0) for m in mean]
    got = probabilities(jnp.asarray(mean), jnp.asarray(covariance))
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_class_probabilities_sum_to_one_without_normalisation():
    """Four coupled classes: four different orthants that partition the space."""
    rng = np.random.default_rng(5)
    for scale in (0.5, 10.0, 100.0):
        root = rng.normal(size=(4, 6)) * np.sqrt(scale / 6)
        mean = np.sqrt(scale) * rng.normal(size=4)
        problems = [contrast_problem(mean, root @ root.T, j) for j in range(4)]
        m, S = map(jnp.asarray, map(np.stack, zip(*problems, strict=True)))
        np.testing.assert_allclose(jnp.sum(probabilities(m, S)), 1, atol=1e-6)


@pytest.mark.slow
def test_permutation_does_not_matter():
    rng = np.random.default_rng(6)
    root = rng.normal(size=(4, 6))
    mean, covariance = rng.normal(size=4), root @ root.T + np.eye(4)
    orders = [rng.permutation(4) for _ in range(3)]
    m = jnp.asarray([mean[p] for p in orders])
    S = jnp.asarray([covariance[p][:, p] for p in orders])
    got = probabilities(m, S)
    np.testing.assert_allclose(got, jnp.broadcast_to(got[0], 3), rtol=1e-12)


@pytest.mark.long
@pytest.mark.slow
def test_derivatives_of_independent_coordinates_are_the_closed_form():
    mean = jnp.array([0.3, -0.5, 0.1])
    slope = jax.jit(jax.grad(orthant_probability))(mean, jnp.eye(3))
    density = np.exp(-0.5 * mean**2) / np.sqrt(2 * np.pi)
    expected = np.prod(ndtr(mean)) * density / ndtr(mean)
    np.testing.assert_allclose(slope, expected, atol=1e-6)


@pytest.mark.long
@pytest.mark.slow
def test_derivatives_in_mean_and_covariance_agree_with_differences():
    mean = jnp.array([0.3, -0.5, 0.1])
    root = jnp.array([[1.5, 0.0, 0.0], [0.4, 1.2, 0.0], [0.3, -0.2, 1.4]])

    def value(t):
        """A curve through the space of means and covariances."""
        shifted = root + t * jnp.ones((3, 3))
        return orthant_probability(mean + t, shifted @ shifted.T, num_points=31)

    first = jax.grad(value)
    second = jax.jit(lambda t: jax.jvp(first, (t,), (jnp.ones(()),)))
    t, h = jnp.array(0.1), 1e-5
    (slope, curvature), above, below = second(t), second(t + h), second(t - h)
    np.testing.assert_allclose(curvature, (above[0] - below[0]) / (2 * h), rtol=1e-6)
    plain = jax.jit(value)
    difference = (plain(t + h) - plain(t - h)) / (2 * h)
    np.testing.assert_allclose(slope, difference, rtol=1e-7)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.float32
def test_extreme_means_stay_in_range_with_finite_derivatives():
    mean = jnp.array([[50.0, 40, 60], [-50, 3, 1], [8, -9, 20], [1e4, 0, -1e4]])
    covariance = jnp.eye(3) + 1
    values, slopes = jax.jit(
        jax.vmap(jax.value_and_grad(orthant_probability), in_axes=(0, None))
    )(mean, covariance)
    assert np.all((values >= 0) & (values <= 1))
    assert np.all(np.isfinite(slopes))
    np.testing.assert_allclose(values[0], 1, rtol=1e-6)
    np.testing.assert_allclose(values[1], 0, atol=1e-30)


@pytest.mark.long
@pytest.mark.slow
def test_a_key_shifts_the_lattice(key):
    mean, covariance = jnp.array([0.3, -0.5, 0.1]), jnp.eye(3) + 1
    shifted = jax.jit(
        jax.vmap(lambda k: orthant_probability(mean, covariance, num_points=31, key=k))
    )(jax.random.split(key, 8))
    expected = by_one_integral(np.asarray(mean), np.ones(3), 1.0)
    assert 0 < np.std(shifted) < 1e-4
    np.testing.assert_allclose(shifted, expected, atol=1e-4)


# log P by mpmath, ∫ φ(x) Φ((m₂ + r(x − m₁))/c) dx over x > 0, with 30 digits.
FAR = [
    ((-5.0, -3.0), 1.0, -9.425152165030184),
    ((-60.0, -20.0), 1.0, -904.6672642915493),
    ((-60.0, 3.0), -0.9, -1089.3017643877772),
    ((-30.0, -30.0), 1.9, -236.2938222708057),
]


@jax.jit
def far_derivatives(mean, covariance):
    gradient = jax.grad(log_orthant_probability)
    value = log_orthant_probability(mean, covariance)
    return value, gradient(mean, covariance), jax.jacfwd(gradient)(mean, covariance)


@pytest.mark.float32
@pytest.mark.parametrize(("mean", "between", "expected"), FAR)
def test_logarithms_far_in_the_corner(mean, between, expected):
    mean = jnp.asarray(mean)
    covariance = jnp.asarray([[2.0, between], [between, 2.0]])
    got, gradient, hessian = far_derivatives(mean, covariance)
    # 3e-6 is the error of the lattice; float32 rounds exponents of hundreds.
    atol = 5e-6 if jax.config.jax_enable_x64 else 2e-6 * abs(expected)
    np.testing.assert_allclose(got, expected, atol=atol)
    assert np.all(np.isfinite(gradient))
    # Log-concave in the mean.
    assert np.all(np.linalg.eigvalsh(hessian) <= 1e-5)


def test_logarithms_in_four_dimensions():
    # A shared factor: P = E_u ∏ Φ(mᵢ + u), by quadrature over u about its mode.
    mean = np.array([-18.0, -3.0, -21.0, -16.0])
    u = np.linspace(0, 40, 400_001)
    log_integrand = np.sum(scipy.special.log_ndtr(mean[:, None] + u[None]), axis=0)
    log_integrand = log_integrand - u**2 / 2 - np.log(2 * np.pi) / 2
    expected = scipy.special.logsumexp(log_integrand) + np.log(u[1])
    covariance = jnp.eye(4) + 1
    function = jax.jit(log_orthant_probability)
    got = function(jnp.asarray(mean), covariance)
    np.testing.assert_allclose(got, expected, atol=2e-3)
    # Its derivative at the values where it leaves the other route is that of both.
    near = jnp.asarray([-2.0, -1.5, -3.0, -2.2])
    slope = jax.jit(jax.grad(log_orthant_probability))(near, covariance)
    for i in range(4):
        step = 1e-4 * np.eye(4)[i]
        pair = [function(near + s, covariance) for s in (step, -step)]
        np.testing.assert_allclose(slope[i], (pair[0] - pair[1]) / 2e-4, rtol=1e-5)
