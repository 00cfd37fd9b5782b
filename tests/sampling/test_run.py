"""Long runs in chunks: the same draws however they are cut, killed or taken up."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jgp import sampling
from jgp._results import RESULTS


class State(NamedTuple):
    position: jax.Array
    num_steps: jax.Array


def step(state, *, key):
    noise = jax.random.normal(key, (2,))
    new = State(0.5 * state.position + noise, state.num_steps + 1)
    return new, {"first": new.position[0]}


def warmup_step(state, iteration, *, key):
    new, info = step(state, key=key)
    return new._replace(position=new.position + iteration.astype(float)), info


START = State(jnp.zeros((3, 2)), jnp.zeros(3, jnp.int32))
COUNTS = {"num_samples": 20, "num_warmup": 7, "thinning": 3, "chains": 3}
QUIET = {"progress": False, **COUNTS}


def by_scan(key, **options):
    counts = {k: v for k, v in COUNTS.items() if k != "chains"} | options

    def one(state, key):
        return sampling.scan(step, state, key=key, **counts)

    return jax.vmap(one)(START, jax.random.split(key, 3))


@pytest.mark.parametrize("chunk_size", [1, 4, 10, 1000])
def test_draws_are_those_of_one_scan_however_it_is_cut(chunk_size, key):
    found = sampling.run(step, START, key=key, chunk_size=chunk_size, **QUIET)
    expected = by_scan(key)
    np.testing.assert_allclose(found.draws, expected.draws, rtol=1e-12)
    np.testing.assert_allclose(
        found.infos["first"], expected.infos["first"], rtol=1e-12
    )
    np.testing.assert_array_equal(found.state.num_steps, [67, 67, 67])
    assert isinstance(found.draws, np.ndarray)
    assert bool(found.result == RESULTS.successful)


def test_chains_side_by_side_are_the_same_chains(key, tmp_path):
    total = (0.0, lambda total, draw: total + draw[0])
    for options in ({}, {"reduce": total}, {"warmup_step": warmup_step}):
        wanted = sampling.run(step, START, key=key, **QUIET, **options)
        found = sampling.run(step, START, key=key, vectorize=False, **QUIET, **options)
        for a, b in zip(
            jax.tree.leaves(found[:3]), jax.tree.leaves(wanted[:3]), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-12)
    path = tmp_path / "chains"
    alone = {"key": key, "vectorize": False, "checkpoint": path, **QUIET}
    short = sampling.run(step, START, **alone)
    again = sampling.run(step, START, **alone)
    np.testing.assert_array_equal(again.draws, short.draws)


def test_warm_up_has_its_own_step(key):
    found = sampling.run(
        step, START, key=key, warmup_step=warmup_step, chunk_size=2, **QUIET
    )
    expected = by_scan(key, warmup_step=warmup_step)
    np.testing.assert_allclose(found.draws, expected.draws, rtol=1e-12)


def test_reduction_keeps_no_draws(key):
    reduce = (jnp.zeros(2), lambda total, draw: total + draw)
    found = sampling.run(step, START, key=key, chunk_size=6, reduce=reduce, **QUIET)
    expected = np.sum(by_scan(key).draws, axis=1)
    assert found.draws.shape == (3, 2)
    np.testing.assert_allclose(found.draws, expected, rtol=1e-11)


class Interrupting:
    """A collect that presses Ctrl-C when it is traced for the second time."""

    def __init__(self):
        self.count = 0

    def __call__(self, state):
        self.count += 1
        if self.count == 2:
            raise KeyboardInterrupt
        return state.position


@pytest.mark.parametrize("reduce", [None, (0.0, lambda total, draw: total + draw[0])])
def test_interrupted_runs_go_on_to_the_same_end(reduce, key, tmp_path):
    path = tmp_path / "run"
    # The last chunk, of another length, is traced anew.
    options = {"chunk_size": 24, "reduce": reduce, **QUIET}
    partly = sampling.run(
        step, START, key=key, checkpoint=path, collect=Interrupting(), **options
    )
    assert bool(partly.result == RESULTS.max_steps_reached)
    if reduce is None:
        assert partly.draws.shape == (3, 16, 2)
    found = sampling.run(step, START, key=key, checkpoint=path, **options)
    whole = sampling.run(step, START, key=key, **options)
    np.testing.assert_array_equal(found.draws, whole.draws)
    np.testing.assert_array_equal(found.infos["first"], whole.infos["first"])
    np.testing.assert_array_equal(found.state.position, whole.state.position)
    # At the end there is nothing left to do.
    again = sampling.run(step, START, key=key, checkpoint=path, **options)
    np.testing.assert_array_equal(again.draws, whole.draws)


def test_another_runs_checkpoint_is_refused(key, tmp_path):
    path = tmp_path / "run"
    sampling.run(step, START, key=key, checkpoint=path, **QUIET)
    other = jax.random.fold_in(key, 1)
    with pytest.raises(ValueError, match="which is of another run"):
        sampling.run(step, START, key=other, checkpoint=path, **QUIET)
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(ValueError, match="which is no checkpoint of a run"):
        sampling.run(step, START, key=key, checkpoint=path, **QUIET)


def test_a_chain_that_never_moves_is_a_status(key):
    def stuck(state, *, key):
        return state._replace(num_steps=state.num_steps + 1), {}

    found = sampling.run(stuck, START, key=key, **QUIET)
    assert bool(found.result == RESULTS.never_moved)


def test_same_shapes_compile_once(key):
    traced = []

    def counting(state, *, key):
        traced.append(1)
        return step(state, key=key)

    sampling.run(counting, START, key=key, chunk_size=10, **QUIET)
    first = len(traced)
    sampling.run(counting, START, key=jax.random.key(5), chunk_size=10, **QUIET)
    assert len(traced) == first


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_samples": 0}, "num_samples: got 0, wanted an integer >= 1"),
        ({"thinning": 1.5}, "thinning: got 1.5, wanted an integer"),
        ({"chains": 4}, "state: expected a leading axis of length chains = 4"),
        ({"checkpoint": "/nowhere/at/all"}, "checkpoint: expected a path in a direc"),
    ],
)
def test_bad_input_is_named(change, message, key):
    with pytest.raises(ValueError, match=message):
        sampling.run(step, START, key=key, **(QUIET | change))


def test_traced_arguments_are_named(key):
    with pytest.raises(ValueError, match="state, key: got a traced one"):
        jax.jit(lambda k: sampling.run(step, START, key=k, **QUIET).draws)(key)


def test_counts_of_numpy_are_counts(key):
    counts = {name: np.int64(count) for name, count in COUNTS.items()}
    found = sampling.run(step, START, key=key, progress=False, **counts)
    assert found.draws.shape == (3, 20, 2)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_starts_that_are_not_finite_are_refused(bad, key):
    def log_density(x):
        return jnp.where(x > 0, -x, bad)

    starts = jax.vmap(lambda x: sampling.metropolis.init(x, log_density))(
        jnp.array([1.0, 2.0, -1.0])
    )

    def walk(state, *, key):
        propose = jax.random.normal
        return sampling.metropolis.step(state, log_density, propose, key=key)

    message = "state: chain 2 starts where log_density is not finite"
    with pytest.raises(ValueError, match=message):
        sampling.run(walk, starts, key=key, num_samples=5, chains=3)
    start = START._replace(position=START.position.at[1, 1].set(np.nan))
    with pytest.raises(ValueError, match="state: chain 1 starts where position"):
        sampling.run(step, start, key=key, **QUIET)


@pytest.mark.parametrize("reduce", [None, (0.0, lambda total, draw: total + draw[0])])
def test_draws_that_are_not_finite_are_a_status(reduce, key):
    def spoiled(state, *, key):
        new, info = step(state, key=key)
        lost = jnp.where(new.num_steps > 30, jnp.nan, new.position)
        return new._replace(position=lost), info

    found = sampling.run(spoiled, START, key=key, reduce=reduce, **QUIET)
    assert bool(found.result == RESULTS.non_finite)


def positional(key, state):
    return step(state, key=key)


def bare(state, *, key):
    return step(state, key=key)[0].position


def without_info(state, *, key):
    return step(state, key=key)[0]


def widened(state, *, key):
    new, info = step(state, key=key)
    return new._replace(num_steps=new.num_steps.astype(float)), info


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            positional,
            r"step: got .*, wanted what can be called as step\(state,",
        ),
        (bare, r"step: returned .*, wanted the pair \(state, info\)"),
        (without_info, "step: returned the state"),
        (widened, r"step: returned the state .*float64.* wanted .*int32"),
    ],
)
def test_what_is_no_step_is_named(wrong, message, key):
    with pytest.raises(ValueError, match=message):
        sampling.run(wrong, START, key=key, **QUIET)
    counts = {"num_samples": 2, "num_warmup": 0}
    one = jax.tree.map(lambda a: a[0], START)
    with pytest.raises(ValueError, match=message):
        sampling.scan(wrong, one, key=key, **counts)
