"""Densities of hyperparameters against their integrals and SciPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import jgp
from jgp import kernels, likelihoods, priors

CASES = {
    "log-normal": (priors.LogNormal(2.0, 0.7), stats.lognorm(0.7, scale=2.0)),
    "gamma": (priors.Gamma(2.5, 3.0), stats.gamma(2.5, scale=1 / 3)),
    "inverse gamma": (priors.InverseGamma(3.0, 2.0), stats.invgamma(3.0, scale=2.0)),
    "half-normal": (priors.HalfNormal(1.7), stats.halfnorm(scale=1.7)),
    "normal": (priors.Normal(0.4, 0.3), stats.norm(0.4, 0.3)),
    "beta": (priors.Beta(2.0, 3.5), stats.beta(2.0, 3.5)),
}
COMPLEXITY = {
    # The tail that holds the probability, in the parameter itself.
    "deviation": (priors.PenalisedComplexity(2.0, 0.05), (2.0, np.inf)),
    "variance": (priors.PenalisedComplexity(2.0, 0.05, "variance"), (4.0, np.inf)),
    "lengthscale": (
        priors.PenalisedComplexity(0.3, 0.05, "lengthscale", 2),
        (0.0, 0.3),
    ),
}


@pytest.mark.float32
@pytest.mark.parametrize("name", CASES)
def test_log_densities_are_scipys(name):
    density, other = CASES[name]
    value = np.array([0.05, 0.3, 0.9])
    got = density(jnp.asarray(value))
    assert got.dtype == jnp.result_type(float)
    rtol = 1e-12 if jax.config.jax_enable_x64 else 1e-5
    np.testing.assert_allclose(got, other.logpdf(value), rtol=rtol)


@pytest.mark.parametrize("name", COMPLEXITY)
def test_penalised_complexity_has_its_tail(name):
    density, (low, high) = COMPLEXITY[name]

    def value(theta):
        return float(np.exp(density(jnp.asarray(theta))))

    middle = 1.0
    whole = sum(
        integrate.quad(value, *ends, epsabs=1e-10)[0]
        for ends in ((0, middle), (middle, np.inf))
    )
    assert abs(whole - 1) < 1e-7
    np.testing.assert_allclose(integrate.quad(value, low, high)[0], 0.05, atol=1e-7)


def test_wrong_arguments_are_named():
    for match, make in {
        "median: got 0": lambda: priors.LogNormal(0, 1.0),
        "median: got True": lambda: priors.LogNormal(True, 1.0),
        "mean: got inf": lambda: priors.Normal(float("inf"), 1.0),
        "rate: got nan": lambda: priors.Gamma(1.0, float("nan")),
        "scale: got 'x'": lambda: priors.HalfNormal("x"),
        "probability: got 1": lambda: priors.PenalisedComplexity(1.0, 1),
        "kind: got 'sd'": lambda: priors.PenalisedComplexity(1.0, 0.5, "sd"),
    }.items():
        with pytest.raises(ValueError, match=match):
            make()


def test_priors_of_a_model():
    process = jgp.GaussianProcess(2.0 * kernels.SquaredExponential([0.5, 0.8]))
    model = jgp.Model(process, likelihoods.Gaussian(0.1))
    first = priors.Gamma(2.0, 1.0)
    with_one = jgp.with_prior(model, lambda m: m.process.kernel.kernel, first)
    expected = float(jnp.sum(first(jnp.asarray([0.5, 0.8]))))
    np.testing.assert_allclose(jgp.log_prior(with_one), expected, rtol=1e-14)
    assert float(jgp.log_prior(model)) == 0
    both = jgp.with_prior(with_one, lambda m: m.likelihood, lambda v: -v)
    np.testing.assert_allclose(jgp.log_prior(both), expected - 0.1, rtol=1e-14)
    other = priors.Gamma(3.0, 1.0)
    replaced = jgp.with_prior(both, lambda m: m.process.kernel.kernel, other)
    expected = float(jnp.sum(other(jnp.asarray([0.5, 0.8])))) - 0.1
    np.testing.assert_allclose(jgp.log_prior(replaced), expected, rtol=1e-14)
    # Freezing keeps them, and equal priors make equal models.
    assert jgp.freeze(both, lambda m: m.likelihood).priors == both.priors
    again = jgp.with_prior(
        model, lambda m: m.process.kernel.kernel, priors.Gamma(2.0, 1.0)
    )
    assert jax.tree.structure(again) == jax.tree.structure(with_one)
    printed = str(jgp.table(jgp.freeze(with_one, lambda m: m.likelihood)))
    assert printed.count("Gamma(shape=2.0, rate=1.0)") == 1
    assert printed.count("held") == 1
    with pytest.raises(ValueError, match="log_density: got 3"):
        jgp.with_prior(model, lambda m: m.likelihood, 3)
    with pytest.raises(ValueError, match=r"frozen: got '.process.lengthscale'"):
        jgp.Model(process, likelihoods.Gaussian(0.1), (".process.lengthscale",))


def test_half_normal_is_nowhere_below_zero():
    assert priors.HalfNormal(1.0)(jnp.asarray(-1.0)) == -jnp.inf


def test_numpy_numbers_are_numbers():
    assert priors.Gamma(np.float32(2.0), np.int64(3)) == priors.Gamma(2.0, 3)


def test_priors_that_cannot_be_right_are_named_at_once():
    root = jnp.asarray([[1.0, 0.0], [0.3, 2.0]])
    kernel = 2.0 * kernels.SquaredExponential(root)
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(0.1))

    def lengthscale(m):
        return m.process.kernel.kernel.lengthscale

    def noise(m):
        return m.likelihood.noise_variance

    for match, where, density in (
        ("where: got .*lengthscale, wanted leaves of ind", lengthscale, jnp.log),
        (
            "log_density: got values of shape \\(2,\\)",
            noise,
            lambda v: jnp.stack([v] * 2),
        ),
        ("log_density: got nan at .*noise_variance", noise, lambda v: jnp.log(-v)),
    ):
        with pytest.raises(ValueError, match=match):
            jgp.with_prior(model, where, density)
