"""Exact regression against the formulas of a multivariate normal, done in NumPy."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import multivariate_normal

import jgp
from jgp import kernels, likelihoods, means
from jgp.kernels import gram
from tests.cases import slow_unless

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, size=(12, 2))
X[-1] = X[0]
Y = RNG.normal(size=(12, 3))
NEW = RNG.uniform(-2, 2, size=(5, 2))
KERNEL = 1.3 * kernels.Matern52(0.9)
OTHERS = [KERNEL, 0.7 * kernels.SquaredExponential([0.8, 1.4]), kernels.Matern12(2.0)]
PROCESS = jgp.GaussianProcess(KERNEL, means.Linear([0.3, -0.1], 0.5))
THREE = jgp.independent(OTHERS, mean=means.Constant(0.2))
MIXED = jgp.coregionalised(
    OTHERS[:2],
    [[[1.0], [-0.5], [0.3]], [[0.2, 0.1], [1.0, 0.0], [0.4, -0.6]]],
    [[0.1, 0.2, 0.3], [0.2, 0.1, 0.4]],
    mean=[means.Constant(0.2), means.Zero(), means.Linear([0.1, 0.3])],
)
SIGMA = np.array([[0.3, 0.1, -0.05], [0.1, 0.4, 0.2], [-0.05, 0.2, 0.5]])


def log_noise(x):
    return -1.0 + 0.5 * x[0]


def dense(process, x):
    """Mean (nC,) and covariance (nC, nC) of the latents, point by point."""
    mean = np.asarray(process.mean(jnp.asarray(x))).ravel()
    K = np.asarray(process.joint_covariance(jnp.asarray(x)))
    return mean, K.reshape(mean.size, mean.size)


def conditioned(process, noise, x, y, new, kept):
    """Log evidence, and mean and covariance at new points, by one dense solve."""
    num = x.shape[0] * process.num_latents
    mean, K = dense(process, np.concatenate([x, new]))
    at = np.flatnonzero(kept.ravel())
    S = (K[:num, :num] + noise)[np.ix_(at, at)]
    r = (y.ravel() - mean[:num])[at]
    cross = K[num:][:, at]
    moments = mean[num:] + cross @ np.linalg.solve(S, r)
    covariance = K[num:, num:] - cross @ np.linalg.solve(S, cross.T)
    return multivariate_normal.logpdf(r, cov=S), moments, covariance


def by_point(variances):
    return np.diag(np.broadcast_to(variances, (12, 3)).ravel())


FIXED = RNG.uniform(0.1, 0.6, size=12)
FIXED3 = RNG.uniform(0.1, 0.6, size=(12, 3))
CASES = {
    "one": (PROCESS, likelihoods.Gaussian(0.2), 0.2 * np.eye(12)),
    "given": (PROCESS, likelihoods.FixedNoiseGaussian(FIXED), np.diag(FIXED)),
    "function": (
        PROCESS,
        likelihoods.HeteroscedasticGaussian(log_noise),
        np.diag(np.exp(-1 + 0.5 * X[:, 0])),
    ),
    "an output": (
        THREE,
        likelihoods.Gaussian([0.1, 0.2, 0.4]),
        by_point([0.1, 0.2, 0.4]),
    ),
    "given three": (THREE, likelihoods.FixedNoiseGaussian(FIXED3), by_point(FIXED3)),
    "given, shared by three": (
        jgp.independent(KERNEL, num_latents=3),
        likelihoods.FixedNoiseGaussian(FIXED),
        by_point(FIXED[:, None]),
    ),
    "correlated": (
        THREE,
        likelihoods.CorrelatedGaussian(SIGMA),
        np.kron(np.eye(12), SIGMA),
    ),
    "coregionalised": (MIXED, likelihoods.Gaussian(0.2), 0.2 * np.eye(36)),
    "both": (
        MIXED,
        likelihoods.CorrelatedGaussian(SIGMA),
        np.kron(np.eye(12), SIGMA),
    ),
}


@pytest.mark.parametrize("missing", slow_unless([True], [False, True]))
@pytest.mark.parametrize("name", slow_unless(["given", "function", "both"], CASES))
def test_is_the_multivariate_normal(name, missing):
    process, likelihood, noise = CASES[name]
    y = Y if process.num_latents == 3 else Y[:, 0]
    kept = np.ones(y.shape, bool)
    if missing:
        kept = np.random.default_rng(1).uniform(size=y.shape) < 0.7
    seen = np.where(kept, y, np.nan) if missing else y
    mask = kept if missing else None
    found = jgp.exact(jgp.Model(process, likelihood), X, seen, mask=mask)
    evidence, mean, covariance = conditioned(process, noise, X, y, NEW, kept)
    np.testing.assert_allclose(found.log_evidence, evidence, rtol=1e-11)
    joint, marginal = found.posterior.joint(NEW), found.posterior.marginals(NEW)
    np.testing.assert_allclose(np.ravel(joint.mean), mean, atol=1e-11)
    np.testing.assert_allclose(np.ravel(marginal.mean), mean, atol=1e-11)
    got = np.reshape(joint.covariance, covariance.shape)
    np.testing.assert_allclose(got, covariance, atol=1e-11)
    np.testing.assert_allclose(
        np.ravel(marginal.variance), np.diag(covariance), atol=1e-11
    )
    C = process.num_latents
    blocks = covariance.reshape(5, C, 5, C)[np.arange(5), :, np.arange(5)]
    np.testing.assert_allclose(marginal.covariance, blocks, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["function", "an output", "correlated", "both"])
def test_gradients_are_differences(name):
    process, likelihood, _ = CASES[name]
    if name == "function":
        likelihood = likelihoods.HeteroscedasticGaussian(means.Linear([0.5, 0.2], -1.0))
    y = Y if process.num_latents == 3 else Y[:, 0]
    mask = np.random.default_rng(1).uniform(size=y.shape) < 0.7
    model = jgp.to_real(jgp.Model(process, likelihood))
    parameters, static = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = jax.flatten_util.ravel_pytree(parameters)
    direction = jnp.cos(jnp.arange(0.5, flat.size))

    @jax.jit
    def value(t):
        model = jgp.from_real(eqx.combine(unravel(flat + t * direction), static))
        return jgp.exact(model, X, y, mask=mask).log_evidence

    slope = jax.jit(jax.grad(value))
    curvature = jax.jit(jax.grad(slope))(0.0)
    h = 1e-4
    np.testing.assert_allclose(
        slope(0.0), (value(h) - value(-h)) / (2 * h), rtol=1e-6, atol=1e-6
    )
    np.testing.assert_allclose(
        curvature, (slope(h) - slope(-h)) / (2 * h), rtol=1e-6, atol=1e-6
    )


@pytest.mark.slow
def test_predictions_of_y_add_the_noise_there():
    for name in ("one", "function", "an output", "correlated"):
        process, likelihood, _ = CASES[name]
        y = Y if process.num_latents == 3 else Y[:, 0]
        found = jgp.exact(jgp.Model(process, likelihood), X, y)
        noise = {
            "one": 0.2,
            "function": np.exp(-1 + 0.5 * NEW[:, 0]),
            "an output": [0.1, 0.2, 0.4],
            "correlated": np.diag(SIGMA),
        }[name]
        f, predicted = found.posterior.marginals(NEW), found.predict(NEW)
        noise = np.broadcast_to(np.asarray(noise), f.mean.shape)
        np.testing.assert_allclose(predicted.variance - f.variance, noise)
        with pytest.raises(ValueError, match="noise_variance: got one for"):
            found.predict(NEW, noise_variance=np.ones(5))


def test_given_noise_stays_and_is_asked_for():
    model = jgp.Model(PROCESS, likelihoods.FixedNoiseGaussian(FIXED))
    fitted = jgp.fit(model, X, Y[:, 0], throw=False, progress=False)
    np.testing.assert_array_equal(fitted.model.likelihood.noise_variance, FIXED)
    found = fitted.approximation
    with pytest.raises(ValueError, match="noise_variance: got None, wanted the var"):
        found.predict(NEW)
    with pytest.raises(ValueError, match=r"noise_variance: got shape \(2,\) for 5"):
        found.predict(NEW, noise_variance=np.ones(2))
    with pytest.raises(ValueError, match=r"noise_variance: got .*, wanted finite"):
        found.predict(NEW, noise_variance=-np.ones(5))
    there = np.arange(1.0, 6.0)
    f = found.posterior.marginals(NEW)
    predicted = found.predict(NEW, noise_variance=there)
    np.testing.assert_allclose(predicted.variance, f.variance + there)
    log_prob = found.log_prob(NEW, Y[:5, 0], noise_variance=there)
    np.testing.assert_allclose(log_prob, predicted.log_prob(Y[:5, 0]))
    with pytest.raises(ValueError, match=r"noise_variance: got shape \(12,\) for 11"):
        jgp.exact(model, X[:-1], Y[:-1, 0])


@pytest.mark.parametrize(
    "name", slow_unless(["function"], ["given", "function", "an output", "given three"])
)
def test_laplace_is_exact_for_gaussian_noise(name):
    process, likelihood, _ = CASES[name]
    y = Y if process.num_latents == 3 else Y[:, 0]
    model = jgp.Model(process, likelihood)
    one, other = jgp.exact(model, X, y), jgp.laplace(model, X, y)
    np.testing.assert_allclose(one.log_evidence, other.log_evidence, rtol=1e-9)
    first, second = (a.posterior.marginals(NEW) for a in (one, other))
    np.testing.assert_allclose(first.mean, second.mean, atol=1e-8)
    np.testing.assert_allclose(first.variance, second.variance, atol=1e-8)
    estimate = jgp.evidence(one, key=jax.random.key(0), num=16)
    np.testing.assert_allclose(estimate.log_evidence, one.log_evidence, rtol=1e-8)


def test_what_is_coupled_needs_exact():
    model = jgp.Model(MIXED, likelihoods.Gaussian(0.2))
    with pytest.raises(ValueError, match="process: got CoregionalisedProcess"):
        jgp.laplace(model, X, Y)
    model = jgp.Model(THREE, likelihoods.CorrelatedGaussian(SIGMA))
    with pytest.raises(ValueError, match="likelihood: got CorrelatedGaussian"):
        jgp.laplace(model, X, Y)


@pytest.mark.slow
@pytest.mark.float32
def test_fit_learns_through_a_mask():
    x = np.linspace(0, 3, 20)
    truth = np.stack([np.sin(2 * x), np.sin(2 * x) + 0.1 * np.cos(5 * x)], axis=1)
    y = truth + 0.05 * RNG.normal(size=truth.shape)
    kept = np.ones(y.shape, bool)
    kept[8:14, 1] = False
    process = jgp.coregionalised(
        kernels.SquaredExponential(1.0), [[1.0], [0.5]], [0.1, 0.1]
    )
    model = jgp.Model(process, likelihoods.Gaussian([0.1, 0.1]))
    infer = functools.partial(jgp.exact, mask=kept)
    x, seen = np.asarray(x, float), np.where(kept, y, np.nan)
    dtype = jnp.result_type(float)
    fitted = jgp.fit(
        model,
        x.astype(dtype),
        seen,
        infer=infer,
        max_steps=30,
        progress=False,
        throw=False,
    )
    mean = fitted.approximation.posterior.marginals(x).mean
    # What one output shows fills the gap of the other, but for the 0.1 of its own.
    assert np.max(np.abs(mean - truth)) < 0.15
    assert mean.dtype == dtype


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.ones((12, 3), bool), r"mask: got shape \(12, 3\)"),
        (np.ones(12), r"mask: got shape \(12,\) of float64, wanted booleans"),
    ],
)
def test_wrong_masks(mask, message):
    model = jgp.Model(PROCESS, likelihoods.Gaussian(0.2))
    with pytest.raises(ValueError, match=message):
        jgp.exact(model, X, Y[:, 0], mask=mask)


def test_kept_rows_alone_count():
    """Case 59: NaN is refused, or left out on request."""
    model = jgp.Model(PROCESS, likelihoods.Gaussian(0.2))
    y = np.where(np.arange(12) == 3, np.nan, Y[:, 0])
    with pytest.raises(ValueError, match="y: got 1 values that are NaN"):
        jgp.exact(model, X, y)
    found = jgp.exact(model, X, y, mask=np.isfinite(y))
    rows = np.delete(np.arange(12), 3)
    wanted = jgp.exact(model, X[rows], y[rows])
    np.testing.assert_allclose(found.log_evidence, wanted.log_evidence, rtol=1e-12)
    with pytest.raises(ValueError, match="approximation: got one with missing"):
        jgp.evidence(found, key=jax.random.key(0))


def test_terms_that_disagree():
    one = [[1.0], [2.0]]
    with pytest.raises(ValueError, match="got 2, 1 and 1 terms"):
        jgp.coregionalised([KERNEL, KERNEL], [one])
    with pytest.raises(ValueError, match=r"mixing: got terms of \[2, 3\] outputs"):
        jgp.coregionalised([KERNEL, KERNEL], [one, [[1.0], [2.0], [3.0]]])


def test_one_kernel_says_what_the_coregionalization_kernel_says():
    kernel = kernels.SquaredExponential(0.8)
    process = jgp.coregionalised(kernel, [[1.0], [-0.5]], [0.2, 0.3])
    B = process.coregionalizations[0]
    product = kernels.on(kernel, (0, 1)) * kernels.on(B, 2)
    x = np.concatenate([np.repeat(X[:3], 2, 0), np.tile([0, 1], 3)[:, None]], axis=1)
    K = process.joint_covariance(jnp.asarray(X[:3])).reshape(6, 6)
    np.testing.assert_allclose(K, gram(product, x), rtol=1e-13)


@pytest.mark.parametrize("missing", slow_unless([True], [False, True]))
@pytest.mark.parametrize(
    "name",
    slow_unless(
        ["given", "both"], ["given", "an output", "correlated", "both", "trend"]
    ),
)
def test_conditioning_again_is_conditioning_on_all_at_once(name, missing):
    if name == "trend":
        process = jgp.independent(KERNEL, num_latents=3, mean=means.polynomial(1))
        likelihood = likelihoods.Gaussian(0.2)
    else:
        process, likelihood, _ = CASES[name]
    y = Y if process.num_latents == 3 else Y[:, 0]
    kept = np.random.default_rng(1).uniform(size=y.shape) < 0.8
    mask = kept if missing else None
    whole = jgp.exact(jgp.Model(process, likelihood), X, y, mask=mask)
    first, fixed, there = likelihood, name == "given", None
    if fixed:
        first, there = likelihoods.FixedNoiseGaussian(FIXED[:7]), FIXED[7:]
    masks = (kept[:7], kept[7:]) if missing else (None, None)
    found = jgp.exact(jgp.Model(process, first), X[:7], y[:7], mask=masks[0])
    found = jgp.condition(found, X[7:], y[7:], mask=masks[1], noise_variance=there)
    assert found.x.shape == X.shape
    np.testing.assert_allclose(found.log_evidence, whole.log_evidence, rtol=1e-12)
    one, other = (a.posterior.joint(NEW) for a in (found, whole))
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-12)
    np.testing.assert_allclose(one.covariance, other.covariance, atol=1e-12)


def test_conditioning_what_cannot_be():
    found = jgp.exact(jgp.Model(PROCESS, likelihoods.Gaussian(0.2)), X, Y[:, 0])
    again = jgp.condition(found, X[:0], Y[:0, 0])
    np.testing.assert_allclose(again.log_evidence, found.log_evidence, rtol=1e-14)
    with pytest.raises(ValueError, match=r"y_new: got shape \(3,\) beside x_new"):
        jgp.condition(found, X[:2], Y[:3, 0])
    other = jgp.laplace(found.model, X, Y[:, 0])
    with pytest.raises(ValueError, match="approximation: got laplace, wanted one by"):
        jgp.condition(other, X[:2], Y[:2, 0])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ["given", "function", "correlated"])
def test_chains_agree_with_exact(name, key):
    process, likelihood, _ = CASES[name]
    y = Y if process.num_latents == 3 else Y[:, 0]
    model = jgp.Model(process, likelihood)
    found = jgp.sample_posterior(
        model, X, y, key=key, max_steps=4000, num_warmup=300, throw=False
    )
    got, wanted = (a.posterior.marginals(NEW) for a in (found, jgp.exact(model, X, y)))
    # Some hundreds of independent draws: five standard errors or more.
    spread = np.sqrt(np.max(wanted.variance))
    np.testing.assert_allclose(got.mean, wanted.mean, atol=0.2 * spread)
    np.testing.assert_allclose(got.variance, wanted.variance, atol=0.2 * spread**2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["coregionalised", "correlated", "both"])
def test_log_densities_of_new_outputs_are_those_of_all_together(name):
    process, likelihood, _ = CASES[name]
    found = jgp.exact(jgp.Model(process, likelihood), X, Y)
    x_new, y_new = X[:1] + 0.3, Y[1:2]
    grown = jgp.condition(found, x_new, y_new)
    wanted = float(grown.log_evidence - found.log_evidence)
    np.testing.assert_allclose(found.log_prob(x_new, y_new)[0], wanted, rtol=1e-9)


def test_noise_of_a_wrong_shape():
    two = jgp.independent(KERNEL, num_latents=2)
    three = likelihoods.FixedNoiseGaussian(np.ones((12, 3)))
    with pytest.raises(ValueError, match=r"noise_variance: got shape \(12, 3\) for 12"):
        jgp.exact(jgp.Model(two, three), X, Y[:, :2])
    vector = likelihoods.HeteroscedasticGaussian(lambda x: x - 3.0)
    model = jgp.Model(jgp.GaussianProcess(KERNEL), vector)
    with pytest.raises(ValueError, match="log_noise_variance: got a function with val"):
        jgp.exact(model, X, Y[:, 0])
    given = likelihoods.FixedNoiseGaussian(np.full((12, 2), 0.1))
    found = jgp.exact(jgp.Model(two, given), X, Y[:, :2])
    for noise in (0.2, [0.2], [[0.2, 0.2]]):
        grown = jgp.condition(found, X[:1] + 1, Y[:1, :2], noise_variance=noise)
        np.testing.assert_array_equal(grown.model.likelihood.noise_variance[-1], 0.2)


def test_new_inputs_beyond_the_dtype():
    model = jgp.Model(jgp.GaussianProcess(KERNEL), likelihoods.Gaussian(0.1))
    found = jgp.exact(model, X.astype(np.float32), Y[:, 0])
    with pytest.raises(ValueError, match="x_new: got values beyond the range of float"):
        found.predict(np.full((1, X.shape[1]), 1e300))


def test_masked_arrays_are_not_taken_for_plain_ones():
    y = np.ma.array(Y[:, 0], mask=np.arange(12) == 3)
    model = jgp.Model(jgp.GaussianProcess(KERNEL), likelihoods.Gaussian(0.1))
    for options in ({}, {"mask": np.arange(12) != 3}):
        with pytest.raises(ValueError, match="y: got a masked array, wanted a plain"):
            jgp.exact(model, X, y, **options)
