import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jgp._gaussian import Gaussian, from_natural, kl_divergence, to_natural


def random_gaussian(seed, batch=(), dimension=3):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(*batch, dimension, dimension + 2))
    mean = rng.normal(size=(*batch, dimension))
    return Gaussian(
        jnp.asarray(mean, float), jnp.asarray(a @ np.swapaxes(a, -1, -2), float)
    )


def tolerance(dtype, factor=200):
    """A few hundred rounding units: condition numbers here are about 50."""
    return factor * float(jnp.finfo(dtype).eps)


@pytest.mark.float32
def test_log_prob_is_the_formula():
    gaussian = random_gaussian(0)
    x = jnp.asarray([0.3, -1.2, 2.0])
    covariance = np.asarray(gaussian.covariance, np.float64)
    residual = np.asarray(x - gaussian.mean, np.float64)
    quadratic = residual @ np.linalg.solve(covariance, residual)
    log_det = np.linalg.slogdet(2 * np.pi * covariance)[1]
    rtol = tolerance(x.dtype)
    np.testing.assert_allclose(
        gaussian.log_prob(x), -0.5 * (quadratic + log_det), rtol=rtol
    )


@pytest.mark.float32
def test_natural_form_round_trip_and_values():
    gaussian = random_gaussian(1, batch=(2, 4))
    nu, precision = to_natural(gaussian)
    rtol = tolerance(nu.dtype, 2000)
    expected = np.linalg.inv(np.asarray(gaussian.covariance, np.float64))
    np.testing.assert_allclose(precision, expected, rtol=rtol, atol=rtol)
    back = from_natural(nu, precision)
    np.testing.assert_allclose(back.mean, gaussian.mean, rtol=rtol, atol=rtol)
    np.testing.assert_allclose(
        back.covariance, gaussian.covariance, rtol=rtol, atol=rtol
    )


def test_kl_divergence_of_one_dimension_is_the_closed_form():
    p = Gaussian(jnp.array([0.5]), jnp.array([[2.0]]))
    q = Gaussian(jnp.array([-1.0]), jnp.array([[0.7]]))
    expected = 0.5 * (2 / 0.7 + 1.5**2 / 0.7 - 1 + np.log(0.7 / 2))
    np.testing.assert_allclose(kl_divergence(p, q), expected, rtol=1e-14)


@pytest.mark.long
@pytest.mark.slow
def test_kl_divergence_is_the_expected_log_ratio(key):
    p, q = random_gaussian(2), random_gaussian(3)
    x = p.sample(key=key, num=40_000)
    ratio = jax.vmap(lambda v: p.log_prob(v) - q.log_prob(v))(x)
    standard_error = jnp.std(ratio) / 200
    assert abs(jnp.mean(ratio) - kl_divergence(p, q)) < 4 * standard_error
    np.testing.assert_allclose(kl_divergence(p, p), 0, atol=1e-13)


@pytest.mark.long
@pytest.mark.slow
def test_batch_equals_loop():
    p, q = random_gaussian(4, batch=(5,)), random_gaussian(5, batch=(5,))
    looped = [
        kl_divergence(
            Gaussian(p.mean[i], p.covariance[i]), Gaussian(q.mean[i], q.covariance[i])
        )
        for i in range(5)
    ]
    np.testing.assert_allclose(kl_divergence(p, q), jnp.stack(looped), rtol=1e-13)
    assert p.log_prob(q.mean).shape == (5,)


def test_sample_moments(key):
    gaussian = random_gaussian(6)
    x = gaussian.sample(key=key, num=100_000)
    # Four standard errors of a mean and of a covariance entry.
    scale = np.sqrt(np.diagonal(gaussian.covariance))
    assert np.all(abs(x.mean(0) - gaussian.mean) < 4 * scale / np.sqrt(1e5))
    error = np.cov(x.T) - gaussian.covariance
    assert np.all(abs(error) < 4 * np.sqrt(2) * np.outer(scale, scale) / np.sqrt(1e5))


@pytest.mark.long
@pytest.mark.slow
def test_derivatives():
    p, q = random_gaussian(7), random_gaussian(8)

    def kl(mean, root):
        return kl_divergence(Gaussian(mean, root @ root.T), q)

    root = jnp.linalg.cholesky(p.covariance)
    check_grads(jax.jit(kl), (p.mean, root), order=2, rtol=1e-5)


def test_singular_covariance_is_factorised_with_jitter(key):
    gaussian = Gaussian(jnp.zeros(2), jnp.ones((2, 2)))
    x = gaussian.sample(key=key, num=100)
    # The jitter is at most 1e-12 relative here: the two coordinates agree.
    np.testing.assert_allclose(x[:, 0], x[:, 1], atol=1e-5)


def test_shapes_that_do_not_match_are_refused():
    with pytest.raises(ValueError, match=r"covariance: got shape \(3, 3\), wanted"):
        Gaussian(jnp.zeros(2), jnp.eye(3))
