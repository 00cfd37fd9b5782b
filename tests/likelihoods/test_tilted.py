import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpmath import mp

from jgp import likelihoods
from jgp.likelihoods import AbstractOneLatent, Tilted, tilted_moments
from tests.cases import LIKELIHOODS, OBSERVATIONS, slow_unless

ONE_LATENT = {
    name: case
    for name, case in LIKELIHOODS.items()
    if isinstance(case.instance, AbstractOneLatent)
}
QUICK = {"BernoulliProbit", "Poisson", "StudentT"}

# What is sharp against a wide cavity, or nearly another distribution.
HARD = {
    "Beta sharp": (likelihoods.Beta(1e3), "unit"),
    "LaplaceNoise narrow": (likelihoods.LaplaceNoise(1e-3), "real"),
    "NegativeBinomial nearly Poisson": (likelihoods.NegativeBinomial(1e-9), "count"),
    "NegativeBinomial broad": (likelihoods.NegativeBinomial(20.0), "count"),
    "OrdinalProbit narrow": (
        likelihoods.OrdinalProbit([0.0, 1e-3, 0.1, 3.0], 1e-2),
        "ordinal",
    ),
    "StudentT Cauchy": (likelihoods.StudentT(1.0, 0.1), "real"),
    "StudentT narrow": (likelihoods.StudentT(4.0, 1e-3), "real"),
    "StudentT nearly Gaussian": (likelihoods.StudentT(1e6, 0.1), "real"),
}
MEANS, VARIANCES, POWERS = (-40.0, -0.3, 40.0), (1e-4, 1.0, 1e4), (0.1, 0.5, 1.0)
# Nodes of the reference.
LENGTH = 32768


def settings(domain):
    """Cavities, powers and observations: every combination, as arrays."""
    combined = itertools.product(MEANS, VARIANCES, OBSERVATIONS[domain], POWERS)
    mean, variance, y, power = map(np.array, zip(*combined, strict=True))
    return mean, variance, y, power


def graded(width, reach, ratio=1.3):
    """Distances either way from zero that grow geometrically."""
    steps = width * ratio ** np.arange(np.ceil(np.log(reach / width) / np.log(ratio)))
    return np.concatenate([-steps[::-1], [0.0], steps])


def dense_moments(log_likelihood, mean, variance, power, locations):
    """Log normaliser, mean and variance of one tilted distribution, by brute force.

    Twenty Gauss-Legendre nodes on each of some hundred panels, graded towards the
    largest value of the integrand and the locations.
    """
    root = np.sqrt(variance)
    unit, weights = np.polynomial.legendre.leggauss(20)

    def rule(ends):
        ends = np.unique(np.concatenate(ends))
        half = np.diff(ends)[:, None] / 2
        offset = (ends[:-1, None] + half + half * unit).ravel()
        log_weight = np.log(half * weights).ravel()
        log_value = power * log_likelihood(mean + offset) - (offset / root) ** 2 / 2
        return (
            offset,
            log_weight + log_value - np.log(2 * np.pi * variance) / 2,
            (log_value),
        )

    ends = [root * np.linspace(-12, 12, 49)]
    ends += [at - mean + graded(1e-5 * root, 20 * root + 20) for at in locations]
    for width in (root, 1e-2 * root, 1e-4 * root):
        offset, _, log_value = rule(ends)
        mode = offset[np.argmax(log_value)]
        ends.append(mode + graded(1e-3 * width, 20 * root + 20))
    offset, log_total, _ = rule(ends)
    log_normaliser = np.logaddexp.reduce(log_total)
    p = np.exp(log_total - log_normaliser)
    p = p / np.sum(p)
    centre = p @ offset
    return log_normaliser, centre, p @ (offset - centre) ** 2


def errors(likelihood, domain, closed_form=False):
    """Errors of normaliser, mean and variance beside the reference, and the latter.

    Those of the logarithm of the normaliser, of the mean in standard deviations, and
    of the variance as a share of it.
    """
    mean, variance, y, power = settings(domain)
    inputs = list(map(jnp.asarray, (mean, variance, y, power)))
    inputs = inputs[:3] if closed_form else inputs
    got = jax.jit(functools.partial(tilted_moments, likelihood))(*inputs)
    locations = np.asarray(likelihood.features(jnp.asarray(y))[0])
    density = jax.jit(lambda f, y: likelihood.log_density(f, jnp.full_like(f, y)))

    def log_likelihood(f, y):
        # One length, so that one function is compiled.
        padded = np.concatenate([f, np.full(LENGTH - len(f), f[-1])])
        return np.asarray(density(padded, y))[: len(f)]

    wanted = np.array(
        [
            dense_moments(functools.partial(log_likelihood, y=y), *rest)
            for y, *rest in zip(y, mean, variance, power, locations, strict=True)
            if not closed_form or rest[2] == 1
        ]
    )
    keep = power == 1 if closed_form else power > 0
    log_normaliser, slope, curvature, remainder = (np.asarray(a)[keep] for a in got)
    mean, variance = mean[keep], variance[keep]
    np.testing.assert_allclose(1 - variance * curvature, remainder, atol=1e-12)
    error = np.stack(
        [
            log_normaliser - wanted[:, 0],
            (variance * slope - wanted[:, 1]) / np.sqrt(wanted[:, 2]),
            variance * remainder / wanted[:, 2] - 1,
        ]
    )
    # Exponents of the size of the log normaliser are rounded at each node, and the
    # mean beside its size.
    rounding = np.abs(wanted[:, 0]) + np.abs(mean) / np.sqrt(wanted[:, 2])
    return np.abs(error), 100 * np.finfo(float).eps * (1 + rounding)


@pytest.mark.parametrize("name", slow_unless(QUICK, ONE_LATENT))
def test_moments_equal_dense_quadrature(name):
    error, rounding = errors(ONE_LATENT[name].instance, ONE_LATENT[name].domain)
    assert (error <= 3e-9 + rounding).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", HARD)
def test_moments_of_sharp_likelihoods_equal_dense_quadrature(name):
    error, rounding = errors(*HARD[name])
    assert (error <= 3e-6 + rounding).all()


def test_the_closed_form_of_the_probit_equals_dense_quadrature():
    probit = likelihoods.BernoulliProbit()
    error, rounding = errors(probit, "binary", closed_form=True)
    assert (error <= 1e-12 + rounding).all()


def test_the_closed_form_of_the_probit_far_out():
    arguments = (jnp.asarray(a) for a in ([-40.0], [1e-4], [1]))
    got = tilted_moments(likelihoods.BernoulliProbit(), *arguments)
    with mp.workdps(50):
        v = mp.mpf(1e-4)
        z = -40 / mp.sqrt(1 + v)
        rho = mp.npdf(z) / mp.ncdf(z)
        slope, q = rho / mp.sqrt(1 + v), rho * (z + rho)
        wanted = [mp.log(mp.ncdf(z)), slope, q / (1 + v), 1 - v * q / (1 + v)]
        wanted = [[float(w)] for w in wanted]
    np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-14)


def some(case):
    """A few cavities at observations of a case, away from extremes."""
    mean, variance = jnp.asarray([-2.0, 0.3, 4.0]), jnp.asarray([0.2, 1.0, 9.0])
    return mean, variance, jnp.asarray(OBSERVATIONS[case.domain])


@pytest.mark.parametrize("name", slow_unless(QUICK, ONE_LATENT))
def test_derivatives_are_those_of_the_log_normaliser(name):
    case = ONE_LATENT[name]
    mean, variance, y = some(case)
    power = jnp.asarray([1.0, 0.5, 0.7])
    leaves, structure = jax.tree.flatten((mean, variance, case.instance))
    if name == "BernoulliProbit":
        power = None

    def total(leaves):
        mean, variance, likelihood = jax.tree.unflatten(structure, leaves)
        moments = tilted_moments(likelihood, mean, variance, y, power)
        return jnp.sum(moments.log_normaliser), moments

    @jax.jit
    def differentiate(leaves, directions):
        gradient = jax.grad(total, has_aux=True)
        slopes, change, moments = jax.jvp(
            gradient, (leaves,), (directions,), has_aux=True
        )
        return slopes, change, moments

    zero = [jnp.zeros_like(leaf) for leaf in leaves]
    along_mean = [jnp.ones_like(mean), *zero[1:]]
    slopes, change, moments = differentiate(leaves, along_mean)
    np.testing.assert_allclose(slopes[0], moments.slope, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(-change[0], moments.curvature, rtol=1e-7, atol=1e-9)
    # The heat equation: ∂Ẑ/∂v = ½∂²Ẑ/∂m².
    half = (moments.slope**2 - moments.curvature) / 2
    np.testing.assert_allclose(slopes[1], half, rtol=1e-7, atol=1e-9)
    value = jax.jit(lambda leaves: total(leaves)[0])
    for place, leaf in enumerate(leaves):
        for index in np.ndindex(leaf.shape):
            step = zero[place].at[index].set(1e-5)
            ends = [
                value([*leaves[:place], leaf + sign * step, *leaves[place + 1 :]])
                for sign in (1, -1)
            ]
            numeric, got = (ends[0] - ends[1]) / 2e-5, slopes[place][index]
            np.testing.assert_allclose(got, numeric, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("name", slow_unless({"Poisson"}, ONE_LATENT))
def test_moments_of_one_point_at_a_time(name):
    case = ONE_LATENT[name]
    together = eqx.filter_jit(tilted_moments)(case.instance, *some(case))

    @jax.jit
    @jax.vmap
    def each(mean, variance, y):
        single = tilted_moments(case.instance, mean[None], variance[None], y[None])
        return Tilted(*(value[0] for value in single))

    for a, b in zip(together, each(*some(case)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-13)


@pytest.mark.float32
@pytest.mark.parametrize("name", slow_unless(QUICK, ONE_LATENT))
def test_moments_keep_the_dtype(name):
    case = ONE_LATENT[name]
    mean, variance, y = some(case)
    got = eqx.filter_jit(tilted_moments)(case.instance, mean, variance, y)
    for value in got:
        assert value.dtype == jnp.result_type(float)
        assert np.isfinite(value).all()
    # The slope as tilted mean less cavity mean, by a plain rule.
    f = jnp.linspace(-30, 40, 20_001)[None]
    log_p = eqx.filter_jit(case.instance.log_density)(f, y[:, None])
    z = (f - mean[:, None]) / jnp.sqrt(variance)[:, None]
    p = jax.nn.softmax(log_p - z**2 / 2, axis=1)
    wanted = (jnp.sum(p * f, axis=1) - mean) / variance
    double = jnp.result_type(float) == jnp.float64
    np.testing.assert_allclose(got.slope, wanted, atol=1e-5 if double else 1e-3)


def test_other_likelihoods_have_no_case():
    with pytest.raises(ValueError, match="likelihood: got Softmax, wanted one of a"):
        tilted_moments(likelihoods.Softmax(3), jnp.ones(1), jnp.ones(1), jnp.ones(1))
