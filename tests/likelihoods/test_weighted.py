import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import jgp
from jgp import kernels, likelihoods
from jgp._model import trainable
from jgp.likelihoods import Poisson, Softmax, Weighted, tilted_moments

X, Y = np.linspace(0, 3, 7), np.array([0, 1, 0, 2, 3, 5, 4])


def model(likelihood):
    return jgp.Model(jgp.GaussianProcess(1.5 * kernels.Matern52(1.0)), likelihood)


@pytest.mark.float32
def test_tilted_moments_are_of_the_power():
    mean, variance = jnp.asarray([0.3, -1.0, 2.0]), jnp.asarray([1.0, 0.5, 3.0])
    y, power = jnp.asarray([1.0, 0.0, 4.0]), jnp.asarray([0.5, 1.0, 0.7])
    weights = jnp.asarray([0.4, 1.5, 0.0])
    weighted = Weighted(Poisson(), weights)
    tolerance = 1e-12 if jnp.result_type(float) == jnp.float64 else 1e-5
    for given, total in ((power, power * weights), (None, weights)):
        moments = eqx.filter_jit(tilted_moments)
        got = moments(weighted, mean, variance, y, given)
        wanted = moments(Poisson(), mean, variance, y, total.at[2].set(1.0))
        for a, b, limit in zip(got, wanted, (0, 0, 0, 1), strict=True):
            np.testing.assert_allclose(a[:2], b[:2], rtol=tolerance)
            assert a[2] == limit


@pytest.mark.float32
def test_weights_multiply_log_probabilities():
    weights = np.array([0.0, 0.5, 2.0])
    f, y = jnp.asarray([[0.2], [-1.0], [1.5]]), jnp.asarray([1.0, 0.0, 4.0])
    weighted, poisson = Weighted(Poisson(), weights), Poisson()
    wanted = weights * np.asarray(poisson.log_probs(f, y))
    np.testing.assert_allclose(weighted.log_probs(f, y), wanted, rtol=1e-6)
    one = Weighted(poisson, 0.3).log_prob(f[2], y[2])
    np.testing.assert_allclose(one, 0.3 * poisson.log_prob(f[2], y[2]), rtol=1e-6)
    point = weighted.at_points(jnp.asarray([2]))
    np.testing.assert_allclose(point.log_probs(f[2:], y[2:]), wanted[2:], rtol=1e-6)
    with pytest.raises(ValueError, match=r"weights: got shape \(3,\) for one point"):
        weighted.log_prob(f[0], y[0])


def test_it_is_what_its_likelihood_is():
    for likelihood in (Poisson(), Softmax(3), likelihoods.StudentT(4.0, 0.3)):
        weighted = Weighted(likelihood, 0.5)
        for name in ("num_latents", "factorises", "classes", "log_concave"):
            assert getattr(weighted, name) == getattr(likelihood, name)
    f = jnp.asarray([[0.1, 0.4, -0.3]])
    observed = Weighted(Softmax(3), 0.5).observe(f)
    np.testing.assert_array_equal(observed.probs, Softmax(3).observe(f).probs)


def test_a_weight_of_two_is_a_repeated_observation():
    weights = np.array([1.0, 2, 1, 0, 1, 1, 2])
    repeats = np.repeat(np.arange(7), weights.astype(int))
    weighted = jgp.laplace(model(Weighted(Poisson(), weights)), X, Y)
    repeated = jgp.laplace(model(Poisson()), X[repeats], Y[repeats])
    assert abs(float(weighted.log_evidence - repeated.log_evidence)) < 1e-8
    x_new = np.linspace(-1, 4, 7)
    a, b = weighted.predict(x_new), repeated.predict(x_new)
    np.testing.assert_allclose(a.latent_mean, b.latent_mean, atol=1e-7)
    np.testing.assert_allclose(a.latent_variance, b.latent_variance, atol=1e-7)
    np.testing.assert_allclose(
        weighted.log_prob(x_new, Y), repeated.log_prob(x_new, Y), atol=1e-6
    )


def test_weighted_gaussian_noise_is_other_noise():
    y = np.sin(X)
    weighted = jgp.laplace(model(Weighted(likelihoods.Gaussian(0.1), 4.0)), X, y)
    exact = jgp.exact(model(likelihoods.Gaussian(0.025)), X, y)
    # The constants of N(y; f, σ²)ʷ and N(y; f, σ²/w) differ.
    constant = 7 * (np.log(2 * np.pi * 0.025) - 4 * np.log(2 * np.pi * 0.1)) / 2
    assert abs(float(weighted.log_evidence - exact.log_evidence) - constant) < 1e-8
    np.testing.assert_allclose(
        weighted.predict(X).variance - 0.1, exact.predict(X).variance - 0.025, atol=1e-8
    )
    with pytest.raises(ValueError, match="likelihood: got Weighted, wanted Gaussian"):
        jgp.exact(model(Weighted(likelihoods.Gaussian(0.1), 4.0)), X, y)


def test_weights_are_never_trained():
    chosen = trainable(model(Weighted(likelihoods.NegativeBinomial(0.3), np.ones(7))))
    assert chosen.likelihood.weights is False
    assert chosen.likelihood.likelihood.dispersion is True


def test_wrong_weights():
    with pytest.raises(ValueError, match="likelihood: got float, wanted one of"):
        Weighted(1.0, 2.0)
    with pytest.raises(
        ValueError, match=r"weights: got shape \(2, 2\), wanted a scalar"
    ):
        Weighted(Poisson(), np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"weights: got shape \(3,\) for 7 points"):
        jgp.laplace(model(Weighted(Poisson(), np.ones(3))), X, Y)
    with pytest.raises(ValueError, match=r"likelihood.weights: got .*-1.*, wanted"):
        jgp.laplace(model(Weighted(Poisson(), -1.0)), X, Y)
