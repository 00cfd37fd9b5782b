"""Second derivatives: at coincident points, next to them, and far from them."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jgp
from jgp import kernels, likelihoods
from jgp._bessel import matern
from jgp.kernels import gram
from tests import cases

# Kernels whose draws have no derivative, or whose inputs have none.
ROUGH = {
    "ArcCosine 0",
    "Categorical",
    "Coregionalization",
    "GammaExponential",
    "Matern rough",
    "Matern12",
    "Matern12 ARD",
    "Product",
    "Wendland 0",
    "White",
    "Wiener",
    "WithDerivatives",
}
SMOOTH = sorted(set(cases.KERNELS) - ROUGH)


@eqx.filter_jit
def mixed(kernel, x, z):
    """∂²k/∂x∂z, forward over reverse, and the slope in x."""
    slope = jax.jacrev(lambda x, z: kernel(x, z), 0)
    return jax.jacfwd(slope, 1)(x, z), slope(x, z)


@pytest.mark.parametrize("name", cases.each_kernel(SMOOTH))
def test_mixed_second_derivatives(name):
    kernel, dimension, domain = cases.KERNELS[name]
    x, z = jnp.asarray(cases.points(dimension, 3, seed=4, domain=domain))[:2]
    for at in (z, x, x + 1e-8):
        second, slope = mixed(kernel, x, at)
        # Differences of exact slopes in x: h² + eps/h, and |h| where the third
        # derivative jumps.
        h = 1e-5
        columns = [
            (mixed(kernel, x, at + h * e)[1] - mixed(kernel, x, at - h * e)[1])
            / (2 * h)
            for e in jnp.eye(dimension)
        ]
        scale = float(jnp.max(jnp.abs(second)) + jnp.max(jnp.abs(slope)) + 1)
        difference = np.stack(columns, axis=1)
        np.testing.assert_allclose(second, difference, rtol=0, atol=1e-4 * scale)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(cases.KERNELS))
def test_hessians_in_the_parameters_are_finite_and_symmetric(name):
    kernel, dimension, domain = cases.KERNELS[name]
    x = jnp.asarray(cases.points(dimension, 4, domain=domain))
    parameters, static = eqx.partition(kernel, eqx.is_inexact_array)
    flat, unravel = jax.flatten_util.ravel_pytree(parameters)
    if flat.size == 0:
        return
    weights = jnp.cos(jnp.arange(16.0)).reshape(4, 4)

    def value(flat):
        return jnp.sum(weights * gram(eqx.combine(unravel(flat), static), x))

    hessian = np.asarray(jax.jit(jax.hessian(value))(flat))
    assert np.all(np.isfinite(hessian))
    # The derivative in the smoothness of a Matérn is a difference.
    atol = 1e-6 if name.startswith("Matern") else 1e-9
    scale = np.max(np.abs(hessian)) + 1
    np.testing.assert_allclose(hessian, hessian.T, rtol=0, atol=atol * scale)


def bessel(nu, s, order):
    """The order-th derivative in s, in fifty digits."""
    nu, s = mpmath.mpf(nu), mpmath.mpf(s)
    q, alpha = mpmath.sqrt(2 * nu * s), nu - order
    scale = 2 ** (1 - nu) / mpmath.gamma(nu) * (-nu) ** order
    return scale * q**alpha * mpmath.besselk(alpha, q)


@functools.cache
def compiled(order):
    return jax.jit(functools.partial(matern, order=order))


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("nu", [0.1, 0.49, 0.5, 1.0, 1.3, 2.0, 2.5, 7.7, 30.0])
def test_matern_of_any_smoothness(nu, order):
    with mpmath.workdps(50):
        for r in (1e-8, 1e-4, 0.03, 0.7, 1.0, 1.9, 5.0, 20.0, 50.0):
            s = float(r) ** 2
            got = float(compiled(order)(jnp.asarray(nu), jnp.asarray(s)))
            wanted = bessel(nu, s, order)
            assert abs(got - wanted) <= 1e-12 * abs(wanted), (nu, r)


@pytest.mark.parametrize("nu", [0.3, 1.0, 2.5, 9.0])
def test_derivative_in_the_smoothness(nu):
    slope = jax.jit(jax.grad(matern))
    with mpmath.workdps(50):
        for r in (1e-3, 0.5, 2.0, 8.0):
            s = r * r
            wanted = mpmath.diff(lambda nu, s=s: bessel(nu, s, 0), nu)
            got = float(slope(jnp.asarray(nu), jnp.asarray(s)))
            scale = max(abs(wanted), abs(bessel(nu, s, 0)))
            assert abs(got - wanted) <= 1e-9 * scale


@pytest.mark.float32
@given(nu=st.floats(0.2, 20.0), r=st.floats(1e-4, 20.0))
def test_matern_lies_between_zero_and_one(nu, r):
    dtype = jnp.result_type(float)
    eps = float(jnp.finfo(dtype).eps)
    value = float(compiled(0)(jnp.asarray(nu, dtype), jnp.asarray(r * r, dtype)))
    assert 0 <= value <= 1 + 200 * eps


def test_derivative_observations():
    # A sine seen by its value at 0 and by its slopes elsewhere.
    t = np.linspace(0, 2 * np.pi, 12)
    x = np.concatenate([[[0.0, 0.0]], np.stack([t, np.ones(12)], axis=1)])
    y = np.concatenate([[0.0], np.cos(t)])
    kernel = kernels.WithDerivatives(4.0 * kernels.SquaredExponential(1.5))
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(1e-8))
    new = np.stack([np.linspace(0.2, 6.0, 9), np.zeros(9)], axis=1)
    mean = jgp.exact(model, x, y).posterior.marginals(new).mean
    # The truth is within the posterior deviation, 3e-3 at its largest.
    np.testing.assert_allclose(mean.ravel(), np.sin(new[:, 0]), atol=5e-3)


def test_the_blocks_of_values_and_derivatives():
    base = kernels.Matern52(0.8)
    a, b = np.array([0.3, -0.2]), np.array([1.0, 0.4])
    x, z = (np.array([[*p, which] for which in range(3)]) for p in (a, b))
    K = gram(kernels.WithDerivatives(base), x, z)
    at = jnp.asarray(a), jnp.asarray(b)
    slopes = jax.grad(base, 1)(*at)
    second, back = mixed(base, *at)
    np.testing.assert_allclose(K[0, 0], base(*at), rtol=1e-14)
    np.testing.assert_allclose(K[0, 1:], slopes, rtol=1e-12)
    np.testing.assert_allclose(K[1:, 0], back, rtol=1e-12)
    np.testing.assert_allclose(K[1:, 1:], second, rtol=1e-12)
    for axis in (0, 1):
        one = kernels.Derivative(base, axis)(*at)
        np.testing.assert_allclose(one, second[axis, axis], rtol=1e-12)


@pytest.mark.long
@pytest.mark.slow
def test_draws_have_derivatives_where_difference_quotients_settle():
    """Variances of (f(x + h) − f(x))/h grow as h falls where there is no derivative."""
    for name, (kernel, dimension, domain) in cases.KERNELS.items():
        x = jnp.asarray(cases.points(dimension, 3, seed=4, domain=domain))[0]
        # The first coordinate, or a box as it is moved.
        step = jnp.ones(dimension) if domain == "boxes" else jnp.eye(dimension)[0]

        def quotient(h, kernel=kernel, x=x, step=step):
            z = x + h * step
            return float(kernel(x, x) + kernel(z, z) - 2 * kernel(x, z)) / h**2

        # By 10 to the power of 2 − γ, of 1.2 for the roughest but one here.
        settles = quotient(1e-3) <= 2 * quotient(1e-2)
        assert settles == (kernel.num_derivatives >= 1), name
