import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import cho_factor, cho_solve
from scipy.stats import multivariate_normal, norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

import jgp
from jgp import kernels, likelihoods, means
from jgp._results import RESULTS

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(12, 2))
X_NEW = np.concatenate([GENERATOR.normal(size=(4, 2)), X[:2], [[1e3, -1e3]]])
Y = np.stack([np.sin(2 * X[:, 0]) + X[:, 1], X[:, 0] ** 2 - 0.5], axis=1)
Y += 0.1 * GENERATOR.normal(size=Y.shape)


def one_latent(noise_variance=0.04):
    process = jgp.GaussianProcess(
        1.7 * kernels.SquaredExponential(np.array([0.8, 1.5]))
    )
    return jgp.Model(process, likelihoods.Gaussian(noise_variance))


def two_latents(noise_variance=0.04, kernel=None):
    ks = [0.8 * kernels.Matern52(0.7), 2.0 * kernels.Matern12(1.3)]
    process = jgp.independent(
        ks if kernel is None else kernel,
        num_latents=2,
        mean=[means.Constant(0.5), means.Linear(np.array([0.3, -0.2]))],
    )
    return jgp.Model(process, likelihoods.Gaussian(noise_variance))


@functools.cache
def fitted(name):
    if name == "one":
        return one_latent(), Y[:, 0], jgp.exact(one_latent(), X, Y[:, 0])
    return two_latents(), Y, jgp.exact(two_latents(), X, Y)


def test_scikit_learn():
    _, y, approximation = fitted("one")
    kernel = ConstantKernel(1.7) * RBF([0.8, 1.5]) + WhiteKernel(0.04)
    other = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(X, y)
    wanted = other.log_marginal_likelihood_value_
    assert abs(float(approximation.log_evidence) - wanted) < 1e-10
    # The white kernel puts the noise on its predictions, like `predict`.
    mean, deviation = other.predict(X_NEW, return_std=True)
    predicted = approximation.predict(X_NEW)
    np.testing.assert_allclose(predicted.mean, mean, atol=1e-10)
    np.testing.assert_allclose(predicted.variance, deviation**2, atol=1e-10)
    _, covariance = other.predict(X_NEW, return_cov=True)
    joint = approximation.posterior.joint(X_NEW)
    noise = 0.04 * np.eye(len(X_NEW))
    np.testing.assert_allclose(joint.covariance + noise, covariance, atol=1e-10)


def dense(kernel, mean, x, y, x_new, noise_variance):
    """Evidence, predictive mean and covariance of one latent, by SciPy."""
    K = np.asarray(kernels.gram(kernel, x)) + noise_variance * np.eye(len(x))
    cross = np.asarray(kernels.gram(kernel, x, x_new))
    prior = np.asarray(kernels.gram(kernel, x_new))
    residual, factor = y - mean(x), cho_factor(K)
    evidence = multivariate_normal(mean(x), K).logpdf(y)
    moments = mean(x_new) + cross.T @ cho_solve(factor, residual)
    return evidence, moments, prior - cross.T @ cho_solve(factor, cross)


def test_several_outputs_have_their_own_kernels_and_means():
    model, _, approximation = fitted("two")
    functions = (
        lambda x: np.full(len(x), 0.5),
        lambda x: x @ np.array([0.3, -0.2]),
    )
    joint = approximation.posterior.joint(X_NEW)
    assert joint.mean.shape == (7, 2)
    assert joint.covariance.shape == (7, 2, 7, 2)
    total = 0.0
    for c, kernel in enumerate(model.process.kernels):
        evidence, mean, covariance = dense(
            kernel, functions[c], X, Y[:, c], X_NEW, 0.04
        )
        total += evidence
        np.testing.assert_allclose(joint.mean[:, c], mean, atol=1e-10)
        np.testing.assert_allclose(joint.covariance[:, c, :, c], covariance, atol=1e-10)
        np.testing.assert_array_equal(joint.covariance[:, c, :, 1 - c], 0)
    assert abs(float(approximation.log_evidence) - total) < 1e-9


def test_a_shared_kernel_equals_copies():
    kernel = 0.8 * kernels.Matern52(0.7)
    shared = jgp.exact(two_latents(kernel=kernel), X, Y)
    copies = jgp.exact(two_latents(kernel=[kernel, kernel]), X, Y)
    assert shared.posterior.factor.lower.shape == (1, 12, 12)
    assert abs(float(shared.log_evidence - copies.log_evidence)) < 1e-10
    for got, wanted in zip(
        shared.posterior.marginals(X_NEW),
        copies.posterior.marginals(X_NEW),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, atol=1e-11)


@pytest.mark.parametrize("name", ["one", "two"])
def test_what_an_approximation_tells(name):
    model, y, approximation = fitted(name)
    assert bool(approximation.result == RESULTS.successful)
    assert approximation.method == approximation.evidence_kind == "exact"
    assert int(approximation.num_steps) == 0
    assert float(approximation.residual) == 0
    assert float(approximation.jitter) == 0
    C = model.process.num_latents
    np.testing.assert_allclose(approximation.sites.precision, np.full((12, C), 25.0))
    np.testing.assert_allclose(approximation.sites.linear, y.reshape(12, C) / 0.04)


@pytest.mark.parametrize("name", ["one", "two"])
def test_predictions_include_the_noise(name):
    _, y, approximation = fitted(name)
    moments, predicted = approximation.posterior.marginals(X), approximation.predict(X)
    np.testing.assert_allclose(predicted.mean, moments.mean, atol=1e-14)
    np.testing.assert_allclose(predicted.variance - moments.variance, 0.04, rtol=1e-10)
    log_prob = approximation.log_prob(X, y)
    assert log_prob.shape == (12,)
    wanted = norm.logpdf(y, predicted.mean, np.sqrt(predicted.variance))
    wanted = wanted.reshape(12, -1).sum(axis=1)
    np.testing.assert_allclose(log_prob, wanted, rtol=1e-12)


def test_variances_at_the_data_and_far_from_it():
    for noise_variance in (0.0, 1e-10, 0.04):
        approximation = jgp.exact(one_latent(noise_variance), X, Y[:, 0])
        near = np.asarray(approximation.posterior.marginals(X).variance)
        assert np.all(near >= 0)
        # The variance at a datum is below that of its noise (and rounding).
        assert np.all(near <= noise_variance + 1e-12)
        variance = approximation.posterior.marginals([[1e3, -1e3]]).variance
        np.testing.assert_allclose(variance, 1.7, rtol=1e-14)
        predicted = approximation.predict(X)
        if noise_variance < 1e-5:
            np.testing.assert_allclose(predicted.mean, Y[:, 0], atol=1e-6)


def test_without_noise_jitter_is_for_repeated_inputs_alone():
    clean = jgp.exact(one_latent(0.0), X, Y[:, 0])
    assert float(clean.jitter) == 0
    evidence, *_ = dense(
        one_latent().process.kernel, lambda x: np.zeros(len(x)), X, Y[:, 0], X_NEW, 0.0
    )
    np.testing.assert_allclose(clean.log_evidence, evidence, rtol=1e-9)
    assert np.all(np.isinf(np.asarray(clean.sites.precision)))
    # The same x three times with the same y: singular, but consistent.
    x, y = X.copy(), Y[:, 0].copy()
    x[1:3], y[1:3] = x[0], y[0]
    with pytest.warns(
        jgp.InferenceWarning, match="data needed jitter that exceeds the noise"
    ):
        repeated = jgp.exact(one_latent(0.0), x, y)
    assert bool(repeated.result == RESULTS.ill_conditioned)
    # At most 2¹³ eps times the mean diagonal.
    assert 0 < float(repeated.jitter) <= 2**13 * np.finfo(float).eps * 1.7
    np.testing.assert_allclose(repeated.predict(x[:1]).mean, y[:1], atol=1e-4)
    assert np.all(np.asarray(repeated.predict(x).variance) >= 0)


@pytest.mark.parametrize("name", ["one", "two"])
def test_no_data_leave_the_prior(name):
    model = fitted(name)[0]
    C = model.process.num_latents
    y = np.zeros(0) if C == 1 else np.zeros((0, C))
    approximation = jgp.exact(model, np.zeros((0, 2)), y)
    assert float(approximation.log_evidence) == 0
    moments = approximation.posterior.marginals(X_NEW)
    prior = np.asarray(model.process.variance(X_NEW)).T
    np.testing.assert_allclose(np.asarray(moments.variance).reshape(7, C), prior)
    mean = np.asarray(model.process.mean(jnp.asarray(X_NEW)))
    np.testing.assert_allclose(np.asarray(moments.mean).reshape(7, C), mean)
    joint = approximation.posterior.joint(X_NEW)
    covariance = np.asarray(joint.covariance).reshape(7, C, 7, C)[:, 0, :, 0]
    wanted = model.process.covariance(jnp.asarray(X_NEW))[0]
    np.testing.assert_allclose(covariance, wanted, atol=1e-14)


def central(f, raw, step):
    shifts = step * jnp.eye(raw.size)
    return jnp.stack([(f(raw + s) - f(raw - s)) / (2 * step) for s in shifts])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", pytest.param("two", marks=pytest.mark.long)])
def test_first_and_second_derivatives_equal_differences(name):
    def build(raw):
        likelihood = likelihoods.Gaussian(jnp.exp(raw[2]))
        kernel = jnp.exp(raw[1]) * kernels.Matern52(jnp.exp(raw[0]))
        if name == "one":
            process = jgp.GaussianProcess(kernel, means.Constant(raw[3]))
            return jgp.Model(process, likelihood), Y[:, 0]
        ks = [kernel, kernels.Matern52(jnp.exp(2 * raw[0]))]
        process = jgp.independent(ks, mean=means.Constant(raw[3]))
        return jgp.Model(process, likelihood), Y

    @jax.jit
    def evidence(raw):
        model, y = build(raw)
        return jgp.exact(model, X, y).log_evidence

    @jax.jit
    def prediction(raw):
        model, y = build(raw)
        return jnp.sum(jgp.exact(model, X, y).log_prob(X_NEW[:4], y[:4]))

    raw = jnp.asarray([-0.2, 0.5, -2.0, 0.3])
    for value in (evidence, prediction):
        gradient = jax.jit(jax.grad(value))
        # Errors: h² times a third derivative, and rounding over h.
        for f, derivative in (
            (value, gradient),
            (gradient, jax.jit(jax.hessian(value))),
        ):
            numeric = central(f, raw, 1e-4)
            scale = float(jnp.max(jnp.abs(numeric)))
            error = float(jnp.max(jnp.abs(derivative(raw) - numeric)))
            assert error < 1e-6 * scale


def test_gradient_is_scikit_learns():
    model, y, _ = fitted("one")
    kernel = ConstantKernel(1.7) * RBF([0.8, 1.5]) + WhiteKernel(0.04)
    other = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(X, y)
    # With respect to logarithms: variance, two lengthscales, noise.
    _, wanted = other.log_marginal_likelihood(kernel.theta, eval_gradient=True)

    def evidence(raw):
        return jgp.exact(jgp.from_real(raw), X, y).log_evidence

    gradient = eqx.filter_grad(evidence)(jgp.to_real(model))
    kernel = gradient.process.kernel
    got = [
        kernel.variance,
        *kernel.kernel.lengthscale,
        gradient.likelihood.noise_variance,
    ]
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-9)


def test_derivative_with_respect_to_the_targets():
    model, y, approximation = fitted("one")
    gradient = jax.grad(lambda v: jgp.exact(model, X, v).log_evidence)(jnp.asarray(y))
    np.testing.assert_allclose(
        gradient, -approximation.posterior.weights[:, 0], atol=1e-12
    )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.float32
def test_single_precision_is_kept():
    x, y = X.astype(np.float32), Y.astype(np.float32)
    for model, targets in ((one_latent(), y[:, 0]), (two_latents(), y)):
        approximation = jgp.exact(model, x, targets)
        floats = [a for a in jax.tree.leaves(approximation) if a.dtype.kind == "f"]
        assert {a.dtype for a in floats} == {jnp.dtype(jnp.float32)}
        predicted = approximation.predict(X_NEW)
        assert predicted.mean.dtype == predicted.variance.dtype == jnp.float32
        assert approximation.log_prob(X_NEW[:2], targets[:2]).dtype == jnp.float32
        sample = approximation.posterior.sample(X_NEW, key=jax.random.key(0), num=2)
        assert sample.dtype == jnp.float32
        assert np.all(np.asarray(approximation.posterior.marginals(x).variance) >= 0)
    if jnp.result_type(float) == jnp.float64:
        # A condition number of 500 leaves four of seven digits.
        double = fitted("two")[2]
        np.testing.assert_allclose(
            approximation.log_evidence, double.log_evidence, rtol=1e-4
        )
        np.testing.assert_allclose(
            predicted.mean, double.predict(X_NEW).mean, atol=1e-3
        )


@pytest.mark.float32
def test_near_repeats_in_single_precision_report_their_jitter():
    x = np.array([0, 0, 1e-7, 1, 1 + 1e-7], np.float32)
    y = np.array([0, 0.1, 0.05, 1, 0.9], np.float32)
    process = jgp.GaussianProcess(kernels.SquaredExponential(1.0))
    model = jgp.Model(process, likelihoods.Gaussian(1e-8))
    with pytest.warns(jgp.InferenceWarning, match="exact on n = 5 points in float32"):
        approximation = jgp.exact(model, x, y)
    # The evidence is that of a noise variance of 1e-8 + 4e-6.
    assert bool(approximation.result == RESULTS.ill_conditioned)
    assert bool(jgp.exact(model, x, y, throw=False).result == RESULTS.ill_conditioned)
    enough = jgp.Model(process, likelihoods.Gaussian(1e-3))
    assert bool(jgp.exact(enough, x, y).result == RESULTS.successful)
    none = jgp.Model(process, likelihoods.Gaussian(0.0))
    none = jgp.exact(none, x, y, throw=False)
    assert bool(none.result == RESULTS.ill_conditioned)
    assert float(none.jitter) > 0
    assert 0 < float(approximation.jitter) <= 2**13 * np.finfo(np.float32).eps
    assert np.isfinite(approximation.log_evidence)
    predicted = approximation.predict([0.0, 0.5, 1.0])
    assert np.all(np.isfinite(predicted.mean))
    assert np.all(predicted.variance > 0)


def test_a_matrix_beyond_all_jitter_is_named():
    # A kernel that is no kernel: k(x, z) = −1 off the diagonal of a negative matrix.
    class Negative(kernels.AbstractKernel):
        def __call__(self, x, z):
            return -jnp.exp(-jnp.sum((x - z) ** 2))

    model = jgp.Model(jgp.GaussianProcess(Negative()), likelihoods.Gaussian(0.1))
    with pytest.raises(jgp.InferenceError, match="exact on n = 12 points in float64"):
        jgp.exact(model, X, Y[:, 0])
    code = jgp.exact(model, X, Y[:, 0], throw=False).result
    assert bool(code == RESULTS.not_positive_definite)
    traced = jax.jit(lambda y: jgp.exact(model, X, y).result)(jnp.asarray(Y[:, 0]))
    assert bool(traced == RESULTS.not_positive_definite)


def test_second_call_compiles_nothing(compilations):
    _, y, approximation = fitted("one")
    approximation.log_prob(X_NEW, np.zeros(7))
    other = one_latent(0.3)
    with compilations() as count:
        jgp.exact(other, X + 1, y + 1).log_prob(X_NEW - 1, np.ones(7))
    assert count() == 0
