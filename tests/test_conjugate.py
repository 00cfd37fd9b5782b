import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import integrate, special, stats

import jgp
from jgp import kernels, likelihoods, means
from jgp._results import RESULTS
from jgp.conjugate import (
    InverseGamma,
    InverseGammaNormal,
    MultivariateStudentT,
    NormalInverseGamma,
    NormalNormal,
    StudentT,
    student_t_process,
)

GENERATOR = np.random.default_rng(0)
Y = 1.5 + 0.8 * GENERATOR.normal(size=7)
PRIORS = {
    "normal": (NormalNormal, (0.3, 2.0, 0.7)),
    "inverse_gamma": (InverseGammaNormal, (1.1, 1.7, 0.9)),
    "both": (NormalInverseGamma, (0.3, 0.6, 1.7, 0.9)),
}
X = GENERATOR.uniform(-2, 2, size=(9, 2))
X_NEW = np.concatenate([GENERATOR.uniform(-2, 2, size=(4, 2)), X[:1]])
TARGETS = 3 * np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * GENERATOR.normal(size=9)
SHAPE, SCALE = 1.3, 2.1


def prior_of(name):
    cls, parameters = PRIORS[name]
    return cls(*parameters)


@eqx.filter_jit
def log_prob(distribution, x):
    """Compiled once for all of a kind."""
    return distribution.log_prob(x)


def tolerance(dtype, factor):
    return factor * float(jnp.finfo(dtype).eps)


def integrated(log_density, low, high):
    """The logarithm of an integral of a positive function, and its peak's scale."""
    grid = np.linspace(low, high, 400)
    top = max(log_density(v) for v in grid)
    value, error = integrate.quad(
        lambda v: np.exp(log_density(v) - top), low, high, epsabs=0, epsrel=1e-11
    )
    assert error < 1e-9 * value
    return top + np.log(value)


def log_inverse_gamma(log_v, shape, scale):
    """The log density of log v."""
    return stats.invgamma.logpdf(np.exp(log_v), shape, scale=scale) + log_v


# Distributions


@pytest.mark.float32
@pytest.mark.parametrize("df", [0.3, 1.0, 4.5, 15.99, 16.0, 700.0, 1e5])
def test_student_t_is_that_of_scipy(df):
    x = jnp.asarray([-40.0, -1.3, 0.4, 0.5, 2e3])
    got = log_prob(StudentT(df, 0.4, 0.7), x)
    given = np.asarray(x, np.float64)
    wanted = stats.t.logpdf(given, df, loc=0.4, scale=0.7)
    # SciPy subtracts log Γ: good to 1e-9 here for the largest df.
    rounding = max(tolerance(x.dtype, 20), 1e-10)
    np.testing.assert_allclose(got, wanted, rtol=rounding, atol=rounding)


@pytest.mark.float32
def test_student_t_tends_to_the_normal():
    x = jnp.asarray([-2.0, 0.0, 1.0, 3.0, 9.0])
    limit = log_prob(StudentT(1e14, 0.5, 2.0), x)
    wanted = stats.norm.logpdf(np.asarray(x, np.float64), 0.5, 2.0)
    np.testing.assert_allclose(limit, wanted, rtol=tolerance(x.dtype, 20) + 1e-12)


def test_the_constant_of_a_density_to_all_digits():
    # By mpmath with 40 digits, on both sides of where the series for log Γ takes over.
    half_df = np.array([0.02, 3.0, 7.999, 8.0, 9.0, 40.0, 1e4, 1e9])
    wanted, h, q = [], mpmath.mpf(5) / 2, mpmath.mpf(3)
    with mpmath.workdps(40):
        for a in map(mpmath.mpf, half_df):
            gammas = mpmath.loggamma(a + h) - mpmath.loggamma(a) + a * mpmath.log(a)
            rest = (a + h) * mpmath.log(a + q / 2) + h * mpmath.log(2 * mpmath.pi)
            wanted.append(float(gammas - rest))
    identity = np.broadcast_to(np.eye(5), (8, 5, 5))
    t = MultivariateStudentT(2 * half_df, np.zeros((8, 5)), identity)
    got = log_prob(t, np.sqrt(np.full((8, 5), 3 / 5)))
    np.testing.assert_allclose(got, wanted, rtol=3e-15)


def test_moments_and_where_there_are_none():
    df = jnp.asarray([0.7, 1.0, 1.5, 2.0, 2.5, 9.0])
    t = StudentT(df, jnp.zeros(6), jnp.full(6, 1.7))
    scipy_variance = stats.t.var(np.asarray(df), scale=1.7)
    np.testing.assert_allclose(t.variance, scipy_variance, rtol=1e-14)
    assert np.array_equal(np.isnan(t.variance), [1, 1, 0, 0, 0, 0])
    assert np.array_equal(np.isinf(t.variance), [0, 0, 1, 1, 0, 0])
    for shape in (0.8, 1.0, 1.5, 7.0):
        wanted = stats.invgamma.mean(shape, scale=2.0)
        np.testing.assert_allclose(InverseGamma(shape, 2.0).mean, wanted, rtol=1e-14)


def test_student_t_without_scale_is_a_point_mass():
    t = StudentT(3.0, jnp.asarray([1.0, 1.0]), jnp.asarray([0.0, 2.0]))
    on, off = t.log_prob(jnp.asarray([1.0, 1.0])), t.log_prob(jnp.asarray([2.0, 1.0]))
    wanted = stats.t.logpdf(0.0, 3, scale=2.0)
    np.testing.assert_allclose(on, [np.inf, wanted], rtol=1e-14)
    np.testing.assert_allclose(off, [-np.inf, wanted], rtol=1e-14)


@pytest.mark.float32
def test_multivariate_student_t_is_that_of_scipy():
    root = GENERATOR.normal(size=(2, 3, 5))
    matrices = root @ np.swapaxes(root, 1, 2)
    matrices = (matrices + np.swapaxes(matrices, 1, 2)) / 2
    mean, x = GENERATOR.normal(size=(2, 3)), GENERATOR.normal(size=(2, 3))
    df = np.array([0.8, 6.0])
    dtype = jnp.result_type(float)
    t = MultivariateStudentT(*(jnp.asarray(a, dtype) for a in (df, mean, matrices)))
    got = log_prob(t, jnp.asarray(x, dtype))
    wanted = [
        stats.multivariate_t.logpdf(x[i], mean[i], matrices[i], df[i]) for i in range(2)
    ]
    np.testing.assert_allclose(got, wanted, rtol=tolerance(got.dtype, 1000))


@pytest.mark.float32
@pytest.mark.parametrize("shape", [0.4, 3.0, 20.0, 3e4])
def test_inverse_gamma_is_that_of_scipy(shape):
    v = jnp.asarray([0.3, 0.9, 1.1, 6.0, -1.0, 0.0])
    got = log_prob(InverseGamma(shape, 1.2 * shape), v)
    given = np.asarray(v, np.float64)
    wanted = stats.invgamma.logpdf(given, shape, scale=1.2 * shape)
    # Relative to a log v, which the largest term is.
    atol = tolerance(v.dtype, 20) * max(shape, 1)
    np.testing.assert_allclose(got, wanted, rtol=tolerance(v.dtype, 20), atol=atol)


# Conjugate models


def test_normal_evidence_is_the_integral_over_the_mean():
    m, v, s = PRIORS["normal"][1]

    def log_joint(mean):
        likelihood = stats.norm.logpdf(Y, mean, np.sqrt(s)).sum()
        return likelihood + stats.norm.logpdf(mean, m, np.sqrt(v))

    got = prior_of("normal").log_evidence(Y)
    np.testing.assert_allclose(got, integrated(log_joint, -3, 6), rtol=1e-10)
    dense = stats.multivariate_normal(np.full(7, m), s * np.eye(7) + v)
    np.testing.assert_allclose(got, dense.logpdf(Y), rtol=1e-13)
    posterior = prior_of("normal").update(Y)
    precision = 1 / v + 7 / s
    np.testing.assert_allclose(posterior.variance, 1 / precision, rtol=1e-14)
    wanted = (m / v + Y.sum() / s) / precision
    np.testing.assert_allclose(posterior.mean, wanted, rtol=1e-14)


def test_inverse_gamma_evidence_is_the_integral_over_the_variance():
    m, a, b = PRIORS["inverse_gamma"][1]

    def log_joint(log_v):
        likelihood = stats.norm.logpdf(Y, m, np.exp(log_v / 2)).sum()
        return likelihood + log_inverse_gamma(log_v, a, b)

    prior = prior_of("inverse_gamma")
    got, wanted = prior.log_evidence(Y), integrated(log_joint, -6, 12)
    np.testing.assert_allclose(got, wanted, rtol=1e-10)
    # Bayes' rule itself, at one variance.
    posterior = InverseGamma(prior.update(Y).shape, prior.update(Y).scale)
    bayes = log_joint(np.log(0.6)) - np.log(0.6) - wanted
    np.testing.assert_allclose(posterior.log_prob(0.6), bayes, rtol=1e-10)


def test_normal_inverse_gamma_by_quadrature_over_both():
    m, kappa, a, b = PRIORS["both"][1]
    log_v, z = np.linspace(-8, 12, 801)[:, None], np.linspace(-14, 14, 801)[None]
    # The mean on a grid that widens with the deviation, around that of the data.
    mean = Y.mean() + np.exp(log_v / 2) * z
    deviation = np.exp(log_v / 2)
    log_joint = (
        stats.norm.logpdf(Y[:, None, None], mean[None], deviation[None]).sum(axis=0)
        + stats.norm.logpdf(mean, m, deviation / np.sqrt(kappa))
        + log_inverse_gamma(log_v, a, b)
        + log_v / 2
    )
    cell = np.log(20 / 800 * 28 / 800)
    wanted = special.logsumexp(log_joint) + cell
    prior = prior_of("both")
    np.testing.assert_allclose(prior.log_evidence(Y), wanted, rtol=1e-9)
    # Erratum: with (s + n)/2 in the posterior scale this moment would be wrong.
    weights = np.exp(log_joint + cell - wanted)
    marginal_mean, marginal_variance = prior.update(Y).marginals()
    moment = np.sum(weights * np.exp(log_v))
    np.testing.assert_allclose(marginal_variance.mean, moment, rtol=1e-6)
    np.testing.assert_allclose(marginal_mean.mean, np.sum(weights * mean), rtol=1e-8)
    spread = np.sum(weights * (mean - np.sum(weights * mean)) ** 2)
    np.testing.assert_allclose(marginal_mean.variance, spread, rtol=1e-6)


@pytest.mark.float32
@pytest.mark.parametrize("name", PRIORS)
def test_sequential_equals_batch_and_the_chain_rule(name):
    prior, y = prior_of(name), jnp.asarray(Y, jnp.result_type(float))
    sequential, total = prior, 0.0
    for i in range(len(Y)):
        total += sequential.predictive().log_prob(y[i : i + 1])[0]
        sequential = sequential.update(y[i : i + 1])
    rtol = tolerance(y.dtype, 50)
    np.testing.assert_allclose(prior.log_evidence(y), total, rtol=rtol)
    batch = prior.update(y)
    for got, wanted in zip(*map(jax.tree.leaves, (sequential, batch)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=rtol)


@pytest.mark.parametrize("name", PRIORS)
def test_no_data_change_nothing(name):
    prior = prior_of(name)
    assert float(prior.log_evidence([])) == 0
    same = zip(*map(jax.tree.leaves, (prior, prior.update([]))), strict=True)
    assert all(a == b for a, b in same)


@pytest.mark.float32
def test_a_large_offset_loses_no_digits():
    # Sums of squares about zero would lose all of them in float32.
    y = np.asarray([4096.0, 4096.5, 4097.0, 4095.5], np.float32)
    posterior = NormalInverseGamma(4096.0, 1.0, 2.0, 0.5).update(y)
    wanted = 0.5 + np.sum((y - y.mean()) ** 2) / 2 + 0.5 * 0.8 * 0.25**2
    assert posterior.scale.dtype == jnp.float32
    np.testing.assert_allclose(posterior.scale, wanted, rtol=1e-6)
    np.testing.assert_allclose(posterior.mean, 4096.2, rtol=1e-7)


@pytest.mark.float32
@pytest.mark.parametrize("name", PRIORS)
def test_results_have_the_dtype_of_the_data(name):
    prior, y = prior_of(name), Y.astype(np.float32)
    assert prior.log_evidence(y).dtype == jnp.float32
    posterior = prior.update(y)
    predictive = posterior.predictive()
    leaves = jax.tree.leaves((posterior, predictive, predictive.variance))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype("float32")}
    exactly = prior.log_evidence(y.astype(jnp.result_type(float)))
    np.testing.assert_allclose(prior.log_evidence(y), exactly, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRIORS)
def test_transformations(name):
    cls, parameters = PRIORS[name]

    count = len(parameters)

    def log_evidence(point):
        return cls(*point[:count]).log_evidence(point[count:])

    point = jnp.asarray([*parameters, *Y])
    gradient = jax.value_and_grad(log_evidence)
    with_hessian = jax.vmap(lambda p: (*gradient(p), jax.hessian(log_evidence)(p)))
    step = 1e-5 * GENERATOR.normal(size=point.size)
    points = point[None] + np.stack([step, -step, np.zeros_like(step)])
    values, gradients, hessians = jax.jit(with_hessian)(points)
    slope, change = ((v[0] - v[1]) / 2 for v in (values, gradients))
    np.testing.assert_allclose(gradients[2] @ step, slope, rtol=1e-5)
    np.testing.assert_allclose(hessians[2] @ step, change, rtol=1e-5, atol=1e-10)
    data = jnp.stack([jnp.asarray(Y), 2 * jnp.asarray(Y)])
    batch = eqx.filter_vmap(lambda y: prior_of(name).update(y).predictive())(data)
    alone = prior_of(name).update(data[1]).predictive()
    np.testing.assert_allclose(batch.variance[1], alone.variance, rtol=1e-14)


# The Student-t process


def gaussian(amplitude, mean=None, noise=0.05):
    """The same model with a known amplitude of prior and noise."""
    kernel = amplitude * kernels.SquaredExponential(0.8)
    process = jgp.GaussianProcess(kernel, mean)
    return jgp.Model(process, likelihoods.Gaussian(amplitude * noise))


@functools.cache
def fitted():
    model = gaussian(1.0, means.Constant(0.5))
    return student_t_process(model, X, TARGETS, shape=SHAPE, scale=SCALE)


def dense():
    """S, the cross-covariances and the prior variance, by NumPy."""
    square = np.sum((X[:, None] - X[None]) ** 2, axis=2)
    cross = np.sum((X[:, None] - X_NEW[None]) ** 2, axis=2)
    S = np.exp(-square / (2 * 0.64)) + 0.05 * np.eye(9)
    return S, np.exp(-cross / (2 * 0.64))


def test_process_is_a_multivariate_t_of_scipy():
    S, cross = dense()
    prior = stats.multivariate_t(np.full(9, 0.5), SCALE / SHAPE * S, 2 * SHAPE)
    wanted = prior.logpdf(TARGETS)
    np.testing.assert_allclose(fitted().log_evidence, wanted, rtol=1e-12)
    # Predictions, by the ratio of joint to marginal: p(y, y*)/p(y).
    y_new = np.array([0.7, -3.0, 10.0, 0.1, 2.0])
    got = fitted().predict(X_NEW).log_prob(y_new)
    for i in range(5):
        joint = np.block([[S, cross[:, i, None]], [cross[None, :, i], 1.05]])
        both = stats.multivariate_t(np.full(10, 0.5), SCALE / SHAPE * joint, 2 * SHAPE)
        ratio = both.logpdf(np.append(TARGETS, y_new[i])) - wanted
        np.testing.assert_allclose(got[i], ratio, rtol=1e-11)


@pytest.mark.parametrize("mean", [means.Constant(0.5), means.polynomial(1)])
def test_process_evidence_is_the_integral_over_the_amplitude(mean):
    evidence_at = jax.jit(
        lambda s2: jgp.exact(gaussian(s2, mean), X, TARGETS).log_evidence
    )

    def log_joint(log_s2):
        evidence = float(evidence_at(np.exp(log_s2)))
        return evidence + log_inverse_gamma(log_s2, SHAPE, SCALE)

    t = student_t_process(gaussian(1.0, mean), X, TARGETS, shape=SHAPE, scale=SCALE)
    wanted = integrated(log_joint, -4, 10)
    np.testing.assert_allclose(t.log_evidence, wanted, rtol=1e-9)
    # The posterior of the amplitude, by Bayes' rule.
    bayes = log_joint(1.0) - 1.0 - wanted
    np.testing.assert_allclose(t.amplitude.log_prob(np.exp(1.0)), bayes, rtol=1e-8)


def test_process_marginals_are_mixtures_of_normals():
    # p(f*) = ∫ N(f*; m*, s² v*) p(s² | y) ds², at one input and three values.
    moments = jgp.exact(gaussian(1.0, means.Constant(0.5)), X, TARGETS).posterior
    moments = moments.marginals(X_NEW)
    mean, variance = float(moments.mean[1]), float(moments.variance[1])
    a, b = (float(v) for v in jax.tree.leaves(fitted().amplitude))
    t = fitted().marginals(X_NEW)
    for f in (mean, mean + 1.0, mean - 4.0):
        wanted = integrated(
            lambda u, f=f: (
                stats.norm.logpdf(f, mean, np.sqrt(variance * np.exp(u)))
                + log_inverse_gamma(u, a, b)
            ),
            -5,
            8,
        )
        got = StudentT(t.df, t.mean[1], t.scale[1]).log_prob(f)
        np.testing.assert_allclose(got, wanted, rtol=1e-9)
    assert float(t.df) == pytest.approx(2 * SHAPE + 9, rel=1e-15)


def test_process_tends_to_the_gaussian_process():
    model = gaussian(1.0)
    gp = jgp.exact(model, X, TARGETS)
    t = student_t_process(model, X, TARGETS, shape=1e10, scale=1e10)
    # The first correction is of the order of (rᵀS⁻¹r)²/shape, some 1e-7 here.
    assert abs(float(t.log_evidence - gp.log_evidence)) < 1e-6
    np.testing.assert_allclose(
        t.predict(X_NEW).variance, gp.predict(X_NEW).variance, rtol=1e-7
    )
    nearer = student_t_process(model, X, TARGETS, shape=1e14, scale=1e14)
    assert abs(float(nearer.log_evidence - gp.log_evidence)) < 1e-10


def test_process_of_a_constant_kernel_is_the_normal_inverse_gamma():
    # f = μ ~ N(0, s²/κ) and noise s²: all inputs say the same.
    kernel = (1 / 0.6) * kernels.Constant()
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(1.0))
    t = student_t_process(model, np.arange(7.0), Y, shape=1.7, scale=0.9)
    prior = NormalInverseGamma(0.0, 0.6, 1.7, 0.9)
    posterior = prior.update(Y)
    np.testing.assert_allclose(t.log_evidence, prior.log_evidence(Y), rtol=1e-12)
    marginal, _ = posterior.marginals()
    for got, wanted in (
        (t.marginals([3.3]), marginal),
        (t.predict([3.3]), posterior.predictive()),
    ):
        np.testing.assert_allclose(got.df, wanted.df, rtol=1e-14)
        np.testing.assert_allclose(got.mean[0], wanted.mean, rtol=1e-12)
        np.testing.assert_allclose(got.scale[0], wanted.scale, rtol=1e-12)


def process_evidence(parameters):
    lengthscale, noise, shape, scale = parameters
    process = jgp.GaussianProcess(kernels.SquaredExponential(lengthscale))
    model = jgp.Model(process, likelihoods.Gaussian(noise))
    return student_t_process(model, X, TARGETS, shape=shape, scale=scale).log_evidence


@pytest.mark.slow
def test_process_gradient_is_that_of_central_differences():
    parameters = jnp.asarray([0.8, 0.05, SHAPE, SCALE])
    value, gradient = jax.jit(jax.value_and_grad(process_evidence))(parameters)
    steps = np.diag([1e-5, 1e-6, 1e-5, 1e-5])
    points = parameters[None] + np.concatenate([steps, -steps, np.zeros((1, 4))])
    values = jax.jit(jax.vmap(process_evidence))(points)
    slopes = (values[:4] - values[4:8]) / (2 * np.diag(steps))
    np.testing.assert_allclose(gradient, slopes, rtol=1e-6)
    np.testing.assert_allclose(values[8], value, rtol=1e-13)


@pytest.mark.float32
def test_process_in_float32():
    x, y = X.astype(np.float32), TARGETS.astype(np.float32)
    t = student_t_process(gaussian(1.0, means.Constant(0.5)), x, y, shape=1.3, scale=2)
    assert {t.log_evidence.dtype, t.predict(x).variance.dtype} == {jnp.dtype("float32")}
    S, _ = dense()
    prior = stats.multivariate_t(np.full(9, 0.5), 2 / 1.3 * S, 2.6)
    np.testing.assert_allclose(t.log_evidence, prior.logpdf(TARGETS), rtol=2e-5)
    large = student_t_process(t.approximation.model, x, y, shape=1e7, scale=1e7)
    limit = stats.multivariate_normal(np.full(9, 0.5), S).logpdf(TARGETS)
    np.testing.assert_allclose(large.log_evidence, limit, rtol=1e-4)


def test_process_without_noise_is_certain_at_the_data():
    t = student_t_process(gaussian(1.0, noise=0.0), X, TARGETS, shape=2.0, scale=1.0)
    at_data = t.marginals(X)
    np.testing.assert_allclose(at_data.mean, TARGETS, atol=1e-9)
    assert np.all(at_data.scale < 1e-6)


def test_process_without_data_is_the_prior():
    empty = np.zeros((0, 2)), np.zeros(0)
    t = student_t_process(gaussian(1.0), *empty, shape=2.0, scale=3.0)
    assert float(t.log_evidence) == 0
    predicted = t.predict(X_NEW)
    assert float(predicted.df) == 4
    np.testing.assert_allclose(predicted.scale**2, 1.5 * 1.05, rtol=1e-14)


def test_process_with_given_noise_at_each_point():
    noise = np.linspace(0.05, 0.4, 9)
    process = jgp.GaussianProcess(kernels.SquaredExponential(0.8), means.Constant(0.5))
    model = jgp.Model(process, likelihoods.FixedNoiseGaussian(noise))
    t = student_t_process(model, X, TARGETS, shape=SHAPE, scale=SCALE)
    S = dense()[0] - 0.05 * np.eye(9) + np.diag(noise)
    prior = stats.multivariate_t(np.full(9, 0.5), SCALE / SHAPE * S, 2 * SHAPE)
    np.testing.assert_allclose(t.log_evidence, prior.logpdf(TARGETS), rtol=1e-12)
    wider = t.predict(X_NEW, noise_variance=0.4).scale ** 2
    added = wider - t.marginals(X_NEW).scale ** 2
    factor = t.amplitude.scale / t.amplitude.shape
    np.testing.assert_allclose(added, np.full(5, 0.4 * factor), rtol=1e-12)


def test_process_that_cannot_be_factorised_says_so():
    model = gaussian(1.0, noise=0.0)
    twice = np.full((60, 1), 1.0), np.arange(60.0)
    broken = eqx.tree_at(
        lambda m: m.process.mean_function, model, lambda x: jnp.log(x[0] - 1)
    )
    with pytest.raises(jgp.InferenceError):
        student_t_process(broken, *twice, shape=1.0, scale=1.0)
    t = student_t_process(broken, *twice, shape=1.0, scale=1.0, throw=False)
    assert t.result == RESULTS.non_finite
    assert not np.isfinite(t.log_evidence)


# Errors


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: NormalNormal(0.0, -1.0, 1.0), r"NormalNormal.variance: got -1"),
        (lambda: NormalNormal(0.0, 1.0, 0.0), r"noise_variance: got 0"),
        (lambda: NormalNormal([0.0, 1.0], 1.0, 1.0), r"mean: got shape \(2,\), wanted"),
        (lambda: InverseGammaNormal(np.nan, 1.0, 1.0), r"mean: got nan"),
        (lambda: InverseGammaNormal(0.0, 1.0, 0.0), r"scale: got 0"),
        (lambda: NormalInverseGamma(0.0, 0.0, 1.0, 1.0), r"precision_scale: got 0"),
        (lambda: InverseGamma(np.inf, 1.0), r"InverseGamma.shape: got inf"),
        (lambda: StudentT(0.0, 0.0, 1.0), r"StudentT.df: got 0"),
        (lambda: StudentT(1.0, 0.0, -1.0), r"StudentT.scale: got -1"),
        (lambda: StudentT(1.0, np.zeros(2), 1.0), r"scale: got shape \(\), wanted \(2"),
        (lambda: StudentT(np.ones(3), np.zeros(2), np.ones(2)), r"df: got shape \(3,"),
        (
            lambda: StudentT(1.0, np.zeros(2), np.ones(2)).log_prob(np.ones(3)),
            r"x: got shape \(3,\), wanted \(\) or \(2,\)",
        ),
        (lambda: MultivariateStudentT(1.0, 0.0, 1.0), r"mean: got a scalar, wanted"),
        (
            lambda: MultivariateStudentT(1.0, np.zeros(2), np.eye(3)),
            r"shape_matrix: got shape \(3, 3\), wanted \(2, 2\)",
        ),
        (
            lambda: MultivariateStudentT(1.0, np.zeros(2), -np.eye(2)),
            r"shape_matrix: got .*\n?.*wanted .*positive definite",
        ),
        (
            lambda: MultivariateStudentT(1.0, np.zeros(2), np.eye(2)).log_prob([1.0]),
            r"x: got shape \(1,\), wanted \(2,\)",
        ),
        (lambda: prior_of("both").update([1.0, np.nan]), r"y: got .*NaN"),
        (lambda: prior_of("both").update(1.0), r"y: got shape \(\), wanted \(n,\)"),
        (lambda: prior_of("normal").log_evidence([[1.0]]), r"y: got shape \(1, 1\)"),
        (lambda: prior_of("normal").update(["a"]), r"y: got .*no array of numbers"),
        (lambda: prior_of("normal").update([1j]), r"y: got .*no array of numbers"),
        (lambda: prior_of("normal").update([[1.0], [1, 2]]), r"y: got .*no array"),
        (lambda: prior_of("normal").update(None), r"y: got .*no array of numbers"),
    ],
)
def test_what_cannot_be_right_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_processes_that_are_refused():
    noise, kernel = likelihoods.Gaussian(0.1), kernels.SquaredExponential(1.0)
    two = jgp.Model(jgp.independent(kernel, num_latents=2), noise)
    one = functools.partial(student_t_process, gaussian(1.0), X, TARGETS)
    with pytest.raises(ValueError, match="process: got IndependentProcess, wanted a G"):
        student_t_process(two, X, np.zeros((9, 2)), shape=1.0, scale=1.0)
    with pytest.raises(ValueError, match="model: got int, wanted"):
        student_t_process(3, X, TARGETS, shape=1.0, scale=1.0)
    with pytest.raises(ValueError, match=r"shape: got -1"):
        one(shape=-1.0, scale=1.0)
    with pytest.raises(ValueError, match=r"scale: got shape \(2,\), wanted \(\)"):
        one(shape=1.0, scale=[1.0, 2.0])
    with pytest.raises(ValueError, match="y: got shape"):
        student_t_process(gaussian(1.0), X, TARGETS[:4], shape=1.0, scale=1.0)
