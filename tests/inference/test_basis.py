"""A mean whose coefficients are integrated out (Rasmussen & Williams 2006, §2.7)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import jgp
from jgp import kernels, likelihoods, means
from jgp._linalg import inverse_from_factor
from jgp.kernels import gram

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, size=(14, 2))
Y = RNG.normal(size=(14, 2))
NEW = RNG.uniform(-3, 3, size=(4, 2))
KERNEL = 1.3 * kernels.Matern52(0.9)
QUADRATIC = means.polynomial(2)
H = np.stack([np.ones(14), *X.T, X[:, 0] ** 2, X[:, 0] * X[:, 1], X[:, 1] ** 2], 1)


class Waves(eqx.Module):
    """Features with a parameter."""

    frequency: Float[Array, ""]

    def __call__(self, x):
        return jnp.stack([jnp.ones_like(x[0]), jnp.sin(self.frequency * x[0])])


def test_monomials_of_a_total_degree():
    got = jax.vmap(QUADRATIC.features)(jnp.asarray(X))
    np.testing.assert_allclose(got, H, rtol=1e-14)
    assert means.polynomial(0).features(jnp.ones(3)).shape == (1,)
    assert means.polynomial(3).features(jnp.ones(4)).shape == (35,)
    with pytest.raises(ValueError, match="degree: got -1"):
        means.polynomial(-1)


def test_evidence_and_predictions_are_the_books():
    model = jgp.Model(jgp.GaussianProcess(KERNEL, QUADRATIC), likelihoods.Gaussian(0.2))
    found = jgp.exact(model, X, Y[:, 0])
    y, K = Y[:, 0], np.asarray(gram(KERNEL, X)) + 0.2 * np.eye(14)
    Ki = np.linalg.inv(K)
    A = H.T @ Ki @ H
    C = Ki @ H @ np.linalg.inv(A) @ H.T @ Ki
    # Eq. 2.45, for B⁻¹ = 0 and m = 6 coefficients.
    evidence = (
        -y @ Ki @ y / 2
        + y @ C @ y / 2
        - np.linalg.slogdet(K)[1] / 2
        - np.linalg.slogdet(A)[1] / 2
        - (14 - 6) / 2 * np.log(2 * np.pi)
    )
    np.testing.assert_allclose(found.log_evidence, evidence, rtol=1e-12)
    k = np.asarray(gram(KERNEL, X, NEW))
    h = np.asarray(jax.vmap(QUADRATIC.features)(jnp.asarray(NEW))).T
    beta = np.linalg.solve(A, H.T @ Ki @ y)
    R = h - H.T @ Ki @ k
    mean = k.T @ Ki @ y + R.T @ beta  # eq. 2.42
    prior = np.asarray(gram(KERNEL, NEW))
    covariance = prior - k.T @ Ki @ k + R.T @ np.linalg.solve(A, R)
    joint, marginal = found.posterior.joint(NEW), found.posterior.marginals(NEW)
    np.testing.assert_allclose(joint.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(joint.covariance, covariance, rtol=1e-10)
    np.testing.assert_allclose(marginal.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(marginal.variance, np.diag(covariance), rtol=1e-10)


@pytest.mark.slow
def test_is_the_limit_of_a_proper_prior():
    noise = likelihoods.Gaussian([0.2, 0.3])
    flat = jgp.independent([KERNEL, KERNEL], mean=QUADRATIC)
    one = jgp.exact(jgp.Model(flat, noise), X, Y)
    size = 1e6
    wide = size * kernels.Warped(kernels.Linear(), QUADRATIC.features)
    proper = jgp.independent([KERNEL + wide, KERNEL + wide])
    other = jgp.exact(jgp.Model(proper, noise), X, Y)
    first, second = (a.posterior.marginals(NEW) for a in (one, other))
    # Relative errors of order variance/size, and eps·size.
    np.testing.assert_allclose(first.mean, second.mean, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(first.variance, second.variance, rtol=1e-5)
    # The prior's own factor: 6 coefficients in each of two outputs.
    factor = 6 * np.log(2 * np.pi * size)
    np.testing.assert_allclose(one.log_evidence - factor, other.log_evidence, atol=1e-4)


def test_what_the_basis_spans_costs_nothing():
    process = jgp.GaussianProcess(KERNEL, QUADRATIC)
    model = jgp.Model(process, likelihoods.Gaussian(0.2))
    beta = np.arange(1.0, 7.0)
    plain = jgp.exact(model, X, Y[:, 0])
    shifted = jgp.exact(model, X, Y[:, 0] + H @ beta)
    np.testing.assert_allclose(shifted.log_evidence, plain.log_evidence, rtol=1e-9)
    difference = shifted.posterior.coefficients - plain.posterior.coefficients
    np.testing.assert_allclose(difference[:, 0], beta, rtol=1e-9)
    there = jax.vmap(QUADRATIC.features)(jnp.asarray(NEW)) @ beta
    means_ = [a.posterior.marginals(NEW).mean for a in (plain, shifted)]
    np.testing.assert_allclose(means_[1] - means_[0], there, rtol=1e-8)


@pytest.mark.long
@pytest.mark.slow
def test_missing_targets():
    process = jgp.independent(KERNEL, num_latents=2, mean=means.polynomial(1))
    model = jgp.Model(process, likelihoods.Gaussian(0.2))
    kept = np.ones((14, 2), bool)
    kept[3:6, 1] = False
    both = jgp.exact(model, X, np.where(kept, Y, np.nan), mask=kept)
    single = jgp.Model(
        jgp.GaussianProcess(KERNEL, means.polynomial(1)), likelihoods.Gaussian(0.2)
    )
    parts = [jgp.exact(single, X[kept[:, c]], Y[kept[:, c], c]) for c in (0, 1)]
    total = sum(part.log_evidence for part in parts)
    np.testing.assert_allclose(both.log_evidence, total, rtol=1e-11)
    got = both.posterior.marginals(NEW)
    for c, part in enumerate(parts):
        alone = part.posterior.marginals(NEW)
        np.testing.assert_allclose(got.mean[:, c], alone.mean, rtol=1e-9)
        np.testing.assert_allclose(got.variance[:, c], alone.variance, rtol=1e-9)


@pytest.mark.slow
def test_gradients_are_differences():
    @jax.jit
    def value(t):
        mean = means.Basis(Waves(1.0 + 0.3 * t), means.Constant(0.5 * t))
        process = jgp.GaussianProcess((1.3 + t) * kernels.Matern52(0.9 - 0.2 * t), mean)
        model = jgp.Model(process, likelihoods.Gaussian(0.2 + 0.1 * t))
        return jgp.exact(model, X, Y[:, 0]).log_evidence

    slope = jax.jit(jax.grad(value))
    h = 1e-4
    difference = (value(h) - value(-h)) / (2 * h)
    np.testing.assert_allclose(slope(0.0), difference, rtol=1e-6)
    curvature = jax.jit(jax.grad(slope))(0.0)
    np.testing.assert_allclose(
        curvature, (slope(h) - slope(-h)) / (2 * h), rtol=1e-6, atol=1e-6
    )


def test_too_little_to_determine_the_coefficients():
    model = jgp.Model(jgp.GaussianProcess(KERNEL, QUADRATIC), likelihoods.Gaussian(0.2))
    with pytest.raises(ValueError, match="x: got 5 points for the 6 features"):
        jgp.exact(model, X[:5], Y[:5, 0])
    line = np.stack([np.arange(8.0), np.arange(8.0)], axis=1)
    found = jgp.exact(model, line, Y[:8, 0], throw=False)
    assert found.result == jgp.RESULTS.undetermined
    with pytest.raises(ValueError, match="mean: got a Basis, whose coefficients only"):
        jgp.laplace(model, X, Y[:, 0])
    with pytest.raises(ValueError, match="mean: got a Basis for one latent"):
        jgp.independent([KERNEL, KERNEL], mean=[QUADRATIC, means.Zero()])
    with pytest.raises(TypeError, match="Basis: is no function to add"):
        _ = means.Constant(1.0) + QUADRATIC


@pytest.mark.float32
@pytest.mark.parametrize("n", [1, 5, 130, 300])
def test_inverse_from_a_factor(n):
    dtype = jnp.result_type(float)
    root = RNG.normal(size=(n, 2 * n)) / np.sqrt(2 * n)
    S = jnp.asarray(root @ root.T + 0.1 * np.eye(n), dtype)
    got = inverse_from_factor(S, jnp.linalg.cholesky(S))
    eps = float(jnp.finfo(dtype).eps)
    # The condition number is below 40.
    np.testing.assert_allclose(got @ S, np.eye(n), atol=400 * eps * np.sqrt(n))
    np.testing.assert_allclose(got, got.T, atol=100 * eps)


@pytest.mark.slow
def test_features_that_are_not_told_apart_are_told_always():
    """Collinear features, and fewer observations than features, on many data sets."""
    rng = np.random.default_rng(0)
    collinear = means.Basis(
        lambda x: jnp.stack([1.0 + 0 * x[0], x[0], 2.3 * x[0] + 0.7])
    )
    found = []
    for _ in range(6):
        x, y = rng.uniform(0, 3, size=12), rng.normal(size=12)
        process = jgp.GaussianProcess(kernels.Matern52(0.7), collinear)
        model = jgp.Model(process, likelihoods.Gaussian(0.1))
        found.append(jgp.exact(model, x, y, throw=False))
        process = jgp.GaussianProcess(kernels.Matern52(0.7), means.polynomial(2))
        model = jgp.Model(process, likelihoods.Gaussian(0.1))
        mask = np.arange(12) < 2
        found.append(jgp.exact(model, x, y, mask=mask, throw=False))
        twice = np.where(np.arange(12) < 6, 0.1, 0.7)
        found.append(jgp.exact(model, twice, y, throw=False))
    assert all(bool(a.result == jgp.RESULTS.undetermined) for a in found)
    with pytest.raises(jgp.InferenceError, match="do not determine the coefficients"):
        jgp.exact(model, twice, y)


def test_the_origin_of_the_inputs_is_nothing():
    """Raw years: the columns of a cubic differ in their last digits only."""
    year = np.linspace(1950, 2020, 40)
    y = np.sin(year / 9) + np.random.default_rng(0).normal(size=40)
    for degree in (3, 4):
        process = jgp.GaussianProcess(
            kernels.SquaredExponential(2.0), means.polynomial(degree)
        )
        model = jgp.Model(process, likelihoods.Gaussian(0.01))
        raw, centred = jgp.exact(model, year, y), jgp.exact(model, year - 1985, y)
        # Condition numbers of 1e6 and 1e8 of columns of length 1.
        rtol = 1e-16 * 1e4 ** (degree - 1)
        pair = raw.log_evidence, centred.log_evidence
        np.testing.assert_allclose(*pair, rtol=rtol)
        pair = raw.predict([2030.0]), centred.predict([45.0])
        np.testing.assert_allclose(pair[0].mean, pair[1].mean, rtol=100 * rtol)
        np.testing.assert_allclose(pair[0].variance, pair[1].variance, rtol=100 * rtol)


def test_where_a_basis_has_no_place():
    flat = means.polynomial(1)
    with pytest.raises(ValueError, match="mean: got a Basis, wanted a function"):
        jgp.coregionalised(kernels.Matern52(), [[1.0], [0.5]], mean=flat)
    process = jgp.independent(kernels.Matern52(), num_latents=2, mean=flat)
    noise = likelihoods.CorrelatedGaussian([[0.2, 0.1], [0.1, 0.3]])
    with pytest.raises(ValueError, match="mean: got a Basis for outputs whose noise"):
        jgp.exact(jgp.Model(process, noise), np.arange(5.0), np.ones((5, 2)))
    scalar = jgp.GaussianProcess(kernels.Matern52(), means.Basis(jnp.sum))
    model = jgp.Model(scalar, likelihoods.Gaussian(0.1))
    with pytest.raises(
        ValueError, match=r"mean: got a Basis of features of shape \(\)"
    ):
        jgp.exact(model, np.arange(5.0), np.arange(5.0))
