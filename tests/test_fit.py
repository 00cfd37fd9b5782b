import functools
import re
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jgp
from jgp import kernels, likelihoods, means, priors
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
    assert np.all(np.diff(fitted.history.objective) >= -1e-9)
    assert fitted.num_steps <= 15


@pytest.mark.slow
@pytest.mark.parametrize("method", ["NEP", "Laplace"])
def test_ten_random_starts_end_at_gpstuffs_optimum(method, key):
    data, (infer, likelihood) = iris("sklearn"), LIKELIHOODS[method]
    (optimum,) = (
        run
        for run in reference("classification")["optima"]
        if run["method"] == method and run["start"][0] == 1.0
    )
    model = squared_exponentials(likelihood, [1.0] * 3)
    options = {"infer": infer, "init": "model", "restarts": 11, "key": key, **QUIET}
    fitted = jgp.fit(model, data.x, data.y, **options)
    for restart in fitted.restarts:
        assert abs(restart.value - optimum["logZ"]) < 1e-6
    starts = np.exp([restart.start for restart in fitted.restarts[1:]])
    assert np.max(starts) / np.min(starts) > 20


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
    with pytest.raises(ValueError, match="model, x, y: got traced arguments"):
        jax.vmap(lambda y: jgp.fit(model, x, y, **QUIET).num_steps)(np.stack([y, y]))
    with pytest.raises(ValueError, match="wanted a method, or a partial"):
        jgp.fit(model, x, y, infer=functools.partial(jgp.exact, model), **QUIET)
    sample = functools.partial(
        jgp.sample_posterior, key=jax.random.key(0), max_steps=4, num_warmup=1
    )
    with pytest.raises(ValueError, match="which has no evidence"):
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


def test_interruption_returns_the_best_so_far():
    model, x, y = regression()
    seen = []

    def interrupting(number, model, value):
        seen.append((number, value))
        if len(seen) == 3:
            raise KeyboardInterrupt

    fitted = jgp.fit(model, x, y, callback=interrupting, **QUIET)
    assert bool(fitted.result == RESULTS.max_steps_reached)
    assert fitted.num_steps == 2
    assert [number for number, _ in seen] == [0] * 3
    best = max(value for _, value in seen)
    assert fitted.restarts[0].value == best == fitted.history.objective[-1]
    ended = jgp.fit(model, x, y, callback=lambda *_: True, **QUIET)
    assert ended.num_steps == 0


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
    single = np.float32(x), np.float32(y)
    found = jgp.fit(model, *single, max_steps=100, throw=False, **QUIET)
    # The third input has no part in y: its lengthscale may run away.
    ended = (RESULTS.successful, RESULTS.at_bound)
    assert any(bool(found.result == result) for result in ended)
    # The optimum in double precision; the evidence's own error is a few 1e-3.
    assert abs(float(found.approximation.log_evidence) - 21.61767) < 5e-3


def wiggles():
    """25 points of sin(10πx) from a start that takes them for noise."""
    x = np.linspace(0, 1, 25)
    process = jgp.GaussianProcess(kernels.SquaredExponential(1.0))
    model = jgp.Model(process, likelihoods.Gaussian(1.0))
    return model, x, np.sin(10 * np.pi * x) + 0.05 * np.cos(70 * x)


def test_data_suggest_a_start_where_the_models_own_misleads():
    model, x, y = wiggles()
    stuck = jgp.fit(model, x, y, init="model", throw=False, **QUIET)
    found = jgp.fit(model, x, y, **QUIET)
    gain = found.approximation.log_evidence - stuck.approximation.log_evidence
    assert float(gain) > 10
    assert 0.05 < float(found.model.process.kernel.lengthscale) < 0.2


@pytest.mark.slow
def test_restarts_side_by_side_and_in_a_batch_are_the_searches_alone(key):
    model, x, y = wiggles()
    options = {"restarts": 5, "key": key, "throw": False, **QUIET}
    beside = jgp.fit(model, x, y, **options)
    batch = jgp.fit(model, x, y, vectorize=True, **options)
    values = np.array([[r.value for r in f.restarts] for f in (beside, batch)])
    # The objective at a maximum, to its tolerance; searches may part by rounding.
    np.testing.assert_allclose(values[0], values[1], atol=1e-4)
    assert beside.approximation.log_evidence == np.max(values[0])
    assert beside.num_evaluations == sum(r.num_evaluations for r in beside.restarts)
    # All find the signal, as the data's own start does.
    np.testing.assert_allclose(values[0], values[0, 0], atol=1e-4)
    assert beside.table.count("\n") == 5
    assert sum(line.startswith("*") for line in beside.table.split("\n")) == 1
    for record in beside.restarts:
        start = jgp._fit.free_parameters(model).at(jnp.asarray(record.start))
        alone = jgp.fit(start, x, y, init="model", throw=False, **QUIET)
        np.testing.assert_allclose(
            alone.approximation.log_evidence, record.value, atol=1e-4
        )


def test_options_that_cannot_be_right():
    model, x, y = regression()
    for match, wrong in {
        "key: got None": {"restarts": 2},
        "restarts: got 0": {"restarts": 0},
        "init: got 'best'": {"init": "best"},
        "objective: got 'elbow'": {"objective": "elbow"},
    }.items():
        with pytest.raises(ValueError, match=match):
            jgp.fit(model, x, y, **wrong, **QUIET)


@pytest.mark.slow
def test_adam_reaches_the_same_optimum():
    model, x, y = regression()
    best = float(fitted_regression().approximation.log_evidence)
    adam = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(0.1))
    fitted = jgp.fit(model, x, y, optimizer=adam, max_steps=200, **QUIET)
    # A constant step ends within its size of the optimum, where curvatures are ~10.
    assert abs(float(fitted.approximation.log_evidence) - best) < 1e-3
    assert float(fitted.approximation.log_evidence) == fitted.history.objective.max()


def test_leave_one_out_is_an_objective():
    model, x, y = regression()
    fitted = jgp.fit(model, x, y, objective="leave_one_out", **QUIET)

    def score(model):
        return float(jnp.sum(jgp.leave_one_out(jgp.exact(model, x, y)).log_prob))

    best = score(fitted.model)
    assert abs(best - fitted.restarts[0].value) < 1e-9
    assert best > score(fitted_regression().model) + 1e-3
    for h in (-1e-3, 1e-3):
        moved = jax.tree.map(lambda v, h=h: v * (1 + h), fitted.model)
        assert score(moved) < best


def test_a_prior_moves_the_optimum_to_where_its_gradient_balances():
    model, x, y = regression()
    density = priors.LogNormal(0.1, 0.05)
    penalised = jgp.with_prior(model, lambda m: m.process.kernel.kernel, density)
    fitted = jgp.fit(penalised, x, y, **QUIET)
    found = float(fitted.model.process.kernel.kernel.lengthscale)
    free = float(fitted_regression().model.process.kernel.kernel.lengthscale)
    assert 0.1 < found < free

    def evidence(lengthscale):
        moved = eqx.tree_at(
            lambda m: m.process.kernel.kernel.lengthscale, fitted.model, lengthscale
        )
        return jgp.exact(moved, x, y).log_evidence

    slope = jax.grad(evidence)(jnp.asarray(found))
    np.testing.assert_allclose(slope, -jax.grad(density)(jnp.asarray(found)), rtol=1e-4)
    assert "LogNormal" in str(jgp.table(fitted.model))
    total = float(fitted.approximation.log_evidence + density(jnp.asarray(found)))
    assert abs(total - fitted.restarts[0].value) < 1e-9


def test_a_column_without_variation_is_named():
    _, x, y = regression()
    columns = np.column_stack([x, np.ones_like(x)])
    process = jgp.GaussianProcess(kernels.SquaredExponential([0.5, 0.5]))
    model = jgp.Model(process, likelihoods.Gaussian(0.1))
    with pytest.warns(jgp.InferenceWarning, match=r"lengthscale\[1\].*say nothing"):
        fitted = jgp.fit(model, columns, y, **QUIET)
    assert bool(fitted.result == RESULTS.at_bound)
    assert len(fitted.at_bound) == 1
    assert np.all(np.isfinite(fitted.approximation.predict(columns).mean))


def test_an_input_that_does_not_matter_runs_to_infinity():
    _, x, y = regression()
    noise = np.random.default_rng(5).uniform(size=len(x))
    process = jgp.GaussianProcess(kernels.SquaredExponential([0.5, 0.5]))
    model = jgp.Model(process, likelihoods.Gaussian(0.1))
    with pytest.warns(jgp.InferenceWarning, match="input 1 carries no information"):
        fitted = jgp.fit(model, np.column_stack([x, noise]), y, **QUIET)
    assert "→ ∞" in fitted.at_bound[0]


def test_pain_26_targets_in_the_ten_thousands():
    x, y = np.arange(5.0), np.array([1e4, 2e4, 1.5e4, 3e4, 1e4])
    kernel = 1.0 * kernels.SquaredExponential(1.0)
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(1.0))
    fitted = jgp.fit(model, x, y, throw=False, **QUIET)
    values = [float(leaf) for _, leaf, _ in jgp.table(fitted.model)]
    assert np.all(np.isfinite(values))
    predicted = fitted.approximation.predict(x)
    assert np.all(np.isfinite(predicted.mean))
    # A signal or noise of the size of the targets, not of the defaults.
    assert float(jnp.mean(predicted.variance + predicted.mean**2)) > 1e8


def test_pain_31_a_change_of_the_data_by_1e_8_changes_nothing():
    x = np.linspace(0, 1e4, 11)
    kernel = 1.0 * kernels.SquaredExponential(1.0)
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(1.0))
    found = [
        jgp.fit(model, x, x * np.sin(x / a), throw=False, **QUIET)
        for a in (636.06767, 636.06768)
    ]
    pair = [float(f.approximation.log_evidence) for f in found]
    assert abs(pair[0] - pair[1]) < 1e-3
    pair = [float(f.model.process.kernel.kernel.lengthscale) for f in found]
    np.testing.assert_allclose(pair[0], pair[1], rtol=1e-2)


def test_bounded_parameters_stay_between_their_bounds():
    model, x, y = regression()
    free = float(fitted_regression().model.process.kernel.kernel.lengthscale)
    high = 0.8 * free
    narrow = eqx.tree_at(
        lambda m: m.process.kernel.kernel.lengthscale, model, jnp.asarray(0.5 * free)
    )
    bounded = jgp.bound(narrow, lambda m: m.process.kernel.kernel, 0.01, high)
    fitted = jgp.fit(bounded, x, y, throw=False, **QUIET)
    found = float(fitted.model.process.kernel.kernel.lengthscale)
    np.testing.assert_allclose(found, high, rtol=1e-3)
    assert found <= high
    assert bool(fitted.result == RESULTS.at_bound)
    assert str(high) in str(jgp.table(fitted.model))
    with pytest.raises(ValueError, match="wanted an interval within that"):
        jgp.bound(model, lambda m: m.likelihood, -1.0, 1.0)
    with pytest.raises(ValueError, match="about the value"):
        jgp.bound(model, lambda m: m.likelihood, 1.0, 2.0)
    with pytest.raises(ValueError, match="low < high"):
        jgp.bound(model, lambda m: m.likelihood, 1.0, 1.0)


def test_tied_parameters_are_one():
    _, x, y = regression()
    columns = np.column_stack([x, np.cos(9 * x)])
    terms = kernels.on(kernels.Matern52(0.5), 0) + kernels.on(kernels.Matern52(0.9), 1)
    model = jgp.Model(jgp.GaussianProcess(1.0 * terms), likelihoods.Gaussian(0.1))

    def lengthscales(model):
        return [k.kernel.lengthscale for k in model.process.kernel.kernel.kernels]

    tied = jgp.tie(model, lengthscales)
    assert [float(v) for v in lengthscales(tied)] == [0.5, 0.5]
    fitted = jgp.fit(tied, columns, y, throw=False, **QUIET)
    first, second = (float(v) for v in lengthscales(fitted.model))
    assert first == second != 0.5
    # One search over both as one parameter: its derivative is the sum of the two.
    gradient = jax.grad(
        lambda v: (
            jgp.exact(
                eqx.tree_at(lengthscales, fitted.model, [v, v]), columns, y
            ).log_evidence
        )
    )(jnp.asarray(first))
    assert abs(float(gradient) * first) < 1e-4
    assert "= .process" in str(jgp.table(tied))
    with pytest.raises(ValueError, match="tied already"):
        jgp.tie(tied, lengthscales)
    with pytest.raises(ValueError, match="at least two leaves"):
        jgp.tie(model, lambda m: m.likelihood)


def test_pain_24_a_wiggly_signal_is_not_explained_as_noise():
    x = np.linspace(0, 1, 25)
    process = jgp.GaussianProcess(1.0 * kernels.SquaredExponential(1.0))
    model = jgp.Model(process, likelihoods.Gaussian(1.0))
    fitted = jgp.fit(model, x, np.sin(10 * np.pi * x), throw=False, **QUIET)
    # Stuck at noise it is −26.3.
    assert float(fitted.approximation.log_evidence) > 3.2
    lengthscale = float(fitted.model.process.kernel.kernel.lengthscale)
    assert 0.07 < lengthscale < 0.15


@pytest.mark.slow
def test_pain_25_a_constant_mean_does_not_make_a_flat_fit(key):
    x = np.array([0.2, 0.55, 0.9])
    y = np.sin(60 * x**4)
    best = []
    for mean in (None, means.Constant(0.0)):
        kernel = kernels.SquaredExponential(1.0)
        process = jgp.GaussianProcess(kernel, mean)
        model = jgp.Model(process, likelihoods.Gaussian(1e-4))
        model = jgp.freeze(model, lambda m: m.likelihood)
        options = {"restarts": 4, "key": key, "throw": False, **QUIET}
        values = [r.value for r in jgp.fit(model, x, y, **options).restarts]
        best.append(max(values))
    # A mean that is free can only help, here by what three points tell of it.
    assert 0 <= best[1] - best[0] < 0.5


def test_pain_27_a_power_that_runs_to_infinity_is_named():
    x = np.linspace(0, 1, 20)
    kernel = kernels.RationalQuadratic(alpha=1.0, lengthscale=0.5)
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(1e-4))
    model = jgp.freeze(model, lambda m: m.likelihood)
    with pytest.warns(jgp.InferenceWarning, match=r"alpha .*→ ∞"):
        fitted = jgp.fit(model, x, np.sin(6 * x), **QUIET)
    assert bool(fitted.result == RESULTS.at_bound)


def test_pain_53_the_bar_counts_the_steps_of_all_searches(key, capsys):
    model, x, y = regression()
    steps = []
    options = {"restarts": 2, "key": key, "throw": False, "progress": True}

    def callback(number, *_):
        # The bar shows after two seconds.
        time.sleep(2.1 if not steps else 0.0)
        steps.append(number)

    fitted = jgp.fit(model, x, y, callback=callback, **options)
    shown = capsys.readouterr().err
    assert re.search(r"fit: \d+step", shown)
    assert "objective" in shown
    assert len(steps) == sum(r.num_steps + 1 for r in fitted.restarts)
    assert {0, 1} == set(steps)


def test_pain_55_twenty_fits_compile_nothing_after_the_first(compilations):
    model, x, y = regression()
    jgp.fit(model, x, y, **QUIET, throw=False)
    others = [jax.tree.map(lambda v, s=s: v * (1 + s / 40), model) for s in range(20)]
    with compilations() as count:
        for shift, other in enumerate(others):
            jgp.fit(other, x, y + 0.1 * shift, max_steps=3, throw=False, **QUIET)
    assert count() == 0


def test_what_is_said_of_one_tied_leaf_is_said_of_all():
    model, x, y = regression()

    def both(m):
        return m.likelihood.noise_variance, m.process.kernel.variance

    def second(m):
        return m.process.kernel.variance

    tied = jgp.tie(model, both)
    density = priors.LogNormal(2.0, 0.01)
    with_one = jgp.with_prior(tied, second, density)
    np.testing.assert_allclose(jgp.log_prior(with_one), density(jnp.asarray(0.1)))
    held = jgp.fit(jgp.freeze(tied, second), x, y, throw=False, **QUIET).model
    assert float(second(held)) == float(held.likelihood.noise_variance) == 0.1
    narrow = jgp.bound(tied, second, 0.09, 0.2)
    found = jgp.fit(narrow, x, y, throw=False, **QUIET).model
    assert 0.09 <= float(second(found)) == float(found.likelihood.noise_variance) <= 0.2
    with pytest.raises(ValueError, match="tie first"):
        jgp.tie(jgp.bound(model, second, 0.8, 1.2), both)


@pytest.mark.parametrize("targets", [np.zeros(20), np.ones(20)])
def test_noise_that_runs_to_zero_is_named(targets):
    kernel = 1.0 * kernels.SquaredExponential(1.0)
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(0.1))
    fitted = jgp.fit(model, np.linspace(0, 5, 20), targets, throw=False, **QUIET)
    assert any("noise_variance" in words for words in fitted.at_bound)
    assert bool(fitted.result == RESULTS.at_bound)


def test_arguments_of_a_wrong_kind_are_named(tmp_path):
    model, x, y = regression()
    wrong = {
        "optimizer: got 'adam'": {"optimizer": "adam"},
        "callback: got 3": {"callback": 3},
        "key: got 3": {"key": 3, "restarts": 2},
        "checkpoint: got 3": {"checkpoint": 3},
        "checkpoint: got .*wanted a path in": {"checkpoint": tmp_path / "no" / "a"},
        "checkpoint_every: got -1": {"checkpoint_every": -1},
        "infer: got a function that returns int": {"infer": lambda *_, **__: 0},
        "objective: got a function that returns None": {"objective": lambda _: None},
    }
    for match, option in wrong.items():
        with pytest.raises(ValueError, match=match):
            jgp.fit(model, x, y, **option, **QUIET)
    with pytest.raises(ValueError, match="where: got 'lengthscale'"):
        jgp.freeze(model, "lengthscale")


def test_a_mean_in_large_units_is_at_no_bound():
    _, x, y = regression()
    kernel = 1.0 * kernels.SquaredExponential(0.5)
    process = jgp.GaussianProcess(kernel, means.Constant(0.0))
    model = jgp.Model(process, likelihoods.Gaussian(0.1))
    noise = np.random.default_rng(1).normal(size=len(x))
    targets = 5e4 + 300 * y + 100 * noise
    fitted = jgp.fit(model, x, targets, init="model", throw=False, **QUIET)
    assert float(fitted.model.process.mean_function.value) > 4e4
    assert not any("value" in words for words in fitted.at_bound)


def test_wide_bounds_leave_starts_from_the_data():
    model, x, y = regression()
    wide = jgp.bound(model, lambda m: m.process.kernel.kernel, 1e-5, 1e5)
    wide = jgp.bound(wide, lambda m: m.likelihood, 1e-8, 1e5)
    found = jgp.fit(wide, x, y, throw=False, **QUIET)
    best = float(fitted_regression().approximation.log_evidence)
    assert float(found.approximation.log_evidence) > best - 1e-3


def test_what_is_tied_has_one_domain():
    model, *_ = regression()
    mean = means.Constant(0.5)
    model = eqx.tree_at(lambda m: m.process.mean_function, model, mean)
    with pytest.raises(ValueError, match="of one shape and domain"):
        jgp.tie(model, lambda m: (m.process.mean_function, m.process.kernel.kernel))


def test_the_bound_is_an_objective():
    """Of `variational` its own evidence; of another method that at its posterior."""
    x = np.linspace(0, 4, 25)
    y = (np.sin(2 * x) + 0.3 * np.cos(9 * x) > 0).astype(int)
    kernel = kernels.SquaredExponential(1.0)
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.BernoulliLogit())
    evidence = jgp.fit(model, x, y, infer=jgp.variational, **QUIET)
    bound = jgp.fit(model, x, y, infer=jgp.variational, objective="elbo", **QUIET)
    best = bound.history.objective[-1]
    assert abs(best - evidence.history.objective[-1]) < 1e-8
    assert abs(best - float(jgp.elbo(bound.approximation))) < 1e-9
    other = jgp.fit(model, x, y, infer=jgp.laplace, objective="elbo", **QUIET)
    assert (
        abs(other.history.objective[-1] - float(jgp.elbo(other.approximation))) < 1e-9
    )
    assert other.history.objective[-1] < best
    # The gradient vanishes where differences say that it does.
    lengthscale = float(other.model.process.kernel.lengthscale)

    def at(lengthscale):
        kernel = kernels.SquaredExponential(lengthscale)
        moved = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.BernoulliLogit())
        return float(jgp.elbo(jgp.laplace(moved, x, y)))

    assert at(lengthscale) > max(at(0.98 * lengthscale), at(1.02 * lengthscale))
