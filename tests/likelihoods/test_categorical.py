import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpmath import mp
from scipy.special import log_ndtr, logsumexp
from scipy.stats import multivariate_normal

from jgp.likelihoods import MultinomialProbit, Softmax
from jgp.likelihoods._inner_ep import (
    Contrasts,
    ProbitSites,
    latent_contrasts,
    log_normaliser,
    sweep,
    with_auxiliary,
)
from tests.cases import slow_unless
from tests.problems import reference

DOUBLE = jnp.result_type(float) == jnp.float64
KINDS = {"probit": MultinomialProbit, "softmax": Softmax}


@functools.cache
def log_probs(kind, num_classes):
    """(n, C) latents to the (n, C) log probabilities of every class."""
    over_labels = jax.vmap(KINDS[kind](num_classes).log_prob, in_axes=(None, 0))
    labels = jnp.arange(num_classes, dtype=jnp.int32)
    return jax.jit(lambda f: jax.vmap(over_labels, in_axes=(0, None))(f, labels))


@pytest.mark.float32
@pytest.mark.parametrize("kind", KINDS)
def test_values_are_the_references(kind):
    rows = reference("probit")["likelihoods"]
    f = jnp.asarray([row["f"] for row in rows])
    wanted = np.array([row[f"log_{kind}"] for row in rows])
    got = np.asarray(log_probs(kind, 3)(f))
    assert got.dtype == f.dtype
    # The reference has twelve digits, and small probabilities are summed in the dtype.
    tolerance = 1e-10 if DOUBLE else 3e-6
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


def latents(num_classes):
    """One class above the rest by 10, 50 and 1000, the rest equal or spread."""
    gaps = np.array([10.0, 50.0, 1000.0])[:, None]
    spread = np.linspace(0, 1, num_classes)[None]
    equal = (spread == 0) * gaps
    return np.concatenate([equal, -equal, gaps * spread, -gaps * spread**2])


def exact_log_probit(d):
    """Log ∫ φ(u) ∏ Φ(u + d_k) du by the trapezoidal rule about the mode."""

    def log_integrand(u):
        tails = log_ndtr(u[:, None] + d[None, :]).sum(axis=1)
        return tails - u**2 / 2 - np.log(2 * np.pi) / 2

    mode = 500.0
    for width in (510.0, 2.0, 1e-2):
        grid = mode + width * np.linspace(-1, 1, 4001)
        mode = grid[np.argmax(log_integrand(grid))]
    grid = mode + np.linspace(-12, 12, 4001)
    return logsumexp(log_integrand(grid)) + np.log(grid[1] - grid[0])


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_extreme_probit_values_equal_quadrature(num_classes):
    f = latents(num_classes)
    got = np.asarray(log_probs("probit", num_classes)(jnp.asarray(f)))
    for row in range(len(f)):
        for label in (0, num_classes // 2, num_classes - 1):
            d = f[row, label] - np.delete(f[row], label)
            # Gauss-Hermite with 24 nodes is good to 1e-9; −log p reaches 5e5.
            wanted = exact_log_probit(d)
            assert abs(got[row, label] - wanted) < 1e-9 + 1e-14 * abs(wanted)


@pytest.mark.float32
@pytest.mark.parametrize("num_classes", [2, 3, 10])
@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_sum_to_one(kind, num_classes):
    f = np.concatenate([latents(num_classes), np.zeros((1, num_classes))])
    got = np.asarray(log_probs(kind, num_classes)(jnp.asarray(f, float)))
    assert np.isfinite(got).all()
    assert (got <= (1e-12 if DOUBLE else 1e-6)).all()
    total = np.exp(got).sum(axis=1)
    np.testing.assert_allclose(total, 1, atol=1e-9 if DOUBLE else 1e-5)
    np.testing.assert_allclose(got[-1], -np.log(num_classes), rtol=1e-6)


@pytest.mark.float32
def test_two_classes_have_closed_forms():
    gap = np.array([-30.0, -3.0, -0.5, 0.0, 2.0, 8.0])
    f = jnp.asarray(np.stack([gap, np.zeros(6)], axis=1), float)
    probit, softmax = (np.asarray(log_probs(kind, 2)(f)) for kind in KINDS)
    # f₁ − f₂ plus the difference of two unit noises; a logistic function.
    with mp.workdps(30):
        wanted = [float(mp.log(mp.ncdf(g / mp.sqrt(2)))) for g in gap]
    rtol, atol = (1e-11, 1e-11) if DOUBLE else (1e-5, 1e-6)
    np.testing.assert_allclose(probit[:, 0], wanted, rtol=rtol, atol=atol)
    logistic = -np.logaddexp(0, -gap)
    np.testing.assert_allclose(softmax[:, 0], logistic, rtol=rtol, atol=atol)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_equal_differences(kind):
    likelihood = KINDS[kind](3)
    points = jnp.asarray([[0.3, -0.4, 0.1], [6.0, -6.0, 1.0], [-40.0, 2.0, 1.0]])
    label, step = jnp.array(0, jnp.int32), 1e-5
    gradient = jax.grad(likelihood.log_prob)

    @jax.jit
    @jax.vmap
    def compare(f):
        shifts = step * jnp.eye(3)

        def difference(function):
            def one(s):
                return (function(f + s, label) - function(f - s, label)) / (2 * step)

            return jax.vmap(one)(shifts)

        hessian = jax.hessian(likelihood.log_prob)(f, label)
        return (
            gradient(f, label),
            difference(likelihood.log_prob),
            hessian,
            difference(gradient),
        )

    slope, numeric_slope, hessian, numeric_hessian = map(np.asarray, compare(points))
    # Rounding of log p (at most 600) over the step, 1e-8, and step² times a third
    # derivative below 1.
    np.testing.assert_allclose(slope, numeric_slope, rtol=1e-8, atol=2e-8)
    np.testing.assert_allclose(hessian, numeric_hessian, rtol=1e-8, atol=2e-8)
    # A shift of all latents changes nothing, and log p is concave.
    np.testing.assert_allclose(slope.sum(axis=1), 0, atol=1e-10)
    np.testing.assert_allclose(hessian.sum(axis=2), 0, atol=1e-9)
    assert np.linalg.eigvalsh(hessian).max() < 1e-9


@pytest.mark.float32
@pytest.mark.parametrize("kind", KINDS)
def test_observe_gives_every_class(kind):
    f = jnp.asarray([[0.0, 0.0, 0.0], [1.0, -0.5, 0.3], [-4.0, 2.5, 3.0]])
    observed = jax.jit(KINDS[kind](3).observe)(f)
    probs = np.asarray(observed.probs)
    wanted = np.exp(np.asarray(log_probs(kind, 3)(f)))
    tolerance = 1e-9 if DOUBLE else 1e-5
    np.testing.assert_allclose(probs, wanted, atol=tolerance)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(observed.mode)[1:], [0, 2])
    y = jnp.array([2, 1, 0], jnp.int32)
    picked = np.log(wanted[np.arange(3), np.asarray(y)])
    np.testing.assert_allclose(
        np.asarray(observed.log_prob(y)), picked, rtol=10 * tolerance
    )


# Class probabilities given Gaussian latents.


@functools.cache
def gaussians(num_classes):
    """Means and covariances: full, singular, zero, and of variance 1e4."""
    generator = np.random.default_rng(num_classes)
    mean = generator.normal(size=(5, num_classes))
    root = generator.normal(size=(num_classes, num_classes))
    full = root @ root.T / num_classes
    column = root[:, :1]
    return mean, np.stack(
        [
            full,
            column @ column.T,
            np.zeros_like(full),
            1e4 * full,
            1e4 * np.eye(num_classes),
        ]
    )


@functools.cache
def predicted(kind, num_classes, method=None, seed=None):
    mean, covariance = map(jnp.asarray, gaussians(num_classes))
    likelihood = KINDS[kind](num_classes)
    key = None if seed is None else jax.random.key(seed)
    return np.asarray(predict(likelihood, mean, covariance, key, method))


@eqx.filter_jit
def predict(likelihood, mean, covariance, key, method):
    return likelihood.predict(mean, covariance, method=method, key=key).probs


@functools.cache
def orthants(num_classes):
    """The same by SciPy: the probability that f_j + e_j is the largest."""
    probs = np.empty((5, num_classes))
    accuracy = {"abseps": 1e-6, "releps": 1e-6}
    for row, (mean, S) in enumerate(zip(*gaussians(num_classes), strict=True)):
        for label in range(num_classes):
            B = np.delete(-np.eye(num_classes), label, axis=0)
            B[:, label] = 1
            cov = B @ (S + np.eye(num_classes)) @ B.T
            normal = multivariate_normal(-B @ mean, cov, **accuracy)
            probs[row, label] = normal.cdf(np.zeros(num_classes - 1), rng=0)
    return probs


@pytest.mark.slow
@pytest.mark.parametrize("num_classes", [2, 3, 5])
def test_orthants_equal_scipys(num_classes):
    probs = predicted("probit", num_classes, "orthant")
    # Closed forms for C <= 3; beyond, both are good to about 1e-6.
    tolerance = 1e-9 if num_classes <= 3 else 1e-5
    np.testing.assert_allclose(probs, orthants(num_classes), atol=tolerance)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-12)


@pytest.mark.parametrize("num_classes", slow_unless([3], [2, 3, 5]))
def test_inner_ep_is_near_the_orthants(num_classes):
    probs = predicted("probit", num_classes, "inner_ep")
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-12)
    # One factor is matched exactly. EP errs by less than 1e-2 in a probability with
    # strongly coupled latents of small noise, by much less for zero covariance.
    error = np.abs(probs - orthants(num_classes)).max(axis=1)
    assert error.max() < (1e-12 if num_classes == 2 else 1e-2)
    assert error[2] < 5e-4


def test_monte_carlo_is_within_its_error():
    probs = predicted("probit", 3, "monte_carlo", seed=1)
    # 20 000 draws of a number in [0, 1] err by at most 3.5e-3, one standard error.
    np.testing.assert_allclose(probs, orthants(3), atol=1e-2)
    np.testing.assert_allclose(probs[2], orthants(3)[2], atol=5e-4)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-12)
    assert np.abs(probs - predicted("probit", 3, "monte_carlo", seed=2)).max() > 0


def draws(num_classes, row, num=200_000):
    mean, covariance = (a[row] for a in gaussians(num_classes))
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0))
    normals = np.random.default_rng(0).normal(size=(num, num_classes))
    return mean + normals @ root.T


@pytest.mark.parametrize("num_classes", [2, 3, 5])
def test_softmax_equals_draws(num_classes):
    probs = predicted("softmax", num_classes)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-12)
    for row in range(3):
        f = draws(num_classes, row)
        p = np.exp(f - f.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        error = 5 * p.std(axis=0) / np.sqrt(len(p)) + 1e-9
        assert np.all(np.abs(probs[row] - p.mean(axis=0)) < error)


def test_softmax_of_two_and_three_classes_equals_dense_quadrature():
    # The full covariance in two and three classes; 20 nodes leave 1e-6 here.
    grid, width = np.linspace(-8, 8, 161), 0.1
    density = width * np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
    for num_classes in (2, 3):
        mean, S = (a[0] for a in gaussians(num_classes))
        B = np.eye(num_classes)[:-1] - np.eye(num_classes)[-1]
        root = np.linalg.cholesky(B @ S @ B.T)
        axes = np.meshgrid(*[grid] * (num_classes - 1), indexing="ij")
        points = np.stack([a.ravel() for a in axes], axis=1)
        weights = np.prod(np.meshgrid(*[density] * (num_classes - 1)), axis=0).ravel()
        h = np.pad(B @ mean + points @ root.T, ((0, 0), (0, 1)))
        p = np.exp(h - h.max(axis=1, keepdims=True))
        wanted = weights @ (p / p.sum(axis=1, keepdims=True))
        got = predicted("softmax", num_classes)[0]
        np.testing.assert_allclose(got, wanted, atol=1e-6)


@pytest.mark.parametrize(
    "num_classes",
    [
        2,
        3,
        5,
    ],
)
def test_softmax_of_huge_variance_is_the_probability_of_the_largest(num_classes):
    # With standard deviations of 100, the logistic noise of a contrast (1.8) moves a
    # probability by less than 1e-2, and two contrasts are rarely that close.
    probs = predicted("softmax", num_classes)[3:]
    np.testing.assert_allclose(probs, orthants(num_classes)[3:], atol=1e-2)


def test_a_key_changes_softmax_a_little():
    shifted = predicted("softmax", 3, seed=1)
    plain = predicted("softmax", 3)
    assert np.abs(shifted - plain)[0].max() > 0
    # 4093 points of a randomly shifted lattice.
    np.testing.assert_allclose(shifted[:3], plain[:3], atol=2e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_predict_without_variance_is_observe(kind):
    mean, _ = gaussians(3)
    observed = jax.jit(KINDS[kind](3).observe)(jnp.asarray(mean[2:3])).probs
    # Inner EP errs by 2e-4 on three classes.
    tolerance = 5e-4 if kind == "probit" else 1e-10
    method = "inner_ep" if kind == "probit" else None
    probs = predicted(kind, 3, method)[2:3]
    np.testing.assert_allclose(probs, np.asarray(observed), atol=tolerance)


@pytest.mark.float32
@pytest.mark.parametrize("kind", KINDS)
def test_predict_keeps_its_dtype(kind):
    mean, covariance = (jnp.asarray(a[:3], jnp.float32) for a in gaussians(3))
    probs = predict(KINDS[kind](3), mean, covariance, None, None)
    assert probs.dtype == jnp.float32
    # Inner EP, the default for probit, errs by less than 1e-2 itself.
    wanted = orthants(3)[:3] if kind == "probit" else predicted(kind, 3)[:3]
    tolerance = 1e-2 if kind == "probit" else 1e-4
    np.testing.assert_allclose(np.asarray(probs), wanted, atol=tolerance)
    np.testing.assert_allclose(np.asarray(probs).sum(axis=1), 1, atol=1e-6)


def test_methods_are_checked():
    mean, covariance = (jnp.asarray(a) for a in gaussians(3))
    with pytest.raises(ValueError, match="method: got 'mc', wanted one of inner_ep, "):
        MultinomialProbit(3).predict(mean, covariance, method="mc")
    with pytest.raises(ValueError, match="key: got None, wanted a key"):
        MultinomialProbit(3).predict(mean, covariance, method="monte_carlo")
    with pytest.raises(ValueError, match="method: got 'inner_ep', wanted one of cub"):
        Softmax(3).predict(mean, covariance, method="inner_ep")


@pytest.mark.float32
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0, 1, 3], r"y: got the label 3, wanted integers 0\.\.2"),
        ([0, -1, 1], r"y: got the label -1, wanted integers 0\.\.2"),
        ([0.5, 1.0], r"y: got the label 0\.5, wanted integers"),
        ([0.0, np.nan], "y: got the label nan, wanted integers"),
        ([0.0, np.inf], "y: got the label inf, wanted integers"),
        ([[0], [1]], r"y: got shape \(2, 1\), wanted \(n,\) integers"),
        ([[1, 0, 0], [0, 1, 0]], r"y: got shape \(2, 3\), wanted \(n,\)"),
        (1, r"y: got shape \(\), wanted \(n,\)"),
        (["a", "b"], "y: got dtype <U1, wanted integers"),
        ([0, None], "y: got dtype object, wanted integers"),
    ],
)
def test_wrong_labels(kind, y, message):
    with pytest.raises(ValueError, match=message):
        KINDS[kind](3).targets(y, 3)


@pytest.mark.float32
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "y",
    [
        [0, 2, 1],
        [0.0, 2.0, 1.0],
        np.array([0, 2, 1], np.uint8),
        np.array([0, 2, 1], np.int64),
        jnp.array([0, 2, 1], jnp.int32),
    ],
)
def test_labels_of_any_numeric_kind(kind, y):
    labels = KINDS[kind](3).targets(y, 3)
    assert labels.dtype == np.int32
    np.testing.assert_array_equal(labels, [0, 2, 1])


@pytest.mark.float32
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [1, 0, -2, 2.0, "3", None, True])
def test_number_of_classes_is_checked(kind, bad):
    with pytest.raises(ValueError, match=r"num_classes: got .*, wanted an integer >="):
        KINDS[kind](bad)
    assert KINDS[kind](np.int64(4)).num_latents == 4


# The inner EP.


def padded(values, label, at_label):
    return jnp.asarray(np.insert(values, label, at_label))


@functools.cache
def inner_ep():
    """Converged sites and normaliser for each label of the reference."""
    tilted = reference("probit")["tilted"]
    mean, covariance = (
        jnp.asarray(tilted[name]) for name in ("cavity_mean", "cavity_cov")
    )

    @jax.jit
    @jax.vmap
    def run(label):
        latent = latent_contrasts(mean, covariance, label)
        zero = jnp.zeros(3)
        observed = jax.nn.one_hot(label, 3, dtype=zero.dtype)
        start = ProbitSites(observed, zero)
        prior = with_auxiliary(latent, start)
        # With empty sites u is independent of h: covariances grow by one.
        expected = Contrasts(latent.mean, latent.covariance + 1)
        posterior, sites = sweep(prior, start, label, num_sweeps=50)
        on_f = latent_posterior(mean, covariance, sites)
        again = with_auxiliary(latent_contrasts(*on_f, label), sites)
        return (
            sites,
            on_f,
            posterior,
            again,
            prior,
            expected,
            log_normaliser(latent, label),
        )

    return run(jnp.arange(3, dtype=jnp.int32))


def latent_posterior(mean, covariance, sites):
    """N(f; mean, covariance) exp(νᵀf − ½fᵀTf), T = diag(α) − ααᵀ/s, normalised."""
    s = jnp.sum(sites.alpha)
    T = jnp.diag(sites.alpha) - sites.alpha[:, None] * sites.alpha[None, :] / s
    nu = jnp.sum(sites.beta) / s * sites.alpha - sites.beta
    precision = jnp.linalg.inv(covariance)
    posterior = jnp.linalg.inv(precision + T)
    return posterior @ (precision @ mean + nu), posterior


def test_inner_ep_finds_the_reference_sites():
    cases = reference("probit")["tilted"]["cases"]
    sites, (mean, covariance), *_, log_z = inner_ep()
    for label, case in enumerate(cases):
        assert case["y"] == label
        alpha, beta = padded(case["alpha"], label, 1), padded(case["beta"], label, 0)
        np.testing.assert_allclose(sites.alpha[label], alpha, atol=1e-9)
        np.testing.assert_allclose(sites.beta[label], beta, atol=1e-9)
        np.testing.assert_allclose(mean[label], case["mean_EP"], atol=1e-9)
        np.testing.assert_allclose(covariance[label], case["cov_EP"], atol=1e-9)
        assert abs(float(log_z[label]) - case["logZ_inner_EP"]) < 1e-9
        # EP errs by 4e-3 in this normaliser.
        assert abs(float(log_z[label]) - case["logZ_exact"]) < 5e-3
        np.testing.assert_allclose(mean[label], case["mean_exact"], atol=1e-3)
        np.testing.assert_allclose(covariance[label], case["cov_exact"], atol=1e-2)


def test_sites_on_f_are_the_references():
    for label, case in enumerate(reference("probit")["tilted"]["cases"]):
        alpha = np.asarray(inner_ep()[0].alpha[label])
        beta = np.asarray(inner_ep()[0].beta[label])
        T = np.diag(alpha) - np.outer(alpha, alpha) / alpha.sum()
        nu = beta.sum() / alpha.sum() * alpha - beta
        np.testing.assert_allclose(T, case["T"], atol=1e-9)
        np.testing.assert_allclose(nu, case["nu"], atol=1e-9)


def test_contrasts_with_the_auxiliary_follow_from_the_latents():
    _, _, posterior, again, prior, expected, _ = inner_ep()
    others = np.array([[1, 2], [0, 2], [0, 1]])
    for label, k in enumerate(others):
        pairs = (label, k[:, None], k[None, :])
        for got, wanted in ((again, posterior), (prior, expected)):
            np.testing.assert_allclose(
                got.mean[label, k], wanted.mean[label, k], atol=1e-9
            )
            np.testing.assert_allclose(
                got.covariance[pairs], wanted.covariance[pairs], atol=1e-9
            )


@functools.cache
def normalisers():
    """Log normalisers of label 0 and their derivatives, for all tests at once.

    First two classes (the third is hopeless), then cavities up to a thousand
    deviations off, of variance 1e4 or almost none.
    """
    gap = np.array([0.7, -20.0, 300.0, -3.0])
    spread = np.array([0.3, 4.0, 1e4, 0.0])
    two = np.stack([gap, np.zeros(4), np.full(4, -1e5)], axis=1)
    variance, shift = map(np.ravel, np.meshgrid([1e-8, 1.0, 1e4], [1.0, 40.0, 1000.0]))
    mean = np.concatenate([two, shift[:, None] * np.array([-1.0, 0.3, 0.0])])
    covariance = np.concatenate(
        [
            spread[:, None, None] * np.diag([1.0, 0.0, 0.0]),
            variance[:, None, None] * np.eye(3),
        ]
    )
    label = jnp.array(0, jnp.int32)

    @jax.jit
    @jax.vmap
    def both(mean, covariance):
        def value(m):
            return log_normaliser(latent_contrasts(m, covariance, label), label)

        return jax.value_and_grad(value)(mean)

    value, slope = both(jnp.asarray(mean), jnp.asarray(covariance))
    return mean, covariance, np.asarray(value), np.asarray(slope)


@pytest.mark.slow
def test_normaliser_of_two_classes_is_exact():
    mean, covariance, value, _ = (a[:4] for a in normalisers())
    # P(f₁ + e₁ > f₂ + e₂), unit noises e.
    wanted = log_ndtr(mean[:, 0] / np.sqrt(2 + covariance[:, 0, 0]))
    np.testing.assert_allclose(value, wanted, rtol=1e-12)


@pytest.mark.slow
def test_normaliser_far_from_the_label_is_finite_with_its_derivatives():
    mean, covariance, value, slope = (a[4:] for a in normalisers())
    # The label must beat the runner-up at least, and both others together.
    gap = mean[:, 0] - mean[:, 1]
    runner_up = log_ndtr(gap / np.sqrt(2 + 2 * covariance[:, 0, 0]))
    assert np.all(np.isfinite(value))
    assert np.all(value < runner_up)
    assert np.all(np.isfinite(slope))
    assert np.all(slope[:, 0] > 0)
    np.testing.assert_allclose(slope.sum(axis=1), 0, atol=1e-6)
