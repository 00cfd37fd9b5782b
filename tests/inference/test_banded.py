import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jgp
from jgp import kernels, likelihoods, means
from jgp._block_tridiagonal import factorise, log_density
from jgp._results import RESULTS
from jgp.inference import _banded
from jgp.inference._banded import exact_banded
from tests.cases import slow_unless

GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(0, 20, 400)
Y = np.sin(X) + 0.1 * GENERATOR.normal(size=400)
# Between, at and beyond the data, within the support and far from it.
X_NEW = np.concatenate([np.linspace(-1, 21, 45), X[:5], [X.max(), X.min(), -9, 99]])


def model(lengthscale=0.9, kernel=kernels.TrigonometricCompact, noise=None):
    process = jgp.GaussianProcess(
        1.3 * kernel(lengthscale=lengthscale), means.Linear(np.array([0.1]), 0.2)
    )
    return jgp.Model(process, likelihoods.Gaussian(0.01) if noise is None else noise)


def assert_same(got, wanted, x_new=X_NEW, atol=1e-10):
    assert bool(got.result == RESULTS.successful)
    np.testing.assert_allclose(got.log_evidence, wanted.log_evidence, rtol=1e-11)
    a, b = got.posterior, wanted.posterior
    np.testing.assert_allclose(a.weights, b.weights, rtol=1e-8, atol=1e-8)
    for pair in zip(a.marginals(x_new), b.marginals(x_new), strict=True):
        np.testing.assert_allclose(*pair, atol=atol)
    for pair in zip(a.joint(x_new), b.joint(x_new), strict=True):
        np.testing.assert_allclose(*pair, atol=atol)
    for name in ("precision", "linear"):
        pair = (getattr(approximation.sites, name) for approximation in (got, wanted))
        np.testing.assert_allclose(*pair)


KERNELS = {
    "trigonometric": model(),
    "Wendland": model(kernel=functools.partial(kernels.Wendland, 2)),
    "matrix": model(np.array([[0.9]]), kernels.Wendland),
    "product": jgp.Model(
        jgp.GaussianProcess(kernels.Wendland(1, 0.5) * kernels.Matern32(2.0)),
        likelihoods.Gaussian(0.01),
    ),
    "sum": jgp.Model(
        jgp.GaussianProcess(kernels.Wendland(0, 0.5) + kernels.Wendland(1, 1.5)),
        likelihoods.Gaussian(0.01),
    ),
    "fixed noise": model(
        noise=likelihoods.FixedNoiseGaussian(GENERATOR.uniform(0.01, 0.1, 400))
    ),
    "function": model(
        noise=likelihoods.HeteroscedasticGaussian(means.Linear(np.array([0.1]), -4.0))
    ),
}


@pytest.mark.parametrize("name", slow_unless(["sum", "fixed noise"], KERNELS))
def test_equal_to_exact(name):
    got, wanted = exact_banded(KERNELS[name], X, Y), jgp.exact(KERNELS[name], X, Y)
    assert got.posterior.factor.lower.shape[0] > 3
    assert got.method == "exact_banded"
    assert_same(got, wanted)
    np.testing.assert_array_equal(got.x[:, 0], X)
    np.testing.assert_array_equal(got.y, Y)


@pytest.mark.slow
def test_missing_targets_are_left_out():
    y, mask = np.where(np.arange(400) % 3 == 0, np.nan, Y), np.arange(400) % 3 != 0
    # A gap wider than the support, with whole blocks of missing targets.
    mask &= (X < 5) | (X > 12)
    got = exact_banded(model(), X, y, mask=mask)
    assert_same(got, jgp.exact(model(), X, y, mask=mask))
    kept = jgp.exact(model(), X[mask], Y[mask])
    np.testing.assert_allclose(got.log_evidence, kept.log_evidence, rtol=1e-11)
    none = exact_banded(model(), X, y, mask=np.zeros(400, bool))
    assert float(none.log_evidence) == 0
    with pytest.raises(ValueError, match="mask: got shape"):
        exact_banded(model(), X, y, mask=mask[:3])

    def evidence(lengthscale, verb):
        return verb(model(lengthscale), X, y, mask=mask).log_evidence

    banded = functools.partial(exact_banded, bandwidth=64)
    slopes = [jax.grad(evidence)(0.9, verb) for verb in (banded, jgp.exact)]
    np.testing.assert_allclose(*slopes, rtol=1e-9)


def test_parts_of_a_sum():
    got, wanted = exact_banded(KERNELS["sum"], X, Y), jgp.exact(KERNELS["sum"], X, Y)
    for part in (0, 1):
        pair = (
            found.posterior.component(part).marginals(X_NEW) for found in (got, wanted)
        )
        np.testing.assert_allclose(*(moments.mean for moments in pair), atol=1e-10)


@pytest.mark.parametrize("name", slow_unless(["sum"], KERNELS))
def test_gradients_equal_those_of_exact(name):
    def gradient(verb):
        def value(free, fixed):
            chosen, x, y = eqx.combine(free, fixed)
            return verb(chosen, x, y).log_evidence

        free, fixed = eqx.partition((KERNELS[name], X, Y), eqx.is_array_like)
        free = jax.tree.map(jnp.asarray, free)
        return eqx.filter_jit(eqx.filter_grad(value))(free, fixed)

    got = gradient(functools.partial(exact_banded, bandwidth=64))
    wanted = gradient(jgp.exact)
    for pair in zip(*map(jax.tree.leaves, (got, wanted)), strict=True):
        scale = float(np.max(np.abs(pair[1])))
        np.testing.assert_allclose(*pair, rtol=1e-9, atol=1e-9 * scale)


@pytest.mark.long
@pytest.mark.slow
def test_equal_to_exact_with_more_points():
    x = GENERATOR.uniform(0, 100, 2000)
    y = np.sin(x) + 0.1 * GENERATOR.normal(size=2000)
    x_new = np.linspace(-1, 101, 301)
    got, wanted = exact_banded(model(), x, y), jgp.exact(model(), x, y)
    assert_same(got, wanted, x_new, 1e-9)
    gradients = [
        jax.tree.leaves(
            eqx.filter_grad(lambda m, verb=verb: verb(m, x, y).log_evidence)(model())
        )
        for verb in (functools.partial(exact_banded, bandwidth=64), jgp.exact)
    ]
    for pair in zip(*gradients, strict=True):
        np.testing.assert_allclose(*pair, rtol=1e-9)


@pytest.mark.long
@pytest.mark.slow
def test_second_derivatives_equal_those_of_exact():
    x, y, x_new = X[:60], Y[:60], np.linspace(0, 20, 7)

    def of(verb, raw):
        kernel = jnp.exp(raw[1]) * kernels.Wendland(2, jnp.exp(raw[0]))
        process = jgp.GaussianProcess(kernel, means.Constant(raw[3]))
        chosen = jgp.Model(process, likelihoods.Gaussian(jnp.exp(raw[2])))
        approximation = verb(chosen, x, y)
        return approximation.log_evidence, jnp.sum(approximation.log_prob(x_new, y[:7]))

    raw = jnp.asarray([0.3, 0.5, -2.0, 0.3])
    banded = functools.partial(exact_banded, bandwidth=12)
    got, wanted = (
        jax.jit(jax.hessian(functools.partial(of, verb)))(raw)
        for verb in (banded, jgp.exact)
    )
    for pair in zip(got, wanted, strict=True):
        scale = float(np.max(np.abs(pair[1])))
        np.testing.assert_allclose(*pair, atol=1e-9 * scale)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 31, 33, 97])
def test_any_number_of_points(size):
    x, y = X[:size], Y[:size]
    for lengthscale in (0.3, 50.0):
        got = exact_banded(model(lengthscale), x, y)
        assert_same(got, jgp.exact(model(lengthscale), x, y))
    # The smallest blocks that hold the points.
    points = np.sort(x)
    counts = np.searchsorted(points, points + 0.9) - np.arange(size)
    got = exact_banded(model(), x, y, bandwidth=int(counts.max()))
    assert_same(got, jgp.exact(model(), x, y))


def test_no_data_leave_the_prior():
    got = exact_banded(model(), np.zeros(0), np.zeros(0))
    assert_same(got, jgp.exact(model(), np.zeros((0, 1)), np.zeros(0)))
    assert float(got.log_evidence) == 0


def test_no_new_points():
    posterior = exact_banded(model(), X, Y).posterior
    assert posterior.marginals([]).mean.shape == (0,)
    assert posterior.joint([]).covariance.shape == (0, 0)
    assert posterior.sample([], key=jax.random.key(0), num=2).shape == (2, 0)


@pytest.mark.slow
def test_repeated_inputs_on_a_grid():
    # Distances of exactly the support, and more repeats than a least block holds.
    x = np.concatenate([np.repeat(np.arange(12.0), 9), np.full(40, 5.0)])
    y = np.sin(x) + 0.1 * GENERATOR.normal(size=x.size)
    x_new = np.arange(-2, 14, 0.5)
    for lengthscale in (1.0, 2.0):
        got = exact_banded(model(lengthscale), x, y)
        assert_same(got, jgp.exact(model(lengthscale), x, y), x_new)


@pytest.mark.slow
def test_without_noise_the_jitter_is_that_of_exact():
    silent = model(2.0, functools.partial(kernels.Wendland, 2), likelihoods.Gaussian(0))
    x = np.linspace(0, 20, 200)
    got, wanted = exact_banded(silent, x, np.sin(x)), jgp.exact(silent, x, np.sin(x))
    assert float(got.jitter) == float(wanted.jitter) == 0
    np.testing.assert_allclose(got.log_evidence, wanted.log_evidence, rtol=1e-9)
    variance = got.posterior.marginals(x).variance
    assert np.all(np.asarray(variance) >= 0)
    assert np.all(np.asarray(variance) <= 1e-12)
    # Among points so close that the rest of a block has hardly a variance of its own.
    x = np.repeat(np.linspace(0, 20, 200), 2)
    got, wanted = (
        verb(silent, x, np.sin(x), throw=False) for verb in (exact_banded, jgp.exact)
    )
    assert 0 < float(got.jitter) <= float(wanted.jitter) * 2**4
    assert bool(got.result == RESULTS.ill_conditioned)
    assert bool(wanted.result == RESULTS.ill_conditioned)
    np.testing.assert_allclose(got.predict(x).mean, np.sin(x), atol=1e-4)


def test_a_matrix_beyond_all_jitter_is_named():
    run = jax.jit(
        lambda noise: (
            exact_banded(
                model(noise=likelihoods.Gaussian(noise)), X, Y, bandwidth=32
            ).result
        )
    )
    # Only a traced variance can be negative.
    assert bool(run(-2.0) == RESULTS.not_positive_definite)


@pytest.mark.slow
def test_bandwidth():
    counted = exact_banded(model(), X, Y)
    given = exact_banded(model(), X, Y, bandwidth=50)
    assert given.posterior.factor.lower.shape == (8, 50, 50)
    np.testing.assert_allclose(given.log_evidence, counted.log_evidence, rtol=1e-12)
    # More than there are points is one block.
    whole = exact_banded(model(), X, Y, bandwidth=1000)
    assert whole.posterior.factor.lower.shape == (1, 400, 400)
    assert_same(whole, counted)
    with pytest.raises(ValueError, match="bandwidth: got 0, wanted an integer >= 1"):
        exact_banded(model(), X, Y, bandwidth=0)
    with pytest.raises(jgp.InferenceError, match="Raise it"):
        exact_banded(model(), X, Y, bandwidth=10)


def test_too_small_a_bandwidth_is_told_and_nothing_is_wrong_in_silence():
    @jax.jit
    def run(lengthscale):
        approximation = exact_banded(model(lengthscale), X, Y, bandwidth=32)
        moments = approximation.posterior.marginals(X_NEW[:3])
        return approximation.result, approximation.log_evidence, moments

    result, log_evidence, moments = run(jnp.asarray(5.0))
    assert bool(result == RESULTS.bandwidth_too_small)
    assert np.isnan(log_evidence)
    assert np.isnan(moments.mean).all()
    assert np.isnan(moments.variance).all()
    result, log_evidence, _ = run(jnp.asarray(0.9))
    assert bool(result == RESULTS.successful)
    wanted = jgp.exact(model(), X, Y).log_evidence
    np.testing.assert_allclose(log_evidence, wanted, rtol=1e-11)


@pytest.mark.long
@pytest.mark.slow
def test_fit():
    x, start = X[:150], model(0.5)
    covariance = kernels.gram(model(1.5).process.kernel, x) + 0.01 * np.eye(150)
    y = np.linalg.cholesky(covariance) @ np.random.default_rng(1).normal(size=150)
    fit = functools.partial(jgp.fit, start, x, y, progress=False)
    banded = fit(infer=functools.partial(exact_banded, bandwidth=40))
    pair = (a.approximation.log_evidence for a in (banded, fit()))
    np.testing.assert_allclose(*pair, atol=1e-5)
    # A support that the band does not hold is never stepped to.
    held = fit(infer=functools.partial(exact_banded, bandwidth=12), throw=False)
    assert bool(held.result != RESULTS.successful)
    assert bool(held.approximation.result == RESULTS.successful)
    np.testing.assert_array_less(np.diff(held.history.objective) * -1, 1e-9)


@pytest.mark.slow
def test_vmap_is_the_loop():
    def means_of(lengthscale):
        approximation = exact_banded(model(lengthscale), X, Y, bandwidth=64)
        return approximation.posterior.marginals(X_NEW).mean

    lengthscales = jnp.asarray([0.7, 1.0])
    batched = jax.jit(jax.vmap(means_of))(lengthscales)
    looped = [means_of(lengthscale) for lengthscale in lengthscales]
    np.testing.assert_allclose(batched, looped, atol=1e-12)


def test_what_the_path_is_not_for():
    noise = likelihoods.Gaussian(0.01)
    smooth = jgp.GaussianProcess(kernels.Matern32())
    mixed = jgp.GaussianProcess(kernels.Wendland() + kernels.Matern32())
    several = jgp.independent(kernels.Wendland(), num_latents=1)
    trend = jgp.GaussianProcess(kernels.Wendland(), means.polynomial(1))
    cases = [
        (smooth, "kernel: got Matern32 without compact support"),
        (mixed, "kernel: got Sum without compact support"),
        (several, "process: got IndependentProcess, wanted a GaussianProcess"),
        (trend, "mean: got a Basis"),
    ]
    for process, message in cases:
        with pytest.raises(ValueError, match=message):
            exact_banded(jgp.Model(process, noise), X, Y)
    plane = jgp.Model(jgp.GaussianProcess(kernels.Wendland()), noise)
    with pytest.raises(ValueError, match=r"x: got shape \(200, 2\)"):
        exact_banded(plane, X.reshape(200, 2), Y[:200])
    with pytest.raises(ValueError, match="bandwidth: got None with traced inputs"):
        jax.jit(lambda x: exact_banded(model(), x, Y).log_evidence)(X)
    with pytest.raises(ValueError, match="bandwidth: got None with traced inputs"):
        jax.jit(lambda v: exact_banded(model(v), X, Y).log_evidence)(0.9)
    with pytest.raises(ValueError, match="init: got exact, wanted an Approximation by"):
        exact_banded(model(), X, Y, init=jgp.exact(model(), X, Y))


@pytest.mark.slow
def test_samples_and_predictions():
    approximation = exact_banded(model(), X, Y)
    wanted = jgp.exact(model(), X, Y)
    log_prob = [a.log_prob(X[:20], Y[:20]) for a in (approximation, wanted)]
    np.testing.assert_allclose(*log_prob, rtol=1e-9)
    key = jax.random.key(0)
    draws = [
        a.posterior.sample(X_NEW[:9], key=key, num=3) for a in (approximation, wanted)
    ]
    np.testing.assert_allclose(*draws, atol=1e-6)


@pytest.mark.slow
@pytest.mark.float32
def test_single_precision_is_kept():
    x, y = X.astype(np.float32), Y.astype(np.float32)
    approximation = exact_banded(model(), x, y)
    floats = [a for a in jax.tree.leaves(approximation) if a.dtype.kind == "f"]
    assert {a.dtype for a in floats} == {jnp.dtype(jnp.float32)}
    predicted = approximation.predict(X_NEW)
    assert predicted.mean.dtype == predicted.variance.dtype == jnp.float32
    assert np.all(np.asarray(approximation.posterior.marginals(x).variance) >= 0)
    assert approximation.posterior.joint(X_NEW).covariance.dtype == jnp.float32
    gradient = jax.grad(
        lambda y: exact_banded(model(), x, y, bandwidth=32).log_evidence
    )
    slope = gradient(jnp.asarray(y))
    assert slope.dtype == jnp.float32
    np.testing.assert_array_equal(slope, -approximation.posterior.weights[:, 0])
    dense = jgp.exact(model(), x, y)
    np.testing.assert_allclose(
        approximation.log_evidence, dense.log_evidence, rtol=1e-4
    )
    np.testing.assert_allclose(predicted.mean, dense.predict(X_NEW).mean, atol=1e-4)


def test_second_call_compiles_nothing(compilations):
    exact_banded(model(), X, Y).log_prob(X_NEW, np.zeros(len(X_NEW)))
    with compilations() as count:
        again = exact_banded(model(0.8), X + 1, Y + 1)
        again.log_prob(X_NEW - 1, np.ones(len(X_NEW)))
    assert count() == 0


def test_the_inverse_in_the_band():
    # Against the dense inverse, and its log density against that of the dense matrix.
    A = GENERATOR.normal(size=(12, 12)) * (
        np.abs(np.subtract.outer(np.arange(12) // 4, np.arange(12) // 4)) <= 1
    )
    S = A + A.T + 20 * np.eye(12)
    diagonal = jnp.stack([S[i : i + 4, i : i + 4] for i in (0, 4, 8)])
    left = jnp.stack([np.zeros((4, 4)), S[4:8, :4], S[8:, 4:8]])
    factor, jitter, ok = factorise(diagonal, left, 12)
    assert bool(ok)
    assert float(jitter) == 0
    Z, inverse = np.linalg.inv(S), factor.inverse()
    for i in range(3):
        here, before = slice(4 * i, 4 * i + 4), slice(4 * i - 4, 4 * i)
        np.testing.assert_allclose(inverse[0][i], Z[here, here], atol=1e-15)
        if i:
            np.testing.assert_allclose(inverse[1][i], Z[here, before], atol=1e-15)
    r = GENERATOR.normal(size=12)
    value = log_density(diagonal, left, jnp.asarray(r.reshape(3, 4)), factor)
    wanted = r @ Z @ r + np.linalg.slogdet(2 * np.pi * S)[1]
    np.testing.assert_allclose(value, -wanted / 2, rtol=1e-13)


@pytest.mark.slow
def test_many_points_take_memory_in_proportion():
    # No array of the compiled evidence has more than a few times n·b entries.
    n, size = 20_000, 32
    x = jax.ShapeDtypeStruct((n,), float)

    def gradient(x, y):
        def value(lengthscale):
            return exact_banded(model(lengthscale), x, y, bandwidth=size).log_evidence

        return jax.value_and_grad(value)(jnp.asarray(0.9))

    compiled = jax.jit(gradient).lower(x, x).compile()
    analysis = compiled.memory_analysis()
    assert analysis.temp_size_in_bytes < 40 * n * size * 8
    assert _banded.LEAST_BLOCK <= size
