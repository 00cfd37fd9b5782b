"""What every verb promises, on one small problem each."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jgp
from jgp import kernels, likelihoods
from jgp._results import RESULTS
from tests.cases import slow_unless
from tests.problems import toy

DATA = toy()
TARGETS = {
    "exact": np.sin(DATA.x[:, 0]),
    "exact_banded": np.sin(DATA.x[:, 0]),
    "laplace": DATA.y,
    "nested_ep": DATA.y,
    "variational": DATA.y,
    "sample_posterior": DATA.y,
}
LIKELIHOODS = {
    "exact": likelihoods.Gaussian(0.1),
    "exact_banded": likelihoods.Gaussian(0.1),
    "laplace": likelihoods.Softmax(3),
    "nested_ep": likelihoods.MultinomialProbit(3),
    "variational": likelihoods.Softmax(3),
    "sample_posterior": likelihoods.Softmax(3),
}
VERBS = {
    "exact": jgp.exact,
    "exact_banded": functools.partial(jgp.exact_banded, bandwidth=12),
    "laplace": jgp.laplace,
    "nested_ep": jgp.nested_ep,
    "variational": jgp.variational,
    "sample_posterior": functools.partial(
        jgp.sample_posterior,
        key=jax.random.key(0),
        max_steps=20,
        num_warmup=5,
        num_chains=2,
        throw=False,
    ),
}


def model(name, lengthscale=1.0):
    if name == "exact_banded":
        kernel = kernels.Wendland(1, lengthscale)
        return jgp.Model(jgp.GaussianProcess(kernel), LIKELIHOODS[name])
    kernel = kernels.SquaredExponential(lengthscale)
    likelihood = LIKELIHOODS[name]
    latents = likelihood.num_latents or 1
    return jgp.Model(jgp.independent(kernel, num_latents=latents), likelihood)


def inputs(name, x=DATA.x):
    return x[:, :1] if name == "exact_banded" else x


@functools.cache
def approximated(name):
    return VERBS[name](model(name), inputs(name), TARGETS[name])


@pytest.mark.parametrize("name", slow_unless(["exact", "laplace"], VERBS))
def test_vmap_is_the_loop(name):
    def means(lengthscale):
        approximation = VERBS[name](
            model(name, lengthscale), inputs(name), TARGETS[name]
        )
        return approximation.posterior.marginals(inputs(name, DATA.x_new)).mean

    lengthscales = jnp.asarray([0.7, 1.0])
    batched = np.asarray(jax.vmap(means)(lengthscales))
    looped = [np.asarray(means(lengthscale)) for lengthscale in lengthscales]
    np.testing.assert_allclose(batched, looped, atol=1e-6)


@pytest.mark.parametrize("name", VERBS)
def test_every_approximation_has_the_same_parts(name):
    approximation = approximated(name)
    assert approximation.method == name
    assert approximation.num_steps.dtype == jnp.int32
    assert float(approximation.residual) >= 0
    assert float(approximation.jitter) >= 0
    draws = approximation.posterior.sample(inputs(name), key=jax.random.key(1), num=3)
    assert bool(jnp.all(jnp.isfinite(draws)))
    log_prob = approximation.log_prob(inputs(name, DATA.x_new), TARGETS[name][:4])
    assert log_prob.shape == (4,)


@pytest.mark.parametrize(
    "name", ["exact", "exact_banded", "laplace", "nested_ep", "variational"]
)
def test_start_is_checked_and_cast(name):
    start = approximated(name)
    x32 = inputs(name).astype(np.float32)
    again = VERBS[name](model(name), x32, TARGETS[name], init=start)
    assert again.log_evidence.dtype == jnp.float32
    if name in ("exact", "exact_banded"):
        return
    likelihood = type(LIKELIHOODS[name])(4)
    process = jgp.independent(kernels.SquaredExponential(), num_latents=4)
    with pytest.raises(ValueError, match="init: got an Approximation of 3 latents"):
        VERBS[name](jgp.Model(process, likelihood), DATA.x, DATA.y, init=start)


@pytest.mark.parametrize(
    "name", ["exact", "exact_banded", "laplace", "nested_ep", "variational"]
)
def test_shapes_of_traced_targets_are_checked(name):
    column = np.asarray(TARGETS[name])[:, None]
    run = jax.jit(lambda y: VERBS[name](model(name), inputs(name), y).log_evidence)
    with pytest.raises(
        ValueError,
        match=r"y: got shape \(12, 1\) beside x of shape \(12, .\), wanted \(n,\)",
    ):
        run(column)
    with pytest.raises(ValueError, match=r"y_new: got shape \(4, 1\)"):
        approximated(name).log_prob(inputs(name, DATA.x_new), column[:4])


def test_samples_are_finite_where_little_noise_leaves_little_variance():
    x = np.linspace(0, 1, 8)
    for noise in (0.0, 1e-6, 1e-4):
        process = jgp.GaussianProcess(kernels.SquaredExponential(0.3))
        posterior = jgp.exact(
            jgp.Model(process, likelihoods.Gaussian(noise)), x, np.sin(6 * x)
        ).posterior
        x_new = np.linspace(-0.1, 1.1, 30)
        draws = posterior.sample(x_new, key=jax.random.key(0), num=2000)
        spread = np.asarray(posterior.marginals(x_new).variance)
        assert np.isfinite(np.asarray(draws)).all()
        # Variances of 2000 draws have a relative error of 3 %.
        np.testing.assert_allclose(
            np.asarray(draws).var(axis=0), spread, rtol=0.15, atol=1e-7
        )
        joint = np.asarray(posterior.joint(x_new).covariance)
        np.testing.assert_array_equal(joint, joint.T)
        assert np.diag(joint).min() >= 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", [likelihoods.Softmax, likelihoods.MultinomialProbit])
def test_probabilities_of_exchangeable_classes_have_derivatives(kind):
    # Equal latents give the contrast covariance a repeated eigenvalue.
    mean = jnp.asarray([[0.5, -0.2, 0.1, 0.0]])

    def first(scale):
        covariance = scale * jnp.eye(4)[None]
        return kind(4).predict(mean, covariance).probs[0, 0]

    f, step = jax.jit(first), 1e-4
    numeric = (f(1.0 + step) - f(1.0 - step)) / (2 * step)
    assert abs(float(jax.jit(jax.grad(first))(1.0) - numeric)) < 1e-7


@pytest.mark.slow
def test_softmax_under_broad_latents():
    # C = 2: E[sigmoid(h)], by 200 001 trapezia over ±40 standard deviations' width.
    for variance in (4.0, 25.0, 100.0, 400.0):
        grid = np.linspace(-12, 12, 200_001)
        density = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
        values = density / (1 + np.exp(-(1 + np.sqrt(variance) * grid)))
        wanted = values.sum() * (grid[1] - grid[0])
        covariance = jnp.diag(jnp.full(2, variance / 2))[None]
        predicted = likelihoods.Softmax(2).predict(
            jnp.asarray([[1.0, 0.0]]), covariance
        )
        assert abs(float(predicted.probs[0, 0]) - wanted) < 1e-5


def test_metropolis_and_tolerances_are_checked():
    sample = VERBS["sample_posterior"]
    arguments = (model("laplace"), DATA.x, DATA.y)
    for key in (0, None, jnp.ones(3), jax.random.split(jax.random.key(0))):
        with pytest.raises(ValueError, match=r"key: got .*, wanted a PRNG key"):
            sample(*arguments, key=key)
    with pytest.raises(ValueError, match="rtol: got -1"):
        sample(*arguments, rtol=-1.0)
    with pytest.raises(ValueError, match="proposal: got str, wanted"):
        sample(*arguments, sampler="metropolis", proposal="exact")
    with pytest.raises(ValueError, match="window: got -1"):
        jgp.nested_ep(model("nested_ep"), DATA.x, DATA.y, window=-1)
    with pytest.raises(ValueError, match="method: got 'zzz'"):
        approximated("exact").predict(DATA.x_new, method="zzz")


def test_zero_absolute_tolerance_converges():
    approximation = jgp.nested_ep(model("nested_ep"), DATA.x, DATA.y, atol=0.0)
    assert bool(approximation.result == RESULTS.successful)


@pytest.mark.parametrize("name", ["laplace", "nested_ep", "variational"])
def test_traced_labels_of_any_kind_are_integers(name):
    wanted = float(approximated(name).log_evidence)
    run = jax.jit(lambda y: VERBS[name](model(name), DATA.x, y).log_evidence)
    assert abs(float(run(jnp.asarray(DATA.y, float))) - wanted) < 1e-9


def test_density_without_variance_is_a_point_mass():
    x = np.array([0.0, 1.0])
    process = jgp.GaussianProcess(kernels.Matern12(1.0))
    approximation = jgp.exact(
        jgp.Model(process, likelihoods.Gaussian(0.0)), x, np.zeros(2)
    )
    log_prob = np.asarray(approximation.log_prob([0.0, 0.0], [0.0, 1.0]))
    assert log_prob[0] > 0
    assert log_prob[1] < -1e6
