"""Diagnostics against arviz, closed forms and awkward input.

`tests/reference/diagnostics.json` holds what arviz 0.x returns for the inputs built
here from NumPy's frozen `RandomState` stream.
"""

import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jgp import sampling
from tests.conftest import DOUBLE

REFERENCE = pathlib.Path(__file__).parents[1] / "reference" / "diagnostics.json"


def autoregressive(seed, rho, num_chains, num_draws):
    """Stationary AR(1) chains of unit variance."""
    noise = np.random.RandomState(seed).standard_normal((num_chains, num_draws))
    x = noise.copy()
    for t in range(1, num_draws):
        x[:, t] = rho * x[:, t - 1] + np.sqrt(1 - rho**2) * noise[:, t]
    return x


def chains(name):
    random = np.random.RandomState(7)
    match name:
        case "ar_0.5":
            return autoregressive(1, 0.5, 4, 300)
        case "ar_0.95_odd":
            return autoregressive(2, 0.95, 3, 201)
        case "antithetic":
            return autoregressive(3, -0.7, 4, 300)
        case "independent_short":
            return autoregressive(4, 0.0, 2, 8)
        case "cauchy":
            return random.standard_cauchy((4, 300))
        case "not_mixing":
            return autoregressive(5, 0.9, 4, 300) + np.arange(4.0)[:, None]
        case "scales_differ":
            return autoregressive(6, 0.3, 4, 300) * np.array([[1.0], [1.0], [3.0], [3]])
        case "trend":
            return random.standard_normal((4, 300)) + np.linspace(0, 3, 300)
        case "ties":
            return random.poisson(1.5, (4, 300)).astype(float)
        case "binary":
            return (autoregressive(8, 0.6, 4, 300) > 0.3).astype(float)
        case "constant":
            return np.full((4, 300), 0.1)
        case "one_chain_stuck":
            return np.where(
                np.arange(4)[:, None] == 0, 1.0, autoregressive(9, 0, 4, 300)
            )
    raise KeyError(name)


def weights(name):
    random = np.random.RandomState(11)
    match name:
        case "normal":
            return random.standard_normal(1000)
        case "pareto_0.3":
            return 0.3 * random.exponential(size=1000) - 500.0
        case "pareto_0.9":
            return 0.9 * random.exponential(size=1000) + 1000.0
        case "bounded":
            return np.log(random.uniform(size=1000))
        case "quadratic":
            return 0.4 * random.standard_normal(1000) ** 2
        case "zeros":
            return np.where(
                random.uniform(size=1000) < 0.9, -np.inf, random.randn(1000)
            )
        case "ties":
            return np.round(random.standard_normal(1000), 1)
        case "few":
            return random.standard_normal(30)
        case "too_few":
            return random.standard_normal(15)
    raise KeyError(name)


CHAINS = (
    "ar_0.5 ar_0.95_odd antithetic independent_short cauchy not_mixing scales_differ "
    "trend ties binary constant one_chain_stuck"
).split()
WEIGHTS = (
    "normal pareto_0.3 pareto_0.9 bounded quadratic zeros ties few too_few"
).split()

DIAGNOSTICS = {
    "rhat": sampling.rhat,
    "ess_bulk": sampling.effective_sample_size,
    "ess_tail": lambda x: sampling.effective_sample_size(x, kind="tail"),
    "ess_mean": lambda x: sampling.effective_sample_size(x, kind="mean"),
    "mcse_mean": sampling.mcse_mean,
}
# In float32 the ranks are exact, the autocovariances good to about 1e-5 of the variance
# and their sum over some hundred lags to 1e-3.
RTOL = 1e-6 if DOUBLE else 2e-3


@pytest.fixture(scope="module")
def reference():
    return json.loads(REFERENCE.read_text())


@pytest.mark.float32
@pytest.mark.parametrize("diagnostic", DIAGNOSTICS)
@pytest.mark.parametrize("name", CHAINS)
def test_chains_agree_with_arviz(reference, name, diagnostic):
    value = DIAGNOSTICS[diagnostic](chains(name))
    expected = reference["chains"][name][diagnostic]
    np.testing.assert_allclose(value, expected, rtol=RTOL)


@pytest.mark.parametrize("name", CHAINS)
def test_quantile_errors_agree_with_arviz(reference, name):
    draws = chains(name)
    value = [sampling.mcse_quantile(draws, p) for p in (0.05, 0.5, 0.9)]
    expected = reference["chains"][name]["mcse_quantiles"]
    np.testing.assert_allclose(value, expected, rtol=1e-6)


@pytest.mark.float32
@pytest.mark.parametrize("name", [name for name in CHAINS if name != "constant"])
def test_autocorrelation_agrees_with_arviz(reference, name):
    value = sampling.autocorrelation(chains(name))
    expected = reference["chains"][name]["autocorrelation"]
    atol = 1e-10 if DOUBLE else 1e-5
    np.testing.assert_allclose(value[0, :4], expected, atol=atol)


@pytest.mark.float32
@pytest.mark.parametrize("name", WEIGHTS)
def test_pareto_k_agrees_with_arviz(reference, name):
    value = sampling.pareto_k(weights(name))
    expected = reference["pareto_k"][name]
    # Shapes lie near 0 as well: the absolute tolerance is what separates 0.70 and 0.71.
    np.testing.assert_allclose(
        value, expected, rtol=RTOL, atol=1e-7 if DOUBLE else 1e-3
    )


def test_autoregression_has_the_known_effective_sample_size():
    # The ESS of the mean of an AR(1) chain is S (1 − ρ)/(1 + ρ); its estimate from
    # 8 × 5000 draws scatters by about 3 %.
    for rho in (0.5, 0.8, -0.5):
        x = autoregressive(20, rho, 8, 5000)
        expected = x.size * (1 - rho) / (1 + rho)
        value = sampling.effective_sample_size(x, kind="mean")
        np.testing.assert_allclose(value, expected, rtol=0.1)


def test_pareto_k_finds_the_shape_of_pareto_weights():
    # w = u^−k has shape k; k̂ of 190 exceedances has standard error (1 + k)/√190 ≈ 0.12.
    uniform = np.random.RandomState(3).uniform(size=4000)
    k = sampling.pareto_k(-np.array([0.3, 0.9])[None, :] * np.log(uniform)[:, None])
    np.testing.assert_allclose(k, [0.3, 0.9], atol=0.3)
    assert k[0] < 0.7 < k[1]


def test_importance_ess():
    value = sampling.importance_ess(jnp.log(jnp.array([0.5, 0.25, 0.25])) - 800.0)
    np.testing.assert_allclose(value, 1 / (0.25 + 2 * 0.0625), rtol=1e-10)
    np.testing.assert_allclose(sampling.importance_ess(jnp.zeros(7)), 7.0, rtol=1e-12)
    one_hot = jnp.array([0.0, -jnp.inf, -jnp.inf])
    np.testing.assert_allclose(sampling.importance_ess(one_hot), 1.0)
    assert np.isnan(sampling.importance_ess(jnp.full(7, -jnp.inf)))


@pytest.mark.float32
@pytest.mark.parametrize("diagnostic", DIAGNOSTICS)
def test_trailing_elements_are_examined_one_by_one(reference, diagnostic):
    names = ["ar_0.5", "cauchy", "not_mixing"]
    x = np.stack([chains(name) for name in [*names, "ar_0.5"]], axis=-1)[..., None]
    x[1, 3, 3] = np.nan
    value = jax.jit(DIAGNOSTICS[diagnostic])(x)
    assert value.shape == (4, 1)
    expected = [reference["chains"][name][diagnostic] for name in names] + [np.nan]
    np.testing.assert_allclose(value[:, 0], expected, rtol=RTOL)


def test_weights_over_trailing_dimensions(reference):
    names = ["pareto_0.3", "pareto_0.9"]
    w = np.stack([weights(name) for name in [*names, "normal"]], axis=-1)
    w[5, 2] = np.nan
    expected = [reference["pareto_k"][name] for name in names] + [np.nan]
    np.testing.assert_allclose(sampling.pareto_k(w), expected, rtol=RTOL)
    singly = [sampling.importance_ess(w[:, i]) for i in range(3)]
    np.testing.assert_allclose(sampling.importance_ess(w), singly, rtol=1e-10)


@pytest.mark.float32
def test_one_chain_is_split():
    # One chain with a trend disagrees with itself, a stationary one does not.
    assert sampling.rhat(chains("trend")[:1]) > 1.2
    assert abs(sampling.rhat(autoregressive(30, 0.0, 1, 2000)) - 1) < 0.01


def test_chains_stuck_apart_have_infinite_rhat():
    x = np.repeat([[0.1], [0.1], [0.7], [0.9]], 50, axis=1)
    assert sampling.rhat(x) == np.inf
    assert np.isnan(sampling.rhat(np.full((3, 10), 0.1)))


def test_ess_does_not_depend_on_the_unit():
    x = chains("ar_0.5")
    for kind in ("bulk", "tail", "mean"):
        np.testing.assert_allclose(
            sampling.effective_sample_size(1e-18 * x, kind=kind),
            sampling.effective_sample_size(x, kind=kind),
            rtol=1e-9,
        )


@pytest.mark.float32
def test_dtype_is_that_of_the_draws():
    draws = jax.ShapeDtypeStruct((4, 300, 2), jnp.float32)
    for compute in DIAGNOSTICS.values():
        value = jax.eval_shape(compute, draws)
        assert (value.shape, value.dtype) == ((2,), jnp.float32)
    for compute in (sampling.pareto_k, sampling.importance_ess):
        value = jax.eval_shape(compute, jax.ShapeDtypeStruct((99, 2), jnp.float32))
        assert (value.shape, value.dtype) == ((2,), jnp.float32)


def test_probability_of_a_quantile_is_checked():
    with pytest.raises(ValueError, match=r"probability: expected one in \(0, 1\)"):
        sampling.mcse_quantile(chains("ar_0.5"), 1.0)


def test_wrong_input_is_refused():
    with pytest.raises(ValueError, match=r"\(chains, draws, ...\).*got \(100,\)"):
        sampling.rhat(np.zeros(100))
    with pytest.raises(ValueError, match=r"at least 4 draws, got \(2, 3\)"):
        sampling.mcse_mean(np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"kind: expected one of .*'quantile'"):
        sampling.effective_sample_size(np.zeros((2, 9)), kind="quantile")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="at least one draw"):
        sampling.pareto_k(np.zeros((0, 3)))
