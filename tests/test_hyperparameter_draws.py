"""Chains over hyperparameters against quadrature over the same density."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jgp
from jgp import kernels, likelihoods, priors

X = np.linspace(0, 1, 10)
Y = np.sin(6 * X) + 0.1 * np.cos(40 * X)
NEW = np.array([0.3, 1.5])


def regression():
    """A regression with two free parameters and priors on them."""
    process = jgp.GaussianProcess(kernels.SquaredExponential(0.3))
    model = jgp.Model(process, likelihoods.Gaussian(0.1))
    return jgp.with_prior(model, lambda m: m, priors.LogNormal(0.3, 1.0))


@pytest.mark.slow
def test_moments_and_predictions_are_those_of_quadrature(key):
    model = regression()
    drawn = jgp.sample_hyperparameters(model, X, Y, key=key, num_samples=1000)
    density = drawn.density
    axes = jnp.linspace(-4, 1, 60), jnp.linspace(-9, 1, 60)
    grid = jnp.stack(jnp.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    weights = jax.nn.softmax(jax.lax.map(density, grid, batch_size=400))
    mean = weights @ grid
    deviation = jnp.sqrt(weights @ (grid - mean[None]) ** 2)
    # Errors of 1/√ess of a standard deviation: five of them.
    tolerance = 5 / np.sqrt(np.min(drawn.ess))
    error = np.mean(drawn.raw, axis=(0, 1)) - mean
    assert np.all(np.abs(np.asarray(error)) < tolerance * np.asarray(deviation))
    np.testing.assert_allclose(
        np.std(drawn.raw, axis=(0, 1)), deviation, rtol=tolerance
    )
    np.testing.assert_allclose(drawn.natural, jnp.exp(drawn.raw), rtol=1e-12)
    assert np.all(drawn.num_divergences < 10)

    def predicted(raw):
        found = jgp.exact(density.model(raw), X, Y, throw=False).predict(NEW)
        return found.mean, found.variance

    means, variances = jax.lax.map(predicted, grid, batch_size=400)
    centre = weights @ means
    variance = weights @ (variances + (means - centre[None]) ** 2)
    mixture = drawn.predict(NEW, num=400)
    assert np.all(np.abs(mixture.mean - centre) < 0.2 * np.sqrt(variance))
    np.testing.assert_allclose(mixture.variance, variance, rtol=0.2)
    # Wider than at the best parameters alone, far from the data.
    alone = jgp.fit(model, X, Y, progress=False).approximation.predict(NEW)
    assert float(mixture.variance[0]) > float(alone.variance[0])


def test_given_noise_is_added_at_new_inputs(key):
    process = jgp.GaussianProcess(kernels.SquaredExponential(0.3))
    noise = likelihoods.FixedNoiseGaussian(np.full(10, 0.1))
    model = jgp.with_prior(
        jgp.Model(process, noise), lambda m: m, priors.LogNormal(0.3, 0.5)
    )
    drawn = jgp.sample_hyperparameters(
        model, X, Y, key=key, num_samples=8, num_warmup=40, throw=False
    )
    quiet, loud = (
        drawn.predict(NEW, num=4, noise_variance=np.array(v))
        for v in ([0.0, 0.0], [0.5, 2.0])
    )
    np.testing.assert_allclose(loud.variance - quiet.variance, [0.5, 2.0], rtol=1e-10)
    with pytest.raises(ValueError, match="noise_variance: got"):
        drawn.predict(NEW)


def test_chains_that_disagree_are_told(key):
    with pytest.raises(jgp.InferenceError, match=r"chains disagree, R-hat .* at \."):
        jgp.sample_hyperparameters(
            regression(), X, Y, key=key, num_samples=4, num_warmup=1
        )


def test_what_cannot_be_is_told(key, monkeypatch):
    model = regression()
    with pytest.raises(ValueError, match="num_chains: got 0"):
        jgp.sample_hyperparameters(model, X, Y, key=key, num_chains=0)
    monkeypatch.setitem(__import__("sys").modules, "blackjax", None)
    with pytest.raises(ImportError, match=r"jgp\[mcmc\]"):
        jgp.sample_hyperparameters(model, X, Y, key=key)
