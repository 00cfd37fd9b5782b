"""Running a chain: bookkeeping of keys, thinning, warm-up and batches."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jgp import sampling


class State(NamedTuple):
    position: jax.Array
    num_steps: jax.Array


def step(state, *, key):
    noise = jax.random.normal(key)
    new = State(0.5 * state.position + noise, state.num_steps + 1)
    return new, {"noise": noise, "num_steps": new.num_steps}


START = State(jnp.asarray(0.0), jnp.asarray(0))


def by_hand(key, num_steps):
    state, positions = START, []
    for t in range(num_steps):
        state, _ = step(state, key=jax.random.fold_in(key, t))
        positions.append(state.position)
    return np.array(positions)


@pytest.mark.float32
def test_draws_are_those_of_a_loop(key):
    chain = sampling.scan(step, START, key=key, num_samples=4, num_warmup=2, thinning=3)
    positions = by_hand(key, 14)
    np.testing.assert_allclose(chain.draws, positions[[4, 7, 10, 13]], rtol=1e-5)
    # The infos of every step after warm-up, in order.
    np.testing.assert_array_equal(chain.infos["num_steps"], np.arange(3, 15))
    assert chain.state.num_steps == 14
    np.testing.assert_allclose(chain.state.position, positions[-1], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.float32
def test_jit_and_vmap_change_nothing(key):
    def run(k):
        return sampling.scan(step, START, key=k, num_samples=5, num_warmup=1)

    keys = jax.random.split(key, 3)
    together = jax.jit(jax.vmap(run))(keys)
    assert together.draws.shape == (3, 5)
    singly = np.stack([run(k).draws for k in keys])
    np.testing.assert_allclose(together.draws, singly, rtol=1e-5)
    assert np.unique(together.draws).size == 15


@pytest.mark.float32
def test_collect_and_warmup_step(key):
    def warmup_step(state, iteration, *, key):
        new, info = step(state, key=key)
        return new._replace(num_steps=state.num_steps + 100 * iteration), info

    chain = sampling.scan(
        step,
        START,
        key=key,
        num_samples=2,
        num_warmup=4,
        collect=lambda state: {"steps": state.num_steps, "sign": state.position > 0},
        warmup_step=warmup_step,
    )
    # 100 · (0 + 1 + 2 + 3) in warm-up, then one a step.
    np.testing.assert_array_equal(chain.draws["steps"], [601, 602])
    assert chain.draws["sign"].dtype == bool
    np.testing.assert_allclose(chain.state.position, by_hand(key, 6)[-1], rtol=1e-5)


@pytest.mark.float32
def test_no_samples_return_the_state_after_warmup(key):
    chain = sampling.scan(step, START, key=key, num_samples=0, num_warmup=3, thinning=2)
    assert chain.draws.shape == (0,)
    assert chain.infos["noise"].shape == (0,)
    assert chain.state.num_steps == 3


@pytest.mark.parametrize(
    ("name", "count", "least"),
    [
        ("num_samples", -1, 0),
        ("num_samples", 10.0, 0),
        ("num_warmup", -2, 0),
        ("thinning", 0, 1),
    ],
)
def test_wrong_counts_are_refused(key, name, count, least):
    counts = {"num_samples": 1, "num_warmup": 1, "thinning": 1, name: count}
    with pytest.raises(
        ValueError, match=f"{name}: got {count}, wanted an integer >= {least}"
    ):
        sampling.scan(step, START, key=key, **counts)


def log_ratio(x):
    return -0.5 * x**2


def log_proposal(x):
    return jax.scipy.stats.norm.logpdf(x)


def move(x, beta, *, key):
    del beta, key
    return x, ()


ZEROS = jnp.zeros(4)
DRIVERS = {
    "scan": lambda key: sampling.scan(
        step, START, key=key, num_samples=2, num_warmup=0
    ),
    "run": lambda key: sampling.run(
        step, START, key=key, num_samples=2, num_warmup=0, chains=1
    ),
    "importance": lambda key: sampling.importance.sample(
        log_ratio, jax.random.normal, log_proposal, key=key, num=8
    ),
    "rejection": lambda key: sampling.rejection.sample(
        log_ratio, jax.random.normal, log_proposal, 1.0, key=key, num=8
    ),
    "monte_carlo": lambda key: sampling.monte_carlo(
        jnp.sin, jax.random.normal, key=key, num=8
    ),
    "smc": lambda key: sampling.smc.run(
        sampling.smc.init(ZEROS, log_ratio), move, key=key
    ),
    "annealed_importance": lambda key: sampling.annealed_importance.run(
        ZEROS, log_ratio, move, key=key, betas=jnp.linspace(0.0, 1.0, 3)
    ),
}


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("wrong", [0, None, 1.5, "float", "two"], ids=str)
def test_what_is_no_key_is_named(driver, wrong, key):
    arrays = {"float": jnp.ones(3), "two": jax.random.split(key)}
    with pytest.raises(ValueError, match=r"key: got .*, wanted a PRNG key"):
        DRIVERS[driver](arrays.get(wrong, wrong))


def log_density(x):
    return -jnp.sum(x**2)


def normal(key):
    return jax.random.normal(key, (2,))


STEPS = {
    "metropolis": lambda state, key: sampling.metropolis.step(
        state, log_density, normal, key=key
    ),
    "slice": lambda state, key: sampling.slice.step(state, log_density, key=key),
    "slice along": lambda state, key: sampling.slice.step_along(
        state, log_density, normal, key=key
    ),
    "elliptical_slice": lambda state, key: sampling.elliptical_slice.step(
        state, log_density, normal, key=key
    ),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("key", [0, None])
def test_steps_name_what_is_no_key(name, key):
    state = sampling.metropolis.init(jnp.zeros(2), log_density)
    with pytest.raises(ValueError, match=r"key: got .*, wanted a PRNG key"):
        STEPS[name](state, key)


@pytest.mark.parametrize("width", [0.0, -1.0, np.nan, np.array([1.0, 0.0])])
def test_widths_that_are_not_positive_are_refused(width, key):
    state = sampling.slice.init(jnp.zeros(2), log_density)
    with pytest.raises(ValueError, match="width: expected positive numbers"):
        sampling.slice.step(state, log_density, width, key=key)
