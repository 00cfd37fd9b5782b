"""Chains over hyperparameters and latents: quadrature, and draws of the joint itself.

The second is Geweke's (2004) test, with independent starts: where (θ, f, y) is a draw
of the joint distribution and a step moves (θ, f) given y, what comes out is one too.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jgp
from jgp import kernels, likelihoods, priors
from jgp._joint_moves import State, joint_step
from jgp._objective import log_density

X = np.linspace(0, 1, 8)
Y = np.sin(6 * X) + 0.1 * np.cos(40 * X)


def regression():
    process = jgp.GaussianProcess(kernels.SquaredExponential(0.3))
    model = jgp.Model(process, likelihoods.Gaussian(0.1))
    return jgp.with_prior(model, lambda m: m, priors.LogNormal(0.3, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "moves", [pytest.param("surrogate", marks=pytest.mark.long), "whitened"]
)
def test_hyperparameters_are_those_of_the_exact_evidence(moves, key):
    drawn = jgp.sample_joint(
        regression(), X, Y, key=key, moves=moves, num_samples=3000, throw=False
    )
    density = drawn.density
    axes = jnp.linspace(-4, 1, 50), jnp.linspace(-9, 1, 50)
    grid = jnp.stack(jnp.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    weights = jax.nn.softmax(jax.lax.map(density, grid, batch_size=250))
    mean = weights @ grid
    deviation = jnp.sqrt(weights @ (grid - mean[None]) ** 2)
    assert np.min(drawn.ess) > 60
    # Errors of 1/√ess of a standard deviation: five of them.
    tolerance = 5 / np.sqrt(np.min(drawn.ess))
    error = np.mean(drawn.raw, axis=(0, 1)) - mean
    assert np.all(np.abs(np.asarray(error)) < tolerance * np.asarray(deviation))
    np.testing.assert_allclose(
        np.std(drawn.raw, axis=(0, 1)), deviation, rtol=tolerance
    )

    def predicted(raw):
        found = jgp.exact(density.model(raw), X, Y, throw=False)
        new = found.predict(np.array([0.3, 1.5]))
        return new.mean, new.variance

    means, variances = jax.lax.map(predicted, grid, batch_size=250)
    centre = weights @ means
    variance = weights @ (variances + (means - centre[None]) ** 2)
    mixture = drawn.predict(np.array([0.3, 1.5]), num=1000)
    # A draw of the latents adds their posterior's variance to what is averaged.
    errors = np.sqrt(variance) * tolerance
    assert np.all(np.abs(np.asarray(mixture.mean - centre)) < errors)
    np.testing.assert_allclose(mixture.variance, variance, rtol=2 * tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("moves", ["surrogate", "whitened"])
@pytest.mark.parametrize(
    "link", [pytest.param("probit", marks=pytest.mark.long), "poisson"]
)
def test_draws_of_the_joint_stay_draws_of_it(link, moves, key):
    x = np.array([[0.0], [0.4], [0.5], [1.3]])
    if link == "probit":
        likelihood, num_latents = likelihoods.MultinomialProbit(3), 3
        labels = np.array([0, 1, 2, 0])
    else:
        likelihood, num_latents = likelihoods.Poisson(), 1
        labels = np.array([0, 1, 2, 0])
    kernel = 1.5 * kernels.SquaredExponential(0.7)
    model = jgp.Model(jgp.independent([kernel] * num_latents), likelihood)
    model = jgp.with_prior(model, lambda m: m, priors.LogNormal(0.8, 0.5))
    density = log_density(model, x, labels)
    num_parameters = len(density.names)
    variances = None
    if moves == "surrogate":
        # Any will do, and those that differ from latent to latent are a harder test.
        variances = jnp.linspace(0.3, 2.0, 4 * num_latents).reshape(4, num_latents)
    directions = 0.5 * jnp.eye(num_parameters)

    def functions(raw, f, y):
        shown = jax.nn.one_hot(y, 3) if link == "probit" else y[:, None]
        parts = raw, raw**2, f.ravel(), (f**2).ravel(), (f * shown).ravel()
        return jnp.concatenate(parts)

    def latents(state):
        m = density.model(state.raw)
        root = jnp.linalg.cholesky(m.process.covariance(density.x))
        return jnp.einsum("cij,jc->ic", root, state.whitened)

    def one(key):
        theta_key, w_key, y_key, step_key = jax.random.split(key, 4)
        normal = jax.random.normal(theta_key, (num_parameters,))
        raw = np.log(0.8) + 0.5 * normal
        start = State(raw, jax.random.normal(w_key, (4, num_latents)))
        f = latents(start)
        if link == "probit":
            probs = likelihood.observe(f).probs
            y = jax.random.categorical(y_key, jnp.log(probs)).astype(jnp.int32)
        else:
            y = jax.random.poisson(y_key, jnp.exp(f[:, 0])).astype(density.y.dtype)
        shown = eqx.tree_at(lambda d: d.y, density, y)

        def step(state, key):
            state, _ = joint_step(state, shown, variances, directions, 2, key=key)
            return state, None

        end, _ = jax.lax.scan(step, start, jax.random.split(step_key, 3))
        # Of pairs: what is drawn before and after shares most of its noise.
        return functions(end.raw, latents(end), y) - functions(raw, f, y)

    keys = jax.random.split(key, 3000)
    differences = np.asarray(jax.jit(jax.vmap(one))(keys))
    assert np.all(np.std(differences, axis=0) > 0)
    p = stats.ttest_1samp(differences, 0.0).pvalue
    assert np.min(p) > 1e-3 / p.size


def test_wrong_options_are_named(key):
    with pytest.raises(ValueError, match="moves: got 'other'"):
        jgp.sample_joint(regression(), X, Y, key=key, moves="other")
    with pytest.raises(ValueError, match="slices: got 0"):
        jgp.sample_joint(regression(), X, Y, key=key, slices=0)
    with pytest.raises(ValueError, match="key: got None"):
        jgp.sample_joint(regression(), X, Y, key=None)


@pytest.mark.slow
def test_any_likelihood_predicts_a_mixture(key):
    process = jgp.GaussianProcess(kernels.SquaredExponential(0.3))
    model = jgp.Model(process, likelihoods.StudentT(4.0, 0.2))
    model = jgp.with_prior(model, lambda m: m.process, priors.LogNormal(0.3, 0.5))
    model = jgp.with_prior(model, lambda m: m.likelihood.scale, priors.HalfNormal(0.3))
    model = jgp.freeze(model, lambda m: m.likelihood.degrees_of_freedom)
    drawn = jgp.sample_joint(
        model,
        X,
        Y,
        key=key,
        infer=jgp.expectation_propagation,
        num_samples=50,
        num_warmup=50,
        throw=False,
    )
    mixture = drawn.predict(X, num=40)
    assert isinstance(mixture, likelihoods.Averaged)
    # Nearer to the data than they are to their mean, within the noise.
    error = np.abs(np.asarray(mixture.mean) - Y)
    assert np.mean(error**2) < 0.5 * np.var(Y)
    assert np.all(error < 4 * np.asarray(mixture.stddev))
    assert np.all(np.asarray(mixture.log_prob(Y)) > -6)
