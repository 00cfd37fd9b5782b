import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jgp import likelihoods, means
from tests import cases


@pytest.mark.float32
def test_values():
    x = jnp.array([1.0, -2.0, 0.5])
    assert float(means.Zero()(x)) == 0.0
    assert float(means.Constant(-0.25)(x)) == -0.25
    linear = means.Linear(np.array([0.5, -2.0, 1.0]), 0.25)
    assert float(linear(x)) == 0.5 + 4.0 + 0.5 + 0.25  # exact in binary


@pytest.mark.float32
@pytest.mark.parametrize("name", cases.MEANS)
def test_laws(name):
    mean, dimension, _ = cases.MEANS[name]
    x = jnp.asarray(cases.points(dimension))
    values = jax.vmap(mean)(x)
    assert values.shape == (len(x),)
    assert values.dtype == x.dtype
    np.testing.assert_allclose(values, [mean(point) for point in x], rtol=1e-6)
    leaves, structure = jax.tree.flatten(mean)
    rebuilt = jax.tree.unflatten(structure, leaves)
    np.testing.assert_array_equal(jax.jit(jax.vmap(rebuilt))(x), values)


def test_gradients_are_the_features():
    x = jnp.array([1.0, -2.0, 0.5])
    slope = jax.grad(lambda mean: mean(x))(means.Linear(np.zeros(3)))
    np.testing.assert_array_equal(slope.weights, x)
    assert float(slope.bias) == 1.0
    assert float(jax.grad(lambda mean: mean(x))(means.Constant()).value) == 1.0


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"value: got shape \(2,\)"):
        means.Constant(np.ones(2))
    with pytest.raises(ValueError, match=r"weights: got shape \(\)"):
        means.Linear(1.0)
    with pytest.raises(ValueError, match=r"bias: got shape \(1,\)"):
        means.Linear(np.ones(2), np.ones(1))
    with pytest.raises(ValueError, match="weights: got 1 entries, wanted 2"):
        means.Linear(np.ones(1))(jnp.ones(2))


def test_means_add_and_multiply():
    x = jnp.array([1.0, -2.0])
    linear, constant = means.Linear(np.array([0.5, -2.0])), means.Constant(3.0)
    a, b = float(linear(x)), 3.0
    for mean, wanted in (
        (linear + constant, a + b),
        (linear * constant, a * b),
        (2.0 * linear + 1.0, 2 * a + 1),
        (1.0 + linear * 2.0, 1 + 2 * a),
        (linear + jnp.sum, a - 1.0),
    ):
        np.testing.assert_allclose(mean(x), wanted, rtol=1e-6)
    # A number is a parameter as any other.
    slope = jax.grad(lambda mean: mean(x))(2.0 * linear)
    np.testing.assert_allclose(slope.means[0].value, a, rtol=1e-6)


def test_a_basis_is_no_function():
    with pytest.raises(ValueError, match="mean: got a Basis, wanted a function"):
        means.WithDerivatives(means.polynomial(1))
    for wrong in (means.polynomial(1), -2.0):
        with pytest.raises(ValueError, match="log_noise_variance: got "):
            likelihoods.HeteroscedasticGaussian(wrong)


def test_the_sum_of_a_list_has_no_constant():
    first, second = means.Linear([1.0]), means.Constant(0.5)
    assert sum([first, second]).means == (first, second)
    assert len((1 + first).means) == 2
