"""Means and integrals over boxes against closed forms, and as observations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import erf

import jgp
from jgp import kernels, likelihoods, means
from jgp.kernels import SquaredExponential as SE
from jgp.kernels import WithIntegrals

# Equal, nested, overlapping, touching, apart, and a value.
BOXES = np.array([[0, 1], [0, 1], [0.2, 0.5], [0.7, 1.9], [1, 1.4], [3, 4], [0.6, 0.6]])


def smooth_antiderivative(t, lengthscale):
    """F with F'' = exp(−t²/(2ℓ²))."""
    scaled = t / (np.sqrt(2) * lengthscale)
    return lengthscale * np.sqrt(np.pi / 2) * t * erf(scaled) + (
        lengthscale**2 * np.exp(-(scaled**2))
    )


def rough_antiderivative(t, lengthscale):
    """F with F'' = exp(−|t|/ℓ)."""
    return lengthscale * np.abs(t) + lengthscale**2 * np.exp(-np.abs(t) / lengthscale)


def integrals(antiderivative, boxes, lengthscale):
    """∫∫ k over pairs of intervals of some width."""
    a, b = boxes[:, :1], boxes[:, 1:]
    c, d = a.T, b.T
    F = [antiderivative(t, lengthscale) for t in (b - c, b - d, a - c, a - d)]
    return F[0] - F[1] - F[2] + F[3]


@pytest.mark.float32
@pytest.mark.parametrize(
    ("kernel", "antiderivative"),
    [(SE(0.7), smooth_antiderivative), (kernels.Matern12(0.7), rough_antiderivative)],
    ids=["smooth", "rough"],
)
def test_closed_forms_in_one_dimension(kernel, antiderivative):
    dtype = jnp.result_type(float)
    boxes = BOXES[:-1]
    wanted = integrals(antiderivative, boxes, 0.7)
    width = boxes[:, 1] - boxes[:, 0]
    # Eight nodes a piece; differences of F itself lose few digits here.
    atol = 1e-11 if dtype == jnp.float64 else 1e-6
    got = kernels.gram(WithIntegrals(kernel, integrals=True), jnp.asarray(boxes, dtype))
    assert got.dtype == dtype
    np.testing.assert_allclose(got, wanted, atol=atol)
    mean = kernels.gram(WithIntegrals(kernel), jnp.asarray(boxes, dtype))
    np.testing.assert_allclose(mean, wanted / np.outer(width, width), atol=10 * atol)
    # A value with means: a slope of F over the width, by a narrow box's limit.
    values = kernels.gram(WithIntegrals(kernel), boxes, BOXES[-1:])[:, 0]
    narrow = np.concatenate([boxes, [[0.6 - 1e-3, 0.6 + 1e-3]]])
    limit = integrals(antiderivative, narrow, 0.7)[:-1, -1] / (2e-3 * width)
    np.testing.assert_allclose(values, limit, atol=1e-6)
    one = kernels.diagonal(WithIntegrals(kernel), BOXES[-1:])
    np.testing.assert_allclose(one, 1, rtol=4 * float(jnp.finfo(dtype).eps))


def test_brownian_motion_has_its_known_integral():
    """Var ∫₀^T W = T³/3, and cov(∫₀^T W, W(s)) = Ts − s²/2 for s <= T."""
    kernel = WithIntegrals(kernels.Wiener(), integrals=True)
    np.testing.assert_allclose(kernels.diagonal(kernel, [[0.0, 2.0]]), 8 / 3)
    mean = WithIntegrals(kernels.Wiener())
    at = kernels.gram(mean, [[0.0, 2.0]], [[0.7, 0.7], [2.0, 2.0]])
    np.testing.assert_allclose(2 * at[0], [2 * 0.7 - 0.245, 2.0])


def test_boxes_in_two_dimensions_are_products():
    x = np.array([[0, 0, 1, 0.5], [0.2, 0.1, 0.2, 0.9], [0.5, 0.5, 0.5, 0.5]])
    kernel = WithIntegrals(SE(np.array([0.7, 1.2])), num_nodes=10)
    each = [
        np.asarray(kernels.gram(WithIntegrals(SE(l)), x[:, [i, i + 2]]))
        for i, l in ((0, 0.7), (1, 1.2))
    ]
    got = kernels.gram(kernel, x)
    np.testing.assert_allclose(got, each[0] * each[1], atol=1e-12)
    # More pairs than are computed at once.
    many = np.tile(x, (12, 1))
    np.testing.assert_allclose(kernels.gram(kernel, many)[:3, :3], got, atol=1e-14)


@given(st.integers(0, 1000), st.sampled_from([0.1, 1.0, 10.0]))
def test_any_boxes_have_a_covariance(seed, lengthscale):
    rng = np.random.default_rng(seed)
    lower = rng.uniform(0, 3, size=(9, 1))
    boxes = np.concatenate([lower, lower + rng.choice([0, 0.3, 1], size=(9, 1))], 1)
    K = np.asarray(kernels.gram(WithIntegrals(kernels.Matern32(lengthscale)), boxes))
    np.testing.assert_array_equal(K, K.T)
    # Widths of up to ten lengthscales leave the rule 1e-5.
    assert np.linalg.eigvalsh(K).min() > -(1e-5 if lengthscale < 1 else 1e-12)
    assert np.all(np.diag(K) <= 1 + 1e-5)


def test_a_mean_over_a_box_is_the_mean_of_its_points():
    """Conditioned on means and values, as on the sums of a fine grid by hand."""
    rng = np.random.default_rng(0)
    boxes = np.array([[0, 1.0], [1, 1.5], [2, 2], [1.2, 3]])
    y, new = rng.normal(size=4), np.array([[0.5, 0.5], [0, 3.0]])
    kernel, base = SE(0.8), means.Linear([0.7], 0.2)
    process = jgp.GaussianProcess(WithIntegrals(kernel), means.WithIntegrals(base))
    found = jgp.exact(jgp.Model(process, likelihoods.Gaussian(0.01)), boxes, y)
    grid = np.linspace(0, 3, 3001)
    weights = np.array(
        [
            np.isclose(grid, a) * 1.0
            if a == b
            else np.where((grid >= a - 1e-9) & (grid <= b + 1e-9), 1.0, 0)
            * np.where(np.isclose(grid, a) | np.isclose(grid, b), 0.5, 1)
            for a, b in [*boxes, *new]
        ]
    )
    weights /= weights.sum(axis=1, keepdims=True)
    K = weights @ np.exp(-((grid[:, None] - grid) ** 2) / 2 / 0.64) @ weights.T
    m = weights @ (0.7 * grid + 0.2)
    S = K[:4, :4] + 0.01 * np.eye(4)
    mean = m[4:] + K[4:, :4] @ np.linalg.solve(S, y - m[:4])
    covariance = K[4:, 4:] - K[4:, :4] @ np.linalg.solve(S, K[:4, 4:])
    joint = found.posterior.joint(new)
    # Trapezia of width 1e-3 are off by 1e-7.
    np.testing.assert_allclose(joint.mean, mean, atol=1e-6)
    np.testing.assert_allclose(joint.covariance, covariance, atol=1e-6)
    _, logdet = np.linalg.slogdet(2 * np.pi * S)
    r = y - m[:4]
    evidence = -(r @ np.linalg.solve(S, r) + logdet) / 2
    np.testing.assert_allclose(found.log_evidence, evidence, atol=1e-6)


def test_totals_with_a_trend_whose_coefficients_are_unknown():
    """Integrals of a line without noise give back the line, in closed form."""
    boxes = np.array([[0, 1], [1, 3], [2, 2.5], [0.5, 4]])
    width = boxes[:, 1] - boxes[:, 0]
    y = width * (2 - 0.5 * boxes.mean(axis=1))
    features = means.WithIntegrals(means.Monomials(1), integrals=True)
    kernel = WithIntegrals(SE(1.0), integrals=True)
    process = jgp.GaussianProcess(kernel, means.Basis(features))
    found = jgp.exact(jgp.Model(process, likelihoods.Gaussian(1e-6)), boxes, y)
    np.testing.assert_allclose(found.posterior.coefficients[:, 0], [2, -0.5], atol=1e-8)


@pytest.mark.slow
def test_hyperparameters_have_derivatives():
    boxes = jnp.asarray(BOXES)
    y = np.sin(BOXES.sum(axis=1))

    def log_evidence(log_lengthscale):
        kernel = WithIntegrals(kernels.Matern32(jnp.exp(log_lengthscale)))
        model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(0.1))
        return jgp.exact(model, boxes, y).log_evidence

    slope = jax.jit(jax.grad(log_evidence))(0.1)
    h = 1e-5
    difference = (log_evidence(0.1 + h) - log_evidence(0.1 - h)) / (2 * h)
    np.testing.assert_allclose(slope, difference, rtol=1e-8)


def test_what_is_no_box():
    with pytest.raises(ValueError, match="num_nodes: got 0, wanted an integer >= 1"):
        WithIntegrals(SE(), num_nodes=0)
    with pytest.raises(ValueError, match="x: got points of 3 coordinates, wanted 2d"):
        kernels.gram(WithIntegrals(SE()), np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"x: got \[1\. 0\.\] among the boxes"):
        kernels.gram(WithIntegrals(SE()), [[0.0, 1.0], [1.0, 0.0]])
    with pytest.raises(ValueError, match="lengthscale: got"):
        kernels.gram(WithIntegrals(SE([1.0, 2.0])), [[0.0, 1.0]])
    for mean in (means.Constant(1.0), means.polynomial(1), jnp.sum):
        for lift in (WithIntegrals, kernels.WithDerivatives):
            name = f"mean: got .* beside kernels.{lift.__name__}, wanted means"
            with pytest.raises(ValueError, match=name):
                jgp.GaussianProcess(2.0 * lift(SE()), mean)
            with pytest.raises(ValueError, match=name):
                jgp.independent([lift(SE()), lift(SE())], mean=mean)
