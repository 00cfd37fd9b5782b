"""Mixtures of what several models predict, against their parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jgp import likelihoods
from jgp.likelihoods import Averaged, NoisePredictive, Normal, Predictive

MEANS = np.array([[0.0, 1.0, 2.0], [0.5, -1.0, 2.0]])
VARIANCES = np.array([[0.1, 1.0, 0.5], [0.2, 2.0, 0.5]])
Y = np.array([0.3, -0.2, 2.5])


def normals():
    return Averaged(Normal(jnp.asarray(MEANS), jnp.asarray(VARIANCES)))


def test_mixture_of_normals():
    mixture = normals()
    np.testing.assert_allclose(mixture.mean, MEANS.mean(axis=0))
    wanted = VARIANCES.mean(axis=0) + MEANS.var(axis=0)
    np.testing.assert_allclose(mixture.variance, wanted)
    np.testing.assert_allclose(mixture.stddev, np.sqrt(wanted))
    density = stats.norm.pdf(Y, MEANS, np.sqrt(VARIANCES)).mean(axis=0)
    np.testing.assert_allclose(mixture.log_prob(Y), np.log(density), rtol=1e-12)


def test_draws_have_its_moments():
    draws = np.asarray(normals().sample(key=jax.random.key(0), num=40_000))
    assert draws.shape == (40_000, 3)
    error = np.sqrt(np.asarray(normals().variance) / 40_000)
    assert np.all(np.abs(draws.mean(axis=0) - MEANS.mean(axis=0)) < 4 * error)
    np.testing.assert_allclose(draws.var(axis=0), normals().variance, rtol=0.05)
    with pytest.raises(ValueError, match="num: got -1"):
        normals().sample(key=jax.random.key(0), num=-1)


def test_parameters_of_the_likelihood_may_differ_between_components():
    scales = (0.2, 0.7)
    each = [
        Predictive(
            likelihoods.StudentT(5.0, scale),
            jnp.asarray(m)[:, None],
            jnp.asarray(v)[:, None],
        )
        for scale, m, v in zip(scales, MEANS, VARIANCES, strict=True)
    ]
    mixture = Averaged(jax.tree.map(lambda *leaves: jnp.stack(leaves), *each))
    mean = np.mean([c.mean for c in each], axis=0)
    np.testing.assert_allclose(mixture.mean, mean, rtol=1e-12)
    between = np.var([c.mean for c in each], axis=0)
    wanted = np.mean([c.variance for c in each], axis=0) + between
    np.testing.assert_allclose(mixture.variance, wanted, rtol=1e-12)
    density = np.mean(np.exp([c.log_prob(Y) for c in each]), axis=0)
    np.testing.assert_allclose(mixture.log_prob(Y), np.log(density), rtol=1e-12)
    assert mixture.sample(key=jax.random.key(1), num=2).shape == (2, 3)


def test_latent_noise():
    S = np.stack([np.eye(2) * v[:, None, None] for v in VARIANCES])
    latents = np.stack([MEANS, -np.ones_like(MEANS)], axis=-1)
    parts = NoisePredictive(
        jnp.asarray(latents)[:, :, None], jnp.asarray(S)[:, :, None]
    )
    mixture = Averaged(parts)
    np.testing.assert_allclose(mixture.mean, MEANS.mean(axis=0))
    assert np.all(np.isfinite(mixture.log_prob(Y)))
