import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from jgp._normal import inverse_mills, log_ndtr, ndtr, normal_density

# 12 is where φ nears the smallest float32.
LOWER = -np.logspace(8, -3, 45)
UPPER = np.concatenate([np.linspace(0, 6, 25), [8.0, 12.0]])


def grid():
    return np.concatenate([LOWER, UPPER]).astype(jnp.zeros(()).dtype)


def exact(z):
    """(Φ, log Φ, ρ, q, q') with 60 digits; below -12 by the continued fraction."""
    with mp.workdps(60):
        z = mp.mpf(float(z))
        if z > -12:
            probability = mp.ncdf(z)
            rho = mp.npdf(z) / probability
            excess = z + rho
            log = mp.log1p(-mp.ncdf(-z)) if z > 0 else mp.log(probability)
        else:
            excess = mp.mpf(0)
            for k in range(400, 1, -1):
                excess = k / (-z + excess)
            excess = 1 / (-z + excess)
            rho = excess - z
            log = -z * z / 2 - mp.log(2 * mp.pi) / 2 - mp.log(rho)
            probability = mp.exp(log) if log > -800 else mp.mpf(0)
        q = rho * excess
        return probability, log, rho, q, rho * (1 - q) - q * excess


def relative_error(values, references):
    tiny = float(jnp.finfo(values.dtype).tiny)
    return max(
        float(abs(mp.mpf(float(v)) - r) / max(abs(r), tiny))
        for v, r in zip(values, references, strict=True)
    )


@pytest.mark.float32
def test_values_in_both_tails():
    z = grid()
    probability, log, rho, q, _ = zip(*map(exact, z), strict=True)
    got_rho, got_q = jax.jit(inverse_mills)(z)
    # Measured 1e-15 and 5e-7; exp itself loses some rounding units far out.
    limit = 5e-14 if z.dtype == np.float64 else 1e-6
    assert relative_error(got_rho, rho) < limit
    assert relative_error(got_q, q) < limit
    assert relative_error(log_ndtr(z), log) < limit
    assert relative_error(ndtr(z), probability) < limit
    assert np.all((got_q > 0) & (got_q <= 1))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.float32
def test_derivatives_of_log_ndtr_to_third_order():
    z = grid()
    _, _, rho, q, slope = zip(*map(exact, z), strict=True)
    first = jax.grad(log_ndtr)
    second = jax.grad(first)
    third = jax.grad(second)
    limit = 1e-13 if z.dtype == np.float64 else 3e-6
    assert relative_error(jax.vmap(first)(z), rho) < limit
    assert relative_error(jax.vmap(second)(z), [-v for v in q]) < limit
    assert relative_error(jax.vmap(third)(z), [-v for v in slope]) < limit
    for function in (jax.grad(third), jax.grad(jax.grad(third))):
        assert np.all(np.isfinite(jax.vmap(function)(z)))


@pytest.mark.long
@pytest.mark.slow
def test_fourth_derivative_agrees_with_differences():
    slope = jax.vmap(jax.grad(jax.grad(jax.grad(log_ndtr))))
    fourth = jax.vmap(jax.grad(jax.grad(jax.grad(jax.grad(log_ndtr)))))
    z, h = jnp.array([-20.0, -5.0, -0.3, 0.4, 3.0]), 1e-4
    difference = (slope(z + h) - slope(z - h)) / (2 * h)
    # Truncation h² times a bounded derivative, and rounding eps/h.
    np.testing.assert_allclose(fourth(z), difference, rtol=1e-6, atol=1e-9)


@pytest.mark.float32
def test_density_far_out_and_its_derivative():
    z = np.array([0.0, 1.5, -7.3, 12.9], jnp.zeros(()).dtype)
    expected = [mp.npdf(float(v)) for v in z]
    limit = 1e-14 if z.dtype == np.float64 else 5e-7
    assert relative_error(normal_density(z), expected) < limit
    slope = jax.vmap(jax.grad(normal_density))(z)
    assert (
        relative_error(slope, [-float(v) * e for v, e in zip(z, expected, strict=True)])
        < limit
    )
    assert relative_error(jax.vmap(jax.grad(ndtr))(z), expected) < limit


@pytest.mark.float32
def test_nan_in_nan_out_and_no_nan_at_large_arguments():
    assert jnp.isnan(log_ndtr(jnp.array(jnp.nan)))
    assert np.all(np.isnan(inverse_mills(jnp.array(jnp.nan))))
    extreme = jnp.array([-1e15, 1e15])
    rho, q = inverse_mills(extreme)
    np.testing.assert_allclose(rho, [1e15, 0], rtol=1e-6)
    np.testing.assert_allclose(q, [1, 0], rtol=1e-6)
    assert np.all(np.isfinite(jax.vmap(jax.grad(jax.grad(log_ndtr)))(extreme)))
