"""A fit of standardised data, in the units of the data."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

import jgp
from jgp import kernels, likelihoods, means, priors
from jgp._standardize import standardized

RNG = np.random.default_rng(2)
X = np.column_stack([RNG.uniform(1000, 1030, 15), RNG.uniform(-1e-3, 1e-3, 15)])
Z = (X - X.mean(0)) / X.std(0)
Y = 5e4 + 300 * np.sin(Z[:, 0]) + 80 * Z[:, 1] ** 2 + 10 * RNG.normal(size=15)
T = (Y - Y.mean()) / Y.std()
QUIET = {"progress": False, "throw": False, "init": "model"}


def regression(noise_variance, mean=None):
    kernel = 1.0 * kernels.Matern52([1.0, 1.5])
    process = jgp.GaussianProcess(kernel, mean)
    return jgp.Model(process, likelihoods.Gaussian(noise_variance))


@pytest.mark.parametrize("mean", [None, means.Linear([0.1, 0.2], 0.3)])
def test_is_the_fit_of_standardised_data(mean):
    noise = 0.05
    prior = priors.LogNormal(1.0, 0.5)

    def penalised(model):
        return jgp.with_prior(model, lambda m: m.process.kernel.kernel, prior)

    folded = penalised(regression(noise * Y.var(), mean))
    got = jgp.fit(folded, X, Y, standardize=True, **QUIET)
    wanted = jgp.fit(penalised(regression(noise, mean)), Z, T, **QUIET)
    # A change of units of y by s is a factor of s⁻ⁿ in its density.
    shift = len(Y) * np.log(Y.std())
    np.testing.assert_allclose(
        got.approximation.log_evidence + shift,
        wanted.approximation.log_evidence,
        atol=1e-6,
    )
    np.testing.assert_allclose(
        got.model.process.kernel.kernel.kernel.kernel.lengthscale,
        wanted.model.process.kernel.kernel.lengthscale,
        rtol=1e-3,
    )
    predicted, other = (
        got.approximation.predict(X[:4]),
        wanted.approximation.predict(Z[:4]),
    )
    np.testing.assert_allclose(
        predicted.mean, Y.mean() + Y.std() * np.asarray(other.mean), rtol=1e-6
    )
    np.testing.assert_allclose(predicted.variance, Y.var() * other.variance, rtol=1e-3)


def test_classes_have_their_inputs_standardised():
    labels = (Z[:, 0] > 0).astype(int)
    process = jgp.independent([kernels.SquaredExponential(1.0) for _ in range(2)])
    model = jgp.Model(process, likelihoods.Softmax(2))
    model = jgp.freeze(model, lambda m: m.process.kernels[1])
    options = {**QUIET, "max_steps": 2, "infer": jgp.laplace}
    got = jgp.fit(model, X, labels, standardize=True, **options)
    wanted = jgp.fit(model, Z, labels, **options)
    np.testing.assert_allclose(
        got.approximation.log_evidence, wanted.approximation.log_evidence, rtol=1e-8
    )
    assert float(got.model.process.kernels[1].kernel.kernel.lengthscale) == 1.0
    assert float(got.model.process.kernels[0].variance) == 1.0


def test_what_cannot_be_standardised():
    kernel = kernels.WithDerivatives(kernels.SquaredExponential(1.0))
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(0.1))
    points = jnp.asarray([[0.0, 0.0], [1.0, 1.0]])
    with pytest.raises(ValueError, match="standardize: got a kernel of derivatives"):
        jgp.fit(model, points, [0.0, 1.0], standardize=True, **QUIET)


def test_missing_targets_count_for_nothing():
    mask = np.arange(15) % 3 > 0
    infer = functools.partial(jgp.exact, mask=mask)
    model = regression(0.05 * Y.var())
    found = jgp.fit(model, X, Y, infer=infer, standardize=True, max_steps=1, **QUIET)
    mean = found.model.process.mean_function
    np.testing.assert_allclose(mean.offset, Y[mask].mean(), rtol=1e-12)
    np.testing.assert_allclose(mean.scale, Y[mask].std(), rtol=1e-9)


def test_starts_from_the_data_are_those_of_standardised_data():
    # At the model's own start all is noise.
    options = {"progress": False, "throw": False}
    found = jgp.fit(regression(1e3 * Y.var()), X, Y, standardize=True, **options)
    alone = jgp.fit(regression(1e3), Z, T, **options)
    start, other = np.exp(found.restarts[0].start), np.exp(alone.restarts[0].start)
    other[-1] *= Y.var()
    np.testing.assert_allclose(start, other, rtol=1e-6)
    assert found.restarts[0].value > -len(Y) * np.log(Y.std()) - 25


@pytest.mark.float32
def test_a_column_without_variation_is_only_centred():
    dtype = jnp.result_type(float)
    x = np.column_stack([Z[:, 0], np.full(15, 1000.1)]).astype(dtype)
    y = np.full(15, 7.7, dtype)
    model = standardized(regression(0.1), jnp.asarray(x), jnp.asarray(y))
    to_standard = model.process.kernel.kernel.map
    assert to_standard.scale[1] == 1
    assert model.process.mean_function.scale == 1


def test_twice_and_outputs_of_other_units_are_refused():
    model = regression(0.05 * Y.var())
    found = jgp.fit(model, X, Y, standardize=True, max_steps=1, **QUIET)
    with pytest.raises(ValueError, match="standardised already"):
        jgp.fit(found.model, X, Y, standardize=True, **QUIET)
    process = jgp.independent(kernels.Matern52(1.0), num_latents=2)
    model = jgp.Model(process, likelihoods.Gaussian(0.1))
    with pytest.raises(ValueError, match="outputs have units of their own"):
        jgp.fit(model, X, np.column_stack([Y, T]), standardize=True, **QUIET)


def test_bounds_and_ties_are_of_standard_units():
    pair = 1.0 * kernels.Matern52(0.3) + 0.5 * kernels.Matern32(2.0)
    model = jgp.Model(jgp.GaussianProcess(pair), likelihoods.Gaussian(0.05 * Y.var()))
    model = jgp.tie(model, lambda m: [k.kernel for k in m.process.kernel.kernels])
    model = jgp.bound(model, lambda m: m.process.kernel.kernels[0].kernel, 0.1, 0.4)
    fitted = jgp.fit(model, X, Y, standardize=True, **QUIET)
    terms = fitted.model.process.kernel.kernel.kernel.kernels
    first, second = (float(k.kernel.lengthscale) for k in terms)
    # The data want one of about 1: it stops at its bound, and the other with it.
    assert first == second
    assert 0.39 < first <= 0.4
    assert any("lengthscale" in told for told in fitted.at_bound)
