import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jgp
from jgp import kernels, likelihoods
from jgp._results import RESULTS
from tests.cases import slow_unless
from tests.problems import iris, reference, squared_exponentials, toy

LIKELIHOODS = {
    "NEP": (jgp.nested_ep, likelihoods.MultinomialProbit(3)),
    "Laplace": (jgp.laplace, likelihoods.Softmax(3)),
}
QUIET = {"progress": False}


@pytest.mark.parametrize("method", slow_unless(["NEP"], ["NEP", "Laplace"]))
@pytest.mark.parametrize("start", slow_unless([3.0], [1.0, 3.0]))
def test_optimum_on_iris_is_gpstuffs(method, start):
    data, (infer, likelihood) = iris("sklearn"), LIKELIHOODS[method]
    (optimum,) = (
        run
        for run in reference("classification")["optima"]
        if run["method"] == method and run["start"][0] == 1.0
    )
    model = squared_exponentials(likelihood, [start] * 3)
    fitted = jgp.fit(model, data.x, data.y, infer=infer, **QUIET)
    assert bool(fitted.result == RESULTS.successful)
    assert abs(float(fitted.approximation.log_evidence) - optimum["logZ"]) < 1e-7
    found = [float(k.lengthscale) for k in fitted.model.process.kernels]
    # The evidence is flat to 1e-10 over a relative 1e-5 of a lengthscale.
    np.testing.assert_allclose(found, optimum["l_opt"], rtol=5e-6)
    assert np.all(np.diff(fitted.history.log_evidence) >= -1e-9)
    assert fitted.num_steps <= 15


def regression():
    x = np.linspace(0, 1, 12)
    y = np.sin(6 * x) + 0.1 * np.cos(40 * x)
    kernel = 1.0 * kernels.SquaredExponential(0.5)
    return jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(0.1)), x, y


@functools.cache
def fitted_regression():
    model, x, y = regression()
    return jgp.fit(model, x, y, **QUIET)


def test_gradient_vanishes_and_no_neighbour_is_better():
    _, x, y = regression()
    fitted = fitted_regression()
    best = float(fitted.approximation.log_evidence)
    raw = jgp.to_real(fitted.model)
    leaves, structure = jax.tree.flatten(raw)
    for i in range(len(leaves)):
        for step in (-0.05, 0.05):
            moved = [leaf + step * (i == j) for j, leaf in enumerate(leaves)]
            model = jgp.from_real(jax.tree.unflatten(structure, moved))
            assert float(jgp.exact(model, x, y).log_evidence) < best
    # 1e-7 by the gradient; by the predicted gain of 2e-14, a little more.
    assert fitted.history.gradient_norm[-1] <= 1e-6


def test_frozen_leaves_stay_bit_for_bit():
    model, x, y = regression()
    frozen = jgp.freeze(model, lambda m: m.likelihood.noise_variance)
    fitted = jgp.fit(frozen, x, y, **QUIET)
    kept = fitted.model.likelihood.noise_variance
    assert float(kept) == float(model.likelihood.noise_variance)
    assert float(fitted.model.process.kernel.kernel.lengthscale) != 0.5
    everything = jgp.freeze(model, lambda m: m)
    with pytest.raises(ValueError, match="every parameter frozen"):
        jgp.fit(everything, x, y, **QUIET)


def test_zero_noise_must_be_frozen():
    model, x, y = regression()
    model = jgp.Model(model.process, likelihoods.Gaussian(0.0))
    with pytest.raises(ValueError, match="noise_variance: got 0"):
        jgp.fit(model, x, y, **QUIET)
    frozen = jgp.freeze(model, lambda m: m.likelihood)
    fitted = jgp.fit(frozen, x, y, **QUIET, throw=False)
    assert np.isfinite(float(fitted.approximation.log_evidence))


def test_second_fit_compiles_nothing(compilations):
    model, x, y = regression()
    fitted_regression()
    with compilations() as count:
        jgp.fit(model, x + 0.1, y, infer=functools.partial(jgp.exact), **QUIET)
    assert count() == 0


def test_says_what_it_cannot_do():
    model, x, y = regression()
    with pytest.raises(ValueError, match="fit: got traced arguments"):
        jax.vmap(lambda y: jgp.fit(model, x, y, **QUIET).num_steps)(np.stack([y, y]))
    with pytest.raises(ValueError, match="positional arguments"):
        jgp.fit(model, x, y, infer=functools.partial(jgp.exact, model), **QUIET)
    sample = functools.partial(
        jgp.sample_posterior, key=jax.random.key(0), max_steps=4, num_warmup=1
    )
    with pytest.raises(ValueError, match="no evidence to maximise"):
        jgp.fit(model, x, y, infer=sample, **QUIET)


def test_bound_on_steps_and_failed_start_are_told():
    model, x, y = regression()
    few = jgp.fit(model, x, y, max_steps=1, throw=False, **QUIET)
    assert bool(few.result == RESULTS.max_steps_reached)
    assert few.num_steps == 1
    with pytest.raises(jgp.InferenceError, match="max_steps"):
        jgp.fit(model, x, y, max_steps=1, **QUIET)
    data = toy()
    hopeless = functools.partial(jgp.nested_ep, max_steps=1)
    probit = squared_exponentials(likelihoods.MultinomialProbit(3), [1.0] * 3, 50.0)
    failed = jgp.fit(probit, data.x, data.y, infer=hopeless, throw=False, **QUIET)
    assert not bool(failed.result == RESULTS.successful)
    # The start, but for the rounding of exp(log(v)).
    assert bool(eqx.tree_equal(failed.model, probit, rtol=1e-14))


def test_interruption_returns_the_best_so_far(monkeypatch):
    model, x, y = regression()
    search = jgp._fit._Search
    at, calls = search.at, []

    def interrupted(self, raw):
        calls.append(raw)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return at(self, raw)

    monkeypatch.setattr(search, "at", interrupted)
    fitted = jgp.fit(model, x, y, **QUIET)
    assert bool(fitted.result == RESULTS.max_steps_reached)
    assert fitted.num_steps >= 1


def test_a_gradient_that_is_not_finite_is_no_success():
    class Cusp(eqx.Module):
        power: jax.Array

        def __call__(self, x):
            return jnp.sqrt(self.power - 1) * x[0]  # infinite slope at 1

    _, x, y = regression()
    process = jgp.GaussianProcess(kernels.Matern32(0.5), Cusp(jnp.ones(())))
    model = jgp.Model(process, likelihoods.Gaussian(0.1))
    fitted = jgp.fit(model, x, y, throw=False, **QUIET)
    assert bool(fitted.result == RESULTS.non_finite)
    with pytest.raises(jgp.InferenceError, match="infinite or NaN"):
        jgp.fit(model, x, y, **QUIET)


@pytest.mark.float32
def test_single_precision_fit_keeps_its_dtype():
    model, x, y = regression()
    fitted = jgp.fit(model, x.astype(np.float32), y.astype(np.float32), **QUIET)
    assert fitted.model.likelihood.noise_variance.dtype == np.float32
    assert bool(fitted.result == RESULTS.successful)


@pytest.mark.float32
def test_single_precision_search_does_not_spin_at_its_optimum():
    # Its evidence is flat to rounding where the gradient, of larger relative error,
    # never meets the tolerance.
    generator = np.random.default_rng(0)
    x = generator.uniform(-2, 2, size=(60, 3))
    y = np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] + 0.1 * generator.normal(size=60)
    kernel = 1.0 * kernels.SquaredExponential(np.ones(3))
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(0.1))
    found = jgp.fit(model, np.float32(x), np.float32(y), max_steps=100, **QUIET)
    assert bool(found.result == RESULTS.successful)
    # The optimum in double precision; the evidence's own error is a few 1e-3.
    assert abs(float(found.approximation.log_evidence) - 21.61767) < 5e-3
