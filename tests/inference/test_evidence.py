import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

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
        pytest.param("probit", 1.0, 0.01, marks=pytest.mark.long),
        pytest.param("probit", 0.8, 0.01, marks=pytest.mark.long),
        ("softmax", 0.75, 0.016),
    ],
)
def test_agrees_with_long_runs_on_iris(method, temper, largest_error):
    exact = reference("classification")["evidence"][method]
    for seed in range(3):
        estimate = jgp.evidence(
            approximation_on_iris(method),
            key=jax.random.key(seed),
            method="importance",
            temper=temper,
        )
        assert bool(estimate.result == RESULTS.successful)
        error = float(estimate.standard_error)
        assert error <= largest_error
        combined = np.hypot(error, exact["standard_error"])
        difference = float(estimate.log_evidence) - exact["log_evidence"]
        assert abs(difference) <= 3 * combined
        assert 1000 < float(estimate.ess) <= 4096
        assert float(estimate.pareto_k) < 0.8


@pytest.mark.long
@pytest.mark.slow
def test_standard_error_is_the_spread_of_estimates():
    data = toy()
    model = squared_exponentials(likelihoods.MultinomialProbit(3), [1.0] * 3, 4.0)
    approximation = jgp.nested_ep(model, data.x, data.y)
    estimates = [
        jgp.evidence(approximation, key=jax.random.key(s), method="importance", num=512)
        for s in range(60)
    ]
    values = np.array([float(e.log_evidence) for e in estimates])
    claimed = np.mean([float(e.standard_error) for e in estimates])
    # The spread of 60 values has a relative error of about 1/√120; four of them.
    assert abs(np.std(values) / claimed - 1) < 4 / np.sqrt(120)


@pytest.mark.long
@pytest.mark.slow
def test_defensive_mixture_is_unbiased_too():
    data = toy()
    model = squared_exponentials(likelihoods.MultinomialProbit(3), [1.0] * 3, 4.0)
    approximation = jgp.nested_ep(model, data.x, data.y)
    plain, mixed = (
        jgp.evidence(
            approximation,
            key=jax.random.key(1),
            method="importance",
            num=8192,
            defensive=epsilon,
        )
        for epsilon in (0.0, 0.3)
    )
    error = np.hypot(float(plain.standard_error), float(mixed.standard_error))
    assert abs(float(plain.log_evidence - mixed.log_evidence)) < 3 * error


@pytest.mark.slow
def test_gaussian_noise_leaves_no_error():
    x = np.linspace(0, 1, 8)
    model = jgp.Model(
        jgp.GaussianProcess(kernels.Matern52(0.4)), likelihoods.Gaussian(0.2)
    )
    exact = jgp.exact(model, x, np.sin(5 * x))
    estimate = jgp.evidence(exact, key=jax.random.key(0), num=16)
    assert estimate.method == "importance"
    assert abs(float(estimate.log_evidence - exact.log_evidence)) < 1e-10
    assert float(estimate.standard_error) < 1e-10
    assert float(estimate.pareto_k) == -np.inf
    steps = jgp.evidence(exact, key=jax.random.key(0), method="smc", num_particles=4)
    assert steps.method == "smc"
    assert abs(float(steps.log_evidence - exact.log_evidence)) < 1e-7
    assert float(steps.standard_error) < 1e-7
    assert np.all(np.asarray(steps.diagnostics.num_temperatures) == 1)


# Importance sampling with 2¹⁸ draws, and its standard error.
TOY_EVIDENCE = {"probit": (-15.0477, 0.0007), "softmax": (-14.5854, 0.0015)}


@functools.cache
def on_the_toy(link: str):
    data = toy()
    if link == "probit":
        likelihood, infer = likelihoods.MultinomialProbit(3), jgp.nested_ep
    else:
        likelihood, infer = likelihoods.Softmax(3), jgp.laplace
    model = squared_exponentials(likelihood, [1.0] * 3, 4.0)
    return infer(model, data.x, data.y)


def assert_agrees(estimate: jgp.Evidence, value: float, error: float):
    """Within three standard errors, at their level for the runs' t distribution."""
    degrees = len(estimate.diagnostics.log_evidences) - 1
    quantile = stats.t.isf(stats.norm.sf(3), degrees)
    difference = float(estimate.log_evidence) - value
    combined = np.hypot(quantile * float(estimate.standard_error), 3 * error)
    assert abs(difference) < combined


@pytest.mark.long
@pytest.mark.parametrize(
    ("link", "start", "temper"),
    [
        pytest.param("softmax", "approximation", 0.75, marks=pytest.mark.slow),
        pytest.param("softmax", "prior", 0.75, marks=pytest.mark.slow),
        pytest.param("probit", "approximation", 0.3, marks=pytest.mark.slow),
        pytest.param("probit", "prior", 1.0, marks=pytest.mark.slow),
    ],
)
def test_temperatures_agree_with_importance_sampling(link, start, temper):
    estimate = jgp.evidence(
        on_the_toy(link),
        key=jax.random.key(0),
        method="smc",
        start=start,
        temper=temper,
        num_particles=256,
    )
    assert bool(estimate.result == RESULTS.successful)
    assert estimate.method == "smc"
    assert np.isnan(float(estimate.ess))
    assert np.isnan(float(estimate.pareto_k))
    runs = estimate.diagnostics
    assert runs.log_evidences.shape == (4,)
    assert np.all(np.asarray(runs.num_temperatures) > 1)
    assert np.all(np.asarray(runs.num_evaluations) >= 1)
    assert float(estimate.standard_error) < 0.1
    assert_agrees(estimate, *TOY_EVIDENCE[link])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("link", "start"), [("softmax", "prior"), ("probit", "approximation")]
)
def test_annealing_agrees_with_importance_sampling(link, start):
    estimate = jgp.evidence(
        on_the_toy(link),
        key=jax.random.key(4),
        method="ais",
        start=start,
        temper=0.5,
        num_particles=256,
        num_temperatures=12,
    )
    assert bool(estimate.result == RESULTS.successful)
    assert estimate.method == "ais"
    assert estimate.diagnostics.num_temperatures.tolist() == [12] * 4
    assert float(estimate.standard_error) < 0.1
    assert_agrees(estimate, *TOY_EVIDENCE[link])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("link", ["probit", "softmax"])
def test_particles_from_the_prior_agree_with_long_runs_on_iris(link):
    exact = reference("classification")["evidence"][link]
    options = {"start": "prior", "num_particles": 512}
    for method, seed in (("smc", 3), ("ais", 4)):
        estimate = jgp.evidence(
            approximation_on_iris(link),
            key=jax.random.key(seed),
            method=method,
            **options,
        )
        assert float(estimate.standard_error) <= 0.1
        assert_agrees(estimate, exact["log_evidence"], exact["standard_error"])


@pytest.mark.long
@pytest.mark.slow
def test_temperatures_agree_with_long_runs_on_iris():
    exact = reference("classification")["evidence"]["probit"]
    estimate = jgp.evidence(
        approximation_on_iris("probit"), key=jax.random.key(0), method="smc"
    )
    assert float(estimate.standard_error) <= 0.01
    assert_agrees(estimate, exact["log_evidence"], exact["standard_error"])


@pytest.mark.slow
def test_from_the_prior_with_sites_of_any_sign():
    # Two points that disagree under Student's t: one of EP's precisions is negative.
    x, y = np.array([0.0, 0.3]), np.array([-2.5, 2.5])
    model = jgp.Model(
        jgp.GaussianProcess(kernels.SquaredExponential(1.0)),
        likelihoods.StudentT(3.0, 0.3),
    )
    found = jgp.expectation_propagation(model, x, y)
    assert np.min(np.asarray(found.sites.precision)) < 0
    grid = np.linspace(-7, 7, 1401)
    f = np.stack(np.meshgrid(grid, grid, indexing="ij"), axis=-1)
    K = np.asarray(model.process.covariance(found.x))[0]
    log_joint = stats.multivariate_normal.logpdf(f, cov=K)
    log_joint += np.sum(stats.t.logpdf(y, 3.0, loc=f, scale=0.3), axis=-1)
    exact = np.log(np.sum(np.exp(log_joint)) * (grid[1] - grid[0]) ** 2)
    estimate = jgp.evidence(
        found,
        key=jax.random.key(0),
        method="smc",
        start="prior",
        num_particles=2048,
    )
    assert bool(estimate.result == RESULTS.successful)
    assert float(estimate.standard_error) < 0.05
    assert_agrees(estimate, exact, 0.0)


@pytest.mark.long
@pytest.mark.slow
def test_slices_fit_where_the_particles_are():
    # About the powers of the sites, which are the posterior's, a slice takes about
    # three evaluations here.
    data = iris("uci")
    model = squared_exponentials(likelihoods.MultinomialProbit(3), [1.0] * 3, 10.0)
    found = jgp.nested_ep(model, data.x, data.y)
    estimate = jgp.evidence(
        found,
        key=jax.random.key(0),
        method="smc",
        start="prior",
        num_particles=64,
        num_moves=1,
    )
    assert np.all(np.asarray(estimate.diagnostics.num_evaluations) < 2.4)


@pytest.mark.slow
def test_poor_weights_are_followed_by_temperatures():
    # Sites a fiftieth as precise leave hardly more than the prior.
    approximation = on_the_toy("probit")
    options = {"temper": 0.02, "num": 64, "num_particles": 256}
    poor = jgp.evidence(
        approximation, key=jax.random.key(2), method="importance", **options
    )
    assert float(poor.pareto_k) > 0.7 or float(poor.ess) < 6.4
    estimate = jgp.evidence(approximation, key=jax.random.key(2), **options)
    assert estimate.method == "smc"
    assert_agrees(estimate, *TOY_EVIDENCE["probit"])
    # What is traced cannot be decided on.
    traced = jax.eval_shape(
        lambda k: jgp.evidence(approximation, key=k, **options), jax.random.key(2)
    )
    assert traced.method == "importance"


@pytest.mark.long
@pytest.mark.slow
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
    with pytest.raises(ValueError, match="start: got 'prior' with method='auto'"):
        jgp.evidence(approximation, key=key, start="prior")
    with pytest.raises(ValueError, match="num_runs: got 3, wanted an integer >= 4"):
        jgp.evidence(approximation, key=key, method="smc", num_runs=3)
    without = eqx.tree_at(
        lambda a: a.sites, approximation, None, is_leaf=lambda v: v is None
    )
    with pytest.raises(ValueError, match="wanted an Approximation with Gaussian sites"):
        jgp.evidence(without, key=key)
