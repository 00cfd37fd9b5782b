"""Profiles of the evidence, and their picture."""

import functools

import equinox as eqx
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import chi2

import jgp
from jgp import kernels, likelihoods, means

RNG = np.random.default_rng(0)
X = np.linspace(0, 1, 20)
Y = 3.0 + RNG.normal(size=20)


def white(mean=None):
    """Independent normal numbers: a mean and a variance."""
    process = jgp.GaussianProcess(
        kernels.Constant(0.0), means.Constant(np.mean(Y)) if mean is None else mean
    )
    model = jgp.Model(process, likelihoods.Gaussian(np.var(Y)))
    return jgp.freeze(model, lambda m: m.process.kernel)


def height(mean):
    """The log likelihood of a mean at the best variance for it."""
    variance = np.mean((Y - mean) ** 2)
    return -len(Y) / 2 * (np.log(2 * np.pi * variance) + 1)


def ends(function, centre, left, right, level):
    """Where a profile has fallen by half the quantile of χ²₁."""
    fall = chi2.ppf(level, 1) / 2

    def excess(v):
        return function(centre) - function(v) - fall

    return brentq(excess, left, centre), brentq(excess, centre, right)


@functools.cache
def profile_of_the_mean():
    return jgp.profile(white(), X, Y, lambda m: m.process.mean_function, num=41)


def test_of_a_normal_mean_is_the_textbook_one():
    found = profile_of_the_mean()
    assert found.name.endswith("value")
    # Three standard errors to either side.
    error = np.std(Y) / np.sqrt(len(Y))
    np.testing.assert_allclose(
        found.values[[0, -1]], np.mean(Y) + error * np.array([-3, 3])
    )
    np.testing.assert_allclose(found.objective, [*map(height, found.values)], atol=1e-9)
    variances = [float(m.likelihood.noise_variance) for m in found.models]
    best = [np.mean((Y - v) ** 2) for v in found.values]
    np.testing.assert_allclose(variances, best, rtol=1e-5)
    assert all(bool(r == jgp.RESULTS.successful) for r in found.results)
    assert float(found.best.process.mean_function.value) == pytest.approx(np.mean(Y))


def test_its_interval_is_that_of_the_likelihood_ratio():
    found = profile_of_the_mean()
    for level in (0.5, 0.95):
        wanted = ends(height, np.mean(Y), 1.0, 5.0, level)
        # Interpolated between values 0.15 standard errors apart.
        np.testing.assert_allclose(found.interval(level), wanted, atol=2e-4)
    # 0.999 lies beyond three standard errors.
    assert found.interval(0.999) == (-np.inf, np.inf)


def test_of_the_only_parameter_is_the_evidence():
    model = jgp.freeze(white(means.Constant(3.0)), lambda m: m.process)
    values = np.sort([0.2, 0.5, 1.0, 2.0, 4.0, np.var(Y)])
    found = jgp.profile(model, X, Y, lambda m: m.likelihood, values=values[::-1])
    np.testing.assert_allclose(found.values, values, rtol=1e-12)
    squares = np.mean((Y - 3.0) ** 2)
    wanted = -len(Y) / 2 * (np.log(2 * np.pi * found.values) + squares / found.values)
    np.testing.assert_allclose(found.objective, wanted, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.float32
def test_of_one_lengthscale_of_two_has_the_other_at_its_best():
    x = RNG.uniform(size=(25, 2))
    y = np.sin(5 * x[:, 0]) + 0.1 * RNG.normal(size=25)
    kernel = 1.0 * kernels.SquaredExponential([0.4, 3.0])
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(0.01))
    priors = jgp.priors.LogNormal(1.0, 1.0)
    model = jgp.with_prior(model, lambda m: m.process.kernel.kernel, priors)
    options = {"progress": False, "throw": False, "init": "model"}
    fitted = jgp.fit(model, x, y, **options)
    best = fitted.restarts[0].value
    found = jgp.profile(
        fitted.model,
        x,
        y,
        lambda m: m.process.kernel.kernel.lengthscale,
        index=1,
        num=5,
        progress=False,
    )
    assert found.name.endswith("lengthscale[1]")
    assert found.objective[2] == pytest.approx(best, abs=2e-3)
    assert np.argmax(found.objective) == 2
    for i in (0, 4):
        held = found.models[i].process.kernel.kernel.lengthscale
        assert float(held[1]) == pytest.approx(found.values[i], rel=1e-5)
        # No other lengthscale of the first input is better for it.
        for factor in (0.9, 1.1):
            moved = eqx.tree_at(
                lambda m: m.process.kernel.kernel.lengthscale,
                found.models[i],
                held.at[0].mul(factor),
            )
            value = jgp.exact(moved, x, y).log_evidence + jgp.log_prior(moved)
            assert float(value) < found.objective[i]
    low, high = found.interval(0.9)
    assert low < 0.99 * found.values[2]
    assert high > 1.01 * found.values[2]


def test_an_end_that_is_not_reached_is_the_domains():
    # Of pure noise a long lengthscale is as good as none at all.
    kernel = 1.0 * kernels.SquaredExponential(1.0)
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(1.0))
    model = jgp.freeze(model, lambda m: (m.process.kernel.variance, m.likelihood))
    found = jgp.profile(
        model,
        X,
        np.ones(20),
        lambda m: m.process.kernel.kernel.lengthscale,
        values=np.geomspace(0.01, 100, 15),
    )
    low, high = found.interval(0.9)
    assert 0.01 < low < 1
    assert high == np.inf


def test_bad_input_is_named():
    both = lambda m: m.process  # noqa: E731
    mean = lambda m: m.process.mean_function  # noqa: E731
    with pytest.raises(ValueError, match=r"where: got leaves .*, wanted one"):
        jgp.profile(white(), X, Y, both)
    with pytest.raises(ValueError, match=r"where: got .*, which is not trained"):
        jgp.profile(white(), X, Y, lambda m: m.process.kernel)
    with pytest.raises(ValueError, match=r"index: got 1, wanted one of 0\.\.0"):
        jgp.profile(white(), X, Y, mean, index=1)
    with pytest.raises(ValueError, match="num: got 2"):
        jgp.profile(white(), X, Y, mean, num=2)
    with pytest.raises(ValueError, match=r"values: got .*, wanted"):
        jgp.profile(white(), X, Y, lambda m: m.likelihood, values=[-1.0, 1.0])


def test_failures_are_named_and_leave_no_height():
    def fails_below(model, x, y, **options):
        found = jgp.exact(model, x, y, throw=False)
        fails = model.process.mean_function.value < 2.75
        result = jgp.RESULTS.where(fails, jgp.RESULTS.non_finite, found.result)
        return eqx.tree_at(lambda a: a.result, found, result)

    with pytest.warns(jgp.InferenceWarning, match="search failed at 1 of 4 values"):
        found = jgp.profile(
            white(),
            X,
            Y,
            lambda m: m.process.mean_function,
            values=[2.7, 2.9, 3.0],
            infer=fails_below,
        )
    assert np.isnan(found.objective[0])
    np.testing.assert_allclose(found.objective[1:], [*map(height, found.values[1:])])


def test_picture_shows_the_profile_and_its_interval():
    pytest.importorskip("matplotlib").use("agg")
    from jgp import plots

    found = profile_of_the_mean()
    ax = plots.evidence_profile(found)
    (line,) = ax.lines
    np.testing.assert_array_equal(line.get_xdata(), found.values)
    np.testing.assert_array_equal(line.get_ydata(), found.objective)
    (span,) = ax.patches
    low, high = found.interval()
    assert span.get_x() == pytest.approx(low)
    assert span.get_x() + span.get_width() == pytest.approx(high)
    assert plots.evidence_profile(found, ax=ax) is ax


def test_values_far_apart_keep_the_maximum():
    mean = np.mean(Y)
    found = jgp.profile(
        white(),
        X,
        Y,
        lambda m: m.process.mean_function,
        values=mean + np.array([-1.0, -0.4, 0.25, 0.9]),
    )
    assert np.max(found.objective) == pytest.approx(height(mean))
    wanted = ends(height, mean, 1.0, 5.0, 0.9)
    # The root of the fall bends by a few hundredths over values that are 0.6 apart;
    # without the maximum among them the ends were 0.1 to 0.3 off.
    np.testing.assert_allclose(found.interval(0.9), wanted, atol=0.03)


def test_of_tied_parameters_is_that_of_their_first():
    process = jgp.independent(
        [kernels.SquaredExponential(0.3), kernels.SquaredExponential(0.3)]
    )
    model = jgp.Model(process, likelihoods.Gaussian(0.5))
    both = [lambda m, i=i: m.process.kernels[i] for i in range(2)]
    model = jgp.tie(model, lambda m: (both[0](m), both[1](m)))
    y = np.column_stack([np.sin(5 * X), np.cos(5 * X)]) + 0.2 * (Y - 3)[:, None]
    first, second = (
        jgp.profile(model, X, y, where, values=[0.2, 0.4]) for where in both
    )
    assert first.name == second.name
    np.testing.assert_array_equal(first.objective, second.objective)


@pytest.mark.parametrize("tolerance", [-1.0, "a"])
def test_bad_tolerance_is_named(tolerance):
    with pytest.raises(ValueError, match="tolerance: got"):
        jgp.profile(
            white(), X, Y, lambda m: m.process.mean_function, tolerance=tolerance
        )
