import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jgp._types import as_float, is_floating

DEFAULT = jnp.result_type(float)


@pytest.mark.float32
@pytest.mark.parametrize(
    "value", [2, 2.5, True, [1, 2], np.arange(3), np.bool_(True), jnp.arange(2)]
)
def test_numbers_and_integers_get_the_default_float(value):
    array = as_float(value)
    assert array.dtype == DEFAULT
    assert not array.weak_type
    np.testing.assert_array_equal(array, np.asarray(value, float))


@pytest.mark.float32
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, DEFAULT])
def test_floating_arrays_keep_their_dtype(dtype):
    assert as_float(jnp.ones(2, dtype)).dtype == dtype


def test_weakly_typed_values_become_strong():
    assert jnp.asarray(2.0).weak_type
    assert not as_float(jnp.asarray(2.0)).weak_type
    assert not jax.jit(as_float)(2.0).weak_type


def test_is_floating():
    assert is_floating(jnp.ones(2))
    assert is_floating(np.float32(1))
    for other in (jnp.arange(2), np.array([True]), 1.0, "a", None, jax.random.key(0)):
        assert not is_floating(other)
