import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from jgp.likelihoods import Gaussian, Normal

DOUBLE = jnp.result_type(float) == jnp.float64
TOLERANCE = 1e-14 if DOUBLE else 1e-6


@pytest.mark.float32
def test_values_are_scipys():
    likelihood, deviation = Gaussian(0.3), np.sqrt(0.3)
    for f, y in ((0.5, 1.2), (-3.0, 40.0), (0.0, 0.0)):
        wanted = norm.logpdf(y, f, deviation)
        got = likelihood.log_prob(jnp.asarray([f]), jnp.asarray(y))
        assert got.shape == ()
        np.testing.assert_allclose(got, wanted, rtol=10 * TOLERANCE)
    f, y = np.array([0.5, -1.0]), np.array([1.2, 0.3])
    got = likelihood.log_prob(jnp.asarray(f), jnp.asarray(y))
    np.testing.assert_allclose(
        got, norm.logpdf(y, f, deviation).sum(), rtol=10 * TOLERANCE
    )


@pytest.mark.float32
def test_noise_is_a_variance():
    observed = Gaussian(0.25).observe(jnp.asarray([[1.0], [2.0]]))
    np.testing.assert_allclose(observed.mean, [1, 2])
    np.testing.assert_allclose(observed.variance, [0.25, 0.25])
    both = Gaussian(0.25).observe(jnp.zeros((3, 2)))
    assert both.mean.shape == both.variance.shape == (3, 2)


@pytest.mark.float32
def test_predict_adds_the_noise_to_the_diagonal():
    mean = jnp.asarray([[0.1, -0.2], [2.0, 3.0]])
    covariance = jnp.asarray([[[1.0, 0.4], [0.4, 2.0]], [[0.5, -0.1], [-0.1, 0.0]]])
    predicted = Gaussian(0.3).predict(mean, covariance)
    np.testing.assert_allclose(predicted.mean, mean)
    np.testing.assert_allclose(
        predicted.variance, [[1.3, 2.3], [0.8, 0.3]], rtol=4 * TOLERANCE
    )
    one = Gaussian(0.3).predict(mean[:, :1], covariance[:, :1, :1])
    assert one.mean.shape == one.variance.shape == (2,)
    np.testing.assert_allclose(one.variance, [1.3, 0.8], rtol=4 * TOLERANCE)


@pytest.mark.float32
def test_log_prob_of_a_prediction_is_summed_over_outputs_alone():
    mean = np.array([[0.1, -0.2], [2.0, 3.0], [0.0, 0.0]])
    variance, y = np.abs(mean) + 0.5, mean + 1
    wanted = norm.logpdf(y, mean, np.sqrt(variance))
    both = Normal(*map(jnp.asarray, (mean, variance)))
    np.testing.assert_allclose(
        both.log_prob(jnp.asarray(y)), wanted.sum(axis=1), rtol=10 * TOLERANCE
    )
    one = Normal(*(jnp.asarray(a[:, 0]) for a in (mean, variance)))
    np.testing.assert_allclose(
        one.log_prob(jnp.asarray(y[:, 0])), wanted[:, 0], rtol=10 * TOLERANCE
    )


@pytest.mark.slow
def test_derivatives_are_the_closed_forms():
    f, y = jnp.asarray([0.5, -1.0]), jnp.asarray([1.2, 0.3])
    gradient = jax.grad(Gaussian(0.3).log_prob)(f, y)
    np.testing.assert_allclose(gradient, (y - f) / 0.3, rtol=1e-14)
    hessian = jax.hessian(Gaussian(0.3).log_prob)(f, y)
    np.testing.assert_allclose(hessian, -np.eye(2) / 0.3, rtol=1e-14)
    slope = jax.grad(lambda v: Gaussian(v).log_prob(f, y))(0.3)
    residual = np.asarray(y - f)
    wanted = (residual @ residual) / (2 * 0.09) - 2 / 0.6
    np.testing.assert_allclose(slope, wanted, rtol=1e-13)


@pytest.mark.float32
def test_without_noise():
    observed = Gaussian(0.0).observe(jnp.zeros((2, 1)))
    np.testing.assert_array_equal(observed.variance, 0)
    predicted = Gaussian(0.0).predict(jnp.zeros((1, 1)), jnp.full((1, 1, 1), 0.7))
    np.testing.assert_array_equal(predicted.variance, jnp.asarray([0.7]))


@pytest.mark.float32
@pytest.mark.parametrize(
    ("y", "num_latents", "message"),
    [
        ([[1.0], [2.0]], 1, r"y: got shape \(2, 1\), wanted \(n,\)"),
        (3.0, 1, r"y: got shape \(\), wanted \(n,\)"),
        ([1.0, 2.0], 2, r"y: got shape \(2,\), wanted \(n, 2\)"),
        ([[1.0, 2.0, 3.0]], 2, r"y: got shape \(1, 3\), wanted \(n, 2\)"),
        ([[[1.0, 2.0]]], 2, r"y: got shape \(1, 1, 2\), wanted \(n, 2\)"),
        ([1.0, np.nan, np.inf], 1, "y: got 2 values that are NaN or infinite"),
        (["a", "b"], 1, "y: got dtype <U1, wanted numbers"),
        ([None, 1.0], 1, "y: got dtype object, wanted numbers"),
    ],
)
def test_wrong_targets(y, num_latents, message):
    with pytest.raises(ValueError, match=message):
        Gaussian(0.3).targets(y, num_latents)


@pytest.mark.float32
@pytest.mark.parametrize("y", [[0, 1, 1], [False, True, True], np.array([0.0, 1, 1])])
def test_targets_of_any_numeric_kind(y):
    np.testing.assert_array_equal(Gaussian(0.3).targets(y, 1), [0, 1, 1])
    assert Gaussian(0.3).targets(np.zeros((0, 2)), 2).shape == (0, 2)


def test_noise_is_one_number_or_one_an_output():
    assert Gaussian().noise_variance == 1
    assert Gaussian().num_latents is None
    assert Gaussian(np.ones(3)).num_latents == 3
    for shape in ((2, 2), (0,)):
        with pytest.raises(ValueError, match="noise_variance: got shape"):
            Gaussian(np.ones(shape))
