"""What every verb says to input that cannot be right."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jgp
from jgp import kernels, likelihoods, means
from jgp._results import RESULTS

X = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.5]])
LABELS = np.array([0, 1, 2, 1])
VERBS = {
    "exact": jgp.exact,
    "laplace": jgp.laplace,
    "nested_ep": jgp.nested_ep,
    "variational": jgp.variational,
}
CLASSIFIERS = ("laplace", "nested_ep", "variational")
ITERATIVE = CLASSIFIERS
every_verb = pytest.mark.parametrize("name", VERBS)
every_classifier = pytest.mark.parametrize("name", CLASSIFIERS)


def model(name, kernel=None, mean=None, num_latents=3):
    kernel = kernels.SquaredExponential(1.0) if kernel is None else kernel
    if name == "exact":
        return jgp.Model(jgp.GaussianProcess(kernel, mean), likelihoods.Gaussian(0.1))
    likelihood = {
        "laplace": likelihoods.Softmax,
        "nested_ep": likelihoods.MultinomialProbit,
        "variational": likelihoods.Softmax,
    }[name](num_latents)
    process = jgp.independent([kernel] * num_latents, mean=mean)
    return jgp.Model(process, likelihood)


def targets(name):
    return LABELS.astype(float) if name == "exact" else LABELS


@functools.cache
def approximation(name):
    return VERBS[name](model(name), X, targets(name))


def refuses(argument, got="", wanted=""):
    """A `ValueError` naming the argument, what was got and what was wanted."""
    return pytest.raises(
        ValueError, match=rf"(?s)^{argument}: got .*{got}.*, wanted .*{wanted}"
    )


def replaced(array, value, index=1):
    array = np.array(array, float)
    array.flat[index] = value
    return array


@pytest.mark.float32
@every_verb
@pytest.mark.parametrize(
    ("x", "got"),
    [
        (replaced(X, np.nan), "1 values that are NaN or infinite"),
        (replaced(X, np.inf), "1 values that are NaN or infinite"),
        (X[None], r"shape \(1, 4, 2\)"),
        (1.0, r"shape \(\)"),
        (np.zeros((4, 0)), r"shape \(4, 0\)"),
        ([["x", "y"]] * 4, "list that is no array of numbers"),
        (np.array([["1", "2"]] * 4), "ndarray that is no array of numbers"),
        ("text", "str that is no array of numbers"),
        (None, "NoneType that is no array of numbers"),
        ([[1.0, 2.0], [3.0]], "list that is no array of numbers"),
    ],
    ids=[
        "nan", "inf", "3-d", "0-d", "no columns", "strings", "numbers as strings",
        "a string", "none", "ragged",
    ],
)  # fmt: skip
def test_inputs(name, x, got):
    with refuses("x", got):
        VERBS[name](model(name), x, targets(name))


@pytest.mark.float32
@every_verb
@pytest.mark.parametrize(
    ("x", "got"),
    [
        (replaced(X, np.nan), "1 values that are NaN or infinite"),
        (replaced(X, -np.inf), "1 values that are NaN or infinite"),
        (np.zeros((3, 3)), r"shape \(3, 3\)"),
        (np.zeros(2), r"shape \(2, 1\)"),
        (X[None], r"shape \(1, 4, 2\)"),
        (1.0, r"shape \(\)"),
        ([["x", "y"]], "list that is no array of numbers"),
        (None, "NoneType"),
    ],
    ids=["nan", "inf", "wide", "vector", "3-d", "0-d", "strings", "none"],
)
def test_new_inputs(name, x, got):
    found = approximation(name)
    for method in (
        found.predict,
        found.posterior.marginals,
        found.posterior.joint,
        lambda x: found.posterior.sample(x, key=jax.random.key(0), num=1),
        lambda x: found.log_prob(x, targets(name)),
    ):
        with refuses("x_new", got):
            method(x)


@pytest.mark.float32
@every_verb
@pytest.mark.parametrize(
    "y",
    [
        replaced(LABELS, np.nan),
        replaced(LABELS, np.inf),
        LABELS[:3],
        np.append(LABELS, 0),
        LABELS[:, None],
        np.eye(3)[LABELS],
        1,
        None,
        ["a", "b", "c", "b"],
    ],
    ids=[
        "nan", "inf", "short", "long", "(n, 1)", "one-hot", "0-d", "none", "strings",
    ],
)  # fmt: skip
def test_targets_of_the_wrong_shape_or_kind(name, y):
    with refuses("y"):
        VERBS[name](model(name), X, y)


@pytest.mark.float32
@every_verb
def test_both_shapes_are_named(name):
    with refuses("y", r"shape \(3,\) beside x of shape \(4, 2\)", "as many"):
        VERBS[name](model(name), X, targets(name)[:3])
    with refuses("y", r"shape \(4, 1\)", r"\(n,\)"):
        VERBS[name](model(name), X, targets(name)[:, None])


@pytest.mark.float32
@every_classifier
@pytest.mark.parametrize("label", [3, -1, 0.5, 1e10])
def test_labels_outside_the_classes(name, label):
    with refuses("y", f"the label {label}", r"integers 0\.\.2"):
        VERBS[name](model(name), X, replaced(LABELS, label))


@pytest.mark.float32
@every_classifier
def test_labels_as_floats_are_labels(name):
    wanted = approximation(name).log_evidence
    got = VERBS[name](model(name), X, LABELS.astype(float)).log_evidence
    assert float(got) == float(wanted)


@pytest.mark.float32
@every_classifier
def test_no_data_is_for_regression_alone(name):
    for x in (np.zeros((0, 2)), []):
        with refuses("x", "no data", "at least one point"):
            VERBS[name](model(name), x, [])


@pytest.mark.float32
def test_several_outputs():
    process = jgp.independent(kernels.Matern32(1.0), num_latents=2)
    several = jgp.Model(process, likelihoods.Gaussian(0.1))
    for y in (np.zeros(4), np.zeros((4, 3)), np.zeros((4, 1)), np.zeros((4, 2, 1))):
        with refuses("y", "shape", r"\(n, 2\)"):
            jgp.exact(several, X, y)
    with refuses("y", r"shape \(3, 2\) beside x of shape \(4, 2\)"):
        jgp.exact(several, X, np.zeros((3, 2)))


@pytest.mark.float32
@every_verb
def test_kernels_of_another_dimension(name):
    wide = kernels.SquaredExponential(np.ones(3))
    with refuses("lengthscale", "3 entries", "one, or 2"):
        VERBS[name](model(name, wide), X, targets(name))
    beyond = kernels.on(kernels.Matern32(1.0), 2)
    with refuses("dims", r"\(2,\)", "integers < 2"):
        VERBS[name](model(name, beyond), X, targets(name))
    linear = means.Linear(np.ones(3))
    with refuses("weights", "3 entries", "2"):
        VERBS[name](model(name, mean=linear), X, targets(name))


@pytest.mark.float32
@every_verb
@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_parameters_outside_their_domain(name, bad):
    with refuses(r"model\.process\.kernels?(\[0\])?\.lengthscale", "", "> 0"):
        kernel = kernels.SquaredExponential(bad)
        VERBS[name](model(name, kernel), X, targets(name))
    if bad != 0:
        with refuses(r"model\.process\.kernels?(\[0\])?\.variance", "", ">= 0"):
            VERBS[name](model(name, bad * kernels.Matern32(1.0)), X, targets(name))


@pytest.mark.float32
@pytest.mark.parametrize("bad", [-0.1, np.nan, np.inf])
def test_noise_outside_its_domain(bad):
    process = jgp.GaussianProcess(kernels.Matern32(1.0))
    with refuses(r"model\.likelihood\.noise_variance", "", ">= 0"):
        jgp.exact(jgp.Model(process, likelihoods.Gaussian(bad)), X, targets("exact"))


@pytest.mark.float32
@every_verb
@pytest.mark.parametrize("bad", ["model", None, 3.0], ids=str)
def test_models(name, bad):
    with refuses("model", type(bad).__name__, "Model"):
        VERBS[name](bad, X, targets(name))
    with refuses("model", "Process", "Model"):
        VERBS[name](model(name).process, X, targets(name))


@pytest.mark.float32
@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("exact", "laplace"),
        ("exact", "nested_ep"),
        ("laplace", "nested_ep"),
        ("nested_ep", "laplace"),
        ("nested_ep", "exact"),
    ],
)
def test_likelihoods_of_another_method(name, other):
    with refuses("likelihood", type(model(other).likelihood).__name__, name):
        VERBS[name](model(other), X, targets(other))


@pytest.mark.float32
@pytest.mark.parametrize("name", ITERATIVE)
@pytest.mark.parametrize(
    ("option", "value", "wanted"),
    [
        ("rtol", -1e-6, ">= 0"),
        ("rtol", np.nan, ">= 0"),
        ("rtol", np.inf, ">= 0"),
        ("atol", -1.0, ">= 0"),
        ("max_steps", 0, "an integer >= 1"),
        ("max_steps", -3, "an integer >= 1"),
        ("max_steps", 1.5, "an integer >= 1"),
        ("max_steps", 100.0, "an integer >= 1"),
        ("max_steps", "3", "an integer >= 1"),
    ],
)
def test_options(name, option, value, wanted):
    with refuses(option, str(value), wanted):
        VERBS[name](model(name), X, targets(name), **{option: value})


@pytest.mark.float32
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("damping", 0),
        ("damping", 2),
        ("damping", -0.5),
        ("damping", np.nan),
        ("inner_sweeps", 0),
        ("inner_sweeps", 1.5),
    ],
)
def test_options_of_nested_ep(option, value):
    with refuses(option, str(value)):
        jgp.nested_ep(model("nested_ep"), X, LABELS, **{option: value})


@pytest.mark.float32
@every_verb
def test_starting_points(name):
    with refuses("init", "int", f"an Approximation by {name}"):
        VERBS[name](model(name), X, targets(name), init=3)
    other = approximation("laplace" if name == "nested_ep" else "nested_ep")
    with refuses("init", other.method, f"an Approximation by {name}"):
        VERBS[name](model(name), X, targets(name), init=other)
    with refuses("init", r"x of shape \(4, 2\)", r"\(3, 2\)"):
        VERBS[name](model(name), X[:3], targets(name)[:3], init=approximation(name))


@pytest.mark.float32
@every_verb
def test_new_targets(name):
    found, y = approximation(name), targets(name)
    with refuses("y_new", r"shape \(2,\) beside 4 inputs", "as many"):
        found.log_prob(X, y[:2])
    for bad in (y[:, None], replaced(y, np.nan), list("abcb")):
        with pytest.raises(ValueError, match=r"y(_new)?: got .*, wanted"):
            found.log_prob(X, bad)
    assert found.log_prob(X, list(y)).shape == (4,)
    assert found.log_prob(np.zeros((0, 2)), y[:0]).shape == (0,)


@every_verb
def test_traced_values_are_not_looked_at(name):
    def evidence(lengthscale, x, y):
        kernel = kernels.SquaredExponential(lengthscale)
        found = VERBS[name](model(name, kernel), x, y)
        return found.log_evidence, found.result

    y = jnp.asarray(targets(name))
    arguments = jnp.asarray(1.0), jnp.asarray(X), y
    value, result = jax.jit(evidence)(*arguments)
    assert bool(result == RESULTS.successful)
    wanted = float(approximation(name).log_evidence)
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    for bad in (
        (jnp.asarray(np.nan), jnp.asarray(X), y),
        (jnp.asarray(1.0), jnp.asarray(replaced(X, np.nan)), y),
    ):
        value, result = jax.jit(evidence)(*bad)
        assert not bool(result == RESULTS.successful)
    # Shapes are not traced.
    with refuses("y", r"shape \(3,\) beside x of shape \(4, 2\)"):
        jax.jit(evidence)(jnp.asarray(1.0), jnp.asarray(X), y[:3])
    with refuses("x", r"shape \(1, 4, 2\)"):
        jax.jit(evidence)(jnp.asarray(1.0), jnp.asarray(X)[None], y)


@every_verb
def test_traced_new_inputs_are_not_looked_at(name):
    found, y = approximation(name), jnp.asarray(targets(name))
    log_prob = eqx.filter_jit(found.log_prob)
    wanted = found.log_prob(X, targets(name))
    np.testing.assert_allclose(log_prob(jnp.asarray(X), y), wanted, rtol=1e-12)
    assert np.isnan(log_prob(jnp.asarray(replaced(X, np.nan)), y)[0])
    with refuses("x_new", r"shape \(4, 3\)"):
        log_prob(jnp.zeros((4, 3)), y)


@pytest.mark.parametrize("option", ["rtol", "atol", "max_steps"])
def test_exact_looks_at_the_options_it_does_not_use(option):
    with refuses(option, "-1"):
        jgp.exact(model("exact"), X, targets("exact"), **{option: -1})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("rtol", "tight"),
        ("damping", "none"),
        ("window", -1),
        ("window", 1.5),
        ("max_steps", True),
        ("inner_sweeps", True),
    ],
)
def test_options_of_another_kind(option, value):
    with refuses(option, str(value)):
        jgp.nested_ep(model("nested_ep"), X, LABELS, **{option: value})


@every_verb
def test_complex_numbers(name):
    with refuses("y"):
        VERBS[name](model(name), X, targets(name) + 1j)


@every_verb
def test_complex_inputs(name):
    with refuses("x"):
        VERBS[name](model(name), X + 1j, targets(name))


@every_verb
def test_ragged_targets(name):
    with refuses("y"):
        VERBS[name](model(name), X, [[1], [2, 3], [1], [1]])


@every_classifier
def test_starting_points_with_other_classes(name):
    two = VERBS[name](model(name, num_latents=2), X, LABELS % 2)
    with refuses("init"):
        VERBS[name](model(name), X, LABELS, init=two)


@every_verb
def test_new_targets_are_named(name):
    with refuses("y_new", r"shape \(4, 1\)"):
        approximation(name).log_prob(X, targets(name)[:, None])


@pytest.mark.parametrize("shape", [(4, 1), (4, 2)])
def test_the_shape_of_traced_targets(shape):
    with refuses("y", "shape"):
        jax.jit(lambda y: jgp.exact(model("exact"), X, y).log_evidence)(
            jnp.zeros(shape)
        )


def test_the_shape_of_traced_targets_of_several_outputs():
    process = jgp.independent(kernels.Matern32(1.0), num_latents=2)
    several = jgp.Model(process, likelihoods.Gaussian(0.1))
    with refuses("y", r"shape \(4,\)", r"\(n, 2\)"):
        jax.jit(lambda y: jgp.exact(several, X, y).log_evidence)(jnp.zeros(4))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_is_refused_by_name(dtype):
    with pytest.raises(ValueError, match=r"x: got b?float16, wanted float32"):
        jgp.exact(model("exact"), jnp.zeros(3, dtype), np.zeros(3))
