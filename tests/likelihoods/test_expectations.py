"""E[log p(y | f)] against integrals by other rules."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from jgp import likelihoods
from jgp._parameters import cast
from jgp.likelihoods import expected_log_prob
from tests.problems import reference

ONE_LATENT = {
    "BernoulliLogit": (likelihoods.BernoulliLogit(), [0, 1, 1, 0]),
    "BernoulliProbit": (likelihoods.BernoulliProbit(), [0, 1, 1, 0]),
    "Poisson": (likelihoods.Poisson(), [0.0, 3.0, 1.0, 7.0]),
    "NegativeBinomial": (likelihoods.NegativeBinomial(0.4), [0.0, 3.0, 1.0, 7.0]),
    "Beta": (likelihoods.Beta(8.0), [0.1, 0.5, 0.7, 0.97]),
    "StudentT": (likelihoods.StudentT(3.0, 0.2), [0.3, -1.0, 2.0, 9.0]),
    "LaplaceNoise": (likelihoods.LaplaceNoise(0.3), [0.3, -1.0, 2.0, 9.0]),
    "Gaussian": (likelihoods.Gaussian(0.2), [0.3, -1.0, 2.0, 9.0]),
    "OrdinalProbit": (likelihoods.OrdinalProbit([-0.5, 0.7], 0.3), [0, 1, 2, 1]),
    "Weighted": (
        likelihoods.Weighted(likelihoods.BernoulliLogit(), [0.5, 2.0, 0.0, 1.0]),
        [0, 1, 1, 0],
    ),
}
MEAN = np.array([[0.2], [-1.0], [1.5], [0.4]])
VARIANCE = np.array([[0.3], [1.7], [0.02], [2.0]])


def trapezoid(likelihood, y, dtype=float):
    """By 40 001 points over 12 standard deviations on each side."""
    z = np.linspace(-12, 12, 40_001)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    f = MEAN + np.sqrt(VARIANCE) * z
    each = jax.jit(jax.vmap(lambda f: likelihood.log_probs(f[:, None], y)))
    return np.asarray(each(jnp.asarray(f.T, dtype))).T @ density


@pytest.mark.parametrize("name", ONE_LATENT)
def test_one_latent(name):
    likelihood, y = ONE_LATENT[name]
    y = jnp.asarray(y)
    wanted = trapezoid(likelihood, y)
    for covariance in (VARIANCE, VARIANCE[:, :, None]):
        got = expected_log_prob(likelihood, jnp.asarray(MEAN), covariance, y)
        # The trapezoid itself errs by 1e-7 at the kink of Laplace noise.
        np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-7)


@pytest.mark.parametrize("name", ONE_LATENT)
def test_derivatives_are_bonnets_and_prices(name):
    """∂/∂m = E[∂ log p] and 2 ∂/∂v = ∂²/∂m², by differences of values."""
    likelihood, y = ONE_LATENT[name]
    y, step = jnp.asarray(y), 1e-3

    @jax.jit
    def value(mean, variance):
        return expected_log_prob(likelihood, mean, variance, y)

    mean, variance = jnp.asarray(MEAN), jnp.asarray(VARIANCE)
    slope, by_variance = jax.grad(lambda *a: jnp.sum(value(*a)), (0, 1))(mean, variance)
    above, here = value(mean + step, variance), value(mean, variance)
    below = value(mean - step, variance)
    scale = float(jnp.max(jnp.abs(here)))
    np.testing.assert_allclose(
        slope[:, 0], (above - below) / (2 * step), rtol=1e-5, atol=1e-5 * scale
    )
    second = (above - 2 * here + below) / step**2
    np.testing.assert_allclose(
        2 * by_variance[:, 0], second, rtol=1e-4, atol=1e-6 * scale
    )


def test_expectations_are_mpmaths():
    for case in reference("variational")["scalar_expectations"]:
        mean = jnp.full((2, 1), float(case["mean"]))
        variance = jnp.full((2, 1), float(case["var"]))
        labels = jnp.asarray([1, 0])
        logit = expected_log_prob(likelihoods.BernoulliLogit(), mean, variance, labels)
        np.testing.assert_allclose(logit[0], case["E_log_sigmoid"], rtol=1e-10)
        np.testing.assert_allclose(logit[1], case["E_log_sigmoid_neg"], rtol=1e-10)
        probit = expected_log_prob(
            likelihoods.BernoulliProbit(), mean, variance, labels
        )
        np.testing.assert_allclose(probit[0], case["E_log_Phi"], rtol=1e-9, atol=1e-15)
        poisson = expected_log_prob(
            likelihoods.Poisson(), mean, variance, jnp.asarray([3.0, 3.0])
        )
        np.testing.assert_allclose(
            poisson[0], case["poisson_exp_E_log_p_y3"], rtol=1e-12
        )


def classes(num_classes, scale):
    generator = np.random.default_rng(num_classes)
    mean = generator.normal(size=(5, num_classes)) * scale
    root = generator.normal(size=(5, num_classes, num_classes)) * scale
    covariance = root @ root.transpose(0, 2, 1) / num_classes
    return mean, covariance, generator.integers(0, num_classes, 5)


def by_drawing(likelihood, mean, covariance, y, num=60_000):
    """The mean over draws with the quadratic part taken exactly, and its error."""
    generator = np.random.default_rng(1)
    each = jax.jit(jax.vmap(likelihood.log_prob, (0, None)))
    means, errors = [], []
    for m, S, label in zip(mean, covariance, y, strict=True):
        z = generator.normal(size=(num // 2, m.size))
        z = np.concatenate([z, -z])
        f = m + z @ np.linalg.cholesky(S).T
        values = np.asarray(each(jnp.asarray(f), jnp.asarray(label)))
        pairs = values.reshape(2, -1).mean(axis=0)
        squares = np.stack([np.ones(num // 2), *(z[: num // 2].T ** 2 - 1)], axis=1)
        fitted, *_ = np.linalg.lstsq(squares, pairs)
        means.append(fitted[0])
        errors.append(np.std(pairs - squares @ fitted) / np.sqrt(num // 2))
    return np.array(means), np.array(errors)


@pytest.mark.slow
@pytest.mark.parametrize("num_classes", [2, 3, pytest.param(5, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["Softmax", "MultinomialProbit"])
@pytest.mark.parametrize("independent", [True, False])
def test_classes(kind, num_classes, independent):
    likelihood = getattr(likelihoods, kind)(num_classes)
    mean, covariance, y = classes(num_classes, 1.0)
    if independent:
        covariance = covariance * np.eye(num_classes)
    wanted, error = by_drawing(likelihood, mean, covariance, y)
    given = covariance
    if independent:
        given = np.diagonal(covariance, axis1=1, axis2=2)
    labels = jnp.asarray(y, jnp.int32)
    got = expected_log_prob(likelihood, jnp.asarray(mean), jnp.asarray(given), labels)
    # The lattice for more than three classes is good to a few parts in a thousand.
    by_lattice = num_classes > 3 and not (independent and kind == "Softmax")
    bound = 5 * error + (4e-3 if by_lattice else 0)
    assert np.all(np.abs(np.asarray(got) - wanted) < bound)


@pytest.mark.parametrize(("scale", "atol"), [(0.3, 1e-11), (1.0, 2e-8), (3.0, 3e-4)])
@pytest.mark.parametrize("num_classes", [3, 10])
def test_softmax_of_independent_latents(num_classes, scale, atol):
    """Against the formula of `_log_sum_exp` by plain trapezia, both ways."""
    mean, covariance, y = classes(num_classes, scale)
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    z = np.arange(-9, 9, 0.05)
    density = np.exp(-(z**2) / 2)
    density /= density.sum()
    wanted = []
    for m, s, label in zip(mean, np.sqrt(variance), y, strict=True):
        u = np.arange(np.min(m - 12 * s) - 8, np.max(m + 12 * s) + 45, 0.05)
        rates = np.exp(m[:, None] + s[:, None] * z)
        below = np.exp(-np.exp(-u)[:, None, None] * rates[None]) @ density
        a = logsumexp(m)
        gap = np.exp(-np.exp(a - u)) - np.prod(below, axis=1)
        wanted.append(m[label] - a - 0.05 * np.sum(gap))
    got = expected_log_prob(
        likelihoods.Softmax(num_classes),
        jnp.asarray(mean),
        jnp.asarray(variance),
        jnp.asarray(y, jnp.int32),
    )
    np.testing.assert_allclose(np.asarray(got), wanted, atol=atol)


@pytest.mark.parametrize("full", [True, False])
def test_latent_noise(full):
    likelihood = likelihoods.LatentNoiseGaussian()
    mean = jnp.asarray([[0.3, -0.5]])
    S = np.array([[0.5, 0.2 if full else 0.0], [0.2 if full else 0.0, 0.3]])
    y = jnp.asarray([1.1])
    z, w = np.polynomial.hermite_e.hermegauss(60)
    w = w / w.sum()
    grid = np.stack(np.meshgrid(z, z, indexing="ij"), -1).reshape(-1, 2)
    f = np.asarray(mean) + grid @ np.linalg.cholesky(S).T
    each = jax.vmap(likelihood.log_prob, (0, None))(jnp.asarray(f), y[0])
    wanted = np.outer(w, w).ravel() @ np.asarray(each)
    given = S[None] if full else np.diag(S)[None]
    got = expected_log_prob(likelihood, mean, jnp.asarray(given), y)
    assert abs(float(got[0]) - wanted) < 1e-10


def test_correlated_noise():
    noise = np.array([[0.5, 0.2], [0.2, 0.4]])
    likelihood = likelihoods.CorrelatedGaussian(noise)
    mean, y = np.array([[0.3, -0.5]]), np.array([[1.0, 0.2]])
    S = np.array([[0.5, 0.1], [0.1, 0.3]])
    got = expected_log_prob(
        likelihood, jnp.asarray(mean), jnp.asarray(S[None]), jnp.asarray(y)
    )
    inverse = np.linalg.inv(noise)
    error = (y - mean)[0]
    wanted = -(
        error @ inverse @ error
        + np.trace(inverse @ S)
        + np.log(np.linalg.det(2 * np.pi * noise))
    )
    assert abs(float(got[0]) - wanted / 2) < 1e-12


@pytest.mark.float32
@pytest.mark.parametrize("name", ONE_LATENT)
def test_dtype_follows_the_latents(name):
    likelihood, y = ONE_LATENT[name]
    y = jnp.asarray(y) if likelihood.classes else jnp.asarray(y, jnp.float32)
    likelihood = cast(likelihood, jnp.float32)
    mean, variance = jnp.asarray(MEAN, jnp.float32), jnp.asarray(VARIANCE, jnp.float32)
    got = expected_log_prob(likelihood, mean, variance, y)
    assert got.dtype == jnp.float32
    wanted = trapezoid(likelihood, y, jnp.float32)
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.float32
def test_broad_softmax_is_finite_in_single_precision():
    mean = jnp.asarray([[0.0, 5.0, -5.0]], jnp.float32)
    label = jnp.asarray([1], jnp.int32)

    def value(mean, variance):
        likelihood = likelihoods.Softmax(3)
        return jnp.sum(expected_log_prob(likelihood, mean, variance, label))

    # By a million draws, whose errors are about a thousandth of the scale.
    for scale, wanted in ((10.0, -4.548), (30.0, -20.75), (100.0, -79.68)):
        variance = jnp.full((1, 3), scale**2, jnp.float32)
        got, slopes = jax.value_and_grad(value, (0, 1))(mean, variance)
        # The rule is good to a hundredth of the scale there.
        assert abs(float(got) - wanted) < 0.015 * scale
        assert all(bool(jnp.all(jnp.isfinite(s))) for s in slopes)
