"""Derivatives of log orthant probabilities as weighted moments."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from jgp._orthant import orthant_probability
from jgp._orthant_cumulants import orthant_cumulants


def problem(dimension: int):
    generator = np.random.default_rng(dimension)
    A = generator.normal(size=(dimension, dimension)) / 2
    return jnp.asarray(generator.normal(size=dimension) - 0.5), jnp.asarray(
        A @ A.T + 1 + np.eye(dimension)
    )


@pytest.mark.slow
def test_one_dimension_is_a_truncated_normal():
    m, v = -0.7, 2.5
    mass = norm.cdf(m / np.sqrt(v))
    third, fourth = orthant_cumulants(jnp.array([m]), jnp.array([[v]]))

    def moment(order, centre=0.0):
        def integrand(g):
            w = (g - m) / v
            return (w - centre) ** order * norm.pdf(g, m, np.sqrt(v))

        return quad(integrand, 0, m + 12 * np.sqrt(v), epsabs=1e-13)[0] / mass

    mean = moment(1)
    wanted = moment(4, mean) - 3 * moment(2, mean) ** 2
    np.testing.assert_allclose(third, [[[moment(3, mean)]]], rtol=1e-6)
    np.testing.assert_allclose(fourth, [[[[wanted]]]], rtol=1e-5)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("dimension", [2, 3])
def test_are_the_derivatives_of_the_probability(dimension):
    mean, covariance = problem(dimension)
    log_probability = functools.partial(_log_probability, covariance=covariance)
    derivative = jax.jacfwd(jax.jacfwd(jax.grad(log_probability)))
    third, fourth = jax.jit(orthant_cumulants)(mean, covariance)
    # The lattice's error at the default number of points.
    np.testing.assert_allclose(third, jax.jit(derivative)(mean), atol=2e-6)
    step = 1e-4 * np.eye(dimension)[0]
    ends = [jax.jit(derivative)(mean + sign * step) for sign in (1, -1)]
    along = (ends[0] - ends[1]) / 2e-4
    np.testing.assert_allclose(fourth[..., 0], along, atol=2e-5)


def _log_probability(mean, covariance):
    return jnp.log(orthant_probability(mean, covariance))


@pytest.mark.slow
def test_independent_coordinates_have_no_joint_cumulants():
    mean, variance = np.array([0.3, -0.8, 0.0, 1.1]), np.array([0.7, 1.0, 2.0, 0.4])
    covariance = jnp.diag(jnp.asarray(variance))
    third, fourth = orthant_cumulants(jnp.asarray(mean), covariance)
    for i in range(4):
        single = orthant_cumulants(
            jnp.asarray(mean[i : i + 1]), jnp.asarray(variance[i : i + 1, None])
        )
        np.testing.assert_allclose(third[i, i, i], single[0].squeeze(), atol=1e-4)
        np.testing.assert_allclose(fourth[i, i, i, i], single[1].squeeze(), atol=1e-3)
    mixed = np.array(third)
    mixed[np.arange(4), np.arange(4), np.arange(4)] = 0
    np.testing.assert_allclose(mixed, 0, atol=1e-4)
