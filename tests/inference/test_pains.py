"""Regression cases of real users of other libraries, by their number, and laws.

Cases that other files hold are not repeated here.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

import jgp
from jgp import kernels, likelihoods, means
from jgp._results import RESULTS

SE, M32, M52 = kernels.SquaredExponential, kernels.Matern32, kernels.Matern52
RNG = np.random.default_rng(0)
SQUARE, NEW = RNG.uniform(size=(20, 2)), RNG.uniform(size=(20, 2))
every_dtype = pytest.mark.parametrize(
    "dtype",
    [np.float32] + [np.float64] * (jnp.result_type(float) == jnp.float64),
    ids=lambda dtype: dtype.__name__,
)


def model(kernel, noise_variance, mean=None):
    process = jgp.GaussianProcess(kernel, mean)
    return jgp.Model(process, likelihoods.Gaussian(noise_variance=noise_variance))


def succeeded(found):
    return bool(found.result == RESULTS.successful)


def forty_digits(x, y, noise):
    """Evidence, slope in the log noise and means at x: unit SE, `noise` in all."""
    with mpmath.workdps(40):
        x, y = [mpmath.mpf(float(v)) for v in x], mpmath.matrix(list(map(float, y)))
        K = mpmath.matrix([[mpmath.exp(-((a - b) ** 2) / 2) for a in x] for b in x])
        S = K + noise * mpmath.eye(len(x))
        inverse = S**-1
        w = inverse * y
        log_det = mpmath.log(mpmath.det(S)) + len(x) * mpmath.log(2 * mpmath.pi)
        evidence = -((y.T * w)[0] + log_det) / 2
        trace = mpmath.fsum(inverse[i, i] for i in range(len(x)))
        slope = ((w.T * w)[0] - trace) / 2
        return float(evidence), float(slope), np.array(list(K * w), float)


@jax.jit
def value_and_slopes(raw, x, y):
    """The evidence, in the logs of lengthscale, variance and noise."""

    def evidence(raw):
        lengthscale, variance, noise = jnp.exp(raw)
        found = jgp.exact(model(variance * SE(lengthscale), noise), x, y)
        return found.log_evidence

    return jax.value_and_grad(evidence)(raw)


@pytest.mark.float32
@every_dtype
def test_pain_01_near_repeats_are_finite_and_right(dtype):
    x = np.array([0, 0, 1e-7, 1, 1 + 1e-7], dtype)
    y = np.array([0, 0.1, 0.05, 1, 0.9], dtype)
    found = jgp.exact(model(1.0 * SE(1.0), 1e-8), x, y, throw=False)
    added = float(found.jitter)
    told = RESULTS.successful if added == 0 else RESULTS.ill_conditioned
    assert bool(found.result == told)
    # No jitter where the dtype can do without.
    assert added == 0 if dtype == np.float64 else 0 < added < 1e-5
    total = float(np.asarray(1e-8, dtype)) + added
    evidence, slope, mean = forty_digits(x, y, total)
    # The largest eigenvalue is below 4, the least is the noise with the jitter.
    error = float(np.finfo(dtype).eps) * 4 / total
    np.testing.assert_allclose(found.log_evidence, evidence, rtol=error)
    np.testing.assert_allclose(found.predict(x).mean, mean, atol=error)
    _, slope_of = value_and_slopes(np.log(np.array([1, 1, 1e-8], dtype)), x, y)
    assert slope_of.dtype == dtype
    assert np.all(np.isfinite(slope_of))
    np.testing.assert_allclose(slope_of[2], 1e-8 * slope, rtol=2 * error)


@pytest.mark.float32
@pytest.mark.parametrize("noise", [0.0, 1e-12])
def test_pain_03_identical_columns_are_one_column(noise):
    line = np.linspace(-2, 2, 30)
    x = np.stack([line] * 3, axis=1)
    found = jgp.exact(model(M52(1.0), noise), x, 3 * line)
    assert succeeded(found)
    mean = np.asarray(found.predict(x).mean)
    assert np.isfinite(found.log_evidence)
    eps = np.finfo(found.x.dtype).eps
    # By the square root of the jitter where there is one, at most 2¹³ eps.
    np.testing.assert_allclose(mean, 3 * line, atol=np.sqrt(2**13 * eps))
    if eps < 1e-10:
        # Distances are √3 times those along the line.
        one = jgp.exact(model(M52(1 / np.sqrt(3)), noise), line, 3 * line)
        assert float(found.jitter) == float(one.jitter) == 0
        # The condition number is 1e8: eight of sixteen digits.
        np.testing.assert_allclose(found.log_evidence, one.log_evidence, rtol=1e-7)


def test_pain_05_a_linear_kernel_without_noise_reports_its_jitter():
    x = np.array([[1e3], [1e3 + 1e-6], [2e3]])
    told = r"n = 3 points in float64: The covariance of the data needed.*variance = 1\."
    with pytest.warns(jgp.InferenceWarning, match=told):
        found = jgp.exact(model(kernels.Linear(1.0), 0.0), x, 2e-3 * x[:, 0])
    assert bool(found.result == RESULTS.ill_conditioned)
    assert 0 < float(found.jitter) <= 2**13 * np.finfo(float).eps * np.mean(x**2)
    # The only uncertain direction is the line: errors of the weights are across it.
    new = np.array([[-1e3], [500.0], [4e3]])
    np.testing.assert_allclose(found.predict(new).mean, 2e-3 * new[:, 0], rtol=1e-8)


def test_pain_11_deviations_are_the_roots_of_the_covariances():
    # Near the optimum of the evidence without noise, found once.
    fitted = model(68.6 * SE(4.528), 0.0)
    found = jgp.exact(fitted, SQUARE, SQUARE[:, 0] * SQUARE[:, 1])
    # 1e-8 relative, but for what rounding makes of a difference of numbers of 68.6.
    atol = 4 * 68.6 * np.finfo(float).eps
    for x in (SQUARE, NEW):
        variance = found.posterior.marginals(x).variance
        joint = np.diagonal(found.posterior.joint(x).covariance)
        np.testing.assert_allclose(variance, joint, rtol=1e-8, atol=atol)
    # Variances are below 1e-10 there, and corners are extrapolation.
    np.testing.assert_allclose(found.predict(NEW).mean, np.prod(NEW, 1), atol=1e-4)
    # The same model with shorter lengthscales, where variances are no rounding.
    short = jgp.exact(model(1.0 * SE(0.5), 0.0), SQUARE, SQUARE[:, 0])
    variance = short.posterior.marginals(NEW).variance
    joint = np.diagonal(short.posterior.joint(NEW).covariance)
    assert np.min(variance) > 1e-8
    np.testing.assert_allclose(np.sqrt(variance), np.sqrt(joint), rtol=1e-8)


@pytest.mark.slow
@pytest.mark.float32
@every_dtype
def test_pain_13_noise_of_joint_predictions_is_on_the_diagonal(dtype):
    x, new = np.linspace(0, 1, 6, dtype=dtype), np.array([0.1, 0.4, 0.9], dtype)
    found = jgp.exact(model(1.0 * SE(0.3), 0.1), x, np.sin(6 * x))
    f, y = found.posterior.joint(new), found.predict_joint(new)
    assert y.covariance.dtype == dtype
    np.testing.assert_array_equal(y.mean, f.mean)
    off = ~np.eye(3, dtype=bool)
    np.testing.assert_array_equal(y.covariance[off], f.covariance[off])
    added = np.diagonal(y.covariance) - np.diagonal(f.covariance)
    np.testing.assert_allclose(added, 0.1, rtol=4 * np.finfo(dtype).eps / 0.1)
    np.testing.assert_allclose(
        np.diagonal(y.covariance), found.predict(new).variance, rtol=1e-6
    )
    # Two outputs whose noise is correlated, within an input alone.
    sigma = np.array([[0.2, 0.1], [0.1, 0.3]], dtype)
    both = jgp.Model(
        jgp.independent(SE(0.3), num_latents=2), likelihoods.CorrelatedGaussian(sigma)
    )
    found = jgp.exact(both, x, np.stack([x, 1 - x], axis=1))
    change = found.predict_joint(new).covariance - found.posterior.joint(new).covariance
    wanted = np.einsum("nm,cd->ncmd", np.eye(3), sigma)
    np.testing.assert_allclose(change, wanted, atol=10 * np.finfo(dtype).eps)
    given = jgp.Model(
        jgp.GaussianProcess(SE(0.3)), likelihoods.FixedNoiseGaussian(0.1 + x)
    )
    found = jgp.exact(given, x, x)
    with pytest.raises(ValueError, match="noise_variance: got None"):
        found.predict_joint(new)
    change = found.predict_joint(new, noise_variance=[0.1, 0.2, 0.3]).covariance
    change = change - found.posterior.joint(new).covariance
    np.testing.assert_allclose(
        change, np.diag([0.1, 0.2, 0.3]), atol=10 * np.finfo(dtype).eps
    )


def test_pain_17_repeats_have_a_lengthscale_gradient():
    x, y = np.tile(np.arange(3.0), 2), np.random.default_rng(3).normal(size=6)

    @jax.jit
    @jax.value_and_grad
    def evidence(log_lengthscale):
        kernel = M52(jnp.exp(log_lengthscale))
        return jgp.exact(model(kernel, 0.1), x, y).log_evidence

    h = 1e-4
    slope = evidence(0.3)[1]
    assert abs(slope) > 0.01
    difference = (evidence(0.3 + h)[0] - evidence(0.3 - h)[0]) / (2 * h)
    # h² times a third derivative of the size of the first.
    np.testing.assert_allclose(slope, difference, rtol=1e-7)


def test_pain_19_gradients_over_lengthscales_are_differences():
    rng = np.random.default_rng(4)
    x = np.sort(rng.uniform(0, 3, size=15))
    y = np.sin(2 * x) + 0.1 * rng.normal(size=15)
    for lengthscale in np.geomspace(0.05, 20, 8):
        raw = np.log(np.array([lengthscale, 1.3, 0.1]))
        _, slope = value_and_slopes(raw, x, y)
        pairs = [
            [value_and_slopes(raw + h * s, x, y)[0] for h in (1e-4, -1e-4)]
            for s in np.eye(3)
        ]
        numeric = np.array([a - b for a, b in pairs]) / 2e-4
        # The issue's own bound; differences are good to h² = 1e-8 and 1e-11 rounding.
        np.testing.assert_allclose(slope, numeric, rtol=1e-5, atol=1e-9)


@pytest.mark.float32
@every_dtype
def test_pain_21_fits_to_noise_free_targets_are_finite(dtype):
    x = np.linspace(0, 1, 30, dtype=dtype)
    start = model(1.0 * SE(1.0), 1.0)
    for y in (np.full_like(x, 3), x, np.sin(6 * x), np.zeros_like(x)):
        fitted = jgp.fit(start, x, y, max_steps=15, throw=False, progress=False)
        parameters = [float(leaf) for _, leaf, _ in jgp.table(fitted.model)]
        assert np.all(np.isfinite(parameters))
        assert np.min(parameters) > 0
        assert np.isfinite(fitted.approximation.log_evidence)
        # Ten units of rounding of an evidence below 1000 are 1e-3 in float32.
        assert np.all(np.diff(fitted.history.objective) > -2e-3)
        predicted = fitted.approximation.predict(x)
        assert predicted.mean.dtype == dtype
        assert np.all(np.asarray(predicted.variance) >= 0)
        # The search ends where noise and jitter near eps: the fit is to their roots.
        atol = 100 * np.sqrt(np.finfo(dtype).eps)
        np.testing.assert_allclose(predicted.mean, y, atol=atol)


def test_pain_37_a_constant_mean_keeps_single_precision():
    single = model(
        M52(np.float32(0.7)) * np.float32(1.3),
        np.float32(0.1),
        means.Constant(np.float32(0.5)),
    )
    x, y = NEW.astype(np.float32), np.sin(NEW[:, 0]).astype(np.float32)

    @eqx.filter_jit
    def everything(raw):
        found = jgp.exact(jgp.from_real(raw), x, y)
        return found.log_evidence, found.posterior.joint(x)

    (evidence, rest), gradient = eqx.filter_value_and_grad(everything, has_aux=True)(
        jgp.to_real(single)
    )
    leaves = [evidence, *jax.tree.leaves((rest, gradient))]
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}
    assert len(jax.tree.leaves(gradient)) == 4


def test_pain_39_integers_are_numbers():
    start = model(1.0 * SE(1.0), 0.1)
    wanted = jgp.exact(start, np.arange(5.0), [2.0, 3.0, 1.0, 0.0, 7.0])
    for kind in (np.int64, np.int32, np.uint8):
        x, y = np.arange(5, dtype=kind)[:, None], np.array([2, 3, 1, 0, 7], kind)
        for targets in (y, jnp.asarray(y), y.tolist()):
            found = jgp.exact(start, x, targets)
            assert float(found.log_evidence) == float(wanted.log_evidence)
            np.testing.assert_array_equal(
                found.posterior.weights, wanted.posterior.weights
            )


def test_pain_41_the_noise_is_a_variance():
    # Five points that know nothing of each other: 1/(1 + 1/σ²) is left of 1.
    x = np.arange(5.0)
    found = jgp.exact(model(1.0 * SE(0.1), noise_variance=0.01**2), x, np.sin(x))
    deviation = np.sqrt(found.posterior.marginals(x).variance)
    # A difference from 1 of 1e-4, to 1e-16.
    np.testing.assert_allclose(deviation, 0.01 / np.sqrt(1 + 1e-4), rtol=1e-11)
    predicted = np.sqrt(found.predict(x).variance)
    np.testing.assert_allclose(predicted, np.hypot(0.01, deviation), rtol=1e-13)


@pytest.mark.float32
@every_dtype
def test_variances_are_never_negative(dtype):
    x = np.linspace(0, 1, 200, dtype=dtype)
    for variance, noise in ((100.0, 1e-6), (1e8, 1e-6), (1e-8, 0.0)):
        found = jgp.exact(
            model(variance * SE(1.0), noise), x, np.sin(6 * x), throw=False
        )
        drowned = noise < float(found.jitter)
        told = RESULTS.ill_conditioned if drowned else RESULTS.successful
        assert bool(found.result == told)
        # Halfway between the data, and at one of them.
        for new in (x, x + dtype(0.0025)):
            marginals = found.posterior.marginals(new)
            joint = np.diagonal(np.asarray(found.posterior.joint(new).covariance))
            least = min(np.min(marginals.variance), np.min(joint))
            assert least >= 0
            # Knowledge of 200 points leaves little of the prior's variance.
            assert np.max(marginals.variance) < 1e-4 * variance
            assert np.min(found.predict(new).variance) >= dtype(noise)


@pytest.mark.float32
@every_dtype
def test_contradictions_without_noise_are_told_or_finite(dtype):
    x = np.array([0, 0, 1, 1, 2], dtype)
    y = np.array([0, 1, 2, -1, 3], dtype)
    found = jgp.exact(model(1.0 * SE(1.0), 0.0), x, y, throw=False)
    predicted = found.predict(x)
    assert bool(found.result == RESULTS.ill_conditioned)
    assert float(found.jitter) > 0
    assert np.isfinite(found.log_evidence)
    assert np.all(np.asarray(predicted.variance) >= 0)
    # The mean of what was said; weights of 1/(64 eps) leave errors of n/64.
    np.testing.assert_allclose(predicted.mean, [0.5, 0.5, 0.5, 0.5, 3], atol=0.1)


def test_the_order_of_the_data_is_nothing():
    start, y = model(1.0 * SE(0.5), 0.01), np.sin(5 * SQUARE[:, 0])
    found = jgp.exact(start, SQUARE, y)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(20)
        other = jgp.exact(start, SQUARE[order], y[order])
        # A condition number of 2000 costs four of sixteen digits.
        np.testing.assert_allclose(found.log_evidence, other.log_evidence, rtol=1e-11)
        one, two = (a.posterior.joint(NEW) for a in (found, other))
        np.testing.assert_allclose(one.mean, two.mean, atol=1e-11)
        np.testing.assert_allclose(one.covariance, two.covariance, atol=1e-11)


def test_one_point():
    found = jgp.exact(model(1.3 * SE(0.7), 0.2), [0.3], [2.0])
    wanted = norm.logpdf(2.0, scale=np.sqrt(1.5))
    np.testing.assert_allclose(found.log_evidence, wanted, rtol=1e-14)
    k = 1.3 * np.exp(-(0.5**2) / (2 * 0.7**2))
    moments = found.posterior.marginals([0.8])
    np.testing.assert_allclose(moments.mean, [2 * k / 1.5], rtol=1e-14)
    np.testing.assert_allclose(moments.variance, [1.3 - k**2 / 1.5], rtol=1e-14)


def test_constant_targets():
    x = np.array([0.0, 0.3, 0.7, 1.0, 1.6])
    found = jgp.exact(model(1.0 * SE(1.0), 0.1), x, np.full(5, 3.0))
    K = np.exp(-((x[:, None] - x) ** 2) / 2)
    S = K + 0.1 * np.eye(5)
    wanted = multivariate_normal(np.zeros(5), S).logpdf(np.full(5, 3.0))
    np.testing.assert_allclose(found.log_evidence, wanted, rtol=1e-12)
    mean = K @ np.linalg.solve(S, np.full(5, 3.0))
    np.testing.assert_allclose(found.predict(x).mean, mean, rtol=1e-12)
    # None of it is left to a prior mean that knows the constant.
    known = jgp.exact(
        model(1.0 * SE(1.0), 0.1, means.Constant(3.0)), x, np.full(5, 3.0)
    )
    np.testing.assert_array_equal(known.predict(x).mean, np.full(5, 3.0))
    determinant = np.linalg.slogdet(2 * np.pi * S)[1]
    np.testing.assert_allclose(known.log_evidence, -determinant / 2, rtol=1e-12)


PAIRS = {
    "RBF": (SE(0.6), sk.RBF(0.6), 1),
    "Matern32 and a constant": (
        1.7 * M32(0.9) + 0.4,
        sk.ConstantKernel(1.7) * sk.Matern(0.9, nu=1.5) + sk.ConstantKernel(0.4),
        2,
    ),
    "Matern52": (
        0.3 * M52([0.5, 1.0, 2.0]),
        sk.ConstantKernel(0.3) * sk.Matern([0.5, 1.0, 2.0], nu=2.5),
        3,
    ),
    "RationalQuadratic": (
        2.0 * kernels.RationalQuadratic(0.7, 1.2),
        sk.ConstantKernel(2.0) * sk.RationalQuadratic(1.2, 0.7),
        2,
    ),
    "a sum of three": (
        1.5 * SE(2.0) * M32(1.0) + 0.5 * M52(0.3) + 0.8,
        sk.ConstantKernel(1.5) * sk.RBF(2.0) * sk.Matern(1.0, nu=1.5)
        + sk.ConstantKernel(0.5) * sk.Matern(0.3, nu=2.5)
        + sk.ConstantKernel(0.8),
        1,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_agrees_with_scikit_learn(name):
    kernel, other, dimension = PAIRS[name]
    rng = np.random.default_rng(len(name))
    x, new = rng.normal(size=(15, dimension)), rng.normal(size=(6, dimension))
    y = np.cos(2 * x[:, 0]) + 0.2 * rng.normal(size=15)
    found = jgp.exact(model(kernel, 0.05), x, y)
    theirs = GaussianProcessRegressor(other, alpha=0.05, optimizer=None).fit(x, y)
    wanted = theirs.log_marginal_likelihood_value_
    # The issue's own bound; a condition number of 500 would give 1e-13.
    np.testing.assert_allclose(found.log_evidence, wanted, rtol=0, atol=1e-8)
    mean, covariance = theirs.predict(new, return_cov=True)
    joint = found.posterior.joint(new)
    np.testing.assert_allclose(joint.mean, mean, rtol=0, atol=1e-8)
    np.testing.assert_allclose(joint.covariance, covariance, rtol=0, atol=1e-8)
