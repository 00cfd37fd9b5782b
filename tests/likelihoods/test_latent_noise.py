"""Gaussian noise with a latent scale: integrals, predictions, EP."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

import jgp
from jgp import kernels, likelihoods, means
from jgp._results import RESULTS
from jgp.likelihoods import LatentNoiseGaussian, NoisePredictive
from jgp.likelihoods._latent_noise import log_normaliser, tilted_points

MEAN, COVARIANCE = np.array([0.3, -0.8]), np.array([[0.9, 0.35], [0.35, 0.6]])
LIKELIHOOD = LatentNoiseGaussian()


def integral(function, y, mean=MEAN, covariance=COVARIANCE):
    """∫ g(f) p(y | f) N(f; m, V) df on a grid of f₂ and t, f₁ = y − exp(f₂)t."""
    t = np.linspace(-9, 9, 1601)[:, None]
    wide = 9 * np.sqrt(covariance[1, 1])
    f2 = np.linspace(mean[1] - wide, mean[1] + wide, 1601)[None]
    f1 = y - np.exp(f2) * t
    density = multivariate_normal(mean, covariance).pdf(
        np.stack(np.broadcast_arrays(f1, f2), axis=-1)
    )
    area = (t[1, 0] - t[0, 0]) * (f2[0, 1] - f2[0, 0])
    return np.sum(function(f1, f2) * norm.pdf(t) * density) * area


def problem(num_data: int = 30, dtype=float):
    generator = np.random.default_rng(0)
    x = np.linspace(0, 4, num_data)
    noise = np.exp(-2 + x / 2) * generator.normal(size=num_data)
    return x.astype(dtype), (np.sin(2 * x) + noise).astype(dtype)


def model(variance=1.0, lengthscale=1.0):
    ks = [
        variance * kernels.SquaredExponential(lengthscale),
        kernels.SquaredExponential(2.0),
    ]
    prior_means = [means.Constant(0.0), means.Constant(-1.0)]
    return jgp.Model(jgp.independent(ks, mean=prior_means), LIKELIHOOD)


@pytest.mark.slow
@pytest.mark.parametrize("y", [0.5, 6.0])
def test_normaliser_and_its_derivatives_are_the_tilted_moments(y):
    log_Z = functools.partial(log_normaliser, covariance=jnp.asarray(COVARIANCE), y=y)
    value, gradient = jax.value_and_grad(log_Z)(jnp.asarray(MEAN))
    Z = integral(lambda f1, f2: 1.0, y)
    assert abs(float(value) - np.log(Z)) < 1e-8
    tilted = MEAN + COVARIANCE @ np.asarray(gradient)
    points, weights = tilted_points(jnp.asarray(MEAN), jnp.asarray(COVARIANCE), y)
    for k in range(2):
        first = integral(lambda *f, k=k: f[k], y) / Z
        assert abs(tilted[k] - first) < 1e-7
        third = integral(lambda *f, k=k: f[k] ** 3, y) / Z
        assert abs(float(weights @ points[k] ** 3) - third) < 1e-6


@pytest.mark.slow
@pytest.mark.float32
def test_one_point_is_matched_exactly():
    # EP of one point has the moments of the posterior, and its evidence is exact.
    y, prior = 1.7, np.diag([1.0, 1.0])
    found = jgp.expectation_propagation(model(), [[0.5]], [y])
    assert bool(found.result == RESULTS.successful)
    mean = np.array([0.0, -1.0])
    wanted = log_normaliser(jnp.asarray(mean), jnp.asarray(prior), y)
    assert abs(float(found.log_evidence - wanted)) < 1e-4
    Z = integral(lambda f1, f2: 1.0, y, mean, prior)
    assert abs(float(found.log_evidence) - np.log(Z)) < 1e-4


@pytest.mark.slow
def test_evidence_and_its_correction_are_what_importance_sampling_finds():
    x, y = problem()
    found = jgp.expectation_propagation(model(), x, y)
    estimate = jgp.evidence(found, key=jax.random.key(0), num=20_000)
    missing = float(estimate.log_evidence - found.log_evidence)
    correction = float(jgp.evidence_correction(found))
    error = 3 * float(estimate.standard_error)
    assert 0.05 < missing < 0.3
    assert abs(correction - missing) < 0.25 * missing + error
    # Noise is found to grow, by about exp(2) in truth.
    latents = np.asarray(found.posterior.marginals(x).mean)
    assert 1 < latents[-1, 1] - latents[0, 1] < 3


@pytest.mark.slow
def test_gradients_are_differences():
    x, y = problem(15)
    options = {"rtol": 1e-10, "atol": 1e-10}

    def log_evidence(raw, y):
        found = jgp.expectation_propagation(model(*jnp.exp(raw)), x, y, **options)
        return found.log_evidence

    raw = jnp.asarray([0.2, -0.1])
    gradients = jax.grad(log_evidence, argnums=(0, 1))(raw, jnp.asarray(y))
    for k, basis in enumerate(np.eye(2)):
        ends = [log_evidence(raw + s * 1e-4 * basis, y) for s in (1, -1)]
        assert abs(float(ends[0] - ends[1]) / 2e-4 - gradients[0][k]) < 1e-5
    step = 1e-4 * np.eye(15)[3]
    ends = [log_evidence(raw, y + s * step) for s in (1, -1)]
    assert abs(float(ends[0] - ends[1]) / 2e-4 - gradients[1][3]) < 1e-5


@pytest.mark.slow
def test_predictions_are_averages_over_the_latents():
    mixture = jnp.asarray([[MEAN, [1.0, 0.2]]])
    within = jnp.asarray([[COVARIANCE, np.zeros((2, 2))]])
    predicted = NoisePredictive(mixture, within)
    draws = predicted.sample(key=jax.random.key(0), num=200_000)[:, 0]
    spread = float(predicted.stddev[0])
    assert abs(float(draws.mean() - predicted.mean[0])) < 5 * spread / np.sqrt(2e5)
    # The kurtosis of this mixture is about 9.
    ratio = float(jnp.var(draws) / predicted.variance[0])
    assert abs(ratio - 1) < 5 * np.sqrt(8 / 2e5)
    y = 0.7
    wanted = (integral(lambda f1, f2: 1.0, y) + norm.pdf(y, 1.0, np.exp(0.2))) / 2
    assert abs(float(predicted.log_prob(np.array([y]))[0]) - np.log(wanted)) < 1e-7


@pytest.mark.long
@pytest.mark.slow
def test_chains_and_left_out_points_agree_with_ep():
    x, y = problem()
    found = jgp.expectation_propagation(model(), x, y)
    key = jax.random.key(0)
    chains = jgp.sample_posterior(model(), x, y, key=key, max_steps=2000, throw=False)
    ours, theirs = (a.predict(x) for a in (found, chains))
    np.testing.assert_allclose(ours.mean, theirs.mean, atol=0.1)
    np.testing.assert_allclose(np.log(ours.variance / theirs.variance), 0, atol=0.4)
    # The cavity stands for a refit up to 0.05 on average here, of values that spread
    # by 0.7: the other sites would move a little.
    left_out = np.asarray(jgp.leave_one_out(found).log_prob)
    refits = []
    for i in range(len(x)):
        others = np.arange(len(x)) != i
        rest = jgp.expectation_propagation(model(), x[others], y[others])
        refits.append(float(rest.log_prob(x[i : i + 1], y[i : i + 1])[0]))
    assert np.mean(np.abs(left_out - refits)) < 0.07


def test_says_what_is_wrong():
    x, y = problem(6)
    for options in ({"power": 0.5}, {"schedule": "sequential"}, {"fallback": True}):
        with pytest.raises(ValueError, match="power, schedule, fallback: got"):
            jgp.expectation_propagation(model(), x, y, **options)
    with pytest.raises(ValueError, match="laplace"):
        jgp.laplace(model(), x, y)
    one = jgp.GaussianProcess(kernels.SquaredExponential(1.0))
    with pytest.raises(ValueError, match="process: got 1 latent"):
        jgp.Model(one, likelihoods.LatentNoiseGaussian())
    with pytest.raises(ValueError, match="y: got nan"):
        jgp.expectation_propagation(model(), x, np.where(x > 1, np.nan, y))


@pytest.mark.slow
@pytest.mark.float32
def test_broad_priors_and_outliers_end_with_finite_numbers():
    x, y = problem(12, np.float32)
    y[3] = 40.0
    found = jgp.expectation_propagation(model(100.0, 0.3), x, y, throw=False)
    assert found.log_evidence.dtype == np.float32
    succeeded = bool(found.result == RESULTS.successful)
    assert succeeded == bool(found.residual <= 1)
    assert not succeeded or np.isfinite(float(found.log_evidence))
