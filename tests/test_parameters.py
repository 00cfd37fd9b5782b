import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jgp._constraints import Increasing, Lengths, NonNegative, Positive, Real
from jgp._parameters import (
    cast,
    check_parameters,
    constraints,
    from_real,
    select,
    table,
    to_real,
    where_paths,
)
from jgp.kernels import Matern32, SquaredExponential, on
from jgp.means import Linear

EPS = float(np.finfo(jnp.result_type(float)).eps)


class Pair(eqx.Module):
    """Nested tuples, a list, a dictionary, and a leaf that is no parameter."""

    kernels: tuple
    means: dict
    labels: jax.Array


def model():
    kernel = 2.0 * SquaredExponential(np.array([0.5, 2.0])) + on(Matern32(0.1), 1)
    return Pair(
        (kernel, [Matern32(3.0)]),
        {"trend": Linear(np.array([1.0, -1.0]))},
        jnp.arange(3),
    )


@pytest.mark.float32
@pytest.mark.parametrize("constraint", [Positive(), NonNegative(), Real()])
@given(value=st.floats(1e-30, 1e30))
def test_constraints_round_trip(constraint, value):
    value = jnp.asarray(value)
    back = constraint.from_real(constraint.to_real(value))
    # The logarithm of 1e30 is 69: rounding it moves its exponential by 69 eps.
    np.testing.assert_allclose(back, value, rtol=100 * EPS)
    assert constraint.contains(value)


@pytest.mark.float32
@pytest.mark.parametrize(
    ("constraint", "inside", "outside"),
    [
        (Real(), [-1.0, 0.0, 2.0], [np.inf, -np.inf, np.nan]),
        (Positive(), [1e-30, 2.0], [0.0, -1.0, np.inf, np.nan]),
        (NonNegative(), [0.0, 2.0], [-1e-30, np.inf, np.nan]),
    ],
)
def test_domains(constraint, inside, outside):
    assert np.all(constraint.contains(np.array(inside)))
    assert not np.any(constraint.contains(np.array(outside)))


@pytest.mark.float32
def test_increasing_vectors():
    constraint, value = Increasing(), np.array([-3.0, -2.5, 0.0, 40.0])
    raw = constraint.to_real(jnp.asarray(value))
    np.testing.assert_allclose(raw, [-3.0, *np.log(np.diff(value))], rtol=4 * EPS)
    np.testing.assert_allclose(constraint.from_real(raw), value, atol=50 * EPS)
    single = jnp.asarray([2.0])
    np.testing.assert_array_equal(constraint.from_real(constraint.to_real(single)), 2)
    rising = constraint.from_real(jnp.asarray([5.0, -3.0, 2.0]))
    assert np.all(constraint.contains(np.asarray(rising)))
    inside = constraint.contains(np.array([1.0, 1.0, 2.0, np.inf, np.nan, 3.0]))
    np.testing.assert_array_equal(inside, [True, False, True, False, False, False])
    both = constraint.contains(np.array([[1.0, 2.0], [2.0, 1.0]]))
    np.testing.assert_array_equal(both, [[True, True], [True, False]])


def test_zero_variance_can_be_held():
    kernel = 0.0 * Matern32(1.0)
    raw = to_real(kernel)
    assert float(raw.variance) == -np.inf
    assert float(from_real(raw).variance) == 0.0
    check_parameters(kernel)


def test_each_leaf_has_its_own_constraint():
    found = {path: type(constraint) for path, _, constraint in table(model())}
    assert found == {
        ".kernels[0].kernels[0].kernel.lengthscale": Lengths,
        ".kernels[0].kernels[0].variance": NonNegative,
        ".kernels[0].kernels[1].kernel.lengthscale": Lengths,
        ".kernels[1][0].lengthscale": Lengths,
        ".means['trend'].weights": Real,
        ".means['trend'].bias": Real,
    }
    tree = constraints(model())
    assert tree.labels is None
    assert isinstance(tree.kernels[1][0].lengthscale, Lengths)


@pytest.mark.float32
def test_models_round_trip():
    raw = to_real(model())
    np.testing.assert_allclose(
        raw.kernels[0].kernels[0].kernel.lengthscale, np.log([0.5, 2.0]), rtol=4 * EPS
    )
    np.testing.assert_array_equal(raw.means["trend"].weights, [1.0, -1.0])
    np.testing.assert_array_equal(raw.labels, np.arange(3))
    back = from_real(raw)
    assert jax.tree.structure(back) == jax.tree.structure(model())
    for leaf, expected in zip(
        jax.tree.leaves(back), jax.tree.leaves(model()), strict=True
    ):
        np.testing.assert_allclose(leaf, expected, rtol=8 * EPS)


def test_a_change_of_units_is_a_shift():
    short, long = to_real(Matern32(0.3)), to_real(Matern32(300.0))
    np.testing.assert_allclose(
        long.lengthscale - short.lengthscale, np.log(1000), rtol=1e-14
    )


def test_chain_rule_through_the_bijection():
    def loss(kernel):
        return jnp.sum(kernel(jnp.ones(2), jnp.zeros(2)))

    kernel = 2.0 * Matern32(0.7)
    natural = eqx.filter_grad(loss)(kernel)
    real = eqx.filter_grad(lambda raw: loss(from_real(raw)))(to_real(kernel))
    np.testing.assert_allclose(real.variance, natural.variance * 2.0, rtol=1e-14)
    np.testing.assert_allclose(
        real.kernel.lengthscale, natural.kernel.lengthscale * 0.7, rtol=1e-14
    )


def test_bijections_work_under_jit_and_vmap():
    lengthscales = jnp.array([0.5, 2.0])
    stacked = eqx.filter_vmap(Matern32)(lengthscales)
    raw = eqx.filter_jit(eqx.filter_vmap(to_real))(stacked)
    np.testing.assert_allclose(raw.lengthscale, np.log([0.5, 2.0]), rtol=1e-15)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_values_outside_their_domain_are_named(bad):
    kernel = 2.0 * SquaredExponential(np.array([1.0, bad]))
    with pytest.raises(
        ValueError, match=r"model\.kernel\.lengthscale: got .*, wanted finite .*> 0"
    ):
        check_parameters(kernel)
    with pytest.raises(ValueError, match=r"prior\.kernel\.lengthscale"):
        check_parameters(kernel, "prior")


def test_traced_values_are_not_read():
    @jax.jit
    def traced(lengthscale):
        check_parameters(Matern32(lengthscale))
        return lengthscale

    assert float(traced(-1.0)) == -1.0


def test_cast_changes_floating_leaves_only():
    half = cast(model(), jnp.float16)
    assert {leaf.dtype for _, leaf, _ in table(half)} == {jnp.dtype(jnp.float16)}
    assert half.labels.dtype == model().labels.dtype


def test_where_paths_and_select_agree():
    paths = where_paths(
        model(), lambda m: (m.kernels[0].kernels[0].variance, m.means["trend"])
    )
    assert paths == (
        ".kernels[0].kernels[0].variance",
        ".means['trend'].weights",
        ".means['trend'].bias",
    )
    chosen = select(model(), paths)
    assert [bool(leaf) for leaf in jax.tree.leaves(chosen)].count(True) == 3
    assert chosen.means["trend"].bias is True
    # A leaf that is not floating is never chosen.
    assert not any(jax.tree.leaves(select(model(), (".labels",))))


def test_where_must_select_a_leaf():
    with pytest.raises(ValueError, match=r"selects no leaf.*\.kernels\[1\]\[0\]"):
        where_paths(model(), lambda m: ())
