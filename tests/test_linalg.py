import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from jax.test_util import check_grads

from jgp._linalg import (
    LADDER,
    cholesky,
    inverse,
    inverse_root,
    log_determinant,
    semidefinite_root,
    solve_lower,
    solve_upper,
)
from tests.cases import slow_unless

compiled_cholesky = jax.jit(cholesky)
EPS = float(np.finfo(jnp.result_type(float)).eps)


def wishart(n, seed=0, condition=100.0):
    """A symmetric matrix with eigenvalues from 1 to 1/condition."""
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))
    K = q * np.geomspace(1, 1 / condition, n) @ q.T
    return (K + K.T) / 2


@pytest.mark.float32
@pytest.mark.parametrize("n", [1, 2, 17])
def test_factor_of_a_good_matrix_has_no_jitter(n):
    K = wishart(n)
    lower, jitter, ok = cholesky(jnp.asarray(K))
    assert bool(ok)
    assert float(jitter) == 0.0
    # Cholesky is backward stable: LL' = K to n eps of the norm, 1 here.
    np.testing.assert_allclose(lower @ lower.T, K, rtol=0, atol=10 * n * EPS)
    np.testing.assert_array_equal(lower, np.tril(lower))


@pytest.mark.float32
def test_solves_and_determinant_against_scipy():
    K, b = wishart(9), np.random.default_rng(1).normal(size=(9, 2))
    lower = cholesky(jnp.asarray(K)).lower
    L = scipy.linalg.cholesky(K, lower=True)
    # A forward error is bounded by the condition number, 100, times n eps.
    atol = 100 * 9 * EPS * np.max(np.abs(b)) * 100
    b = jnp.asarray(b)
    forward = scipy.linalg.solve_triangular(L, b, lower=True)
    backward = scipy.linalg.solve_triangular(L.T, b, lower=False)
    np.testing.assert_allclose(solve_lower(lower, b), forward, rtol=0, atol=atol)
    np.testing.assert_allclose(solve_upper(lower, b), backward, rtol=0, atol=atol)
    np.testing.assert_allclose(
        log_determinant(lower), np.linalg.slogdet(K)[1], rtol=1000 * EPS
    )


@pytest.mark.float32
def test_a_singular_matrix_gets_a_little_jitter():
    K = jnp.ones((6, 6))
    lower, jitter, ok = cholesky(K)
    assert bool(ok)
    assert float(jitter) in [float(rung * EPS) for rung in LADDER[1:]]
    np.testing.assert_allclose(
        lower @ lower.T, K + jitter * jnp.eye(6), rtol=0, atol=20 * EPS
    )


@given(scale=st.floats(1e-6, 1e6), seed=st.integers(0, 100))
def test_the_jitter_is_relative_to_the_diagonal(scale, seed):
    # A product of a tall matrix with itself: rank 3 of 8.
    G = np.random.default_rng(seed).normal(size=(8, 3))
    plain = compiled_cholesky(jnp.asarray(G @ G.T))
    # A power of two scales every rounding error along.
    scale = 2.0 ** round(np.log2(scale))
    scaled = compiled_cholesky(jnp.asarray(scale * (G @ G.T)))
    assert bool(plain.ok)
    assert bool(scaled.ok)
    assert float(scaled.jitter) == scale * float(plain.jitter)


@pytest.mark.float32
@pytest.mark.parametrize(
    "K", [np.diag([1.0, -1.0]), np.full((2, 2), np.nan), np.array([[1.0, 2], [2, 1]])]
)
def test_an_indefinite_matrix_is_reported(K):
    assert not bool(cholesky(jnp.asarray(K)).ok)


def test_an_empty_matrix_has_an_empty_factor():
    lower, jitter, ok = cholesky(jnp.zeros((0, 0)))
    assert lower.shape == (0, 0)
    assert float(jitter) == 0.0
    assert bool(ok)
    assert float(log_determinant(lower)) == 0.0


@pytest.mark.float32
def test_a_batch_is_factorised_element_by_element():
    good, singular, bad = wishart(4), np.ones((4, 4)), -np.eye(4)
    batch = jnp.asarray(np.stack([good, singular, bad]))
    for factors in (cholesky(batch), jax.vmap(cholesky)(batch)):
        assert factors.lower.shape == (3, 4, 4)
        assert factors.ok.tolist() == [True, True, False]
        assert float(factors.jitter[0]) == 0.0
        # The element that needed no jitter is not touched by those that did.
        np.testing.assert_allclose(
            factors.lower[0], cholesky(batch[0]).lower, rtol=100 * EPS, atol=EPS
        )


def symmetric(factor):
    return lambda K: factor((K + K.T) / 2)


@pytest.mark.slow
def test_derivatives_to_second_order():
    # Differences of differences are trustworthy for a well-conditioned matrix only.
    K = jnp.asarray(wishart(4, condition=3.0))
    factor = jax.jit(symmetric(lambda K: cholesky(K).lower))
    check_grads(factor, (K,), order=2, modes=("fwd", "rev"))


@pytest.mark.parametrize("outer", [jax.jacfwd, jax.jacrev])
@pytest.mark.parametrize("inner", slow_unless([jax.jacrev], [jax.jacfwd, jax.jacrev]))
def test_second_derivatives_are_those_of_lapack_cholesky(outer, inner):
    K = jnp.asarray(wishart(4))
    hessian = outer(inner(symmetric(lambda K: cholesky(K).lower)))
    expected = jax.jit(outer(inner(symmetric(jnp.linalg.cholesky))))(K)
    scale = np.max(np.abs(expected))
    np.testing.assert_allclose(jax.jit(hessian)(K), expected, atol=1e-13 * scale)


@pytest.mark.slow
def test_gradient_of_the_log_determinant_is_the_inverse():
    K = wishart(5)
    gradient = jax.grad(lambda K: log_determinant(cholesky(K).lower))(jnp.asarray(K))
    np.testing.assert_allclose(gradient, np.linalg.inv(K), rtol=1e-11)


def test_the_jitter_counts_as_a_constant():
    jitter = jax.grad(lambda K: cholesky(K).jitter)(jnp.ones((3, 3)))
    np.testing.assert_array_equal(jitter, np.zeros((3, 3)))
    gradient = jax.grad(lambda K: log_determinant(cholesky(K).lower))(jnp.ones((3, 3)))
    assert np.all(np.isfinite(gradient))


@pytest.mark.parametrize(
    "function", slow_unless([inverse], [inverse, inverse_root, semidefinite_root])
)
def test_derivatives_of_inverses_and_roots(function):
    K = jnp.asarray(wishart(4, condition=3.0))
    check_grads(jax.jit(symmetric(function)), (K,), order=2, modes=("fwd", "rev"))


@pytest.mark.float32
def test_root_of_a_semidefinite_matrix():
    # Rank 2 of 5, with an eigenvalue below zero by rounding.
    G = np.random.default_rng(0).normal(size=(5, 2))
    S = G @ G.T - 10 * EPS * np.eye(5)
    root = semidefinite_root(jnp.asarray(S))
    np.testing.assert_allclose(root @ root.T, S, rtol=0, atol=1000 * EPS)
    np.testing.assert_allclose(semidefinite_root(jnp.zeros((3, 3))), np.zeros((3, 3)))


@pytest.mark.slow
def test_derivative_of_a_root_where_eigenvalues_are_equal_or_zero():
    def root(t):
        return semidefinite_root(jnp.diag(jnp.stack([t, t, 0 * t])))

    t = jnp.asarray(4.0)
    expected = np.diag([0.25, 0.25, 0.0])
    np.testing.assert_allclose(jax.jacfwd(root)(t), expected, atol=1e-14)
    np.testing.assert_allclose(jax.jacrev(root)(t), expected, atol=1e-14)
