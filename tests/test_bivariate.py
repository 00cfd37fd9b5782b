import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy.special import ndtr

from jgp._bivariate import bivariate_normal_cdf

CORRELATIONS = (0, 0.3, -0.5, 0.92, 0.93, -0.93, 0.999, -0.9999, 1 - 1e-8, 1, -1)
LIMITS = (
    *itertools.product((-3.0, -0.4, 0.0, 1.7), repeat=2),
    (1.0, 1.0001),
    (-5.0, -5.0),
    (40.0, 1.0),
    (-40.0, 1.0),
    (40.0, 40.0),
    (40.0, -40.0),
    (-4.0, 3.9),
)


def by_panels(h, k, rho):
    """∫ φ(x) Φ((k − ρx)/σ) dx to h: 40 Gauss nodes between every change of scale."""
    if abs(rho) == 1:
        return ndtr(min(h, k)) if rho > 0 else max(ndtr(h) - ndtr(-k), 0.0)
    sigma, sign = np.sqrt((1 - rho) * (1 + rho)), 1.0 if rho >= 0 else -1.0
    low, high = -14.0, min(h, 14.0)
    if high <= low:
        return 0.0
    width = sigma / max(abs(rho), 0.1)
    steps = width * np.array([-40, -20, -10, -6, -4, -2, -1, 0, 1, 2, 4, 6, 10, 20, 40])
    breaks = np.concatenate([k / rho + steps if rho else steps, np.arange(-13, 14)])
    edges = np.unique([low, high, *breaks[(breaks > low) & (breaks < high)]])
    nodes, weights = np.polynomial.legendre.leggauss(40)
    half = np.diff(edges)[:, None] / 2
    x = edges[:-1, None] + half * (1 + nodes)
    inner = ndtr(((k - sign * x) + (sign - rho) * x) / sigma)
    return np.sum(half * weights * np.exp(-x * x / 2) * inner) / np.sqrt(2 * np.pi)


def cases():
    rows = [(h, k, rho) for rho in CORRELATIONS for h, k in LIMITS]
    return np.array(rows, jnp.zeros(()).dtype).T


@pytest.mark.slow
@pytest.mark.float32
def test_values():
    h, k, rho = cases()
    expected = [*map(by_panels, *np.array([h, k, rho], np.float64))]
    got = jax.jit(bivariate_normal_cdf)(h, k, rho)
    # Measured 5e-16 and 1e-7.
    atol = 2e-15 if h.dtype == np.float64 else 3e-7
    np.testing.assert_allclose(got, expected, rtol=0, atol=atol)
    assert np.all((got >= 0) & (got <= 1))


@pytest.mark.slow
def test_small_probabilities_of_positive_correlations_are_relatively_accurate():
    h, k, rho = cases()
    keep = (rho >= 0) & (np.minimum(h, k) > -6)
    h, k, rho = h[keep], k[keep], rho[keep]
    expected = np.array([by_panels(*case) for case in zip(h, k, rho, strict=True)])
    got = bivariate_normal_cdf(h, k, rho)
    np.testing.assert_allclose(got, expected, rtol=1e-11)


@pytest.mark.long
@pytest.mark.slow
def test_derivatives():
    compiled = jax.jit(bivariate_normal_cdf)
    for case in ((0.3, -0.7, 0.4), (-1.2, -0.9, -0.95), (0.5, 0.6, 0.97)):
        arguments = tuple(jnp.asarray(v) for v in case)
        check_grads(compiled, arguments, order=2, rtol=1e-5, atol=1e-5)


@pytest.mark.float32
def test_derivatives_are_finite_everywhere():
    h, k, rho = cases()
    derivatives = jax.vmap(jax.hessian(bivariate_normal_cdf, argnums=(0, 1, 2)))
    for value in jax.tree.leaves(jax.jit(derivatives)(h, k, rho)):
        assert np.all(np.isfinite(value))


@pytest.mark.slow
def test_symmetry_and_complement():
    h, k, rho = cases()
    forward = bivariate_normal_cdf(h, k, rho)
    np.testing.assert_allclose(forward, bivariate_normal_cdf(k, h, rho), atol=2e-15)
    mirrored = bivariate_normal_cdf(h, -k, -rho)
    np.testing.assert_allclose(forward + mirrored, ndtr(h), atol=2e-15)
