"""Cross-validation in K folds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jgp
from jgp import kernels, likelihoods
from jgp._objective import problem
from tests.problems import toy

X = np.linspace(0, 1, 11)
Y = np.sin(5 * X)


def regression(noise=None):
    noise = likelihoods.Gaussian(0.1) if noise is None else noise
    return jgp.Model(jgp.GaussianProcess(1.5 * kernels.SquaredExponential(0.4)), noise)


def folds(num_folds, key, y=Y, model=None):
    """The indices of each fold, as the objective holds them."""
    model = regression() if model is None else model
    _, _, targets, verb = problem(model, X[: len(y)], y, None)
    groups = jgp.KFold(num_folds, key=key).objective(model, targets, verb).groups
    return [np.asarray(fold) for _, tests in groups for fold in tests]


@pytest.mark.float32
def test_leaving_out_one_at_a_time_is_leave_one_out(key):
    model = regression()
    found = jgp.KFold(len(Y), key=key).log_prob(model, X, Y)
    expected = jgp.leave_one_out(jgp.exact(model, X, Y)).log_prob
    # Variances of 1.6 less what the others say of it: errors of a few units of 1.
    tolerance = 1e-11 if found.dtype == np.float64 else 1e-4
    np.testing.assert_allclose(found, expected, atol=tolerance)


def test_folds_share_out_the_data(key):
    for num_folds in (2, 3, 4, 11):
        parts = folds(num_folds, key)
        assert len(parts) == num_folds
        sizes = [part.size for part in parts]
        assert max(sizes) - min(sizes) <= 1
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(11))
    first, second = folds(3, key), folds(3, jax.random.fold_in(key, 1))
    assert not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_folds_hold_each_class_in_its_share(key):
    y = np.array([0] * 6 + [1] * 4 + [2])
    process = jgp.independent(kernels.SquaredExponential(1.0), num_latents=3)
    model = jgp.Model(process, likelihoods.MultinomialProbit(3))
    for part in folds(2, key, y, model):
        counts = np.bincount(y[part], minlength=3)
        assert counts[0] == 3
        assert counts[1] == 2


@pytest.mark.parametrize("num_folds", [2, 5])
def test_each_fold_is_predicted_from_the_others(num_folds, key):
    variances = np.linspace(0.05, 0.3, len(Y))
    model = regression(likelihoods.FixedNoiseGaussian(variances))
    found = jgp.KFold(num_folds, key=key).log_prob(model, X, Y)
    for part in folds(num_folds, key, model=model):
        rest = np.setdiff1d(np.arange(len(Y)), part)
        noise = likelihoods.FixedNoiseGaussian(variances[rest])
        others = jgp.exact(regression(noise), X[rest], Y[rest])
        expected = others.log_prob(X[part], Y[part], noise_variance=variances[part])
        np.testing.assert_allclose(found[part], expected, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize(
    "infer", [pytest.param(jgp.nested_ep, marks=pytest.mark.long), jgp.laplace]
)
def test_of_classes_by_any_method_with_gradient(infer, key):
    data = toy(num_data=10)
    process = jgp.independent(2.0 * kernels.SquaredExponential(1.0), num_latents=3)
    nested = infer is jgp.nested_ep
    likelihood = likelihoods.MultinomialProbit(3) if nested else likelihoods.Softmax(3)
    model = jgp.Model(process, likelihood)
    found = jgp.KFold(3, key=key).log_prob(model, data.x, data.y, infer=infer)
    assert np.all(np.asarray(found) < 0)
    _, x, y, verb = problem(model, data.x, data.y, infer)
    objective = jgp.KFold(3, key=key).objective(model, y, verb)
    part = np.asarray(objective.groups[0][1][0])
    rest = np.setdiff1d(np.arange(10), part)
    others = infer(model, data.x[rest], data.y[rest])
    expected = others.log_prob(data.x[part], data.y[part])
    np.testing.assert_allclose(found[part], expected, atol=1e-9)

    def score(log_variance):
        kernel = jnp.exp(log_variance) * kernels.SquaredExponential(1.0)
        process = jgp.independent(kernel, num_latents=3)
        return jnp.sum(objective.log_prob(jgp.Model(process, likelihood), x, y))

    at, h = jnp.log(jnp.asarray(2.0, x.dtype)), 1e-4
    difference = (score(at + h) - score(at - h)) / (2 * h)
    np.testing.assert_allclose(jax.grad(score)(at), difference, rtol=1e-5)


@pytest.mark.slow
def test_is_an_objective_of_a_fit(key):
    rng = np.random.default_rng(0)
    x = np.linspace(0, 1, 30)
    y = np.sin(10 * x) + 0.2 * rng.normal(size=30)
    fold = jgp.KFold(5, key=key)
    fitted = jgp.fit(regression(), x, y, objective=fold, progress=False)
    best = float(jnp.sum(fold.log_prob(fitted.model, x, y)))
    np.testing.assert_allclose(best, fitted.restarts[0].value, rtol=1e-12)
    by_evidence = jgp.fit(regression(), x, y, progress=False).model
    assert best > float(jnp.sum(fold.log_prob(by_evidence, x, y))) + 1e-3
    for h in (-1e-2, 1e-2):
        moved = jax.tree.map(lambda v, h=h: v * (1 + h), fitted.model)
        assert float(jnp.sum(fold.log_prob(moved, x, y))) < best


def test_failed_inference_has_no_score(key):
    data = toy(num_data=10)
    process = jgp.independent(100.0 * kernels.SquaredExponential(0.5), num_latents=3)
    model = jgp.Model(process, likelihoods.MultinomialProbit(3))

    def hopeless(model, x, y, **options):
        return jgp.nested_ep(model, x, y, max_steps=1, **options)

    found = jgp.KFold(2, key=key).log_prob(model, data.x, data.y, infer=hopeless)
    assert np.all(np.isnan(found))


def test_bad_input_is_named(key):
    with pytest.raises(ValueError, match="num_folds: got 1, wanted"):
        jgp.KFold(1, key=key)
    with pytest.raises(ValueError, match="key: got 3, wanted a PRNG key"):
        jgp.KFold(3, key=3)
    with pytest.raises(ValueError, match="num_folds: got 12 for 11 data"):
        jgp.KFold(12, key=key).log_prob(regression(), X, Y)
    masked = functools.partial(jgp.exact, mask=np.ones(11, bool))
    with pytest.raises(ValueError, match="infer: got one with mask="):
        jgp.KFold(2, key=key).log_prob(regression(), X, Y, infer=masked)
    with pytest.raises(ValueError, match="objective: got 'k_fold', wanted one of"):
        jgp.fit(regression(), X, Y, objective="k_fold")


@pytest.mark.slow
def test_a_second_fit_compiles_nothing(key, compilations):
    def fit(y):
        fold = jgp.KFold(4, key=key)
        jgp.fit(regression(), X, y, objective=fold, progress=False, throw=False)

    fit(Y)
    with compilations() as count:
        fit(Y + 0.01 * X)
    assert count() == 0
