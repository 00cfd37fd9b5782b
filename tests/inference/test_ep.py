"""Expectation propagation for likelihoods of one latent."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_ndtr, ndtr
from scipy.stats import norm, poisson
from scipy.stats import t as student

import jgp
from jgp import kernels, likelihoods
from jgp._results import RESULTS

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
PROBIT = likelihoods.BernoulliProbit()
GIVEN = likelihoods.FixedNoiseGaussian(np.linspace(0.1, 0.5, 12))
SLOW, LONG = pytest.mark.slow, pytest.mark.long


def model(likelihood, variance=1.0, lengthscale=1.0, mean=None):
    kernel = variance * kernels.SquaredExponential(lengthscale)
    return jgp.Model(jgp.GaussianProcess(kernel, mean), likelihood)


@functools.cache
def data(num=12, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(num, 2))
    f = 1.5 * np.sin(2 * x[:, 0]) + x[:, 1]
    labels = (f + 0.5 * generator.normal(size=num) > 0).astype(int)
    counts = generator.poisson(np.exp(f))
    y = f + 0.1 * generator.standard_t(3, size=num)
    y[::5] += 4
    return x, {"labels": labels, "counts": counts, "outliers": y}


PROBLEMS = {
    "probit": (PROBIT, "labels"),
    "logit": (likelihoods.BernoulliLogit(), "labels"),
    "poisson": (likelihoods.Poisson(), "counts"),
    "negative binomial": (likelihoods.NegativeBinomial(0.3), "counts"),
    "student": (likelihoods.StudentT(4.0, 0.3), "outliers"),
    "laplace noise": (likelihoods.LaplaceNoise(0.3), "outliers"),
}


def problem(name):
    likelihood, targets = PROBLEMS[name]
    x, ys = data()
    return likelihood, x, ys[targets]


def log_density(name, f, y):
    """Log p(y | f) by SciPy."""
    match name:
        case "probit":
            return log_ndtr((2 * y - 1) * f)
        case "logit":
            return -np.logaddexp(0, -(2 * y - 1) * f)
        case "poisson":
            return poisson.logpmf(y, np.exp(f))
        case _:
            return student.logpdf(y, 4.0, f, 0.3)


def ep_of_dense_grids(name, K, y, start, num_sweeps, power=1.0):
    """EP in NumPy, sequentially, tilted moments by sums over a fine grid.

    Independent of the package: the textbook's log Z (Rasmussen & Williams 2006, §3.6),
    with moments of the tilted distributions in place of closed forms.
    """
    n = len(y)
    tau, nu = start
    inverse = np.linalg.inv(K)
    for _ in range(num_sweeps):
        for i in range(n):
            S = np.linalg.inv(inverse + np.diag(tau))
            m = S @ nu
            v = 1 / (1 / S[i, i] - power * tau[i])
            mu = v * (m[i] / S[i, i] - power * nu[i])
            log_z, mean, variance = grid_moments(name, mu, v, y[i], power)
            new_tau = (1 / variance - 1 / v) / power
            new_nu = (mean / variance - mu / v) / power
            tau[i] += 0.7 * (new_tau - tau[i])
            nu[i] += 0.7 * (new_nu - nu[i])
    S = np.linalg.inv(inverse + np.diag(tau))
    m = S @ nu
    log_evidence = nu @ m / 2 - np.linalg.slogdet(np.eye(n) + K * tau)[1] / 2
    for i in range(n):
        v = 1 / (1 / S[i, i] - power * tau[i])
        mu = v * (m[i] / S[i, i] - power * nu[i])
        log_z = grid_moments(name, mu, v, y[i], power)[0]
        before = (mu**2 / v + np.log(v)) / 2
        after = (m[i] ** 2 / S[i, i] + np.log(S[i, i])) / 2
        log_evidence += (log_z + before - after) / power
    return log_evidence, tau, nu, m, np.diag(S)


def grid_moments(name, mu, v, y, power, num=4001):
    f = np.linspace(mu - 14 * np.sqrt(v), mu + 14 * np.sqrt(v), num)
    log_weights = power * log_density(name, f, y) + norm.logpdf(f, mu, np.sqrt(v))
    top = log_weights.max()
    weights = np.exp(log_weights - top)
    total = weights.sum()
    mean = weights @ f / total
    variance = weights @ (f - mean) ** 2 / total
    return top + np.log(total * (f[1] - f[0])), mean, variance


@pytest.mark.parametrize(
    ("name", "power"),
    [
        ("probit", 1.0),
        pytest.param("probit", 0.5, marks=LONG),
        pytest.param("logit", 1.0, marks=LONG),
        pytest.param("poisson", 0.3, marks=SLOW),
    ],
)
def test_is_the_textbooks_algorithm(name, power):
    likelihood, x, y = problem(name)
    x, y = x[:6], y[:6]
    found = jgp.expectation_propagation(model(likelihood), x, y, power=power, **TIGHT)
    K = np.asarray(model(likelihood).process.covariance(jnp.asarray(x)))[0]
    assert bool(found.result == RESULTS.successful)
    start = np.zeros(6), np.zeros(6)
    log_evidence, tau, nu, mean, variance = ep_of_dense_grids(
        name, K, y, start, 200, power
    )
    # The trapezium rule on 4001 points is exact to rounding for smooth terms.
    assert abs(float(found.log_evidence) - log_evidence) < 1e-8
    np.testing.assert_allclose(np.asarray(found.sites.precision)[:, 0], tau, atol=1e-7)
    np.testing.assert_allclose(np.asarray(found.sites.linear)[:, 0], nu, atol=1e-7)
    moments = found.posterior.marginals(x)
    np.testing.assert_allclose(np.asarray(moments.mean), mean, atol=1e-8)
    np.testing.assert_allclose(np.asarray(moments.variance), variance, atol=1e-8)


@SLOW
@pytest.mark.parametrize("power", [1.0, 0.5])
def test_negative_sites_match_the_tilted_moments(power):
    # One cavity here is all but improper, and sweeps one point after the other run away
    # from the fixed point: it is looked at where it is, on a grid for v of a thousand.
    likelihood, x, y = problem("student")
    x, y = x[:6], y[:6]
    found = jgp.expectation_propagation(model(likelihood), x, y, power=power, **TIGHT)
    assert bool(found.result == RESULTS.successful)
    tau, nu = np.array(found.sites.precision[:, 0]), np.array(found.sites.linear[:, 0])
    assert tau.min() < -0.1
    K = np.asarray(model(likelihood).process.covariance(jnp.asarray(x)))[0]
    S = np.linalg.inv(np.linalg.inv(K) + np.diag(tau))
    m = S @ nu
    log_evidence = nu @ m / 2 - np.linalg.slogdet(np.eye(6) + K * tau)[1] / 2
    for i in range(6):
        v = 1 / (1 / S[i, i] - power * tau[i])
        assert v > 0
        mu = v * (m[i] / S[i, i] - power * nu[i])
        log_z, mean, variance = grid_moments("student", mu, v, y[i], power, 400_001)
        assert abs((1 / variance - 1 / v) / power - tau[i]) < 1e-6
        assert abs((mean / variance - mu / v) / power - nu[i]) < 1e-6
        before = (mu**2 / v + np.log(v)) / 2
        after = (m[i] ** 2 / S[i, i] + np.log(S[i, i])) / 2
        log_evidence += (log_z + before - after) / power
    assert abs(float(found.log_evidence) - log_evidence) < 1e-7


@SLOW
@pytest.mark.parametrize("name", ["probit", "student", "poisson"])
def test_schedules_have_the_same_fixed_point(name):
    likelihood, x, y = problem(name)
    parallel, sequential = (
        jgp.expectation_propagation(
            model(likelihood, 2.0), x, y, schedule=schedule, **TIGHT
        )
        for schedule in ("parallel", "sequential")
    )
    assert bool(sequential.result == RESULTS.successful)
    assert abs(float(parallel.log_evidence - sequential.log_evidence)) < 1e-8


@pytest.mark.parametrize(
    ("likelihood", "power", "schedule"),
    [
        (likelihoods.Gaussian(0.3), 1.0, "parallel"),
        (GIVEN, 0.4, "sequential"),
        pytest.param(likelihoods.Gaussian(0.3), 0.4, "parallel", marks=SLOW),
        pytest.param(GIVEN, 1.0, "sequential", marks=SLOW),
    ],
)
def test_gaussian_noise_is_exact(likelihood, power, schedule):
    x, ys = data()
    arguments = model(likelihood, mean=jgp.means.Constant(0.4)), x, ys["outliers"]
    found = jgp.expectation_propagation(*arguments, power=power, schedule=schedule)
    exact = jgp.exact(*arguments)
    assert abs(float(found.log_evidence - exact.log_evidence)) < 1e-9
    for a, b in zip(
        found.posterior.joint(x[:4] + 0.2),
        exact.posterior.joint(x[:4] + 0.2),
        strict=True,
    ):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-9)


@pytest.mark.parametrize("name", ["probit", pytest.param("student", marks=SLOW)])
def test_one_point_is_matched_exactly(name):
    likelihood, x, y = problem(name)
    found = jgp.expectation_propagation(model(likelihood, 2.0), x[:1], y[:1], **TIGHT)
    log_z, mean, variance = grid_moments(name, 0.0, 2.0, y[0], 1.0)
    assert abs(float(found.log_evidence) - log_z) < 1e-9
    moments = found.posterior.marginals(x[:1])
    assert abs(float(moments.mean[0]) - mean) < 1e-9
    assert abs(float(moments.variance[0]) - variance) < 1e-9


@SLOW
@pytest.mark.parametrize("name", ["probit", "poisson"])
def test_half_weights_twice_are_power_one_half(name):
    likelihood, x, y = problem(name)
    x, y = x[:6], y[:6]
    halves = likelihoods.Weighted(likelihood, 0.5)
    twice = jgp.expectation_propagation(
        model(halves), np.concatenate([x, x]), np.concatenate([y, y]), **TIGHT
    )
    power = jgp.expectation_propagation(model(likelihood), x, y, power=0.5, **TIGHT)
    assert abs(float(twice.log_evidence - power.log_evidence)) < 1e-9
    new = x + 0.3
    np.testing.assert_allclose(
        np.asarray(twice.posterior.marginals(new).mean),
        np.asarray(power.posterior.marginals(new).mean),
        atol=1e-9,
    )


@SLOW
def test_small_powers_tend_to_the_variational_solution():
    # The optimum of the evidence bound over Gaussians of these sites, found by
    # minimising the Kullback-Leibler divergence with SciPy's quadrature-free form:
    # E log p for probit by a grid, sites from E ∂ log p and E ∂² log p.
    likelihood, x, y = problem("probit")
    x, y = x[:5], y[:5]
    K = np.asarray(model(likelihood).process.covariance(jnp.asarray(x)))[0]
    tau, nu = np.zeros(5), np.zeros(5)
    grid, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    for _ in range(400):
        S = np.linalg.inv(np.linalg.inv(K) + np.diag(tau))
        m = S @ nu
        f = m[:, None] + np.sqrt(np.diag(S))[:, None] * grid
        z = (2 * y - 1)[:, None] * f
        rho = np.exp(norm.logpdf(z) - log_ndtr(z))
        slope = ((2 * y - 1)[:, None] * rho) @ weights
        new_tau = (rho * (z + rho)) @ weights
        tau += 0.5 * (new_tau - tau)
        nu += 0.5 * (slope + new_tau * m - nu)
    S = np.linalg.inv(np.linalg.inv(K) + np.diag(tau))
    m = S @ nu
    f = m[:, None] + np.sqrt(np.diag(S))[:, None] * grid
    bound = np.sum(log_ndtr((2 * y - 1)[:, None] * f) @ weights)
    ratio = np.linalg.solve(K, S)
    bound -= (np.trace(ratio) + m @ np.linalg.solve(K, m) - 5) / 2
    bound += np.linalg.slogdet(ratio)[1] / 2
    gaps = []
    for power in (0.1, 0.01, 0.001):
        found = jgp.expectation_propagation(model(likelihood), x, y, power=power)
        gaps.append(float(found.log_evidence) - bound)
    # First order in the power, and from above: at 0.001 a hundredth of that at 0.1.
    assert 0 < gaps[2] < gaps[1] < gaps[0]
    assert abs(gaps[1] / gaps[0] - 0.1) < 0.02
    assert gaps[2] < 1e-5


@SLOW
def test_evidence_falls_as_probabilities_are_raised_to_higher_powers():
    likelihood, x, y = problem("probit")
    values = [
        float(
            jgp.expectation_propagation(
                model(likelihoods.Weighted(likelihood, weight)), x, y
            ).log_evidence
        )
        for weight in (0.0, 0.1, 0.5, 1.0, 2.0)
    ]
    assert abs(values[0]) < 1e-12
    assert np.all(np.diff(values) < 0)


@SLOW
@settings(max_examples=10)
@given(
    seed=st.integers(0, 10_000),
    variance=st.floats(0.1, 20.0),
    lengthscale=st.floats(0.1, 5.0),
)
def test_close_to_brute_force_in_two_dimensions(seed, variance, lengthscale):
    generator = np.random.default_rng(seed)
    x, y = generator.normal(size=(2, 1)), generator.integers(0, 2, size=2)
    found = jgp.expectation_propagation(model(PROBIT, variance, lengthscale), x, y)
    k = variance * np.exp(-((x[0] - x[1]) ** 2) / (2 * lengthscale**2))[0]
    # P(u₁ > 0, u₂ > 0) with u = s(f + noise): a bivariate orthant probability.
    rho = (2 * y[0] - 1) * (2 * y[1] - 1) * k / (variance + 1)
    exact = np.log(0.25 + np.arcsin(rho) / (2 * np.pi))
    # EP on two points is not exact; it is within a few per cent.
    assert abs(float(found.log_evidence) - exact) < 0.05
    permuted = jgp.expectation_propagation(
        model(PROBIT, variance, lengthscale), x[::-1], y[::-1]
    )
    assert abs(float(found.log_evidence - permuted.log_evidence)) < 1e-6


def test_far_cavities_stay_finite():
    # A flipped label far inside its class, and a prior mean of −40 of tiny variance.
    kernel = 1e-4 * kernels.SquaredExponential()
    process = jgp.GaussianProcess(kernel, jgp.means.Constant(-40.0))
    found = jgp.expectation_propagation(jgp.Model(process, PROBIT), [[0.0]], [1])
    # E Φ(f) = Φ(−40/√(1 + 1e-4)).
    wanted = log_ndtr(-40 / np.sqrt(1 + 1e-4))
    assert abs(float(found.log_evidence) - wanted) < 1e-9 * abs(wanted)
    x = np.linspace(0, 1, 20)
    y = np.ones(20, int)
    y[10] = 0
    flipped = jgp.expectation_propagation(model(PROBIT, 1e4, 3.0), x, y)
    assert np.isfinite(np.asarray(flipped.sites.precision)).all()
    assert bool(flipped.result == RESULTS.successful)


def hard_outliers():
    """Isolated outliers far beyond the noise, under a broad prior."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(30, 2))
    y = np.sin(x[:, 0])
    y[::7] += 5
    return model(likelihoods.StudentT(4.0, 0.1), 100.0), x, y


@SLOW
def test_double_loop_takes_over_where_sweeps_oscillate():
    arguments = hard_outliers()
    plain = jgp.expectation_propagation(
        *arguments, window=0, fallback=False, max_steps=40, throw=False
    )
    assert not bool(plain.result == RESULTS.successful)
    found = jgp.expectation_propagation(*arguments, window=0, max_steps=40)
    assert bool(found.result == RESULTS.successful)
    assert bool(found.diagnostics.double_loop)
    assert int(found.diagnostics.num_outer_steps) > 0
    assert float(jnp.min(found.sites.precision)) < -0.1
    sequential = jgp.expectation_propagation(*arguments, schedule="sequential")
    assert abs(float(found.log_evidence - sequential.log_evidence)) < 1e-6


def objective(name, raw, x, y, **options):
    """Log evidence of a model whose kernel and likelihood are given by exponentials."""
    likelihood, _ = PROBLEMS[name]
    if name == "student":
        likelihood = likelihoods.StudentT(4.0, 0.3 * jnp.exp(raw[2]))
    if name == "negative binomial":
        likelihood = likelihoods.NegativeBinomial(0.3 * jnp.exp(raw[2]))
    kernel = jnp.exp(raw[0]) * kernels.SquaredExponential(jnp.exp(raw[1]))
    process = jgp.GaussianProcess(kernel, jgp.means.Constant(raw[3]))
    return jgp.expectation_propagation(
        jgp.Model(process, likelihood), x, y, throw=False, fallback=False, **options
    )


FINE = {"rtol": 1e-12, "atol": 1e-12}


@pytest.mark.parametrize(
    ("name", "power"),
    [
        pytest.param("student", 1.0, marks=SLOW),
        pytest.param("probit", 1.0, marks=LONG),
        pytest.param("negative binomial", 0.5, marks=LONG),
    ],
)
def test_derivatives_of_the_evidence_equal_differences(name, power):
    _, x, y = problem(name)
    x, y = x[:7], y[:7]

    def evidence(raw):
        return objective(name, raw, x, y, power=power, **FINE).log_evidence

    gradient = jax.jit(jax.grad(evidence))
    evidence = jax.jit(evidence)
    raw, step = jnp.asarray([0.3, -0.2, 0.1, 0.4]), 1e-4

    def difference(f):
        shifts = step * jnp.eye(4)
        return jnp.stack([(f(raw + s) - f(raw - s)) / (2 * step) for s in shifts])

    # Central differences of an evidence converged to 1e-12 are good to 1e-7 or so.
    numeric = difference(evidence)
    scale = float(jnp.max(jnp.abs(numeric)))
    assert float(jnp.max(jnp.abs(gradient(raw) - numeric))) < 1e-6 * scale
    hessian = jax.jit(jax.hessian(evidence))(raw)
    numeric = difference(gradient)
    scale = float(jnp.max(jnp.abs(numeric)))
    assert float(jnp.max(jnp.abs(hessian - numeric))) < 1e-5 * scale


@LONG
@pytest.mark.parametrize("name", ["probit", "student"])
def test_sites_moments_and_predictions_have_implicit_derivatives(name):
    _, x, y = problem(name)
    x, y, new = jnp.asarray(x[:7]), y[:7], x[7:9]

    def outcome(raw, shift):
        found = objective(name, raw, x + shift, y, **FINE)
        moments = found.posterior.marginals(new)
        return jnp.concatenate(
            [found.sites.precision[:3, 0], moments.mean, moments.variance]
        )

    raw, shift = jnp.asarray([0.3, -0.2, 0.1, 0.4]), jnp.zeros((7, 2))
    forward = jax.jit(jax.jacfwd(outcome, (0, 1)))(raw, shift)
    reverse = jax.jit(jax.jacrev(outcome, (0, 1)))(raw, shift)
    for a, b in zip(forward, reverse, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-8)
    f, step = jax.jit(outcome), 1e-4
    for i in range(4):
        e = step * jnp.eye(4)[i]
        numeric = (f(raw + e, shift) - f(raw - e, shift)) / (2 * step)
        np.testing.assert_allclose(
            np.asarray(forward[0][:, i]), np.asarray(numeric), atol=1e-5
        )
    e = shift.at[2, 1].set(step)
    numeric = (f(raw, e) - f(raw, -e)) / (2 * step)
    np.testing.assert_allclose(
        np.asarray(forward[1][:, 2, 1]), np.asarray(numeric), atol=1e-5
    )


@SLOW
def test_vmap_is_the_loop_and_a_second_call_compiles_nothing(compilations):
    _, x, y = problem("student")
    raws = jnp.asarray([[0.3, -0.2, 0.1, 0.4], [1.0, 0.3, -0.5, 0.0]])

    def evidence(raw):
        return objective("student", raw, x, y, **TIGHT).log_evidence

    batched = jax.vmap(evidence)(raws)
    looped = [float(evidence(raw)) for raw in raws]
    np.testing.assert_allclose(np.asarray(batched), looped, atol=1e-8)
    infer = functools.partial(
        jgp.expectation_propagation, fallback=False, max_steps=77, **TIGHT
    )
    infer(model(likelihoods.StudentT(4.0, 0.3)), x, y).posterior.marginals(x)
    with compilations() as count:
        infer(model(likelihoods.StudentT(3.0, 0.4), 2.0), x + 1, y, rtol=1e-6)
    assert count() == 0


@pytest.mark.float32
def test_single_precision():
    likelihood, x, y = problem("student")
    x = x.astype(np.float32)
    found = jgp.expectation_propagation(model(likelihood), x, y, fallback=False)
    assert bool(found.result == RESULTS.successful)
    assert found.log_evidence.dtype == jnp.float32
    # Against what float64 gives.
    assert abs(float(found.log_evidence) + 43.990105) < 1e-3
    assert found.predict(x).log_prob(y.astype(np.float32)).dtype == jnp.float32


@SLOW
def test_the_rest_of_the_approximation():
    likelihood, x, y = problem("probit")
    found = jgp.expectation_propagation(model(likelihood), x, y)
    again = jgp.expectation_propagation(model(likelihood), x, y, init=found)
    assert int(again.num_steps) == 1
    probs = np.asarray(found.predict(x).probs)
    moments = found.posterior.marginals(x)
    wanted = ndtr(np.asarray(moments.mean / jnp.sqrt(1 + moments.variance)))
    np.testing.assert_allclose(probs[:, 1], wanted, atol=1e-12)
    estimate = jgp.evidence(found, key=jax.random.key(0), num=1024)
    error = float(found.log_evidence - estimate.log_evidence)
    assert abs(error) < 4 * float(estimate.standard_error) + 0.02
    traced = eqx.filter_jit(
        lambda m: jgp.expectation_propagation(m, x, y, max_steps=2, fallback=False)
    )
    assert bool(traced(model(likelihood, 100.0)).result == RESULTS.max_steps_reached)


@SLOW
def test_evidence_of_signed_sites_by_importance():
    likelihood, x, y = problem("student")
    found = jgp.expectation_propagation(model(likelihood), x, y, fallback=False)
    estimate = jgp.evidence(found, key=jax.random.key(0), num=4096, temper=0.8)
    # EP's evidence of a Student-t with outliers is off by less than a tenth of a nat.
    assert abs(float(found.log_evidence - estimate.log_evidence)) < 0.2
    with pytest.raises(ValueError, match="negative precision"):
        found.posterior.path(key=jax.random.key(1))


def test_says_what_is_wrong():
    likelihood, x, y = problem("probit")
    with pytest.raises(ValueError, match="power: got 0"):
        jgp.expectation_propagation(model(likelihood), x, y, power=0.0)
    with pytest.raises(ValueError, match="schedule: got 'serial'"):
        jgp.expectation_propagation(model(likelihood), x, y, schedule="serial")
    with pytest.raises(ValueError, match="fallback: got 3"):
        jgp.expectation_propagation(model(likelihood), x, y, fallback=3)
    process = jgp.independent(kernels.SquaredExponential(), num_latents=3)
    three = jgp.Model(process, likelihoods.Softmax(3))
    with pytest.raises(ValueError, match="process: got 3 latent functions"):
        jgp.expectation_propagation(three, x, y)
    with pytest.raises(ValueError, match="y: got"):
        jgp.expectation_propagation(model(likelihood), x, y + 1)


@pytest.mark.float32
@pytest.mark.parametrize("infer", [jgp.expectation_propagation, jgp.laplace])
def test_noise_far_below_the_prior_keeps_the_exact_evidence(infer):
    # The error of a product with K, of condition 1e6 and more, is not in the result.
    double = jax.config.jax_enable_x64
    x = jnp.linspace(0, 10, 200)
    epsilon = np.random.default_rng(0).normal(size=200)
    for noise in (1e-2, 1e-4, 1e-6) if double else (1e-1, 1e-2):
        process = jgp.GaussianProcess(kernels.SquaredExponential(1.0))
        model = jgp.Model(process, likelihoods.Gaussian(noise))
        y = np.sin(np.linspace(0, 10, 200)) + np.sqrt(noise) * epsilon
        found = infer(model, x, y)
        error = float(found.log_evidence - jgp.exact(model, x, y).log_evidence)
        assert abs(error) < (1e-6 if double else 1e-2)


def test_a_start_may_be_of_another_likelihood():
    """Of sites that must be positive, where some of the optimum's are negative."""
    x = np.linspace(0, 4, 8)
    y = np.sin(x)
    y[4] = 3.0
    process = jgp.GaussianProcess(kernels.SquaredExponential(1.0))
    heavy = jgp.Model(process, likelihoods.StudentT(3.0, 0.1))
    start = jgp.expectation_propagation(
        jgp.Model(process, likelihoods.Gaussian(0.1)), x, y
    )
    wanted = jgp.expectation_propagation(heavy, x, y)
    found = jgp.expectation_propagation(heavy, x, y, init=start)
    assert float(jnp.min(wanted.sites.precision)) < 0
    assert abs(float(found.log_evidence - wanted.log_evidence)) < 1e-6
