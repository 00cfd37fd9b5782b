"""Hamiltonian samplers: warm-up, settings, bad starts and what cannot move."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jgp import sampling
from jgp._results import RESULTS
from jgp.sampling import hmc, nuts

pytest.importorskip("blackjax")
SCALES = np.array([0.01, 1.0, 30.0])


def log_density(position):
    flat = jnp.concatenate([position["a"], position["b"][None]])
    return -jnp.sum((flat / SCALES.astype(flat.dtype)) ** 2) / 2


def start(dtype=None):
    return {"a": jnp.zeros(2, dtype), "b": jnp.zeros((), dtype)}


@pytest.mark.float32
def test_warm_up_finds_the_scales_of_a_tree(key):
    state = nuts.warm_up(start(), log_density, key=key, num_steps=600)
    dtype = jnp.result_type(float)
    assert {leaf.dtype for leaf in jax.tree.leaves(state)} == {dtype}
    # Variances estimated from a few hundred draws.
    ratio = np.asarray(state.inverse_mass) / SCALES**2
    assert np.all((ratio > 0.5) & (ratio < 2.0))
    step = jax.jit(functools.partial(nuts.step, log_density=log_density))
    after, info = step(state, key=key)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert {leaf.dtype for leaf in jax.tree.leaves(after)} == {dtype}
    assert float(after.log_density) == pytest.approx(float(log_density(after.position)))
    assert not bool(info.divergent)
    assert int(info.num_evaluations) >= 1


def test_a_dense_mass_sees_the_correlation(key):
    def ridge(f):
        return -(f[0] ** 2 - 1.8 * f[0] * f[1] + f[1] ** 2) / (2 * (1 - 0.81))

    state = nuts.warm_up(jnp.zeros(2), ridge, key=key, num_steps=1000, dense=True)
    assert float(state.inverse_mass[0, 1]) == pytest.approx(0.9, abs=0.25)


def test_starts_where_nothing_is_finite_raise():
    for module in (hmc, nuts):
        with pytest.raises(ValueError, match="position: the log density at the start"):
            module.init(jnp.zeros(2), lambda f: jnp.log(-jnp.sum(f**2) - 1))
        with pytest.raises(ValueError, match="position: the gradient of the log"):
            module.init(jnp.zeros(2), lambda f: -jnp.sqrt(jnp.sum(f**2)))
        with pytest.raises(ValueError, match=r"inverse_mass: expected shape \(2,\)"):
            module.init(jnp.zeros(2), lambda f: -jnp.sum(f**2), 0.1, jnp.ones(3))


def test_chains_that_only_diverge_are_told(key):
    def narrow(f):
        return -jnp.sum(f**2) * 1e12

    states = jax.vmap(lambda p: nuts.init(p, narrow, 100.0))(jnp.zeros((2, 1)) + 1e-6)
    step = functools.partial(nuts.step, log_density=narrow)
    found = sampling.run(
        step, states, key=key, num_samples=20, chains=2, progress=False
    )
    assert bool(found.result == RESULTS.never_moved)
    assert np.all(found.infos.divergent)


def test_arviz_reads_what_run_returns(key):
    pytest.importorskip("arviz")
    keys = jax.random.split(key, 3)
    states = jax.vmap(
        lambda k: nuts.warm_up(start(), log_density, key=k, num_steps=200)
    )(keys)
    step = functools.partial(nuts.step, log_density=log_density)
    options = {"num_samples": 40, "thinning": 2, "chains": 3, "progress": False}
    found = sampling.run(step, states, key=key, **options)
    data = sampling.to_arviz(found.draws, found.infos)
    assert data.posterior["a"].shape == (3, 40, 2)
    np.testing.assert_array_equal(data.posterior["b"].values, found.draws["b"])
    # The info of the step that led to each draw.
    shown = data.sample_stats["acceptance_rate"].values
    np.testing.assert_array_equal(shown, found.infos.acceptance[:, 1::2])
    alone = sampling.to_arviz(found.draws["a"])
    assert list(alone.posterior) == ["position"]
    with pytest.raises(ValueError, match="draws: got shapes"):
        sampling.to_arviz(np.zeros(3))
