import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jgp
from jgp import kernels, likelihoods
from jgp._results import RESULTS
from tests.problems import iris, reference, squared_exponentials, toy

SOFTMAX = likelihoods.Softmax(3)
FINE = {"rtol": 1e-11, "atol": 1e-11}


@functools.cache
def converged_on_iris():
    data, run = iris("uci"), reference("classification")["laplace"]["iris"]
    model = squared_exponentials(SOFTMAX, run["lengthscales"])
    return data, run, jgp.laplace(model, data.x, data.y)


def test_log_evidence_is_gpstuffs_on_iris():
    _, run, approximation = converged_on_iris()
    assert approximation.evidence_kind == "laplace"
    assert abs(float(approximation.log_evidence) - run["log_q"]) < 1e-8
    assert abs(float(approximation.log_evidence) + 45.018236) < 1e-5


def test_mode_and_latents_are_gpstuffs_on_iris():
    # GPstuff stops on the change of its objective, which leaves its mode 2.5e-9 off.
    data, run, approximation = converged_on_iris()
    mode = approximation.posterior.marginals(data.x).mean
    np.testing.assert_allclose(np.asarray(mode), run["mode"], atol=1e-8)
    moments = approximation.posterior.marginals(data.x_new)
    np.testing.assert_allclose(
        np.asarray(moments.mean), run["test_latent_mean"], atol=1e-8
    )
    np.testing.assert_allclose(
        np.asarray(moments.covariance), run["test_latent_cov"], atol=1e-8
    )


def test_class_probabilities_are_the_references_on_iris():
    data, run, approximation = converged_on_iris()
    probs = np.asarray(approximation.predict(data.x_new).probs)
    np.testing.assert_allclose(probs, run["test_prob_GH"], atol=1e-8)
    np.testing.assert_allclose(probs.sum(axis=1), 1, atol=1e-12)
    shifted = approximation.predict(data.x_new, key=jax.random.key(0)).probs
    np.testing.assert_allclose(np.asarray(shifted), run["test_prob_GH"], atol=1e-4)


def test_gradient_is_gpstuffs_on_iris():
    data, run = iris("uci"), reference("classification")["laplace"]["iris"]

    def objective(raw):
        ks = [kernels.SquaredExponential(jnp.exp(r)) for r in raw]
        model = jgp.Model(jgp.independent(ks), SOFTMAX)
        return jgp.laplace(model, data.x, data.y).log_evidence

    gradient = jax.grad(objective)(jnp.log(jnp.asarray(run["lengthscales"])))
    np.testing.assert_allclose(np.asarray(gradient), run["dlogq_dlogl"], rtol=1e-7)


@pytest.mark.slow
def test_first_and_second_derivatives_equal_differences():
    data = toy()

    def objective(raw):
        ks = [jnp.exp(raw[3]) * kernels.Matern52(jnp.exp(r)) for r in raw[:3]]
        model = jgp.Model(jgp.independent(ks), SOFTMAX)
        return jgp.laplace(model, data.x, data.y, **FINE).log_evidence

    raw, step = jnp.asarray([0.1, -0.2, 0.3, 0.7]), 1e-4
    objective, shifts = jax.jit(objective), step * jnp.eye(4)
    gradient = jax.jit(jax.grad(objective))

    def difference(f):
        return jnp.stack([(f(raw + s) - f(raw - s)) / (2 * step) for s in shifts])

    numeric = difference(objective)
    scale = float(jnp.max(jnp.abs(numeric)))
    assert float(jnp.max(jnp.abs(gradient(raw) - numeric))) < 1e-6 * scale
    for hessian in (jax.hessian, lambda f: jax.jacrev(jax.jacrev(f))):
        numeric = difference(gradient)
        scale = float(jnp.max(jnp.abs(numeric)))
        error = jnp.max(jnp.abs(jax.jit(hessian(objective))(raw) - numeric))
        assert float(error) < 1e-6 * scale


def test_gaussian_noise_makes_laplace_exact():
    x = np.linspace(0, 1, 15)
    y = np.sin(6 * x)
    model = jgp.Model(
        jgp.GaussianProcess(2.0 * kernels.Matern32(0.3), jgp.means.Constant(0.5)),
        likelihoods.Gaussian(0.1),
    )
    exact, laplace = jgp.exact(model, x, y), jgp.laplace(model, x, y)
    assert int(laplace.num_steps) <= 3
    assert abs(float(exact.log_evidence - laplace.log_evidence)) < 1e-9
    x_new = np.linspace(-1, 2, 9)
    for a, b in zip(
        exact.posterior.marginals(x_new),
        laplace.posterior.marginals(x_new),
        strict=True,
    ):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-9)


def test_newton_needs_its_line_search():
    # Two equal inputs with different labels and K = 10·11ᵀ, from f₁ − f₂ = 20: the full
    # step cycles for ever at objective −30; the optimum is f₁ = f₂, at 2 log ½.
    model = jgp.Model(
        jgp.independent([10.0 * kernels.SquaredExponential(1.0) for _ in range(2)]),
        likelihoods.Softmax(2),
    )
    x, y = np.zeros((2, 1)), np.array([0, 1])
    start = jgp.laplace(model, x, y)
    weights = jnp.asarray([[0.5, -0.5], [0.5, -0.5]])  # f = K w = ±10
    far = eqx.tree_at(lambda a: a.posterior.weights, start, weights)
    approximation = jgp.laplace(model, x, y, init=far)
    mode = np.asarray(approximation.posterior.marginals(x).mean)
    np.testing.assert_allclose(mode, 0, atol=1e-6)
    assert abs(float(approximation.log_evidence - start.log_evidence)) < 1e-9


@pytest.mark.float32
def test_iris_in_single_precision():
    data, run = iris("uci"), reference("classification")["laplace"]["iris"]
    model = squared_exponentials(SOFTMAX, run["lengthscales"])
    approximation = jgp.laplace(model, data.x.astype(np.float32), data.y)
    assert bool(approximation.result == RESULTS.successful)
    assert approximation.log_evidence.dtype == jnp.float32
    assert abs(float(approximation.log_evidence) - run["log_q"]) < 1e-2


@pytest.mark.parametrize("lengthscale", [0.01, 100.0])
def test_hard_settings_are_finite_or_say_why(lengthscale):
    data = iris("sklearn")
    x = np.concatenate([data.x, data.x[:20]])
    y = np.concatenate([data.y, (data.y[:20] + 1) % 3])
    model = squared_exponentials(SOFTMAX, [lengthscale] * 3, 1e4)
    approximation = jgp.laplace(model, x, y, throw=False)
    succeeded = bool(approximation.result == RESULTS.successful)
    assert succeeded == (float(approximation.residual) <= 1)
    finite = bool(jnp.isfinite(approximation.log_evidence))
    assert not succeeded or finite


def test_single_points_and_absent_classes():
    model = squared_exponentials(SOFTMAX, [1.0] * 3)
    one = jgp.laplace(model, [[0.0, 0.0]], [1])
    assert bool(jnp.isfinite(one.log_evidence))
    absent = jgp.laplace(model, toy().x, toy().y % 2)
    assert bool(jnp.all(jnp.isfinite(absent.predict(toy().x_new).probs)))
    assert one.predict(np.zeros((0, 2))).probs.shape == (0, 3)


def test_relabelling_classes_permutes_the_answer():
    data, names = toy(), np.array([2, 0, 1])
    plain = jgp.laplace(squared_exponentials(SOFTMAX, [0.5, 1.0, 2.0]), data.x, data.y)
    other = jgp.laplace(
        squared_exponentials(SOFTMAX, [1.0, 2.0, 0.5]), data.x, names[data.y]
    )
    assert abs(float(plain.log_evidence - other.log_evidence)) < 1e-9
    np.testing.assert_allclose(
        np.asarray(plain.predict(data.x_new).probs),
        np.asarray(other.predict(data.x_new).probs)[:, names],
        atol=1e-9,
    )


def test_wants_a_likelihood_it_can_do():
    with pytest.raises(ValueError, match="MultinomialProbit, wanted Softmax"):
        jgp.laplace(
            squared_exponentials(likelihoods.MultinomialProbit(3), [1.0] * 3),
            toy().x,
            toy().y,
        )
