"""Variational inference: mpmath's optimum, laws of bounds, hard likelihoods."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jgp
from jgp import kernels, likelihoods
from jgp._results import RESULTS
from jgp.inference import DiagonalSites, SignedSites
from tests.problems import iris, reference, squared_exponentials, toy

LOGIT = likelihoods.BernoulliLogit()
FINE = {"rtol": 1e-11, "atol": 1e-11}
# The exact log evidences of the two models of classes on Iris, by SMC (±0.0007).
EXACT = {"Softmax": -44.9494, "MultinomialProbit": -38.2782}


def known():
    run = reference("variational")["vgp_bernoulli_logit"]
    return np.asarray(run["X"]), np.asarray(run["y"]), run


def logit_model(parameters):
    kernel = parameters[0] * kernels.SquaredExponential(parameters[1])
    return jgp.Model(jgp.GaussianProcess(kernel), LOGIT)


@functools.cache
def known_approximation():
    x, y, run = known()
    model = logit_model((run["variance"], run["lengthscale"]))
    return jgp.variational(model, x, y, **FINE)


def test_bound_and_posterior_are_mpmaths():
    x, _, run = known()
    found = known_approximation()
    assert found.evidence_kind == "bound"
    assert abs(float(found.log_evidence) - run["elbo"]) < 1e-12
    sites = found.sites
    np.testing.assert_allclose(
        sites.precision[:, 0], run["site_precision_lambda"], atol=1e-10
    )
    np.testing.assert_allclose(sites.linear[:, 0], run["site_eta"], atol=1e-10)
    mean, covariance = found.posterior.joint(x)
    np.testing.assert_allclose(np.ravel(mean), run["q_mean"], atol=1e-9)
    np.testing.assert_allclose(
        np.reshape(covariance, (15, 15)), run["q_cov"], atol=1e-9
    )


def test_predictions_are_mpmaths():
    wanted = known()[2]["predict"]
    x_new, found = np.asarray(wanted["Xs"]), known_approximation()
    mean, covariance = found.posterior.joint(x_new)
    np.testing.assert_allclose(np.ravel(mean), wanted["f_mean"], atol=1e-9)
    np.testing.assert_allclose(
        np.reshape(covariance, (5, 5)), wanted["f_cov"], atol=1e-9
    )
    np.testing.assert_allclose(
        found.predict(x_new).probs[:, 1], wanted["p_y1"], atol=1e-9
    )


def test_a_full_step_from_the_prior_is_the_natural_gradients():
    """γ = 1 from q = p, as mpmath and GPflow take it: S⁻¹ = K⁻¹ + E[−∇² log p]."""
    x, y, run = known()
    wanted = run["natgrad_from_prior"]
    model = logit_model((run["variance"], run["lengthscale"]))
    nothing = DiagonalSites(jnp.zeros((15, 1)), jnp.zeros((15, 1)))
    prior = jgp.variational(model, x, y, throw=False, max_steps=1)
    prior = jgp.variational(
        model, x, y, throw=False, max_steps=1, init=with_sites(prior, nothing)
    )
    assert abs(float(prior.log_evidence) - wanted["elbo_at_prior"]) < 1e-10
    second = jgp.variational(
        model, x, y, throw=False, max_steps=2, init=with_sites(prior, nothing)
    )
    one = wanted["gamma1_step1"]
    assert abs(float(second.log_evidence) - one["elbo"]) < 1e-10
    mean, variance, _ = second.posterior.marginals(x)
    np.testing.assert_allclose(np.ravel(mean), one["q_mean"], atol=1e-9)
    np.testing.assert_allclose(np.ravel(variance), one["q_var"], atol=1e-9)


def with_sites(approximation, sites):
    return eqx.tree_at(lambda a: a.sites, approximation, sites)


def test_gradient_is_mpmaths():
    x, y, run = known()

    def bound(parameters):
        return jgp.variational(logit_model(parameters), x, y, **FINE).log_evidence

    at = jnp.asarray([run["variance"], run["lengthscale"]])
    wanted = run["grad_optimal_elbo"]
    np.testing.assert_allclose(
        jax.grad(bound)(at), [wanted["d_variance"], wanted["d_lengthscale"]], rtol=1e-9
    )


@pytest.mark.slow
@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize("likelihood", ["Softmax", "LatentNoiseGaussian"])
def test_first_and_second_derivatives_equal_differences(likelihood, coupled):
    data = toy()
    classes = likelihood == "Softmax"
    noisy = np.sin(data.x[:, 0]) + 0.5 * np.random.default_rng(3).normal(size=12)
    y = data.y if classes else noisy
    chosen = likelihoods.Softmax(3) if classes else likelihoods.LatentNoiseGaussian()
    count = 3 if classes else 2

    def bound(raw):
        ks = [jnp.exp(raw[1]) * kernels.Matern52(jnp.exp(raw[0])) for _ in range(count)]
        model = jgp.Model(jgp.independent(ks), chosen)
        found = jgp.variational(model, data.x, y, coupled=coupled, **FINE)
        return found.log_evidence

    raw, step = jnp.asarray([0.1, 0.3]), 1e-4
    bound, gradient = jax.jit(bound), jax.jit(jax.grad(bound))

    def difference(f):
        shifts = step * jnp.eye(2)
        return jnp.stack([(f(raw + s) - f(raw - s)) / (2 * step) for s in shifts])

    for got, numeric in (
        (gradient(raw), difference(bound)),
        (jax.jit(jax.hessian(bound))(raw), difference(gradient)),
    ):
        # The trapezoid of softmax moves with the moments: its error, 1e-8, too.
        scale = float(jnp.max(jnp.abs(numeric)))
        assert float(jnp.max(jnp.abs(got - numeric))) < 3e-6 * scale


def test_gradient_in_likelihood_and_mean():
    x = np.linspace(0, 3, 10)
    y = np.sin(2 * x)

    def bound(raw):
        process = jgp.GaussianProcess(
            kernels.SquaredExponential(0.8), jgp.means.Constant(raw[0])
        )
        likelihood = likelihoods.StudentT(jnp.exp(raw[1]), jnp.exp(raw[2]))
        return jgp.variational(
            jgp.Model(process, likelihood), x, y, **FINE
        ).log_evidence

    raw, step = jnp.asarray([0.2, 1.2, -1.0]), 1e-4
    gradient = jax.grad(bound)(raw)
    for i, shift in enumerate(step * jnp.eye(3)):
        numeric = (bound(raw + shift) - bound(raw - shift)) / (2 * step)
        assert abs(float(gradient[i] - numeric)) < 1e-6


@pytest.mark.parametrize("noise", [1e-6, 0.1])
def test_gaussian_noise_takes_one_step_and_is_exact(noise):
    x = np.linspace(0, 1, 15)
    y = np.sin(6 * x)
    model = jgp.Model(
        jgp.GaussianProcess(2.0 * kernels.Matern32(0.3), jgp.means.Constant(0.5)),
        likelihoods.Gaussian(noise),
    )
    exact, found = jgp.exact(model, x, y), jgp.variational(model, x, y)
    assert int(found.num_steps) == 1
    assert abs(float(exact.log_evidence - found.log_evidence)) < 1e-7
    assert float(jgp.elbo(exact)) == float(exact.log_evidence)
    x_new = np.linspace(-1, 2, 9)
    for a, b in zip(
        exact.posterior.marginals(x_new), found.posterior.marginals(x_new), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=1e-8)


def test_two_outputs_of_gaussian_noise_are_exact():
    x = np.linspace(0, 1, 9)
    y = np.stack([np.sin(6 * x), np.cos(3 * x)], axis=1)
    process = jgp.independent([kernels.Matern32(0.3), kernels.Matern52(0.6)])
    exact = jgp.exact(jgp.Model(process, likelihoods.Gaussian(0.1)), x, y)
    found = jgp.variational(jgp.Model(process, likelihoods.Gaussian(0.1)), x, y)
    assert abs(float(exact.log_evidence - found.log_evidence)) < 1e-9
    noise = likelihoods.CorrelatedGaussian([[0.2, 0.1], [0.1, 0.3]])
    model = jgp.Model(process, noise)
    exact = jgp.exact(model, x, y)
    found = jgp.variational(model, x, y, coupled=True)
    assert abs(float(exact.log_evidence - found.log_evidence)) < 1e-8
    # Independent latents cannot follow the correlation: a bound, and lower.
    alone = jgp.variational(model, x, y)
    assert float(alone.log_evidence) < float(exact.log_evidence) - 0.1


@functools.cache
def on_iris(kind, coupled):
    data, run = iris("uci"), reference("classification")["nested_ep"]["iris"]
    likelihood = getattr(likelihoods, kind)(3)
    model = squared_exponentials(likelihood, run["lengthscales"])
    return jgp.variational(model, data.x, data.y, coupled=coupled)


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXACT)
def test_bounds_on_iris(kind):
    """Diagonal < coupled < the evidence, and coupled above any other method's q."""
    data = iris("uci")
    alone, coupled = on_iris(kind, False), on_iris(kind, True)
    other = jgp.laplace if kind == "Softmax" else jgp.nested_ep
    other = other(coupled.model, data.x, data.y)
    best = float(coupled.log_evidence)
    assert float(alone.log_evidence) < best < EXACT[kind]
    assert float(jgp.elbo(other)) < best
    assert float(jgp.elbo(alone)) == float(alone.log_evidence)
    # The gap that a Gaussian leaves.
    assert EXACT[kind] - best < 0.3
    for found in (alone, coupled):
        probs = np.asarray(found.predict(data.x_new).probs)
        np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-10)
        assert np.mean(probs.argmax(axis=1) == data.y_new) > 0.9


@pytest.mark.parametrize("seed", range(3))
def test_the_optimum_is_above_the_bound_at_other_methods(seed):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(12, 2))
    y = generator.integers(0, 2, 12)
    model = jgp.Model(
        jgp.GaussianProcess(5.0 * kernels.Matern52(0.8)), likelihoods.BernoulliProbit()
    )
    found = jgp.variational(model, x, y)
    ep = jgp.expectation_propagation(model, x, y)
    for other in (ep, jgp.laplace(model, x, y)):
        assert float(jgp.elbo(other)) < float(found.log_evidence) + 1e-9
    # EP's evidence of a probit is good to a few hundredths here.
    assert float(found.log_evidence) < float(ep.log_evidence) + 0.02


X = np.linspace(0, 5, 30)
WAVE = np.sin(2 * X)
HARD = {
    "counts under a broad prior": (
        100.0,
        likelihoods.Poisson(),
        np.round(np.exp(WAVE)),
    ),
    "large counts": (25.0, likelihoods.Poisson(), np.round(1e5 * np.exp(WAVE))),
    "outliers": (1.0, likelihoods.StudentT(4.0, 0.1), WAVE + 5.0 * (X > 4.9)),
    "a kink": (1.0, likelihoods.LaplaceNoise(0.1), WAVE + 5.0 * (X > 4.9)),
    "separable": (1e4, likelihoods.BernoulliProbit(), (WAVE > 0).astype(int)),
}


@pytest.mark.parametrize("name", HARD)
def test_hard_likelihoods(name):
    variance, likelihood, y = HARD[name]
    kernel = variance * kernels.SquaredExponential(1.0)
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihood)
    found = jgp.variational(model, X, y)
    # The bound at the optimum, by quadrature over its own moments, with the Gaussian
    # KL divergence of the joint by determinants.
    mean, S = (np.asarray(a) for a in found.posterior.joint(X))
    mean, S = mean.ravel(), S.reshape(30, 30)
    K = variance * np.exp(-((X[:, None] - X[None]) ** 2) / 2)
    z = np.linspace(-10, 10, 8001)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    f = mean + np.sqrt(np.diag(S)) * z[:, None]
    log_probs = jax.vmap(lambda f: likelihood.log_probs(f[:, None], jnp.asarray(y)))
    expected = density @ np.asarray(log_probs(jnp.asarray(f)))
    T = np.asarray(found.sites.precision[:, 0])
    _, log_determinant = np.linalg.slogdet(np.eye(30) + K * T[None])
    square = mean @ np.asarray(found.posterior.weights[:, 0])
    kl = (square + log_determinant - np.sum(T * np.diag(S))) / 2
    wanted = expected.sum() - kl
    assert abs(float(found.log_evidence) - wanted) < 1e-4 * max(1, abs(wanted))
    signed = isinstance(found.sites, SignedSites)
    assert signed == isinstance(likelihood, likelihoods.StudentT)
    assert np.min(T) < 0 if signed else np.min(T) >= 0


def test_one_point_and_repeated_points():
    model = jgp.Model(jgp.GaussianProcess(kernels.Matern12(1.0)), LOGIT)
    for x, y in (([0.3], [1]), ([0.3] * 4, [1, 1, 0, 1])):
        found = jgp.variational(model, x, y)
        assert bool(found.result == RESULTS.successful)
        assert float(jgp.laplace(model, x, y).log_evidence) < 0
        # p(y) of one value f: ∏σ(±f) N(f), by a fine sum.
        f = np.linspace(-12, 12, 20_001)
        signs = 2 * np.asarray(y) - 1
        log_p = -np.log1p(np.exp(-signs[:, None] * f)).sum(axis=0)
        p = np.exp(log_p - f**2 / 2) / np.sqrt(2 * np.pi)
        exact = np.log(p.sum() * (f[1] - f[0]))
        assert exact - 0.01 < float(found.log_evidence) < exact


@pytest.mark.parametrize("lengthscale", [1e-6, 1e6])
def test_extreme_lengthscales(lengthscale):
    data = toy()
    model = squared_exponentials(likelihoods.Softmax(3), [lengthscale] * 3)
    found = jgp.variational(model, data.x, data.y)
    assert bool(found.result == RESULTS.successful)
    assert -60 < float(found.log_evidence) < 0


def test_a_start_saves_steps_and_must_fit():
    x, y, run = known()
    model = logit_model((run["variance"], run["lengthscale"]))
    found = jgp.variational(model, x, y)
    again = jgp.variational(model, x, y, init=found)
    assert int(again.num_steps) == 1
    data = toy()
    classes = squared_exponentials(likelihoods.Softmax(3), [1.0] * 3)
    coupled = jgp.variational(classes, data.x, data.y, coupled=True)
    with pytest.raises(ValueError, match="init: got an Approximation with DenseSites"):
        jgp.variational(classes, data.x, data.y, init=coupled)
    with pytest.raises(ValueError, match="coupled: got 'yes'"):
        jgp.variational(classes, data.x, data.y, coupled="yes")


def test_a_start_may_be_of_another_likelihood():
    """Of sites that must be positive, or of some that need not be: the same optimum."""
    y = WAVE + 3.0 * (X > 4.9)
    process = jgp.GaussianProcess(kernels.SquaredExponential(1.0))
    heavy = jgp.Model(process, likelihoods.StudentT(3.0, 0.1))
    kinked = jgp.Model(process, likelihoods.LaplaceNoise(0.1))
    first, second = jgp.variational(heavy, X, y), jgp.variational(kinked, X, y)
    for model, wanted, start in ((heavy, first, second), (kinked, second, first)):
        found = jgp.variational(model, X, y, init=start)
        assert abs(float(found.log_evidence - wanted.log_evidence)) < 1e-6
        assert type(found.sites) is type(wanted.sites)


def test_a_start_without_a_bound_is_no_number():
    model = jgp.Model(
        jgp.GaussianProcess(kernels.SquaredExponential(1.0)), likelihoods.Gaussian(0.0)
    )
    found = jgp.variational(model, X, WAVE, throw=False)
    assert bool(found.result == RESULTS.non_finite)
    assert not bool(jnp.isfinite(found.log_evidence))


def test_steps_that_do_not_suffice_are_told():
    x, y, run = known()
    model = logit_model((run["variance"], run["lengthscale"]))
    with pytest.raises(jgp.InferenceError, match="variational on n = 15 points"):
        jgp.variational(model, x, y, max_steps=2)
    found = jgp.variational(model, x, y, max_steps=2, throw=False)
    assert bool(found.result == RESULTS.max_steps_reached)


def test_elbo_needs_sites():
    data = toy()
    model = squared_exponentials(likelihoods.Softmax(3), [1.0] * 3)
    drawn = jgp.sample_posterior(
        model,
        data.x,
        data.y,
        key=jax.random.key(0),
        max_steps=5,
        num_warmup=2,
        num_chains=2,
        throw=False,
    )
    with pytest.raises(ValueError, match="approximation: got one by sample_posterior"):
        jgp.elbo(drawn)
    with pytest.raises(ValueError, match="approximation: got int"):
        jgp.elbo(3)


@pytest.mark.float32
def test_single_precision():
    x = np.linspace(0, 5, 30, dtype=np.float32)
    y = (np.sin(2 * x) > 0.2).astype(int)
    model = jgp.Model(jgp.GaussianProcess(kernels.Matern52(1.0)), LOGIT)
    found = jgp.variational(model, x, y)
    assert found.log_evidence.dtype == jnp.float32
    assert found.predict(x).probs.dtype == jnp.float32
    # In float64; expectation propagation there gives -18.54763.
    assert abs(float(found.log_evidence) + 18.548260) < 1e-4


@pytest.mark.parametrize("variance", [16.0, 100.0])
def test_broad_softmax(variance):
    """Where levels of the trapezoid are far apart the derivative is still its own."""
    x, y = np.linspace(0, 6, 12), np.arange(12) % 3

    def bound(variance):
        ks = [variance * kernels.SquaredExponential(1.0) for _ in range(3)]
        model = jgp.Model(jgp.independent(ks), likelihoods.Softmax(3))
        return jgp.variational(model, x, y, rtol=1e-8, atol=1e-8)

    assert bool(bound(variance).result == RESULTS.successful)
    step = 1e-4 * variance
    numeric = (
        bound(variance + step).log_evidence - bound(variance - step).log_evidence
    ) / (2 * step)
    gradient = jax.grad(lambda v: bound(v).log_evidence)(variance)
    assert abs(float(gradient - numeric)) < 1e-5 * abs(float(numeric))


def test_broad_latent_noise_starts_somewhere():
    x = np.linspace(0, 3, 20)
    y = np.sin(2 * x) + 0.3 * np.random.default_rng(0).normal(size=20)
    for variance in (50.0, 400.0):
        kernel = variance * kernels.SquaredExponential(3.0)
        process = jgp.independent([kernels.SquaredExponential(1.0), kernel])
        model = jgp.Model(process, likelihoods.LatentNoiseGaussian())
        found = jgp.variational(model, x, y)
        assert bool(found.result == RESULTS.successful)
        assert -40 < float(found.log_evidence) < 0


class Logistic(likelihoods.AbstractLikelihood):
    """One latent, known by its log density alone."""

    num_latents: int | None = eqx.field(static=True, default=1)

    def log_prob(self, f, y):
        return -jax.nn.softplus(-(2 * y.astype(f.dtype) - 1) * f[0])

    def observe(self, f):
        raise NotImplementedError

    def predict(self, mean, covariance, *, method=None, key=None):
        raise NotImplementedError

    def check_shape(self, shape, num_latents):
        pass

    def targets(self, y, num_latents):
        return np.asarray(y, float)


def test_a_likelihood_needs_no_more_than_its_density():
    x, y, run = known()
    kernel = run["variance"] * kernels.SquaredExponential(run["lengthscale"])
    model = jgp.Model(jgp.GaussianProcess(kernel), Logistic())
    found = jgp.variational(model, x, y)
    assert abs(float(found.log_evidence) - run["elbo"]) < 1e-8
