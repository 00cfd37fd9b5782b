"""Predictions of likelihoods of one latent, weights, and their place in inference."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad

import jgp
from jgp import kernels, likelihoods
from jgp._results import RESULTS
from jgp.likelihoods import AbstractOneLatent, Predictive
from jgp.likelihoods._mixture import CHUNK_SIZE
from tests.cases import LIKELIHOODS, OBSERVATIONS, slow_unless

ONE_LATENT = {
    name: case
    for name, case in LIKELIHOODS.items()
    if isinstance(case.instance, AbstractOneLatent)
}
CLASSES = {name for name, case in ONE_LATENT.items() if case.instance.classes}
NUMBERS = set(ONE_LATENT) - CLASSES
X = np.linspace(0, 3, 7)
Y = {
    "binary": np.array([0, 0, 1, 0, 1, 1, 1]),
    "count": np.array([0, 1, 0, 2, 3, 5, 4]),
    "ordinal": np.array([0, 1, 0, 2, 2, 3, 3]),
    "real": np.array([-1.0, -0.6, -0.1, 4.0, 0.4, 0.9, 1.3]),
    "unit": np.array([0.1, 0.3, 0.2, 0.5, 0.6, 0.7, 0.9]),
}
MIXTURE = np.array([[-1.0, 0.5], [0.3, 0.3], [1.2, -0.4]])
WITHIN = np.array([[0.2, 1.5], [0.0, 0.0], [1e-18, 0.7]])


def average(function, mean, variance):
    """E[g(f)] by Simpson's rule of scipy, or g where the variance is next to zero."""
    root = np.sqrt(variance)
    if root < 1e-6:
        return function(mean)

    def integrand(z):
        return function(mean + root * z) * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)

    return quad(integrand, -12, 12, epsrel=1e-11, epsabs=1e-13, limit=400)[0]


def mixture_average(function):
    """E[g(f)] over the mixture, at each input."""
    pairs = zip(MIXTURE, WITHIN, strict=True)
    return np.array(
        [[average(function, *c) for c in zip(*p, strict=True)] for p in pairs]
    )


@pytest.mark.parametrize("name", slow_unless({"Beta", "Poisson"}, sorted(NUMBERS)))
def test_moments_of_a_mixture_are_its_integrals(name):
    likelihood = ONE_LATENT[name].instance
    mean_of = jax.jit(lambda f: likelihood.conditional_mean(f))
    variance_of = jax.jit(lambda f: likelihood.conditional_variance(f))
    predicted = Predictive(likelihood, jnp.asarray(MIXTURE), jnp.asarray(WITHIN))
    mean = mixture_average(lambda f: float(mean_of(f))).mean(axis=1)
    square = mixture_average(lambda f: float(variance_of(f) + mean_of(f) ** 2))
    np.testing.assert_allclose(predicted.mean, mean, rtol=1e-9)
    variance = square.mean(axis=1) - mean**2
    np.testing.assert_allclose(predicted.variance, variance, rtol=1e-8)
    np.testing.assert_allclose(predicted.stddev**2, predicted.variance, rtol=1e-12)


@pytest.mark.parametrize("name", slow_unless({"Poisson"}, sorted(NUMBERS)))
def test_log_prob_of_a_mixture_is_its_integral(name):
    case = ONE_LATENT[name]
    density = jax.jit(lambda f, y: case.instance.log_density(f, y))
    predicted = Predictive(case.instance, jnp.asarray(MIXTURE), jnp.asarray(WITHIN))
    y = OBSERVATIONS[case.domain]
    got = predicted.log_prob(jnp.asarray(y))
    wanted = [
        np.log(mixture_average(lambda f, u=u: float(jnp.exp(density(f, u))))[i].mean())
        for i, u in enumerate(y)
    ]
    np.testing.assert_allclose(got, wanted, rtol=1e-8)


@pytest.mark.parametrize("name", slow_unless({"LaplaceNoise"}, sorted(NUMBERS)))
def test_draws_of_a_mixture_have_its_moments(name, key):
    predicted = Predictive(
        ONE_LATENT[name].instance, jnp.asarray(MIXTURE), jnp.asarray(WITHIN)
    )
    draws = np.asarray(predicted.sample(key=key, num=20_000))
    assert draws.shape == (20_000, 3)
    error = np.abs(draws.mean(axis=0) - predicted.mean)
    assert (error < 4 * predicted.stddev / np.sqrt(20_000)).all()


@pytest.mark.slow
def test_many_components_go_in_chunks():
    mean = np.linspace(-1, 1, 2 * CHUNK_SIZE + 10).reshape(2, -1)
    variance, y = np.full(mean.shape, 0.5), jnp.asarray([1.0, 2.0])
    predicted = Predictive(
        likelihoods.Poisson(), jnp.asarray(mean), jnp.asarray(variance)
    )
    f = np.linspace(-12, 12, 40_001)
    weights = np.exp(-((f[:, None, None] - mean[None]) ** 2)).mean(axis=2) / np.sqrt(
        np.pi
    )
    density = np.exp(likelihoods.Poisson().log_density(f[:, None], y[None]))
    wanted = np.log(np.sum(weights * density, axis=0) * (f[1] - f[0]))
    np.testing.assert_allclose(predicted.log_prob(y), wanted, rtol=1e-9)
    np.testing.assert_allclose(
        predicted.mean, np.exp(mean + 0.25).mean(axis=1), rtol=1e-12
    )


def test_student_noise_may_have_no_moments():
    cauchy = likelihoods.StudentT(1.0, 0.3).predict(
        jnp.ones((2, 1)), jnp.ones((2, 1, 1))
    )
    assert np.isnan(cauchy.mean).all()
    assert np.isinf(cauchy.variance).all()
    heavy = likelihoods.StudentT(2.0, 0.3).predict(
        jnp.ones((2, 1)), jnp.ones((2, 1, 1))
    )
    np.testing.assert_array_equal(heavy.mean, 1)
    assert np.isinf(heavy.variance).all()


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_class_probabilities_are_averages(name):
    case = ONE_LATENT[name]
    mean, variance = np.array([-3.0, 0.4, 30.0, 0.2]), np.array([0.1, 2.0, 1e4, 0.0])
    predict, log_density = map(
        eqx.filter_jit, (case.instance.predict, case.instance.log_density)
    )
    got = predict(jnp.asarray(mean)[:, None], jnp.asarray(variance)[:, None, None])
    f = mean[:, None] + np.sqrt(variance)[:, None] * np.linspace(-12, 12, 8001)[None]
    weights = np.exp(-(np.linspace(-12, 12, 8001) ** 2) / 2)
    for label in range(got.probs.shape[1]):
        p = np.exp(log_density(jnp.asarray(f), jnp.full_like(f, label)))
        wanted = p @ weights / np.sum(weights)
        np.testing.assert_allclose(got.probs[:, label], wanted, rtol=1e-8)
    np.testing.assert_allclose(jnp.sum(got.probs, axis=1), 1, rtol=4e-15)


@pytest.mark.float32
def test_wrong_observations_of_a_prediction():
    predicted = likelihoods.Poisson().predict(jnp.ones((2, 1)), jnp.ones((2, 1, 1)))
    with pytest.raises(ValueError, match=r"y: got shape \(3,\), wanted \(2,\)"):
        predicted.log_prob(jnp.ones(3))
    with pytest.raises(ValueError, match=r"y: got 0.5, wanted integers >= 0"):
        predicted.log_prob(jnp.asarray([0.5, 1.0]))
    with pytest.raises(ValueError, match="num: got -1"):
        predicted.sample(key=jax.random.key(0), num=-1)
    with pytest.raises(
        ValueError, match="method: got 'cubature', wanted one of panels"
    ):
        likelihoods.Poisson().predict(
            jnp.ones((2, 1)), jnp.ones((2, 1, 1)), method="cubature"
        )
    assert predicted.log_prob(jnp.asarray([1, 2])).dtype == jnp.result_type(float)


def model(likelihood):
    process = jgp.GaussianProcess(1.5 * kernels.Matern52(1.0))
    return jgp.Model(process, likelihood)


@pytest.mark.float32
@pytest.mark.parametrize(
    "name", slow_unless({"BernoulliLogit", "Poisson"}, sorted(set(ONE_LATENT)))
)
def test_laplace_and_its_predictions(name):
    case = ONE_LATENT[name]
    dtype = jnp.result_type(float)
    x, y = X.astype(dtype), Y[case.domain]
    approximation = jgp.laplace(model(case.instance), x, y, throw=False)
    if name == "LaplaceNoise":
        # Its mode may lie on a kink, where no derivative vanishes.
        assert not bool(approximation.result == RESULTS.non_finite)
    elif case.instance.log_concave:
        assert bool(approximation.result == RESULTS.successful)
    assert approximation.log_evidence.dtype == dtype
    x_new = np.linspace(-1, 4, 7).astype(dtype)
    log_prob = approximation.log_prob(x_new, y)
    assert log_prob.shape == (7,)
    assert log_prob.dtype == dtype
    assert np.isfinite(log_prob).all()
    predicted = approximation.predict(x_new)
    np.testing.assert_allclose(log_prob, predicted.log_prob(jnp.asarray(y)), rtol=1e-6)
    if name in CLASSES:
        total = jnp.sum(predicted.probs, axis=1)
        np.testing.assert_allclose(total, 1, rtol=8 * jnp.finfo(dtype).eps)
    else:
        assert predicted.mean.shape == predicted.variance.shape == (7,)
        assert predicted.mean.dtype == dtype
        assert predicted.sample(key=jax.random.key(0), num=3).shape == (3, 7)


def test_integer_counts_are_the_same_as_floats():
    x, y = np.array([[0], [1], [2]]), np.array([2, 3, 1])
    poisson = model(likelihoods.Poisson())
    integers, floats = (
        jgp.laplace(poisson, x, y),
        jgp.laplace(poisson, x * 1.0, y * 1.0),
    )
    assert integers.log_evidence == floats.log_evidence
    assert integers.y.dtype == jnp.result_type(float)
    np.testing.assert_array_equal(integers.log_prob(x, y), floats.log_prob(x, y * 1.0))


@pytest.mark.long
@pytest.mark.slow
def test_the_gradient_of_laplace_reaches_likelihood_parameters():
    x, y = X, Y["ordinal"]

    def objective(raw):
        thresholds = jnp.cumsum(jnp.exp(raw[:3])) - 1.5
        likelihood = likelihoods.OrdinalProbit(thresholds, jnp.exp(raw[3]))
        return jgp.laplace(model(likelihood), x, y, rtol=1e-11, atol=1e-11).log_evidence

    raw, step = jnp.asarray([-0.3, 0.2, 0.1, -0.2]), 1e-5
    objective_ = jax.jit(objective)
    gradient = jax.grad(objective)(raw)
    for i in range(4):
        shift = jnp.zeros(4).at[i].set(step)
        numeric = (objective_(raw + shift) - objective_(raw - shift)) / (2 * step)
        np.testing.assert_allclose(gradient[i], numeric, rtol=1e-6)


@pytest.mark.long
@pytest.mark.slow
def test_fit_keeps_thresholds_increasing():
    fitted = jgp.fit(
        model(likelihoods.OrdinalProbit([-1.0, 0.0, 1.0])), X, Y["ordinal"]
    )
    thresholds = np.asarray(fitted.approximation.model.likelihood.thresholds)
    assert (np.diff(thresholds) > 0).all()
    assert not np.allclose(thresholds, [-1.0, 0.0, 1.0])


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("name", ["Poisson", "BernoulliProbit", "StudentT"])
def test_draws_predict_a_mixture(name):
    case = ONE_LATENT[name]
    draws = jgp.sample_posterior(
        model(case.instance), X, Y[case.domain], key=jax.random.key(0), throw=False
    )
    x_new = np.linspace(-1, 4, 7)
    predicted = draws.predict(x_new)
    log_prob = draws.log_prob(x_new, Y[case.domain])
    assert np.isfinite(log_prob).all()
    if name == "Poisson":
        assert predicted.latent_mean.shape[1] > 100
        laplace = jgp.laplace(model(case.instance), X, Y[case.domain])
        # Two approximations of one predictive distribution.
        np.testing.assert_allclose(
            log_prob, laplace.log_prob(x_new, Y[case.domain]), atol=0.2
        )
    elif name == "BernoulliProbit":
        np.testing.assert_allclose(jnp.sum(predicted.probs, axis=1), 1, rtol=1e-12)
