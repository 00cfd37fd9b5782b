import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from jgp.kernels import Matern12, Matern32, Matern52, SquaredExponential, gram
from tests.cases import slow_unless

MATERN = {0.5: Matern12, 1.5: Matern32, 2.5: Matern52}
SMOOTH = [(SquaredExponential, 1.0), (Matern52, 5 / 3), (Matern32, 3.0)]
ALL = [SquaredExponential, Matern12, Matern32, Matern52]
NESTINGS = list(itertools.product((jax.jacfwd, jax.jacrev), repeat=2))
compiled_gram = eqx.filter_jit(gram)
EPS = float(np.finfo(jnp.result_type(float)).eps)


@given(r=st.floats(1e-3, 30.0), lengthscale=st.floats(0.05, 20.0))
def test_matern_is_the_bessel_form(r, lengthscale):
    # Rasmussen & Williams 2006, eq. 4.14, with SciPy's Bessel function.
    for nu, kernel in MATERN.items():
        q = np.sqrt(2 * nu) * r / lengthscale
        bessel = 2 ** (1 - nu) / special.gamma(nu) * q**nu * special.kv(nu, q)
        value = compiled_gram(kernel(lengthscale), jnp.array([r]), jnp.zeros(1))[0, 0]
        # An exponent q is rounded by q eps, in both forms.
        np.testing.assert_allclose(value, bessel, rtol=(100 + 4 * q) * EPS, atol=1e-300)


@pytest.mark.float32
@pytest.mark.parametrize("d", slow_unless([2], [1, 2, 3]))
@pytest.mark.parametrize("ard", [False, True])
@pytest.mark.parametrize(("kernel", "curvature"), SMOOTH)
def test_second_derivatives_at_coincident_points(kernel, curvature, ard, d):
    lengthscale = np.linspace(0.5, 2.0, d) if ard else np.array(0.7)
    k = kernel(lengthscale)
    x = jnp.linspace(1.0, 2.0, d)
    expected = curvature * np.diag(np.broadcast_to(1 / lengthscale**2, d))
    for outer, inner in NESTINGS:
        mixed = jax.jit(outer(inner(lambda a, b: k(a, b), 1), 0))(x, x)
        np.testing.assert_allclose(mixed, expected, rtol=8 * EPS, atol=0)
        repeated = jax.jit(outer(inner(lambda a: k(a, x))))(x)
        np.testing.assert_allclose(repeated, -expected, rtol=8 * EPS, atol=0)


@pytest.mark.parametrize(("kernel", "fourth"), [(SquaredExponential, 3.0)])
def test_fourth_derivative_of_the_squared_exponential(kernel, fourth):
    # d4/dr4 exp(-r^2/2) = 3 at 0.
    slope = lambda r: kernel(1.0)(jnp.array([r]), jnp.zeros(1))  # noqa: E731
    for _ in range(4):
        slope = jax.grad(slope)
    np.testing.assert_allclose(slope(0.0), fourth, rtol=1e-14)


@pytest.mark.parametrize("kernel", ALL)
def test_derivatives_near_coincidence_tend_to_those_at_it(kernel):
    # Closed forms in the distance r, for l = 1, at distances from tiny to large.
    first = {
        SquaredExponential: lambda r: -r * np.exp(-(r**2) / 2),
        Matern12: lambda r: -np.exp(-r),
        Matern32: lambda r: -3 * r * np.exp(-np.sqrt(3) * r),
        Matern52: lambda r: -5 / 3 * r * (1 + np.sqrt(5) * r) * np.exp(-np.sqrt(5) * r),
    }[kernel]
    second = {
        SquaredExponential: lambda r: (r**2 - 1) * np.exp(-(r**2) / 2),
        Matern12: lambda r: np.exp(-r),
        Matern32: lambda r: 3 * (np.sqrt(3) * r - 1) * np.exp(-np.sqrt(3) * r),
        Matern52: lambda r: (
            (-5 / 3) * (1 + np.sqrt(5) * r - 5 * r**2) * np.exp(-np.sqrt(5) * r)
        ),
    }[kernel]
    value = lambda r: kernel(1.0)(jnp.array([r]), jnp.zeros(1))  # noqa: E731
    # The closed form of Matern 1/2 cancels in s: 1/r^3 terms leave eps/r.
    smallest = 1e-3 if kernel is Matern12 else 1e-12
    r = jnp.concatenate([jnp.geomspace(smallest, 0.1, 12), jnp.linspace(0.2, 8, 12)])
    np.testing.assert_allclose(jax.vmap(jax.grad(value))(r), first(r), rtol=1e-13)
    hessian = jax.vmap(jax.grad(jax.grad(value)))(r)
    np.testing.assert_allclose(hessian, second(r), rtol=1e-12, atol=1e-14)


@pytest.mark.float32
@pytest.mark.parametrize("d", [1, 2, 3])
def test_matern12_has_gradient_zero_at_coincident_points(d):
    x = jnp.linspace(1.0, 2.0, d)
    k = Matern12(0.7)
    for outer, inner in NESTINGS:
        slope = inner(lambda a: k(a, x))
        np.testing.assert_array_equal(jax.jit(slope)(x), np.zeros(d))
        assert np.all(np.isfinite(jax.jit(outer(slope))(x)))


@pytest.mark.float32
@pytest.mark.parametrize("kernel", ALL)
@pytest.mark.parametrize("lengthscale", [0.8, np.array([0.5, 1.5])])
def test_lengthscale_gradient_with_repeated_rows(kernel, lengthscale):
    x = jnp.asarray(np.repeat(cases_rows(), 2, axis=0))
    distinct = jnp.asarray(cases_rows())

    def total(k, x):
        return jnp.sum(gram(k, x))

    # Each pair of rows stands four times in the matrix of the doubled rows.
    slope = eqx.filter_jit(eqx.filter_grad(total))
    doubled = slope(kernel(lengthscale), x).lengthscale
    once = slope(kernel(lengthscale), distinct).lengthscale
    np.testing.assert_allclose(doubled, 4 * once, rtol=200 * EPS)
    assert np.all(np.asarray(once) > 0)


def cases_rows():
    return np.array([[0.0, 1.0], [0.5, -1.0], [2.0, 0.3]])


@pytest.mark.float32
@pytest.mark.parametrize("kernel", ALL)
def test_huge_and_tiny_lengthscales(kernel):
    x = jnp.asarray(cases_rows())
    np.testing.assert_array_equal(gram(kernel(1e18), x), np.ones((3, 3)))
    np.testing.assert_array_equal(gram(kernel(1e-30), x), np.eye(3))
    slope = eqx.filter_jit(eqx.filter_grad(lambda k: jnp.sum(gram(k, x))))
    for lengthscale in (1e-6, 1e12):
        assert np.isfinite(slope(kernel(lengthscale)).lengthscale)


@pytest.mark.parametrize("kernel", ALL)
@given(
    shift=st.floats(-100, 100), scale=st.floats(0.01, 100), seed=st.integers(0, 1000)
)
def test_only_scaled_differences_matter(kernel, shift, scale, seed):
    x = np.random.default_rng(seed).normal(size=(4, 2))
    K = compiled_gram(kernel(1.3), x)
    moved = compiled_gram(kernel(1.3 * scale), scale * (x + shift))
    # The shift itself rounds the points by up to 100 eps.
    np.testing.assert_allclose(moved, K, atol=1e-12)


@pytest.mark.float32
@pytest.mark.parametrize("kernel", ALL)
def test_an_offset_costs_no_digits(kernel):
    # Steps of 1/8 about 4096 are exact in both precisions.
    steps = np.arange(6.0)[:, None] / 8
    np.testing.assert_array_equal(
        gram(kernel(0.7), 4096 + steps), gram(kernel(0.7), steps)
    )


@pytest.mark.parametrize("kernel", ALL)
def test_kernels_can_be_made_and_mapped_in_a_batch(kernel):
    x = jnp.asarray(cases_rows())
    lengthscales = jnp.array([0.5, 1.0, 2.0])
    batch = eqx.filter_vmap(kernel)(lengthscales)
    K = eqx.filter_vmap(lambda k: gram(k, x))(batch)
    for i, lengthscale in enumerate(lengthscales):
        np.testing.assert_allclose(K[i], gram(kernel(lengthscale), x), rtol=1e-14)


def test_ard_is_isotropic_when_the_lengthscales_are_equal():
    x = cases_rows()
    for kernel in ALL:
        np.testing.assert_allclose(
            gram(kernel(np.array([0.7, 0.7])), x), gram(kernel(0.7), x), rtol=1e-14
        )


def test_a_lengthscale_has_at_most_two_axes():
    with pytest.raises(ValueError, match=r"lengthscale: got shape \(1, 2, 2\)"):
        Matern32(np.ones((1, 2, 2)))
    with pytest.raises(ValueError, match=r"got a matrix of shape \(2, 2\), wanted"):
        gram(Matern32(np.eye(2)), np.ones((4, 3)))


def test_default_lengthscale_is_one():
    for kernel in ALL:
        assert float(kernel().lengthscale) == 1.0
        assert not kernel().lengthscale.weak_type
