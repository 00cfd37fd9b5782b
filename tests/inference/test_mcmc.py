import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jgp
from jgp import kernels, likelihoods
from jgp._linalg import cholesky
from jgp._results import RESULTS
from jgp.inference._moves import (
    Ellipse,
    ellipse_about,
    elliptical_slice_chain,
    metropolis_chain,
)
from jgp.inference._sites import DiagonalSites
from jgp.sampling import scan
from tests.cases import slow_unless
from tests.problems import squared_exponentials, toy


def regression():
    x = np.linspace(0, 1, 6)
    process = jgp.GaussianProcess(kernels.Matern32(0.5), jgp.means.Constant(1.0))
    return jgp.Model(process, likelihoods.Gaussian(0.5)), x, np.cos(4 * x)


@functools.cache
def chains(sampler: str):
    model, x, y = regression()
    options = {"proposal": jgp.exact(model, x, y)} if sampler == "metropolis" else {}
    return jgp.sample_posterior(
        model,
        x,
        y,
        key=jax.random.key(0),
        sampler=sampler,
        max_steps=4000,
        num_warmup=500,
        **options,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler",
    slow_unless(["elliptical_slice"], ["elliptical_slice", "metropolis", "nuts"]),
)
def test_gaussian_noise_gives_the_exact_posterior(sampler):
    model, x, y = regression()
    approximation = chains(sampler)
    exact = jgp.exact(model, x, y).posterior
    draws = np.asarray(approximation.posterior.draws)[..., 0]
    ess = np.asarray(approximation.diagnostics.ess)[:, 0]
    wanted, found = exact.joint(x), draws.reshape(-1, 6)
    deviation = np.sqrt(np.diag(wanted.covariance))
    error = np.abs(found.mean(axis=0) - np.asarray(wanted.mean))
    # Four standard errors at each of six points.
    assert np.all(error < 4 * deviation / np.sqrt(ess))
    spread = found.var(axis=0) / deviation**2
    assert np.all(np.abs(spread - 1) < 4 * np.sqrt(2 / ess))
    assert ess.min() > 400
    x_new = np.array([-0.5, 0.33, 2.0])
    new, mixture = exact.marginals(x_new), approximation.posterior.marginals(x_new)
    np.testing.assert_allclose(
        np.asarray(mixture.mean), np.asarray(new.mean), atol=4 / np.sqrt(ess.min())
    )
    np.testing.assert_allclose(
        np.asarray(mixture.variance), np.asarray(new.variance), rtol=0.1
    )
    predicted = approximation.predict(x_new)
    np.testing.assert_allclose(
        np.asarray(predicted.variance), np.asarray(mixture.variance) + 0.5, atol=1e-12
    )


@pytest.mark.slow
def test_metropolis_settles_near_its_best_acceptance():
    acceptance = np.asarray(chains("metropolis").diagnostics.acceptance)
    assert np.all((acceptance > 0.1) & (acceptance < 0.5))


@pytest.mark.slow
def test_nuts_tells_of_its_energies():
    diagnostics = chains("nuts").diagnostics
    acceptance = np.asarray(diagnostics.acceptance)
    # Adapted to 0.8; five whitened dimensions are easy.
    assert np.all((acceptance > 0.65) & (acceptance < 0.98))
    assert np.all(np.asarray(diagnostics.divergent) < 0.01)
    # Its draws are nearly independent.
    assert float(np.min(diagnostics.ess)) > 4 * 4000 / 4


@pytest.mark.slow
@pytest.mark.parametrize("move", ["prior", "approximation", "metropolis"])
def test_joint_distribution_is_left_alone(move):
    """Getting it right (Geweke 2004): (f, y) ~ p, then steps of f | y, is (f, y) ~ p.

    40 000 replicates of five steps; a move that leaves another density invariant moves
    the moments of f, or its correlation with y.
    """
    num, n = 40_000, 3
    x = jnp.asarray([[0.0], [0.4], [1.5]])
    kernel = 4.0 * kernels.SquaredExponential(1.0)
    K = kernels.gram(kernel, x)[None]
    root = cholesky(K).lower
    likelihood = likelihoods.BernoulliLogit()
    mean = jnp.full((n, 1), 0.5)
    run = functools.partial(scan, num_samples=1, num_warmup=0, thinning=5)
    none = Ellipse(None, None, None, jnp.zeros((n, 1)))

    def replicate(key):
        w_key, y_key, move_key = jax.random.split(key, 3)
        w = jax.random.normal(w_key, (n, 1))

        def latents(w):
            return mean + root[0] @ w

        y = likelihood.sample(latents(w)[:, 0], key=y_key)

        def log_likelihood(w):
            return jnp.sum(likelihood.log_probs(latents(w), y))

        if move == "metropolis":
            moved = metropolis_chain(log_likelihood, run, none, w, move_key)
        elif move == "prior":
            moved = elliptical_slice_chain(log_likelihood, run, none, w, move_key)
        else:
            linear = y[:, None].astype(w.dtype) - 0.5
            sites = DiagonalSites(jnp.full((n, 1), 0.3), linear)
            about = ellipse_about(K, root, mean, sites)

            def log_ratio(w):
                f = latents(w)
                log_sites = about.sites.linear * f - f * about.sites.times(f) / 2
                return log_likelihood(w) - jnp.sum(log_sites)

            moved = elliptical_slice_chain(log_ratio, run, about, w, move_key)
        return w[:, 0], moved.draws[0, :, 0], y.astype(w.dtype)

    keys = jax.random.split(jax.random.key(3), num)
    before, after, y = map(np.asarray, jax.jit(jax.vmap(replicate))(keys))
    assert np.mean(np.any(before != after, axis=1)) > 0.6
    statistics = [after, after**2 - 1, after[:, [0, 1, 2]] * after[:, [1, 2, 0]]]
    statistics += [(after - before) * y, (after**2 - before**2) * y]
    statistics = np.concatenate(statistics, axis=1)
    errors = np.std(statistics, axis=0) / np.sqrt(num)
    z = np.mean(statistics, axis=0) / errors
    # Fifteen statistics: the largest of so many is above 4 once in 1000 runs.
    assert np.max(np.abs(z)) < 4


def test_approximation_by_draws():
    approximation = chains("elliptical_slice")
    assert approximation.log_evidence is None
    assert approximation.sites is None
    assert bool(approximation.result == RESULTS.successful)
    assert approximation.posterior.draws.shape == (4, 4000, 6, 1)
    joint = approximation.posterior.joint([0.1, 0.9])
    marginals = approximation.posterior.marginals([0.1, 0.9])
    np.testing.assert_allclose(np.diag(joint.covariance), marginals.variance, atol=1e-9)
    draws = approximation.posterior.sample([0.1, 0.9], key=jax.random.key(2), num=4000)
    deviation = np.sqrt(np.asarray(marginals.variance))
    error = np.abs(np.asarray(draws).mean(axis=0) - np.asarray(marginals.mean))
    assert np.all(error < 4 * deviation / np.sqrt(4000))


@functools.cache
def classified():
    data = toy()
    model = squared_exponentials(likelihoods.MultinomialProbit(3), [1.0] * 3, 2.0)
    sampled = jgp.sample_posterior(
        model,
        data.x,
        data.y,
        key=jax.random.key(3),
        max_steps=1000,
        num_warmup=200,
        proposal=jgp.nested_ep(model, data.x, data.y),
    )
    return data, model, sampled


@pytest.mark.long
@pytest.mark.slow
def test_class_probabilities_agree_with_nested_ep():
    data, model, sampled = classified()
    nested = jgp.nested_ep(model, data.x, data.y).predict(data.x_new, method="orthant")
    predicted = sampled.predict(data.x_new)
    np.testing.assert_allclose(np.asarray(predicted.probs).sum(axis=1), 1, atol=1e-12)
    # Nested EP is within 0.01 of the truth here, and 4000 draws within 0.02.
    np.testing.assert_allclose(
        np.asarray(predicted.probs), np.asarray(nested.probs), atol=0.03
    )
    again = sampled.predict(data.x_new)
    np.testing.assert_array_equal(np.asarray(again.probs), np.asarray(predicted.probs))
    other = sampled.predict(data.x_new, key=jax.random.key(4))
    np.testing.assert_allclose(
        np.asarray(other.probs), np.asarray(predicted.probs), atol=0.02
    )
    assert sampled.predict([]).probs.shape == (0, 3)


@pytest.mark.long
@pytest.mark.slow
def test_goes_on_from_an_earlier_run():
    data, model, sampled = classified()
    more = jgp.sample_posterior(
        model,
        data.x,
        data.y,
        key=jax.random.key(5),
        init=sampled,
        max_steps=100,
        num_warmup=1,
        throw=False,
    )
    moved = np.abs(
        np.asarray(more.posterior.draws[:, 0] - sampled.posterior.draws[:, -1])
    )
    assert 0 < moved.max() < 5
    with pytest.raises(ValueError, match="init: got 4 chains"):
        jgp.sample_posterior(
            model,
            data.x,
            data.y,
            key=jax.random.key(5),
            init=sampled,
            num_chains=2,
            max_steps=100,
        )


@pytest.mark.slow
def test_too_few_steps_are_told():
    model, x, y = regression()
    options = {"key": jax.random.key(0), "max_steps": 8, "num_warmup": 1}
    short = jgp.sample_posterior(model, x, y, **options, rtol=1e-3, throw=False)
    assert bool(short.result == RESULTS.max_steps_reached)
    with pytest.raises(jgp.InferenceError, match="sample_posterior on n = 6"):
        jgp.sample_posterior(model, x, y, **options, rtol=1e-3)
    with pytest.raises(ValueError, match="sampler: got 'gibbs'"):
        jgp.sample_posterior(model, x, y, **options, sampler="gibbs")


@pytest.mark.slow
def test_ellipses_about_an_approximation_leave_the_posterior_and_mix():
    # About the posterior of another model, so that q is not the one sought.
    model, x, y = regression()
    process = jgp.GaussianProcess(kernels.Matern32(0.3), jgp.means.Constant(1.0))
    other = jgp.exact(jgp.Model(process, likelihoods.Gaussian(0.3)), x, y)
    sampled = jgp.sample_posterior(
        model,
        x,
        y,
        key=jax.random.key(7),
        proposal=other,
        max_steps=4000,
        num_warmup=100,
    )
    wanted = jgp.exact(model, x, y).posterior.joint(x)
    draws = np.asarray(sampled.posterior.draws).reshape(-1, 6)
    ess = np.asarray(sampled.diagnostics.ess)[:, 0]
    deviation = np.sqrt(np.diag(wanted.covariance))
    error = np.abs(draws.mean(axis=0) - np.asarray(wanted.mean))
    assert np.all(error < 4 * deviation / np.sqrt(ess))
    assert np.all(np.abs(draws.var(axis=0) / deviation**2 - 1) < 4 * np.sqrt(2 / ess))
    # As many steps about the prior are worth less.
    plain = np.asarray(chains("elliptical_slice").diagnostics.ess)
    assert ess.min() > plain.min()
