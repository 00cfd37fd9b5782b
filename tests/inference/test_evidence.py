import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jgp
from jgp import kernels, likelihoods
from jgp._linalg import cholesky
from jgp._results import RESULTS
from jgp.inference import site_posterior, whitened_deviation
from tests.problems import iris, reference, squared_exponentials, toy


@functools.cache
def approximation_on_iris(method: str):
    data = iris("uci")
    if method == "probit":
        run = reference("classification")["nested_ep"]["iris"]
        likelihood, infer = likelihoods.MultinomialProbit(3), jgp.nested_ep
    else:
        run = reference("classification")["laplace"]["iris"]
        likelihood, infer = likelihoods.Softmax(3), jgp.laplace
    model = squared_exponentials(likelihood, run["lengthscales"])
    return infer(model, data.x, data.y)


@pytest.mark.parametrize(
    ("method", "temper", "largest_error"),
    [
        pytest.param("probit", 1.0, 0.01, marks=pytest.mark.slow),
        pytest.param("probit", 0.8, 0.01, marks=pytest.mark.slow),
        ("softmax", 0.75, 0.016),
    ],
)
def test_agrees_with_long_runs_on_iris(method, temper, largest_error):
    exact = reference("classification")["evidence"][method]
    for seed in range(3):
        estimate = jgp.evidence(
            approximation_on_iris(method), key=jax.random.key(seed), temper=temper
        )
        assert bool(estimate.result == RESULTS.successful)
        error = float(estimate.standard_error)
        assert error <= largest_error
        combined = np.hypot(error, exact["standard_error"])
        difference = float(estimate.log_evidence) - exact["log_evidence"]
        assert abs(difference) <= 3 * combined
        assert 1000 < float(estimate.ess) <= 4096
        assert float(estimate.pareto_k) < 0.8


@pytest.mark.slow
def test_standard_error_is_the_spread_of_estimates():
    data = toy()
    model = squared_exponentials(likelihoods.MultinomialProbit(3), [1.0] * 3, 4.0)
    approximation = jgp.nested_ep(model, data.x, data.y)
    estimates = [
        jgp.evidence(approximation, key=jax.random.key(s), num=512) for s in range(60)
    ]
    values = np.array([float(e.log_evidence) for e in estimates])
    claimed = np.mean([float(e.standard_error) for e in estimates])
    # The spread of 60 values has a relative error of about 1/√120; four of them.
    assert abs(np.std(values) / claimed - 1) < 4 / np.sqrt(120)


@pytest.mark.slow
def test_defensive_mixture_is_unbiased_too():
    data = toy()
    model = squared_exponentials(likelihoods.MultinomialProbit(3), [1.0] * 3, 4.0)
    approximation = jgp.nested_ep(model, data.x, data.y)
    plain, mixed = (
        jgp.evidence(approximation, key=jax.random.key(1), num=8192, defensive=epsilon)
        for epsilon in (0.0, 0.3)
    )
    error = np.hypot(float(plain.standard_error), float(mixed.standard_error))
    assert abs(float(plain.log_evidence - mixed.log_evidence)) < 3 * error


def test_gaussian_noise_leaves_no_error():
    x = np.linspace(0, 1, 8)
    model = jgp.Model(
        jgp.GaussianProcess(kernels.Matern52(0.4)), likelihoods.Gaussian(0.2)
    )
    exact = jgp.exact(model, x, np.sin(5 * x))
    estimate = jgp.evidence(exact, key=jax.random.key(0), num=16)
    assert abs(float(estimate.log_evidence - exact.log_evidence)) < 1e-10
    assert float(estimate.standard_error) < 1e-10
    assert float(estimate.pareto_k) == -np.inf


def test_draws_have_the_posterior_covariance():
    # The map from (z, ξ) to K½w is linear: its matrix M has MMᵀ = Σ exactly.
    data = toy(num_data=4)
    model = squared_exponentials(likelihoods.MultinomialProbit(3), [1.0, 0.5, 2.0])
    approximation = jgp.nested_ep(model, data.x, data.y)
    K, prior_mean = model.process.covariance(data.x), model.process.mean(data.x)
    root = cholesky(K).lower
    sites = approximation.sites
    posterior = site_posterior(K, prior_mean, sites)

    def draw(normals):
        z, xi = normals.reshape(2, 4, 3)
        w = whitened_deviation(root, sites, posterior.factor, z, xi)
        return jnp.einsum("cij,jc->ic", root, w).ravel()

    M = jax.vmap(draw, out_axes=1)(jnp.eye(24))
    wanted = approximation.posterior.joint(data.x).covariance.reshape(12, 12)
    np.testing.assert_allclose(np.asarray(M @ M.T), np.asarray(wanted), atol=1e-12)


def test_says_what_it_needs():
    approximation = approximation_on_iris("probit")
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="method: got 'guess'"):
        jgp.evidence(approximation, key=key, method="guess")
    with pytest.raises(ValueError, match="temper: got 0"):
        jgp.evidence(approximation, key=key, temper=0.0)
    without = eqx.tree_at(
        lambda a: a.sites, approximation, None, is_leaf=lambda v: v is None
    )
    with pytest.raises(ValueError, match="wanted an Approximation with Gaussian sites"):
        jgp.evidence(without, key=key)
