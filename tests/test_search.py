"""Searches alone, on functions whose minima are known."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jgp._results import RESULTS, SEVERITY
from jgp._search import MAX_STEP, Trial, first_order, quasi_newton

FAILED = 5
OPTIONS = {"max_steps": 200, "tolerance": 1e-8}


def run(search, function, usable=lambda raw: True):
    """Drive a search to its end; its status and every trial."""
    value_and_grad = jax.jit(jax.value_and_grad(function))
    trials = []
    wanted = next(search)
    while True:
        value, gradient = value_and_grad(jnp.asarray(wanted))
        code = 0 if usable(wanted) else FAILED
        trials.append(Trial(wanted, float(value), np.asarray(gradient), code))
        try:
            wanted = search.send(trials[-1])
        except StopIteration as ended:
            return ended.value, trials


def rosenbrock(v):
    return 100 * (v[1] - v[0] ** 2) ** 2 + (1 - v[0]) ** 2


def test_rosenbrocks_valley():
    accepted = []
    search = quasi_newton(np.array([-1.2, 1.0]), accepted, **OPTIONS)
    result, trials = run(search, rosenbrock)
    assert bool(result == RESULTS.successful)
    np.testing.assert_allclose(accepted[-1].raw, [1, 1], atol=1e-6)
    assert len(trials) < 80
    values = [t.value for t in accepted]
    assert np.all(np.diff(values) <= 1e-12)
    assert all(any(t is one for one in trials) for t in accepted)
    lengths = np.diff([t.raw for t in accepted], axis=0)
    assert np.max(np.abs(lengths)) <= MAX_STEP


def test_backs_off_from_where_inference_fails():
    # The minimum of (v + 2)² is beyond a wall at −1: the search ends at the wall.
    accepted = []
    search = quasi_newton(np.array([3.0]), accepted, **OPTIONS)
    result, trials = run(
        search, lambda v: jnp.sum((v + 2) ** 2), lambda raw: raw[0] > -1
    )
    assert bool(result == RESULTS.stagnated)
    assert -1 < accepted[-1].raw[0] < -0.9
    assert sum(not t.usable for t in trials) > 3
    assert all(t.usable for t in accepted)


def test_pain_29_a_curvature_that_underflows_in_float32():
    def almost_flat(v):
        return v[0] ** 2 / 2 + 1e-20 * v[1] ** 2 / 2

    accepted = []
    start = np.array([1.0, 1.0], np.float32)
    search = quasi_newton(start, accepted, max_steps=50, tolerance=1e-6)
    result, trials = run(search, lambda v: almost_flat(v).astype(jnp.float32))
    assert bool(result == RESULTS.successful)
    assert all(np.all(np.isfinite(t.raw)) for t in trials)
    assert abs(accepted[-1].raw[0]) < 1e-5
    assert accepted[-1].raw.dtype == np.float32


@pytest.mark.parametrize("optimizer", [optax.sgd(0.1), optax.adam(0.1)])
def test_an_optax_chain_steps_back_from_failures(optimizer):
    accepted = []
    search = first_order(
        np.array([3.0]), accepted, optimizer, max_steps=500, tolerance=1e-5
    )
    result, trials = run(
        search, lambda v: jnp.sum((v - 1) ** 2), lambda raw: abs(raw[0] - 1) < 2.5
    )
    assert bool(result == RESULTS.successful)
    np.testing.assert_allclose(accepted[-1].raw, [1], atol=1e-5)
    wild = first_order(np.array([3.0]), [], optax.sgd(1e3), **OPTIONS)
    result, trials = run(
        wild, lambda v: jnp.sum((v - 1) ** 2), lambda raw: abs(raw[0] - 1) < 2.5
    )
    assert sum(not t.usable for t in trials) > 3
    assert max(abs(t.raw[0] - 1) for t in trials if t.usable) < 2.5


def test_a_start_that_fails_ends_at_once():
    for search in (
        quasi_newton(np.array([1.0]), [], **OPTIONS),
        first_order(np.array([1.0]), [], optax.sgd(0.1), **OPTIONS),
    ):
        result, trials = run(search, lambda v: v[0] ** 2, lambda raw: False)
        assert bool(result == SEVERITY[FAILED])
        assert len(trials) == 1


@pytest.mark.parametrize("wall", np.linspace(-2.5, 0.5, 13))
def test_is_not_successful_where_failures_kept_it_from_the_minimum(wall):
    accepted = []
    search = quasi_newton(np.array([1.0, 2.0]), accepted, **OPTIONS)
    result, _ = run(
        search,
        lambda v: 30 * ((v[0] + 3) ** 2 + v[1] ** 2 + v[0] * v[1]),
        lambda raw: raw[0] > wall,
    )
    assert np.max(np.abs(accepted[-1].gradient)) > 1
    assert not bool(result == RESULTS.successful)
