"""Rejection sampling where its bound is wrong, or hardly anything is kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jgp._results import RESULTS
from jgp.sampling import importance, rejection


def uniform(key):
    return jax.random.uniform(key, (), jnp.result_type(float))


def flat(x):
    return jnp.zeros_like(x)


def triangle(x):
    return jnp.log(2 * x)


def test_a_bound_that_is_exceeded_is_a_status(key):
    found = rejection.sample(triangle, uniform, flat, 0.3, key=key, num=500)
    assert bool(found.result == RESULTS.bound_exceeded)
    assert float(found.largest_log_ratio) > 0
    found = rejection.sample(triangle, uniform, flat, np.log(2), key=key, num=500)
    assert bool(found.result == RESULTS.successful)
    # A normalised density: half of the draws are kept.
    assert abs(float(found.log_normaliser)) < 4 * float(found.standard_error)
    assert abs(float(jnp.mean(found.draws)) - 2 / 3) < 4 * np.sqrt(1 / 18 / 500)


def test_too_few_kept_is_a_status_and_the_rest_nan(key):
    found = rejection.sample(
        lambda x: jnp.where(x < 0.01, 0.0, -jnp.inf),
        uniform,
        flat,
        0.0,
        key=key,
        num=100,
        max_steps=3,
    )
    assert bool(found.result == RESULTS.max_steps_reached)
    count = int(found.num_accepted)
    assert 0 < count < 20
    draws = np.asarray(found.draws)
    assert np.all(draws[:count] < 0.01)
    assert np.all(np.isnan(draws[count:]))
    assert int(found.num_proposed) == 300


def test_density_that_is_nowhere_has_no_weights(key):
    found = importance.sample(lambda x: -jnp.inf + x, uniform, flat, key=key, num=10)
    assert bool(found.result == RESULTS.non_finite)


@pytest.mark.parametrize(
    ("log_density", "log_proposal"),
    [(lambda x: -jnp.inf + x, flat), (flat, lambda x: jnp.nan * x)],
)
def test_weights_that_fail_give_no_numbers(log_density, log_proposal, key):
    found = importance.sample(log_density, uniform, log_proposal, key=key, num=10)
    assert bool(found.result == RESULTS.non_finite)
    assert np.all(np.isnan(found.expectation(lambda x: x)))
    assert np.isnan(found.integral(lambda x: x).standard_error)
    assert np.all(np.isnan(found.resample(key=key, num=3)))


@pytest.mark.parametrize("missing", [-np.inf, np.nan])
def test_a_proposal_that_misses_some_of_the_density_is_a_status(missing, key):
    def log_proposal(x):
        return jnp.where(x < 0.1, missing, 0.0)

    found = rejection.sample(flat, uniform, log_proposal, 0.0, key=key, num=500)
    assert bool(found.result == RESULTS.bound_exceeded)


def test_draws_that_are_nan_are_not_kept(key):
    def sometimes(key):
        x = uniform(key)
        return jnp.where(x < 0.3, jnp.nan, x)

    found = rejection.sample(flat, sometimes, flat, 0.0, key=key, num=200)
    within = rejection.sample(
        lambda x: 0 * x, sometimes, lambda x: 0 * x, 0.0, key=key, num=200
    )
    assert bool(within.result == RESULTS.successful)
    assert np.all(np.asarray(within.draws) >= 0.3)
    # A density that claims to be finite at NaN is taken at its word.
    assert np.any(np.isnan(found.draws))


def test_integral_is_plain_and_expectation_normalised(key):
    found = importance.sample(
        lambda x: triangle(x) + jnp.log(5.0), uniform, flat, key=key, num=20_000
    )
    value, error = found.integral(lambda x: x)
    assert abs(float(value) - 10 / 3) < 4 * float(error)
    value, error = found.expectation(lambda x: x)
    assert abs(float(value) - 2 / 3) < 4 * float(error)
    # Var of the self-normalised mean: E[w²(x − 2/3)²]/n with w = 2x.
    exact = np.sqrt(4 * (1 / 5 - 4 / 3 / 4 + 4 / 9 / 3) / 20_000)
    np.testing.assert_allclose(float(error), exact, rtol=0.05)
    draws = found.resample(key=key, num=4000)
    assert abs(float(jnp.mean(draws)) - 2 / 3) < 5 * np.sqrt(1 / 18 / 4000)


def test_bad_counts_are_named(key):
    with pytest.raises(ValueError, match="num: got 0, wanted an integer >= 1"):
        rejection.sample(triangle, uniform, flat, 1.0, key=key, num=0)
    with pytest.raises(ValueError, match=r"log_bound: expected a scalar, got shape"):
        rejection.sample(triangle, uniform, flat, jnp.zeros(2), key=key, num=1)
    with pytest.raises(ValueError, match=r"log_bound: expected a finite number"):
        rejection.sample(triangle, uniform, flat, np.nan, key=key, num=1)
    with pytest.raises(ValueError, match="num: got 1, wanted an integer >= 2"):
        importance.sample(triangle, uniform, flat, key=key, num=1)
