"""The posterior algebra against 60 digits, where sites are far narrower than priors."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import jgp
from jgp import kernels, likelihoods
from jgp.inference import DiagonalSites, SignedSites, site_posterior
from jgp.inference._site_posterior import (
    cavity_ratio,
    centred_normaliser,
    log_centred_sites,
    signed_posterior,
    site_normaliser,
)

N = 12
X = np.linspace(0, 4, N)
DOUBLE = jax.config.jax_enable_x64
# Of a precision to the prior's; float32 has no digits left at 1e6.
RATIOS = (1e2, 1e4, 1e6) if DOUBLE else (1e2, 1e4)
EPS = float(jnp.finfo(jnp.result_type(float)).eps)


def problem(kind, ratio):
    """K, sites of precisions up to `ratio` over the prior's, and new cross-covariances.

    The means that sites ask for lie close to a smooth function, as those of data do.
    """
    rng = np.random.default_rng(3)
    x = jnp.asarray(np.append(X, 1.9))[:, None]
    kernel = 4 * kernels.Matern52(1.0)
    K = kernel.matrix(x, x)
    tau = ratio / 4 * 10.0 ** -rng.uniform(0, 1, N)
    tau[[3, 8]] = 1e-9, 1e-3
    if kind is SignedSites:
        tau[[2, 6]] = -0.05, -0.4
    wanted = 30 + 3 * np.sin(X) + rng.normal(size=N) / np.sqrt(np.abs(tau) + 1)
    linear = jnp.asarray(tau * wanted)
    sites = kind(jnp.asarray(tau)[:, None], linear[:, None])
    return K[:N, :N][None], sites, K[:N, N], float(K[N, N])


def in_many_digits(K, sites, k):
    """m, diag Σ, b, diag M, log|I + KT| and kᵀMk."""
    with mpmath.workdps(60):
        K = mpmath.matrix(np.asarray(K[0], float).tolist())
        tau = [mpmath.mpf(float(t)) for t in sites.precision[:, 0]]
        nu = mpmath.matrix([mpmath.mpf(float(v)) for v in sites.linear[:, 0]])
        T = mpmath.diag(tau)
        outer = mpmath.eye(N) + K * T
        S = outer**-1 * K
        m = S * nu
        M = T - T * S * T
        k = mpmath.matrix([mpmath.mpf(float(v)) for v in k])
        diagonal = [np.array([float(A[i, i]) for i in range(N)]) for A in (S, M)]
        vectors = [np.array([float(v) for v in w]) for w in (m, nu - T * m)]
        log_det = float(mpmath.log(mpmath.det(outer)))
        quadratic = float((k.T * M * k)[0])
    return vectors[0], diagonal[0], vectors[1], diagonal[1], log_det, quadratic


@pytest.mark.float32
@pytest.mark.parametrize("kind", [DiagonalSites, SignedSites])
@pytest.mark.parametrize("ratio", RATIOS)
def test_moments_keep_their_digits(kind, ratio):
    K, sites, k, prior = problem(kind, ratio)
    posterior = site_posterior(K, jnp.zeros((N, 1)), sites)
    m, S, b, M, log_det, quadratic = in_many_digits(K, sites, k)
    # A of the condition 4·12·ratio, at worst; a few digits of slack for the sum.
    tolerance = 30 * ratio * EPS
    # A mean to a share of its standard deviation and of what rounding y would cost.
    scale = np.sqrt(S) + 100 * EPS * np.abs(m)
    error = np.abs(np.asarray(posterior.mean[:, 0]) - m) / scale
    assert np.max(error) < 100 * tolerance
    np.testing.assert_allclose(posterior.covariance[:, 0, 0], S, rtol=tolerance)
    # b is the difference of two numbers of the size of ν, each rounded.
    nu = np.max(np.abs(np.asarray(sites.linear)))
    np.testing.assert_allclose(
        posterior.weights[:, 0], b, rtol=tolerance, atol=100 * EPS * nu
    )
    tau = np.asarray(sites.precision[:, 0])
    ratios = cavity_ratio(posterior, sites)[:, 0]
    np.testing.assert_allclose(ratios, M / tau, rtol=tolerance)
    half = cavity_ratio(posterior, sites, 0.5)[:, 0]
    np.testing.assert_allclose(half, (1 + M / tau) / 2, rtol=tolerance)
    np.testing.assert_allclose(posterior.log_determinant, log_det, rtol=1e2 * EPS)
    # The variance at a new point: by roots, of errors √(κ)·eps of the prior's.
    got = float(posterior.factor.marginal_reduction(k[None, :, None])[0, 0, 0])
    assert abs(got - quadratic) < 30 * np.sqrt(ratio) * EPS * prior
    assert prior - quadratic > 0


@pytest.mark.parametrize("kind", [DiagonalSites, SignedSites])
def test_whole_covariance_and_draws(kind):
    K, sites, _, _ = problem(kind, 10.0)
    posterior, S = signed_posterior(K, jnp.zeros((N, 1)), sites)
    direct = np.linalg.inv(np.linalg.inv(K[0]) + np.diag(sites.precision[:, 0]))
    np.testing.assert_allclose(S[0], direct, atol=1e-9)
    # w = J(z, ξ) is linear with unit normals: JJᵀ is its covariance.
    root = jnp.linalg.cholesky(K)

    def draw(normals):
        z, xi = jnp.split(normals, 2)
        w = jgp.inference.whitened_deviation(
            root, sites, posterior.factor, z[:, None], xi[:, None]
        )
        return root[0] @ w[:, 0]

    J = jax.jacfwd(draw)(jnp.zeros(2 * N))
    np.testing.assert_allclose(J @ J.T, direct, atol=1e-9)


@pytest.mark.parametrize("kind", [DiagonalSites, SignedSites])
def test_normalisers_agree(kind):
    K, sites, _, _ = problem(kind, 10.0)
    prior_mean = jnp.linspace(0, 1, N)[:, None]
    posterior = site_posterior(K, prior_mean, sites)
    T = np.diag(np.asarray(sites.precision[:, 0]))
    nu, m0 = np.asarray(sites.linear[:, 0]), np.asarray(prior_mean[:, 0])
    S = np.linalg.inv(np.linalg.inv(K[0]) + T)
    h = np.linalg.solve(K[0], m0) + nu
    direct = (h @ S @ h - m0 @ np.linalg.solve(K[0], m0)) / 2
    direct = direct - np.linalg.slogdet(np.eye(N) + K[0] @ T)[1] / 2
    got = float(site_normaliser(prior_mean, sites, posterior))
    np.testing.assert_allclose(got, direct, rtol=1e-9)
    # With the sites as multiples of their value at m, at another f.
    f = posterior.mean + 0.3
    log_sites = float(jnp.sum(sites.linear * f) - jnp.sum(f * sites.times(f)) / 2)
    centred = float(log_centred_sites(f, sites, posterior))
    both = float(centred_normaliser(prior_mean, posterior)) - centred
    np.testing.assert_allclose(both, got - log_sites, rtol=1e-9)


@pytest.mark.float32
def test_a_site_far_narrower_than_its_cavity():
    # log Z of Laplace noise of scale b at one point, f ~ N(0, 400), y = 50: the noise
    # is a point mass, with (b²/400)(y²/400 − 1) = 1e-8 beside it.
    kernel = 400 * kernels.SquaredExponential(1.0)
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.LaplaceNoise(1e-3))
    y = 50.0
    for schedule in ("parallel", "sequential"):
        found = jgp.expectation_propagation(model, [0.0], [y], schedule=schedule)
        wanted = -(y**2) / 800 - np.log(2 * np.pi * 400) / 2
        tolerance = 1e-7 if DOUBLE else 1e-3
        np.testing.assert_allclose(found.log_evidence, wanted, atol=tolerance)


@pytest.mark.slow
@pytest.mark.float32
def test_data_far_from_the_prior_mean():
    # Gaussian noise, in which EP is exact, about 100 times the prior's scale away.
    x = jnp.linspace(0, 10, 30)
    y = np.sin(np.linspace(0, 10, 30)) + 100
    y = y + 0.1 * np.random.default_rng(0).normal(size=30)
    kernel = 100 * kernels.SquaredExponential(3.0)
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(0.01))
    found, exact = jgp.expectation_propagation(model, x, y), jgp.exact(model, x, y)
    tolerance = 1e-6 if DOUBLE else 0.3
    np.testing.assert_allclose(found.log_evidence, exact.log_evidence, atol=tolerance)
    new = jnp.asarray([0.1, 5.05, 12.0])
    got, wanted = (a.posterior.marginals(new).variance for a in (found, exact))
    np.testing.assert_allclose(got, wanted, rtol=1e-5 if DOUBLE else 0.1)
