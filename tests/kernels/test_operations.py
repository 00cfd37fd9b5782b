"""Kernels held against other routes to the same covariance."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

import jgp
from jgp import kernels, likelihoods
from jgp.kernels import gram
from jgp.kernels._base import by_rows
from tests import cases

EPS = float(np.finfo(jnp.result_type(float)).eps)
X = cases.points(2, 9)


def gaussian(x, u):
    density = jnp.exp(-jnp.square((x - u) / 0.4) / 2) / (0.4 * jnp.sqrt(2 * jnp.pi))
    return jnp.prod(density)


def test_quadrature_convolves_as_the_closed_form():
    nodes, weights = np.polynomial.legendre.leggauss(120)
    x = np.linspace(-1, 1, 6)[:, None]
    base = kernels.SquaredExponential(0.7)
    by_rule = kernels.Convolved(base, gaussian, 5 * nodes[:, None], 5 * weights)
    closed = kernels.GaussianSmoothed(base, 0.4)
    np.testing.assert_allclose(gram(by_rule, x), gram(closed, x), rtol=1e-11)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_arc_cosine_is_an_expectation_over_weights(order):
    # 2 E[Θ(wᵀx)Θ(wᵀz)(wᵀx)^n(wᵀz)^n] with w ~ N(0, I) in the plane: Cho & Saul 2009,
    # eq. 1, by quadrature over the angle, the radius in closed form.
    kernel = kernels.ArcCosine(order, 1.3, 0.6)
    x, z = np.array([0.7]), np.array([-1.1])
    a, b = (np.array([np.sqrt(0.6), np.sqrt(1.3) * p[0]]) for p in (x, z))
    angle = (np.arange(200_000) + 0.5) / 200_000 * 2 * np.pi
    w = np.stack([np.cos(angle), np.sin(angle)])
    active = (a @ w > 0) & (b @ w > 0)
    over_angle = np.mean(active * ((a @ w) * (b @ w)) ** order)
    radius = 2.0**order * special.gamma(order + 1)
    value = kernel(jnp.asarray(x), jnp.asarray(z))
    np.testing.assert_allclose(value, 2 * radius * over_angle, rtol=2e-5)


def test_the_integral_of_brownian_motion():
    nodes, weights = np.polynomial.legendre.leggauss(400)
    x, z = 0.7, 1.9
    s, t = x / 2 * (nodes + 1), z / 2 * (nodes + 1)
    inner = gram(kernels.Wiener(), s, t)
    double = x * z / 4 * weights @ np.asarray(inner) @ weights
    value = kernels.IntegratedWiener()(jnp.array([x]), jnp.array([z]))
    np.testing.assert_allclose(value, double, rtol=1e-5)


@pytest.mark.float32
def test_one_kernel_by_several_names():
    se, m32 = kernels.SquaredExponential(0.8), kernels.Matern32(0.8)
    same = [
        (kernels.Matern(1.5, 0.8), kernels.Matern32(0.8)),
        (kernels.GammaExponential(1.0, 0.8), kernels.Matern12(0.8)),
        (kernels.GammaExponential(2.0, 0.8), kernels.SquaredExponential(0.8 / 2**0.5)),
        (
            kernels.Matern52(np.diag([0.5, 2.0])),
            kernels.Matern52(np.array([0.5, 2.0])),
        ),
        (kernels.Gibbs(lambda x: jnp.full_like(x, 0.8)), se),
        (
            kernels.NonStationary(
                kernels.Matern32(), lambda x: 0.64 * jnp.eye(2, dtype=x.dtype)
            ),
            kernels.Matern32(0.8),
        ),
        (kernels.Normalized(m32 * 3.0), m32),
        (
            kernels.HarmonicNormalized(kernels.Matern32(0.8) * 3.0),
            kernels.Matern32(0.8),
        ),
        (kernels.Polynomial(1, 0.7, 0.3), kernels.Linear(0.7) + 0.3),
        (
            kernels.MeanSSIM((1, 2), (1, 2), c1=0.02, c2=0.05),
            kernels.SSIM(0.02, 0.05),
        ),
    ]
    for one, other in same:
        np.testing.assert_allclose(
            gram(one, X), gram(other, X), rtol=50 * EPS, atol=50 * EPS
        )


@pytest.mark.parametrize("name", cases.each_kernel())
def test_matrix_is_the_kernel_pair_by_pair(name):
    kernel, dimension, domain = cases.KERNELS[name]
    x, z = (jnp.asarray(cases.points(dimension, 5, s, domain)) for s in (0, 1))
    pairs = jax.jit(jax.vmap(jax.vmap(kernel, (None, 0)), (0, None)))(x, z)
    K = gram(kernel, x, z)
    assert K.dtype == x.dtype
    scale = np.max(np.abs(pairs))
    np.testing.assert_allclose(K, pairs, rtol=0, atol=100 * EPS * scale)
    square = np.asarray(gram(kernel, x))
    np.testing.assert_allclose(square, square.T, rtol=0, atol=4 * EPS * scale)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Matern", "Matern12 ARD", "Gibbs", "SpectralMixture"])
def test_blocks_of_rows_are_the_matrix(name):
    kernel, dimension, _ = cases.KERNELS[name]
    x, z = (jnp.asarray(cases.points(dimension, n, seed=n)) for n in (7, 5))

    @functools.partial(jax.jit, static_argnums=1)
    def value_and_gradient(x, size):
        def total(x):
            K = by_rows(kernel, x, z, size)
            return jnp.sum(jnp.sin(K)), K

        return jax.value_and_grad(total, has_aux=True)(x)

    (_, whole), slope = value_and_gradient(x, 1000)
    (_, blocks), again = value_and_gradient(x, 11)
    np.testing.assert_allclose(blocks, whole, rtol=1e-13, atol=1e-13)
    np.testing.assert_allclose(again, slope, rtol=1e-11, atol=1e-12)


@functools.cache
def compiled_laws(name):
    kernel = cases.KERNELS[name].instance
    matrix = eqx.filter_jit(lambda x, z: kernel.matrix(x, z))
    variances = eqx.filter_jit(jax.vmap(lambda point: kernel(point, point)))
    return matrix, variances


@pytest.mark.parametrize("name", cases.each_kernel())
@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), spread=st.floats(0.05, 5.0))
def test_symmetry_and_positive_semidefiniteness(name, seed, spread):
    _, dimension, domain = cases.KERNELS[name]
    x = cases.points(dimension, 9, seed, domain)
    if domain in ("real", "positive"):
        x = spread * x
    matrix, variances = compiled_laws(name)
    K = np.asarray(matrix(jnp.asarray(x), jnp.asarray(x)))
    atol = 100 * EPS * np.max(np.abs(K))
    np.testing.assert_allclose(K, K.T, rtol=0, atol=atol)
    np.testing.assert_allclose(np.diag(K), variances(jnp.asarray(x)), rtol=0, atol=atol)
    assert np.linalg.eigvalsh(K)[0] >= -1e-10 * np.trace(K) / len(x)
    # Permuting the points permutes the matrix.
    order = np.random.default_rng(seed).permutation(9)
    permuted = matrix(jnp.asarray(x[order]), jnp.asarray(x[order]))
    np.testing.assert_allclose(permuted, K[np.ix_(order, order)], rtol=0, atol=atol)


@pytest.mark.long
@pytest.mark.slow
def test_duplicates_and_near_duplicates_are_positive_semidefinite():
    for name, (kernel, dimension, domain) in cases.KERNELS.items():
        x = cases.points(dimension, 12, domain=domain)
        x = np.concatenate([x, x, x + 1e-9 if domain in ("real", "positive") else x])
        K = np.asarray(gram(kernel, x))
        assert np.linalg.eigvalsh(K)[0] >= -1e-10 * np.trace(K) / len(x), name


def test_periodic_in_two_dimensions_is_positive_semidefinite():
    grid = np.stack(np.meshgrid(np.linspace(0, 3, 9), np.linspace(0, 3, 9)), -1)
    x = grid.reshape(-1, 2)
    K = np.asarray(gram(kernels.Periodic(0.6, 1.4), x))
    assert np.linalg.eigvalsh(K)[0] >= -1e-12
    # The kernel of the distance itself is not, and the check can tell.
    r = np.linalg.norm(x[:, None] - x[None], axis=2)
    bad = np.exp(-2 * np.sin(np.pi * r / 1.4) ** 2 / 0.36)
    assert np.linalg.eigvalsh(bad)[0] < -0.1


def test_networks_are_trained_through_a_warped_kernel(key):
    network = eqx.nn.MLP(2, 3, 8, 1, key=key)
    model = jgp.Model(
        jgp.GaussianProcess(kernels.Warped(kernels.Matern52(), network)),
        likelihoods.Gaussian(0.1),
    )
    y = np.sin(3 * X[:, 0])

    @eqx.filter_jit
    @eqx.filter_grad
    def slope(model):
        return jgp.exact(model, X, y).log_evidence

    gradient = slope(model).process.kernel.map.layers[0].weight
    assert np.all(np.isfinite(gradient))
    assert np.max(np.abs(gradient)) > 1e-3


def test_coregionalised_outputs_borrow_strength():
    # Output 1 is twice output 0; seen only on the left, it follows on the right.
    t = np.linspace(0, 3, 20)
    x = np.concatenate(
        [np.stack([t, 0 * t], axis=1), np.stack([t[:10], 0 * t[:10] + 1], axis=1)]
    )
    y = np.concatenate([np.sin(t), 2 * np.sin(t[:10])])
    outputs = kernels.Coregionalization([[1.0], [2.0]], [1e-4, 1e-4])
    kernel = kernels.on(kernels.SquaredExponential(1.0), 0) * kernels.on(outputs, 1)
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(1e-4))
    new = np.stack([t[10:], np.ones(10)], axis=1)
    mean = jgp.exact(model, x, y).posterior.marginals(new).mean
    np.testing.assert_allclose(mean.ravel(), 2 * np.sin(t[10:]), atol=0.05)


def test_metrics_and_covariances_round_trip():
    metric = np.array([[0.6, 0.2], [0.2, 0.9]])
    kernel = kernels.SquaredExponential(np.linalg.cholesky(metric)) + kernels.Linear(
        metric
    )
    back = jgp.from_real(jgp.to_real(kernel))
    for one, other in zip(jax.tree.leaves(back), jax.tree.leaves(kernel), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-14, atol=1e-16)
    # Any real numbers are a positive definite matrix.
    raw = jax.tree.map(lambda leaf: leaf - 1.7, jgp.to_real(kernel))
    linear = jgp.from_real(raw).kernels[1].variance
    assert np.all(np.linalg.eigvalsh(linear) > 0)
    gamma = kernels.GammaExponential(1.4)
    np.testing.assert_allclose(jgp.from_real(jgp.to_real(gamma)).gamma, 1.4, rtol=1e-14)


@pytest.mark.long
@pytest.mark.slow
def test_a_metric_is_fitted():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    # Varies along (1, 1) only.
    y = np.sin(2 * (x[:, 0] + x[:, 1])) + 0.05 * rng.normal(size=60)
    for start in (np.eye(2), np.ones(2)):
        kernel = kernels.SquaredExponential(start)
        model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(0.1))
        fitted = jgp.fit(
            model, x, y, infer=jgp.exact, max_steps=60, throw=False, progress=False
        )
        evidence = float(fitted.approximation.log_evidence)
        if start.ndim == 2:
            with_metric = evidence
    assert with_metric > evidence + 10


@pytest.mark.parametrize("name", cases.each_kernel())
def test_float32(name):
    kernel, dimension, domain = cases.KERNELS[name]
    x = cases.points(dimension, 8, domain=domain)
    exact = np.asarray(gram(kernel, x.astype(np.float32).astype(float)))
    single = jax.tree.map(
        lambda leaf: leaf.astype(jnp.float32) if eqx.is_inexact_array(leaf) else leaf,
        kernel,
    )
    K = gram(single, jnp.asarray(x, jnp.float32))
    assert K.dtype == jnp.float32
    np.testing.assert_allclose(K, exact, rtol=0, atol=1e-5 * np.max(np.abs(exact)))


TINY = {
    "Matern72": kernels.Matern72,
    "Matern": lambda ell: kernels.Matern(1.3, ell),
    "GammaExponential": lambda ell: kernels.GammaExponential(1.3, ell),
    "Wendland": lambda ell: kernels.Wendland(2, ell),
    "TrigonometricCompact": kernels.TrigonometricCompact,
    "Gibbs": lambda ell: kernels.Gibbs(lambda x: jnp.full_like(x, ell)),
    "NonStationary": lambda ell: kernels.NonStationary(
        kernels.Matern32(ell), lambda x: jnp.eye(1, dtype=x.dtype)
    ),
    "GaussianSmoothed": lambda ell: kernels.GaussianSmoothed(
        kernels.SquaredExponential(ell), 1e-3 * ell
    ),
}


@pytest.mark.float32
@pytest.mark.parametrize("name", TINY)
def test_huge_and_tiny_lengthscales(name):
    x = jnp.asarray([[0.0], [1.0], [3.0]])
    ones = gram(TINY[name](1e18), x)
    np.testing.assert_allclose(ones, np.ones((3, 3)), rtol=1e-5)
    apart = gram(TINY[name](1e-30), x)
    np.testing.assert_allclose(apart, np.eye(3), rtol=0, atol=1e-5)


@pytest.mark.float32
def test_support_is_where_the_kernel_ends():
    short, long = kernels.Wendland(1, 0.7), kernels.TrigonometricCompact([1.5])
    endless = kernels.Matern32(0.1)
    radii = [
        (short, 0.7),
        (long, 1.5),
        (kernels.Wendland(2, np.array([[0.7]])), 0.7),
        (2.0 * short, 0.7),
        (kernels.Scaled(short, 2.0, lambda x: x[0]), 0.7),
        (long**2, 1.5),
        (short + long, 1.5),
        (short * long, 0.7),
        (endless * long, 1.5),
        (short * endless + 2.0 * long**2, 1.5),
    ]
    for kernel, radius in radii:
        support = kernel.support()
        assert support.shape == ()
        np.testing.assert_allclose(support, radius, rtol=1e-6)
        x = np.array([1.0, 1 - 0.9 * radius, 1 + 0.9 * radius, 1 - radius, 9.0])
        K = np.asarray(gram(kernel, x))[0]
        assert np.all(K[:3] > 0)
        np.testing.assert_allclose(K[3:], 0, atol=100 * EPS)
    for kernel in (endless, short + endless, short + 1.0, endless**2, 2.0 * endless):
        assert kernel.support() is None
