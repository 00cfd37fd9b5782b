import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

import jgp
from jgp import kernels, likelihoods, means
from tests.cases import slow_unless

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, size=(12, 2))
Y = RNG.normal(size=(12, 2))
KERNEL = 1.3 * kernels.Matern52(0.9)
MODELS = {
    "one": (
        jgp.GaussianProcess(KERNEL, means.Constant(0.3)),
        likelihoods.Gaussian(0.2),
    ),
    "trend": (
        jgp.GaussianProcess(KERNEL, means.polynomial(1)),
        likelihoods.Gaussian(0.2),
    ),
    "shared": (jgp.independent(KERNEL, num_latents=2), likelihoods.Gaussian(0.2)),
    "two": (
        jgp.independent([KERNEL, kernels.Matern12(0.7)]),
        likelihoods.Gaussian([0.2, 0.1]),
    ),
    "coupled": (
        jgp.coregionalised(KERNEL, [[1.0], [-0.5]], [0.2, 0.3]),
        likelihoods.Gaussian(0.2),
    ),
}


@pytest.mark.parametrize("name", slow_unless(["trend"], MODELS))
def test_leaving_one_out_is_fitting_to_the_rest(name):
    model = jgp.Model(*MODELS[name])
    y = Y if model.process.num_latents == 2 else Y[:, 0]
    got = jgp.leave_one_out(jgp.exact(model, X, y))
    infer = jax.jit(
        lambda mask: (lambda a: (a.predict(X), a.log_evidence))(
            jgp.exact(model, X, y, mask=mask)
        )
    )
    whole = jgp.exact(model, X, y).log_evidence
    for index in [(0,), (5,)] if y.ndim == 1 else [(0, 1), (5, 0)]:
        mask = np.ones(y.shape, bool)
        mask[index] = False
        predicted, evidence = infer(mask)
        for a, b in (
            (got.predicted.mean, predicted.mean),
            (got.predicted.variance, predicted.variance),
        ):
            np.testing.assert_allclose(a[index], b[index], rtol=1e-9)
        # The chain rule: what the others leave unsaid.
        np.testing.assert_allclose(got.log_prob[index], whole - evidence, rtol=1e-8)


@pytest.mark.slow
def test_missing_targets_are_predicted():
    model, mask = jgp.Model(*MODELS["two"]), np.ones((12, 2), bool)
    mask[3, 1] = False
    found = jgp.exact(model, X, np.where(mask, Y, np.nan), mask=mask)
    got = jgp.leave_one_out(found)
    wanted = found.predict(X)
    np.testing.assert_allclose(got.predicted.mean[3, 1], wanted.mean[3, 1])
    inside = np.abs(np.asarray(got.pit)[mask] - 0.5) <= 0.4
    np.testing.assert_allclose(got.coverage(0.8), np.mean(inside), rtol=1e-12)
    mask[0, 1] = False
    without = jgp.exact(model, X, np.where(mask, Y, 0), mask=mask).predict(X)
    np.testing.assert_allclose(got.predicted.mean[0, 1], without.mean[0, 1], rtol=1e-9)


def test_pseudo_likelihood_has_a_gradient():
    def value(lengthscale):
        process = jgp.GaussianProcess(kernels.Matern52(lengthscale))
        model = jgp.Model(process, likelihoods.Gaussian(0.2))
        return jnp.sum(jgp.leave_one_out(jgp.exact(model, X, Y[:, 0])).log_prob)

    value = jax.jit(value)
    slope, h = jax.jit(jax.grad(value))(0.9), 1e-5
    difference = (value(0.9 + h) - value(0.9 - h)) / (2 * h)
    np.testing.assert_allclose(slope, difference, rtol=1e-7)


@pytest.mark.float32
def test_scores_are_their_definitions():
    mean, variance = np.array([0.3, -1.0, 2.0]), np.array([0.5, 2.0, 0.01])
    y = np.array([0.9, 1.5, 2.0])
    dtype = jnp.result_type(float)
    predicted = likelihoods.Normal(
        jnp.asarray(mean, dtype), jnp.asarray(variance, dtype)
    )
    sigma = np.sqrt(variance)
    rtol = 1e-5 if dtype == jnp.float32 else 1e-10
    np.testing.assert_allclose(predicted.cdf(y), norm.cdf(y, mean, sigma), rtol=rtol)
    for level in (0.1, 0.5, 0.99):
        wanted = norm.ppf(level, mean, sigma)
        np.testing.assert_allclose(predicted.quantile(level), wanted, rtol=rtol)
    np.testing.assert_allclose(
        predicted.interval(0.9), norm.interval(0.9, mean, sigma), rtol=rtol
    )
    # The squared distance of the distribution function from the observed step.
    crps = [
        quad(lambda t, m=m, s=s: norm.cdf(t, m, s) ** 2, m - 12 * s, at)[0]
        + quad(lambda t, m=m, s=s: norm.sf(t, m, s) ** 2, at, m + 12 * s)[0]
        for m, s, at in zip(mean, sigma, y, strict=True)
    ]
    np.testing.assert_allclose(predicted.crps(y), crps, rtol=max(rtol, 1e-7))
    with pytest.raises(ValueError, match="level: got 95, wanted a probability"):
        predicted.interval(95)
    draws = predicted.sample(key=jax.random.key(0), num=4000)
    np.testing.assert_allclose(draws.mean(0), mean, atol=5 * sigma.max() / 4000**0.5)


@pytest.mark.float32
def test_certainty():
    predicted = likelihoods.Normal(jnp.zeros(3), jnp.zeros(3))
    y = jnp.asarray([0.0, 1.0, -2.0])
    np.testing.assert_array_equal(predicted.standardised(y), [0, np.inf, -np.inf])
    np.testing.assert_allclose(predicted.cdf(y), [0.5, 1, 0], rtol=1e-6)
    np.testing.assert_array_equal(predicted.crps(y), [0, 1, 2])


@pytest.mark.slow
def test_a_true_model_is_calibrated_and_a_false_one_is_not():
    x = RNG.uniform(0, 60, size=600)
    kernel = kernels.SquaredExponential(1.0)
    root = np.linalg.cholesky(kernels.gram(kernel, x) + 1e-8 * np.eye(600))
    y = root @ RNG.normal(size=600) + 0.3 * RNG.normal(size=600)
    # With a third of the noise's deviation, P(|z| < 0.65) or so.
    for noise, low, high in ((0.09, 0.92, 0.98), (0.01, 0.4, 0.6)):
        model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(noise))
        found = jgp.exact(model, x[:300], y[:300])
        got = jgp.criticise(found, x[300:], y[300:])
        assert low < got.coverage(0.95) < high
        loose = got.calibration_error()
        assert (loose < 0.05) == (noise == 0.09), loose
        np.testing.assert_allclose(
            got.log_prob, found.log_prob(x[300:], y[300:]), rtol=1e-12
        )


def test_what_has_no_scores():
    model = jgp.Model(*MODELS["one"])
    found = jgp.laplace(model, X, Y[:, 0])
    with pytest.raises(ValueError, match="approximation: got Model, wanted one by exa"):
        jgp.leave_one_out(model)
    with pytest.raises(ValueError, match=r"y_new: got shape \(3,\), wanted \(2,\)"):
        jgp.criticise(found, X[:2], Y[:3, 0])
    classes = jgp.Model(jgp.independent(KERNEL, num_latents=2), likelihoods.Softmax(2))
    found = jgp.laplace(classes, X, RNG.integers(0, 2, size=12))
    with pytest.raises(ValueError, match="approximation: got one of Softmax"):
        jgp.criticise(found, X[:2], [0, 1])


@pytest.mark.slow
def test_a_missing_output_is_told_by_the_noise_beside_it():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 1)), rng.normal(size=(6, 2))
    sigma, mask = np.array([[1, 0.9], [0.9, 1]]), np.ones((6, 2), bool)
    mask[3, 0] = False
    process = jgp.independent(kernels.SquaredExponential(1.0), num_latents=2)
    model = jgp.Model(process, likelihoods.CorrelatedGaussian(sigma))
    got = jgp.leave_one_out(jgp.exact(model, x, y, mask=mask)).predicted
    K = np.exp(-((x - x.T) ** 2) / 2)
    S = np.kron(K, np.eye(2)) + np.kron(np.eye(6), sigma)
    there = mask.ravel()
    k = S[6, there] @ np.linalg.inv(S[np.ix_(there, there)])
    np.testing.assert_allclose(got.mean[3, 0], k @ y.ravel()[there], rtol=1e-10)
    np.testing.assert_allclose(
        got.variance[3, 0], S[6, 6] - k @ S[there, 6], rtol=1e-10
    )
    # Given noise at each point is that of the missing ones too.
    given = likelihoods.FixedNoiseGaussian(np.linspace(0.1, 0.6, 6))
    model = jgp.Model(jgp.GaussianProcess(kernels.SquaredExponential(1.0)), given)
    found = jgp.exact(model, x, y[:, 0], mask=mask[:, 0])
    got = jgp.leave_one_out(found).predicted.variance[3]
    alone = found.posterior.marginals(x[3:4]).variance[0] + 0.4
    np.testing.assert_allclose(got, alone, rtol=1e-12)


def test_wrong_shapes_of_targets_are_not_broadcast():
    predicted = likelihoods.Normal(jnp.zeros(3), jnp.ones(3))
    for score in (predicted.log_prob, predicted.cdf, predicted.crps):
        with pytest.raises(ValueError, match=r"y: got shape \(3, 1\), wanted \(3,\)"):
            score(np.ones((3, 1)))
    with pytest.raises(ValueError, match="num: got -1, wanted an integer >= 0"):
        predicted.sample(key=jax.random.key(0), num=-1)

    def crps(variance):
        return likelihoods.Normal(jnp.zeros(1), variance).crps(jnp.ones(1))[0]

    assert np.isfinite(jax.grad(crps)(jnp.zeros(1)))


@pytest.mark.slow
def test_targets_that_alone_determine_a_coefficient_cannot_be_left_out():
    x, y = np.linspace(0, 2, 5), np.sin(np.linspace(0, 2, 5))

    def left_out(mean, n=5):
        process = jgp.GaussianProcess(kernels.SquaredExponential(1.0), mean)
        model = jgp.Model(process, likelihoods.Gaussian(0.1))
        return jgp.leave_one_out(jgp.exact(model, x[:n], y[:n]))

    with pytest.raises(ValueError, match="got 2 targets without which the others do"):
        left_out(means.polynomial(1), 2)
    last = means.Basis(
        lambda v: jnp.stack([jnp.ones_like(v[0]), (v[0] > 1.8).astype(v.dtype)])
    )
    with pytest.raises(ValueError, match="got 1 targets without which the others do"):
        left_out(last)
    assert np.all(np.isfinite(left_out(means.polynomial(1)).log_prob))


def test_levels_that_are_none():
    predicted = likelihoods.Normal(jnp.zeros(3), jnp.ones(3))
    for level in ("a", None, [0.5, 0.9], 0.0, 1.0, np.nan):
        with pytest.raises(ValueError, match="level: got"):
            predicted.interval(level)


def test_labels_that_are_none_are_not_looked_up():
    predicted = likelihoods.Categorical(jnp.full((3, 2), 0.5))
    for y in ([0], [[0], [1], [0]], [0.0, 1.0, 0.0], [0, 1, 2], [0, -1, 0]):
        with pytest.raises(ValueError, match="y: got"):
            predicted.log_prob(y)
    np.testing.assert_allclose(predicted.log_prob([0, 1, 1]), np.log(0.5))
