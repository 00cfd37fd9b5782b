"""Monte Carlo means with control variates, and quasi-Monte Carlo."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import ndtri

from jgp.sampling import monte_carlo


def normal(key):
    return jax.random.normal(key, (2,), jnp.result_type(float))


def value(f):
    return jnp.exp(f[0]) + f[1] ** 2


EXACT = np.exp(0.5) + 1
VARIANCE = np.exp(2) - np.exp(1) + 2


def controls(f):
    return jnp.stack([f[0], f[0] ** 2 - 1, f[1] ** 2 - 1])


@pytest.mark.float32
def test_plain_mean_has_its_error(key):
    found = jax.jit(lambda k: monte_carlo(value, normal, key=k, num=4000))(key)
    np.testing.assert_allclose(found.standard_error, np.sqrt(VARIANCE / 4000), rtol=0.2)
    assert abs(found.value - EXACT) < 4 * found.standard_error
    dtype = jnp.result_type(float)
    assert found.value.dtype == found.standard_error.dtype == dtype


@pytest.mark.float32
def test_control_variates_leave_what_they_do_not_explain(key):
    def estimate(key):
        return monte_carlo(value, normal, key=key, num=400, control_variates=controls)

    found = jax.vmap(estimate)(jax.random.split(key, 200))
    # Of exp(f) Hermite polynomials up to the second explain e(1 + ½); f₁² all.
    left = np.exp(1) * (np.exp(1) - 1 - 1 - 0.5)
    spread = np.std(found.value, ddof=1)
    np.testing.assert_allclose(spread, np.sqrt(left / 400), rtol=0.25)
    np.testing.assert_allclose(np.mean(found.standard_error), spread, rtol=0.25)
    # The bias of fitted coefficients is of order 1/400.
    assert abs(np.mean(found.value) - EXACT) < 4 * spread / np.sqrt(200) + 0.01


def test_what_the_controls_explain_whole_has_no_error(key):
    def twice(f):
        return jnp.stack([f[0], f[0], 2 * f[1]])

    found = monte_carlo(
        lambda f: jnp.stack([3 * f[0] + 2, f[1] - 1]),
        normal,
        key=key,
        num=50,
        control_variates=twice,
    )
    np.testing.assert_allclose(found.value, [2, -1], atol=1e-12)
    assert np.all(np.asarray(found.standard_error) < 1e-12)


def test_sobol_points_beat_draws_and_know_their_error(key):
    def estimate(key):
        return monte_carlo(value, ndtri, key=key, num=2048, sobol_dimension=2)

    found = [estimate(k) for k in jax.random.split(key, 20)]
    errors = np.array([float(f.value) for f in found]) - EXACT
    claimed = np.mean([float(f.standard_error) for f in found])
    assert np.sqrt(np.mean(errors**2)) < 0.3 * np.sqrt(VARIANCE / 2048)
    np.testing.assert_allclose(np.sqrt(np.mean(errors**2)), claimed, rtol=0.6)
    both = monte_carlo(
        value, ndtri, key=key, num=2048, sobol_dimension=2, control_variates=controls
    )
    assert abs(float(both.value) - EXACT) < 5 * float(both.standard_error)


def test_batches_change_nothing(key):
    whole = monte_carlo(value, normal, key=key, num=60, control_variates=controls)
    parts = monte_carlo(
        value, normal, key=key, num=60, control_variates=controls, batch_size=7
    )
    np.testing.assert_allclose(parts.value, whole.value, rtol=1e-12)


def test_bad_input_is_named(key):
    with pytest.raises(ValueError, match="num: got 1, wanted an integer >= 2"):
        monte_carlo(value, normal, key=key, num=1)
    with pytest.raises(ValueError, match="num: got 4 draws for 3 control variates"):
        monte_carlo(value, normal, key=key, num=4, control_variates=controls)
    with pytest.raises(ValueError, match="sobol_dimension: got 0, wanted an integer"):
        monte_carlo(value, ndtri, key=key, num=64, sobol_dimension=0)
    with pytest.raises(ValueError, match="key: got a traced one"):
        jax.jit(
            lambda k: monte_carlo(value, ndtri, key=k, num=64, sobol_dimension=2).value
        )(key)


@pytest.mark.float32
def test_truth_values_and_integers_are_averaged(key):
    found = monte_carlo(lambda x: x[0] > 0, normal, key=key, num=400)
    assert found.value.dtype == jnp.result_type(float)
    assert abs(float(found.value) - 0.5) < 4 * float(found.standard_error)
    np.testing.assert_allclose(found.standard_error, 0.5 / 20, rtol=0.05)
    found = monte_carlo(
        lambda x: (x[0] > 0).astype(jnp.int32),
        normal,
        key=key,
        num=400,
        control_variates=lambda x: x[0],
    )
    # The correlation of a sign with its normal number is sqrt(2 / pi).
    np.testing.assert_allclose(
        found.standard_error, 0.5 / 20 * np.sqrt(1 - 2 / np.pi), rtol=0.1
    )
