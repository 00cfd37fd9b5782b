import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from jgp._results import RESULTS, SEVERITY, unless, worst


def test_severity_lists_every_member_once():
    assert len(SEVERITY) == len(RESULTS)
    for first, second in itertools.combinations(SEVERITY, 2):
        assert not bool(first == second)


def test_every_failure_names_a_remedy():
    for member in SEVERITY[1:]:
        assert len(RESULTS[member]) > 40
    assert RESULTS[RESULTS.successful] == ""


@pytest.mark.float32
def test_the_later_status_wins():
    for (i, first), (j, second) in itertools.product(enumerate(SEVERITY), repeat=2):
        assert bool(worst(first, second) == SEVERITY[max(i, j)])
    assert bool(worst(SEVERITY[1], SEVERITY[4], SEVERITY[2]) == SEVERITY[4])
    assert bool(worst(SEVERITY[3]) == SEVERITY[3])


@pytest.mark.float32
def test_statuses_stay_per_element_under_vmap_and_jit():
    @eqx.filter_jit
    @eqx.filter_vmap
    def status(a, b):
        return worst(unless(a, RESULTS.stagnated), unless(b, RESULTS.diverged))

    ok = jnp.array([True, False])
    result = status(jnp.repeat(ok, 2), jnp.tile(ok, 2))
    for member, expected in [
        (RESULTS.successful, [True, False, False, False]),
        (RESULTS.stagnated, [False, False, True, False]),
        (RESULTS.diverged, [False, True, False, True]),
    ]:
        assert (result == member).tolist() == expected


def test_a_status_can_be_carried_by_a_loop():
    def body(state):
        step, result = state
        return step + 1, worst(result, unless(step < 2, RESULTS.oscillating))

    _, result = jax.lax.while_loop(
        lambda state: state[0] < 4, body, (jnp.asarray(0), RESULTS.successful)
    )
    assert bool(result == RESULTS.oscillating)
