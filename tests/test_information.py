import functools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import jgp
from jgp import kernels, likelihoods, means

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 6, size=40)
Y = np.sin(2 * X) + 0.2 * RNG.normal(size=40)


def test_a_known_variance_has_its_textbook_information():
    """White noise of variance v: n/2 in log v, so that v has the variance 2v²/n."""
    process = jgp.GaussianProcess(kernels.Constant(0.0))
    model = jgp.Model(process, likelihoods.Gaussian(np.mean(Y**2)))
    model = jgp.freeze(model, lambda m: m.process)
    got = jgp.fisher_information(model, X, Y)
    assert got.result == jgp.RESULTS.successful
    variance = np.mean(Y**2)
    np.testing.assert_allclose(got.information, [[40 / 2]], rtol=1e-12)
    np.testing.assert_allclose(got.gradient, [0], atol=1e-12)
    np.testing.assert_allclose(got.covariance, [[2 * variance**2 / 40]], rtol=1e-12)
    z = norm.ppf(0.95)
    low, high = got.interval(0.9)
    sd = np.sqrt(2 / 40)
    np.testing.assert_allclose(low, [variance * np.exp(-z * sd)], rtol=1e-12)
    np.testing.assert_allclose(high, [variance * np.exp(z * sd)], rtol=1e-12)
    low, high = got.interval(0.9, scale="natural")
    np.testing.assert_allclose(high - low, [2 * z * variance * sd], rtol=1e-12)


@pytest.mark.slow
def test_is_the_curvature_at_a_fitted_model():
    kernel = 1.0 * kernels.SquaredExponential(1.0)
    model = jgp.Model(
        jgp.GaussianProcess(kernel, means.Constant(0.1)), likelihoods.Gaussian(0.1)
    )
    fitted = jgp.fit(model, X, Y, progress=False, throw=False).model
    infer = functools.partial(jgp.exact, rtol=1e-6)
    got = jgp.fisher_information(fitted, X, Y, infer=infer)
    assert len(got.names) == 4
    assert "lengthscale" in " ".join(got.names)
    np.testing.assert_allclose(got.gradient, np.zeros(4), atol=1e-4)
    raw = np.asarray(got.raw)

    def value(raw):
        # In the order of names: the parameters of the kernel, the mean and the noise.
        parts = dict(zip(got.names, raw, strict=True))
        (ell,) = (v for k, v in parts.items() if k.endswith("lengthscale"))
        (scale,) = (v for k, v in parts.items() if k.endswith("kernel.variance"))
        (noise,) = (v for k, v in parts.items() if k.endswith("noise_variance"))
        (constant,) = (v for k, v in parts.items() if k.endswith("value"))
        K = np.exp(-0.5 * np.subtract.outer(X, X) ** 2 / np.exp(2 * ell))
        S = np.exp(scale) * K + np.exp(noise) * np.eye(40)
        r = Y - constant
        return -(r @ np.linalg.solve(S, r) + np.linalg.slogdet(S)[1]) / 2

    h = 1e-3
    steps = h * np.eye(4)
    information = [
        [
            -(value(raw + a + b) - value(raw + a - b) - value(raw - a + b)) / (4 * h**2)
            - value(raw - a - b) / (4 * h**2)
            for b in steps
        ]
        for a in steps
    ]
    scale = np.max(np.abs(information))
    # Differences of fourth order: h², and the rounding of the evidence over h².
    np.testing.assert_allclose(got.information, information, atol=1e-5 * scale)
    np.testing.assert_allclose(
        got.raw_covariance @ got.information, np.eye(4), atol=1e-9
    )
    natural = np.asarray(got.estimate)
    slope = np.where(["value" in name for name in got.names], 1.0, natural)
    np.testing.assert_allclose(
        got.covariance, got.raw_covariance * np.outer(slope, slope), rtol=1e-10
    )


def test_no_maximum_is_told():
    # Independent values: the lengthscale has no say.
    process = jgp.GaussianProcess(kernels.SquaredExponential(1e-4))
    model = jgp.Model(process, likelihoods.Gaussian(3.0))
    got = jgp.fisher_information(model, X, Y)
    assert got.result == jgp.RESULTS.not_positive_definite
    assert jnp.all(jnp.isnan(got.covariance))
    frozen = jgp.freeze(model, lambda m: m)
    with pytest.raises(ValueError, match="every parameter frozen"):
        jgp.fisher_information(frozen, X, Y)
    with pytest.raises(ValueError, match="level: got 95, wanted a probability"):
        got.interval(95)
    with pytest.raises(ValueError, match="scale: got 'raw', wanted"):
        got.interval(scale="raw")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("matrix", ["noise", "lengthscale"])
def test_matrices_are_their_lower_triangles(matrix):
    """The curvature in the entries of L with LLᵀ = Σ, of a logarithmic diagonal."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 2)), rng.normal(size=(30, 2))
    if matrix == "noise":
        process = jgp.independent(kernels.SquaredExponential(1.0), num_latents=2)
        model = jgp.Model(
            process, likelihoods.CorrelatedGaussian([[0.8, 0.2], [0.2, 0.9]])
        )
        model = jgp.freeze(model, lambda m: m.process)
        path = ".likelihood.noise_covariance"
    else:
        kernel = kernels.SquaredExponential(np.array([[1.0, 0.0], [0.3, 0.8]]))
        model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(0.5))
        model = jgp.freeze(model, lambda m: m.likelihood)
        y, path = y[:, 0] + 2 * np.sin(x[:, 0]) * x[:, 1], ".process.kernel.lengthscale"
    fitted = jgp.fit(model, x, y, progress=False).model
    got = jgp.fisher_information(fitted, x, y)
    assert got.names == tuple(f"{path}[{i}]" for i in (0, 2, 3))
    assert bool(got.result == jgp.RESULTS.successful)
    np.testing.assert_allclose(got.gradient, 0, atol=1e-4)
    low, high = got.interval()
    assert np.all(low < got.estimate)
    assert np.all(got.estimate < high)


@pytest.mark.slow
def test_the_mask_of_a_method_is_that_of_the_information():
    x, y = np.linspace(0, 3, 12), np.sin(np.linspace(0, 9, 12))
    mask = np.arange(12) != 4
    model = jgp.Model(
        jgp.GaussianProcess(kernels.SquaredExponential(0.5)), likelihoods.Gaussian(0.1)
    )
    infer = functools.partial(jgp.exact, mask=mask, throw=True)
    got = jgp.fisher_information(model, x, np.where(mask, y, np.nan), infer=infer)
    wanted = jgp.fisher_information(model, x[mask], y[mask])
    np.testing.assert_allclose(got.information, wanted.information, rtol=1e-9)
    for wrong in ("exact", functools.partial(jgp.exact, model)):
        with pytest.raises(
            ValueError, match=r"infer: got (exact|func).*wanted a method"
        ):
            jgp.fisher_information(model, x, y, infer=wrong)


def test_a_method_that_failed_is_told():
    y = (Y > 0).astype(int)
    model = jgp.Model(
        jgp.GaussianProcess(4.0 * kernels.SquaredExponential(0.5)),
        likelihoods.BernoulliLogit(),
    )
    infer = functools.partial(jgp.laplace, max_steps=1)
    got = jgp.fisher_information(model, X, y, infer=infer)
    assert got.result == jgp.RESULTS.max_steps_reached


def test_priors_are_information_too():
    """White noise of variance v: n/2 and the prior's 1/s² in log v, at its mode."""
    process = jgp.GaussianProcess(kernels.Constant(0.0))
    model = jgp.Model(process, likelihoods.Gaussian(np.mean(Y**2)))
    model = jgp.freeze(model, lambda m: m.process)
    spread = 0.3
    # The density of v itself: −log v more than of log v, which has no curvature there.
    prior = jgp.priors.LogNormal(float(np.mean(Y**2)), spread)
    got = jgp.fisher_information(
        jgp.with_prior(model, lambda m: m.likelihood, prior), X, Y
    )
    np.testing.assert_allclose(got.information, [[20 + 1 / spread**2]], rtol=1e-12)
