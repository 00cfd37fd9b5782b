import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jgp._ascent import ascend
from jgp._results import RESULTS

CURVATURE = np.array([1.0, 3.0, 50.0])
TOP = np.array([1.0, -2.0, 0.5])


def merit_of(z):
    return -jnp.sum(jnp.asarray(CURVATURE) * (z - jnp.asarray(TOP)) ** 2) / 2


def overshooting(z, _):
    """A step uphill, thirty times too long in the stiffest direction."""
    gradient = -jnp.asarray(CURVATURE) * (z - jnp.asarray(TOP))
    return z + 0.6 * gradient, merit_of(z)


@functools.partial(jax.jit, static_argnames=("update", "window"))
def run(init, tolerance, max_steps, *, update, window):
    return ascend(
        update,
        init,
        None,
        merit=lambda value: value,
        rtol=tolerance,
        atol=tolerance,
        max_steps=max_steps,
        window=window,
    )


def climb(init=(0.0, 0.0, 0.0), *, update=overshooting, max_steps=400, window=5):
    controls = jnp.asarray(1e-9), jnp.asarray(max_steps, jnp.int32)
    return run(jnp.asarray(init), *controls, update=update, window=window)


@pytest.mark.parametrize("window", [0, 5])
def test_steps_that_overshoot_are_shortened(window):
    # The plain iteration z ← z + 0.6 g multiplies the last error by −29 each time.
    found = climb(window=window, max_steps=1000)
    assert bool(found.result == RESULTS.successful)
    np.testing.assert_allclose(np.asarray(found.value), TOP, atol=1e-8)
    assert abs(float(found.auxiliary)) < 1e-14


def test_acceleration_needs_fewer_steps():
    assert int(climb(window=5).num_steps) < int(climb(window=0).num_steps) / 2


def test_the_merit_never_falls():
    values = [float(climb(max_steps=k, window=3).auxiliary) for k in range(1, 20)]
    assert all(b >= a for a, b in itertools.pairwise(values))


def test_what_is_no_number_is_not_stepped_on():
    def walled(z, _):
        value = merit_of(z)
        return overshooting(z, None)[0], jnp.where(z[2] > 0.6, jnp.nan, value)

    found = climb(update=walled)
    assert bool(found.result == RESULTS.successful)
    np.testing.assert_allclose(np.asarray(found.value), TOP, atol=1e-8)


def test_how_it_ends():
    assert bool(climb(max_steps=2).result == RESULTS.max_steps_reached)
    assert int(climb(max_steps=2).num_steps) == 2

    def downhill(z, _):
        return z - overshooting(z, None)[0] + z, merit_of(z)

    stuck = climb(update=downhill)
    assert bool(stuck.result == RESULTS.stagnated)
    np.testing.assert_array_equal(np.asarray(stuck.value), np.zeros(3))
    nowhere = climb(init=(jnp.nan, 0.0, 0.0))
    assert bool(nowhere.result == RESULTS.non_finite)
    assert int(nowhere.num_steps) == 1
