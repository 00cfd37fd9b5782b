from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jgp.kernels import (
    AbstractKernel,
    Matern52,
    SquaredExponential,
    diagonal,
    gram,
    on,
)
from tests import cases

EPS = float(np.finfo(jnp.result_type(float)).eps)


class Unrounded(AbstractKernel):
    """A kernel whose rounding depends on the order of its arguments."""

    def __call__(self, x, z):
        return (
            jnp.exp(jnp.sum(x) / 3) * jnp.cos(jnp.sum(x - z)) * jnp.exp(jnp.sum(z) / 3)
        )


@pytest.mark.parametrize(
    ("n", "m", "d"), [(5, 3, 2), (1, 4, 1), (0, 3, 2), (3, 0, 2), (0, 0, 1)]
)
def test_shapes_and_entries(n, m, d):
    rng = np.random.default_rng(n + 10 * m)
    x, z = rng.normal(size=(n, d)), rng.normal(size=(m, d))
    K = gram(SquaredExponential(1.3), x, z)
    squared = np.sum((x[:, None] - z[None]) ** 2, axis=-1)
    assert K.shape == (n, m)
    np.testing.assert_allclose(K, np.exp(-squared / (2 * 1.3**2)), rtol=1e-13)
    assert gram(SquaredExponential(1.3), x).shape == (n, n)
    assert diagonal(SquaredExponential(1.3), x).shape == (n,)


@pytest.mark.float32
@pytest.mark.parametrize("n", [1, 7, 64, 121])
def test_square_gram_is_symmetric_to_the_last_digits(n):
    x = np.random.default_rng(n).normal(size=(n, 3))
    kernels = [
        Unrounded(),
        2.0 * Matern52(np.array([0.5, 1.0, 2.0])) * SquaredExponential() + 0.1,
    ]
    for kernel in kernels:
        for evaluate in (gram, eqx.filter_jit(gram)):
            K = np.asarray(evaluate(kernel, x))
            atol = 4 * EPS * np.max(np.abs(K))
            np.testing.assert_allclose(K, K.T, rtol=0, atol=atol)


def test_square_gram_is_the_rectangular_one():
    x = cases.points(2)
    for kernel in (Unrounded(), Matern52(0.4)):
        np.testing.assert_allclose(gram(kernel, x), gram(kernel, x, x), rtol=1e-15)
        # The derivative in x goes through both arguments.
        square = _slope(lambda x, k=kernel: gram(k, x), x)
        both = _slope(lambda x, k=kernel: gram(k, x, x), x)
        np.testing.assert_allclose(square, both, rtol=1e-12, atol=1e-13)


def _slope(matrix, x):
    return jax.jit(jax.grad(lambda x: jnp.sum(jnp.sin(matrix(x)))))(jnp.asarray(x))


def test_a_large_square_gram_compiles():
    # A select between a matrix and its transpose takes XLA minutes from 1000 points.
    x = jnp.linspace(0.0, 1.0, 1000)[:, None]
    K = eqx.filter_jit(gram)(Matern52(0.3), x)
    atol = 4 * EPS * np.max(np.abs(K))
    np.testing.assert_allclose(K, K.T, rtol=0, atol=atol)


@pytest.mark.float32
def test_vectors_lists_and_integers_are_points():
    kernel = SquaredExponential(2.0)
    column = np.array([[0.0], [1.0], [3.0]])
    vectors: list[Any] = [column[:, 0], [0, 1, 3], np.array([0, 1, 3])]
    for x in vectors:
        np.testing.assert_array_equal(gram(kernel, x), gram(kernel, column))
        np.testing.assert_array_equal(gram(kernel, x, column), gram(kernel, column))
        np.testing.assert_array_equal(diagonal(kernel, x), np.ones(3))


def test_dtype_follows_kernel_and_points():
    x = jnp.asarray(cases.points(2), jnp.float32)
    kernel = jax.tree.map(lambda v: v.astype(jnp.float32), 2.0 * Matern52(0.5) + 0.1)
    assert gram(kernel, x).dtype == jnp.float32
    assert diagonal(kernel, x).dtype == jnp.float32
    assert gram(kernel, x, x).dtype == jnp.float32


def test_disagreeing_dimensions_are_refused():
    x = np.ones((3, 2))
    with pytest.raises(ValueError, match="z: got points of dimension 1, wanted 2"):
        gram(Matern52(), x, np.ones((3, 1)))
    with pytest.raises(ValueError, match=r"x: got shape \(3, 2, 1\), wanted \(n, d\)"):
        gram(Matern52(), x[..., None])
    with pytest.raises(ValueError, match="lengthscale: got 3 entries"):
        gram(Matern52(np.ones(3)), x)
    with pytest.raises(ValueError, match="dims: got"):
        diagonal(on(Matern52(), 2), x)


@pytest.mark.float32
@pytest.mark.parametrize("name", cases.each_kernel())
def test_no_points(name):
    kernel, dimension, domain = cases.KERNELS[name]
    x = jnp.asarray(cases.points(dimension, 3, domain=domain))
    none = jnp.zeros((0, dimension))

    def blocks(x):
        both = gram(kernel, none, x), gram(kernel, x, none)
        return jnp.sum(both[0]) + jnp.sum(both[1]), (gram(kernel, none), *both)

    slope, values = jax.jit(jax.grad(blocks, has_aux=True))(x)
    assert [value.shape for value in values] == [(0, 0), (0, 3), (3, 0)]
    np.testing.assert_array_equal(slope, np.zeros_like(x))
