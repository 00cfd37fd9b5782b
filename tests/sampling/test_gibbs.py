"""Gibbs sampling of named blocks."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jgp import sampling
from jgp.sampling import gibbs, metropolis

MEANS, WEIGHT = np.array([-1.0, 1.5]), 0.3


class Mixture(NamedTuple):
    label: jax.Array
    value: jax.Array


class Module(eqx.Module):
    label: jax.Array
    value: jax.Array


def label_given_value(position, *, key):
    value = position["value"] if isinstance(position, dict) else position.value
    means = jnp.asarray(MEANS, value.dtype)
    logits = -((value - means) ** 2) / 2 + jnp.log(
        jnp.asarray([1 - WEIGHT, WEIGHT], value.dtype)
    )
    return jax.random.categorical(key, logits).astype(jnp.int32)


def value_given_label(position, *, key):
    label = position["label"] if isinstance(position, dict) else position.label
    noise = jax.random.normal(key, (), jnp.result_type(float))
    return jnp.asarray(MEANS)[label] + noise


def value_by_metropolis(position, *, key):
    """Metropolis within Gibbs."""

    def log_density(value):
        return -((value - jnp.asarray(MEANS)[position["label"]]) ** 2) / 2

    state = metropolis.init(position["value"], log_density)
    walk = functools.partial(jax.random.normal, dtype=state.position.dtype)
    return metropolis.step(state, log_density, walk, 2.4, key=key)[0].position


EXACT = {"label": label_given_value, "value": value_given_label}
WITHIN = {"label": label_given_value, "value": value_by_metropolis}


@pytest.mark.slow
@pytest.mark.parametrize("updates", [EXACT, WITHIN], ids=["exact", "within"])
def test_discrete_mixture_has_the_known_moments(updates, key):
    def chain(key):
        start = gibbs.init({"label": jnp.int32(1), "value": jnp.asarray(3.0)})
        step = functools.partial(gibbs.step, updates=updates)
        return sampling.scan(step, start, key=key, num_samples=300, num_warmup=100)

    draws = jax.jit(jax.vmap(chain))(jax.random.split(key, 100)).draws
    label, value = np.asarray(draws["label"]), np.asarray(draws["value"])
    mean = (1 - WEIGHT) * MEANS[0] + WEIGHT * MEANS[1]
    square = (1 - WEIGHT) * MEANS[0] ** 2 + WEIGHT * MEANS[1] ** 2 + 1
    both = WEIGHT * MEANS[1]
    pairs = ((label, WEIGHT), (value, mean), (value**2, square), (label * value, both))
    for found, wanted in pairs:
        each = found.mean(axis=1)
        assert stats.ttest_1samp(each, wanted).pvalue > 1e-3


@pytest.mark.parametrize("kind", [dict, Mixture, Module])
def test_blocks_of_dicts_named_tuples_and_modules_move_in_order(kind, key):
    state = gibbs.init(kind(label=jnp.int32(0), value=jnp.asarray(2.0)))
    new, info = gibbs.step(state, EXACT, key=key)
    assert type(new.position) is kind
    # The second update sees what the first did.
    label = label_given_value(state.position, key=jax.random.fold_in(key, 0))
    after = {"label": label, "value": None}
    value = value_given_label(after, key=jax.random.fold_in(key, 1))
    got = new.position if kind is dict else vars_of(new.position)
    assert got["label"] == label
    np.testing.assert_allclose(got["value"], value)
    assert bool(info.moved["value"])


def vars_of(position):
    return {"label": position.label, "value": position.value}


def test_bad_updates_are_named(key):
    state = gibbs.init({"a": jnp.zeros(2)})
    with pytest.raises(ValueError, match="updates: got the block 'b', wanted one of"):
        gibbs.step(state, {"b": lambda position, *, key: 0.0}, key=key)
    with pytest.raises(ValueError, match="at least one block"):
        gibbs.step(state, {}, key=key)
    with pytest.raises(ValueError, match=r"shape of the position: expected \(2,\)"):
        gibbs.step(state, {"a": lambda position, *, key: jnp.zeros(3)}, key=key)


def test_floats_for_a_block_of_integers_are_refused(key):
    # Cast, a draw of 0.7 would be 0: the chain of another distribution.
    start = gibbs.init({"label": jnp.zeros((), jnp.int32), "value": 0})
    updates = {"value": value_given_label}
    with pytest.raises(
        ValueError, match=r"updates\['value'\]: the new block: got float"
    ):
        gibbs.step(start, updates, key=key)
