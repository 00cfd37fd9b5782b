"""The laws that every likelihood of one latent keeps."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp

from jgp import likelihoods
from jgp.likelihoods import AbstractOneLatent, Categorical, Predictive
from jgp.likelihoods._log_gamma import log_gamma_ratio
from jgp.likelihoods._ordinal import log_ndtr_difference
from tests.cases import LIKELIHOODS, OBSERVATIONS, slow_unless

DOUBLE = jnp.result_type(float) == jnp.float64
ONE_LATENT = {
    name: case
    for name, case in LIKELIHOODS.items()
    if isinstance(case.instance, AbstractOneLatent)
}
LOG_DIFFERENCE = jax.jit(log_ndtr_difference)
EACH = pytest.mark.parametrize("name", ONE_LATENT)
QUICK = {"BernoulliLogit", "NegativeBinomial", "Poisson", "StudentT"}
SOME = pytest.mark.parametrize("name", slow_unless(QUICK, ONE_LATENT))


def sigmoid(f):
    return 1 / (1 + mp.exp(-f))


def exact_student(f, y):
    nu, scale = 4, mp.mpf("0.3")
    constant = mp.gamma((nu + 1) / mp.mpf(2)) / mp.gamma(nu / mp.mpf(2))
    return (
        constant
        / (mp.sqrt(nu * mp.pi) * scale)
        * (1 + ((y - f) / scale) ** 2 / nu) ** (-mp.mpf(nu + 1) / 2)
    )


def exact_negative_binomial(f, y):
    r = mp.mpf("2.5")
    share = r / (r + mp.exp(f))
    ratio = mp.gamma(y + r) / (mp.gamma(r) * mp.factorial(y))
    return ratio * share**r * (1 - share) ** y


def exact_beta(f, y, precision=5):
    a, b = precision * sigmoid(f), precision * sigmoid(-f)
    return y ** (a - 1) * (1 - y) ** (b - 1) / mp.beta(a, b)


def exact_ordinal(f, y):
    scale = mp.mpf("0.7")
    ends = [-mp.inf, mp.mpf(-1), mp.mpf("0.4"), mp.mpf(2), mp.inf]
    lower, upper = ((end - f) / scale for end in ends[int(y) : int(y) + 2])
    if lower > 0:
        lower, upper = -upper, -lower
    return mp.ncdf(upper) - mp.ncdf(lower)


EXACT = {
    "BernoulliLogit": lambda f, y: sigmoid((2 * y - 1) * f),
    "BernoulliProbit": lambda f, y: mp.ncdf((2 * y - 1) * f),
    "Beta": exact_beta,
    "LaplaceNoise": lambda f, y: mp.exp(-abs(y - f) / mp.mpf("0.3")) / mp.mpf("0.6"),
    "NegativeBinomial": exact_negative_binomial,
    "OrdinalProbit": exact_ordinal,
    "Poisson": lambda f, y: mp.exp(y * f - mp.exp(f)) / mp.factorial(y),
    "StudentT": exact_student,
}


@pytest.mark.float32
@EACH
def test_log_density_is_the_formula(name):
    case = ONE_LATENT[name]
    f = np.array([-30.0, -3.0, -0.25, 0.0, 1.5, 8.0, 28.0])
    y = OBSERVATIONS[case.domain]
    log_density = eqx.filter_jit(case.instance.log_density)
    got = log_density(jnp.asarray(f)[:, None], jnp.asarray(y)[None])
    assert got.dtype == jnp.result_type(float)
    with mp.workdps(220):
        # As the dtype has them; parameters are good to its rounding.
        y = [mp.mpf(float(v)) for v in np.asarray(jnp.asarray(y))]
        wanted = [[float(mp.log(EXACT[name](mp.mpf(v), u))) for u in y] for v in f]
    rtol, atol = (1e-13, 2e-14) if DOUBLE else (3e-6, 3e-6)
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=atol)


@EACH
def test_probabilities_sum_to_one(name):
    case, f = ONE_LATENT[name], jnp.asarray([-1.0, 0.3, 1.0])[:, None]
    # By the trapezoidal rule in t, LaplaceNoise with its kink at t = 0.
    t = jnp.linspace(-30, 30, 6001)[None]
    y, width = jnp.arange(400)[None], jnp.ones((1, 400))
    if case.domain == "real":
        y, width = f + 0.3 * jnp.sinh(t / 2), 0.15 * jnp.cosh(t / 2) * 0.01
    elif case.domain == "unit":
        y = jax.nn.sigmoid(t)
        width = y * (1 - y) * 0.01
    elif case.domain != "count":
        num = 2 if case.domain == "binary" else 4
        y, width = jnp.arange(num)[None], jnp.ones((1, num))
    total = jnp.sum(
        width * jnp.exp(eqx.filter_jit(case.instance.log_density)(f, y)), axis=1
    )
    np.testing.assert_allclose(total, 1, rtol=3e-6 if name == "LaplaceNoise" else 1e-9)


@SOME
def test_derivatives_equal_differences(name):
    case = ONE_LATENT[name]
    f, y = jnp.asarray([-20.0, -1.2, 0.7, 6.0]), OBSERVATIONS[case.domain]
    f, y = map(np.ravel, np.meshgrid(f, y))
    step = 1e-5 * (1 + np.abs(f))

    def value(f):
        return case.instance.log_density(f, jnp.asarray(y))

    def slope(f):
        return jax.grad(lambda f: jnp.sum(value(f)))(f)

    for function in (value, slope):
        got = jax.grad(lambda f, function=function: jnp.sum(function(f)))(
            jnp.asarray(f)
        )
        numeric = (function(f + step) - function(f - step)) / (2 * step)
        size = np.abs(function(jnp.asarray(f)))
        error = np.abs(got - numeric)
        assert (error <= 1e-6 * (1 + np.abs(numeric)) + 1e-10 * size).all()
    if case.instance.log_concave:
        assert (got <= 1e-12).all()


@SOME
def test_moments_given_the_latent_are_those_of_draws(name, key):
    case = ONE_LATENT[name]
    f = jnp.asarray([-1.0, 0.5, 1.2])
    draws = case.instance.sample(jnp.broadcast_to(f, (20_000, 3)), key=key)
    assert draws.dtype == (jnp.int32 if case.instance.classes else f.dtype)
    case.instance.targets(np.asarray(draws)[0], 1)
    draws = np.asarray(draws, float)
    mean = np.asarray(case.instance.conditional_mean(f))
    variance = np.asarray(case.instance.conditional_variance(f))
    error = np.abs(draws.mean(axis=0) - mean)
    assert (error < 4 * np.sqrt(variance / 20_000)).all()
    # The fourth moment of Student's t with ν = 4 is infinite.
    rtol = 0.3 if name == "StudentT" else 0.08
    np.testing.assert_allclose(draws.var(axis=0), variance, rtol=rtol)


WRONG = [
    ("BernoulliProbit", [0, 2], "y: got the label 2, wanted integers 0..1"),
    ("BernoulliLogit", [-1, 1], "y: got the label -1, wanted integers 0..1"),
    ("OrdinalProbit", [0, 4], "y: got the label 4, wanted integers 0..3"),
    ("OrdinalProbit", [0.5], "y: got the label 0.5, wanted integers 0..3"),
    ("Poisson", [1, -1], "y: got -1, wanted integers >= 0"),
    ("NegativeBinomial", [1.0, 2.5], "y: got 2.5, wanted integers >= 0"),
    ("Beta", [0.5, 1.0], r"y: got 1.0, wanted numbers in \(0, 1\)"),
    ("StudentT", [0.5, np.nan], "y: got nan, wanted finite numbers"),
    ("LaplaceNoise", [[0.5]], r"y: got shape \(1, 1\), wanted \(n,\)"),
    ("Poisson", ["a"], "y: got dtype <U1, wanted integers >= 0"),
]


@pytest.mark.parametrize(("name", "y", "message"), WRONG)
def test_wrong_targets(name, y, message):
    with pytest.raises(ValueError, match=message):
        ONE_LATENT[name].instance.targets(y, 1)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: likelihoods.NegativeBinomial([1.0, 2.0]), "dispersion: got shape"),
        (lambda: likelihoods.StudentT([3.0], 1.0), "degrees_of_freedom: got shape"),
        (lambda: likelihoods.StudentT(3.0, [1.0]), "scale: got shape"),
        (lambda: likelihoods.LaplaceNoise([1.0]), "scale: got shape"),
        (lambda: likelihoods.Beta([1.0]), "precision: got shape"),
        (lambda: likelihoods.OrdinalProbit(1.0), "thresholds: got shape"),
        (lambda: likelihoods.OrdinalProbit([]), "thresholds: got shape"),
        (lambda: likelihoods.OrdinalProbit([0.0], [1.0]), "scale: got shape"),
    ],
)
def test_wrong_parameters(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.float32
@SOME
def test_observe_is_the_likelihood(name):
    case = ONE_LATENT[name]
    y = jnp.asarray(OBSERVATIONS[case.domain])
    f = jnp.asarray([-1.0, 0.5, 1.2])
    observed = case.instance.observe(f[:, None])
    assert isinstance(observed, Categorical if case.instance.classes else Predictive)
    got = observed.log_prob(y)
    assert got.dtype == f.dtype
    wanted = case.instance.log_density(f, y)
    np.testing.assert_allclose(got, wanted, rtol=1e-12 if DOUBLE else 1e-5)
    if case.instance.classes:
        total = jnp.sum(observed.probs, axis=1)
        np.testing.assert_allclose(total, 1, rtol=4 * jnp.finfo(f.dtype).eps)


@given(middle=st.floats(-60, 60), width=st.floats(-7, 2))
def test_log_of_a_difference_of_normal_probabilities(middle, width):
    lower, upper = middle - 10**width / 2, middle + 10**width / 2
    got = float(LOG_DIFFERENCE(jnp.asarray(lower), jnp.asarray(upper)))
    with mp.workdps(60):
        a, b = (mp.mpf(v) for v in ((-upper, -lower) if lower > 0 else (lower, upper)))
        wanted = float(mp.log(mp.ncdf(b) - mp.ncdf(a)))
    assert abs(got - wanted) <= 1e-13 * (1 + abs(wanted))


@given(x=st.floats(-3, 8), y=st.floats(0, 300))
def test_ratios_of_gamma_functions(x, y):
    x = 10**x
    got = float(log_gamma_ratio(jnp.asarray(x), jnp.asarray(y)))
    with mp.workdps(40):
        u, v = mp.mpf(x), mp.mpf(y)
        wanted = float(mp.loggamma(u + v) - mp.loggamma(u) - v * mp.log(u))
    assert abs(got - wanted) <= 1e-13 * (1 + y * (1 + abs(np.log(x + y))))
