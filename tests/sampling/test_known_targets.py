"""Every sampler against densities with known moments, and where it must be flagged."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jgp import sampling
from jgp.sampling import (
    annealed_importance,
    elliptical_slice,
    hmc,
    importance,
    metropolis,
    nuts,
    rejection,
    slice,
    smc,
)
from tests.sampling.targets import (
    TARGETS,
    chains_from,
    funnel,
    p_values,
    two_modes,
)

LEVEL = 1e-3
SCALES = {"gaussian": 1.0, "banana": 1.5, "truncated": 1.2}
STEPS = {"gaussian": 0.4, "banana": 0.15, "truncated": 0.1}


def unit(key):
    return jax.random.normal(key, (2,), jnp.result_type(float))


def along_the_gaussian(key):
    lower = np.linalg.cholesky(np.array([[1, 0.99], [0.99, 1]]))
    return jnp.asarray(lower) @ unit(key)


def random_walk(log_density, name):
    propose = along_the_gaussian if name == "gaussian" else unit
    return metropolis.init, functools.partial(
        metropolis.step, log_density=log_density, propose=propose, scale=SCALES[name]
    )


def independence(log_density, name):
    """A Student t proposal that knows nothing of where it is."""
    centre = jnp.asarray({"gaussian": (1.0, -1.0)}.get(name, (0.5, 1.0)))

    def propose(position, *, key):
        return centre + 1.5 * jax.random.t(key, 3.0, (2,), position.dtype)

    def log_proposal(new, old):
        return jnp.sum(jax.scipy.stats.t.logpdf((new - centre) / 1.5, 3.0))

    return metropolis.init, functools.partial(
        metropolis.step_by,
        log_density=log_density,
        propose=propose,
        log_proposal=log_proposal,
    )


def by_coordinates(log_density, name):
    return slice.init, functools.partial(slice.step, log_density=log_density, width=0.7)


def by_directions(log_density, name):
    draw = along_the_gaussian if name == "gaussian" else unit
    return slice.init, functools.partial(
        slice.step_along, log_density=log_density, draw=draw
    )


def by_ellipses(log_density, name):
    """About N(0, 4I), which the target is divided by."""

    def log_ratio(f):
        return log_density(f) + jnp.sum(f**2) / 8

    def init(position, _):
        return elliptical_slice.init(position, log_ratio)

    return init, functools.partial(
        elliptical_slice.step, log_likelihood=log_ratio, draw=lambda k: 2 * unit(k)
    )


def hamiltonian(module):
    """With steps that neither the banana's bend nor the walls send away."""

    def build(log_density, name):
        correlated = jnp.asarray([[1.0, 0.99], [0.99, 1.0]])
        inverse_mass = correlated if name == "gaussian" else None

        def init(position, log_density):
            return module.init(position, log_density, STEPS[name], inverse_mass)

        return init, functools.partial(module.step, log_density=log_density)

    return build


CHAINS = {
    "random walk": random_walk,
    "independence": independence,
    "slice": by_coordinates,
    "slice along": by_directions,
    "elliptical slice": by_ellipses,
    "hmc": hamiltonian(hmc),
    "nuts": hamiltonian(nuts),
}
# Steps between draws, where coordinates or ellipses move slowly along the ridge.
THINNING = {"gaussian": 20, "banana": 5, "truncated": 2}
LONG = {("nuts", "banana"), ("nuts", "truncated"), ("hmc", "truncated")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "name"),
    [
        pytest.param(*pair, marks=pytest.mark.long if pair in LONG else ())
        for pair in itertools.product(CHAINS, TARGETS)
    ],
)
def test_chains_have_the_known_moments(sampler, name, key):
    target = TARGETS[name]
    init, step = CHAINS[sampler](target.log_density, name)
    starts, keys = chains_from(name, key)

    @jax.jit
    @jax.vmap
    def chain(start, key):
        state = init(start, target.log_density)
        return sampling.scan(
            step,
            state,
            key=key,
            num_samples=150,
            num_warmup=600,
            thinning=2 if sampler in ("hmc", "nuts") else THINNING[name],
        )

    found = chain(starts, keys)
    assert np.all(p_values(found.draws, target) > LEVEL)


def heavy(key):
    # Tails heavier than all targets' bound the weights.
    return 2.0 * jax.random.t(key, 3.0, (2,), jnp.result_type(float))


def log_heavy(f):
    return jnp.sum(jax.scipy.stats.t.logpdf(f / 2.0, 3.0)) - 2 * jnp.log(2.0)


def known_log_normaliser(name):
    constants = {
        "gaussian": np.log(2 * np.pi * np.sqrt(1 - 0.99**2)),
        "banana": np.log(2 * np.pi * 0.5),
        "truncated": np.log(
            np.sqrt(2 * np.pi) * (stats.norm.cdf(2) - stats.norm.cdf(0.5))
        ),
    }
    return constants[name]


@pytest.mark.parametrize("name", TARGETS)
def test_rejection_has_the_known_moments_and_normaliser(name, key):
    target = TARGETS[name]
    log_bound = {"gaussian": 3.72, "banana": 4.14, "truncated": 3.31}[name]
    num = 60

    @jax.jit
    @jax.vmap
    def sample(key):
        return rejection.sample(
            target.log_density, heavy, log_heavy, log_bound, key=key, num=num
        )

    found = sample(jax.random.split(key, 200))
    assert np.all(np.asarray(found.largest_log_ratio) <= 0)
    assert np.all(np.asarray(found.num_accepted) == num)
    assert np.all(p_values(found.draws, target) > LEVEL)
    # One estimate from all: the logarithm of each is low by half its variance, 1/60.
    error = np.mean(found.log_normaliser) - known_log_normaliser(name)
    assert abs(error) < 4 * float(np.mean(found.standard_error)) / 14 + 0.5 / num


@pytest.mark.parametrize("name", TARGETS)
def test_importance_has_the_known_moments_and_normaliser(name, key):
    target = TARGETS[name]
    found = importance.sample(target.log_density, heavy, log_heavy, key=key, num=40_000)
    assert float(found.pareto_k) < 0.7
    value, error = found.log_normaliser
    assert abs(float(value) - known_log_normaliser(name)) < 4 * float(error)
    moments = target.functions(np.asarray(found.draws))
    estimate = found._replace(draws=jnp.asarray(moments)).expectation(lambda m: m)
    z = (np.asarray(estimate.value) - target.means) / estimate.standard_error
    assert np.all(np.abs(z) < 4)


def prior_slices(log_ratio, draw):
    def move(beta, particles):
        def kernel(particle, *, key):
            state = elliptical_slice.State(particle.position, beta * particle.log_ratio)
            state, info = elliptical_slice.step(
                state, lambda f: beta * log_ratio(f), draw, key=key
            )
            moved = smc.Particle(state.position, state.log_likelihood / beta)
            return moved, info.num_evaluations

        return kernel

    return move


def wide(key):
    return 12.0 * unit(key)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["smc", "annealed_importance"])
@pytest.mark.parametrize(
    ("density", "log_normaliser"),
    [(two_modes, np.log(2 * np.pi)), (funnel, np.log(6 * np.pi))],
)
def test_temperatures_see_both_modes_and_the_funnel(
    method, density, log_normaliser, key
):
    def log_ratio(f):
        return density(f) + jnp.sum(f**2) / 288 + jnp.log(2 * jnp.pi * 144)

    move = prior_slices(log_ratio, wide)

    @jax.jit
    @jax.vmap
    def estimate(key):
        draw_key, run_key = jax.random.split(key)
        positions = jax.vmap(wide)(jax.random.split(draw_key, 400))
        if method == "smc":
            state = smc.init(positions, log_ratio)
            ended = smc.run(state, move, key=run_key).state
            first = ended.particles.position[:, 0]
            return ended.log_normaliser, jnp.mean(first > 0)
        betas = annealed_importance.schedule(60)
        found = annealed_importance.run(
            positions, log_ratio, move, key=run_key, betas=betas
        )
        share = found.sample.expectation(lambda f: (f[0] > 0).astype(f.dtype))
        return found.sample.log_normaliser.value, share.value

    values, shares = estimate(jax.random.split(key, 40))
    ratios = np.exp(np.asarray(values) - log_normaliser)
    for found, wanted in ((ratios, 1.0), (np.asarray(shares), 0.5)):
        error = np.std(found, ddof=1) / np.sqrt(40)
        assert error < 0.1
        assert abs(np.mean(found) - wanted) < 4 * error


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["random walk", "slice"])
@pytest.mark.parametrize("density", [two_modes, funnel])
def test_chains_that_miss_a_part_are_flagged(sampler, density, key):
    init, step = CHAINS[sampler](density, "banana")
    starts = jnp.asarray([[-10.0, -10.0], [10.0, 10.0]] * 2)
    if density is funnel:
        starts = jnp.asarray([[-6.0, 0.01], [6.0, 8.0]] * 2)

    @jax.jit
    @jax.vmap
    def chain(start, key):
        state = init(start, density)
        return sampling.scan(step, state, key=key, num_samples=500, num_warmup=100)

    draws = chain(starts, jax.random.split(key, 4)).draws
    worst = float(np.max(sampling.rhat(draws)))
    least = float(np.min(sampling.effective_sample_size(draws)))
    assert worst > 1.01 or least < 400


def test_detailed_balance_of_five_states_is_exact():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(5))
    q = rng.dirichlet(np.ones(5), size=5)
    log_p, log_q = jnp.log(jnp.asarray(p)), jnp.log(jnp.asarray(q))

    def log_density(i):
        return log_p[i.astype(int)]

    def log_proposal(new, old):
        return log_q[old.astype(int), new.astype(int)]

    def acceptance(i, j):
        state = metropolis.init(jnp.asarray(float(i)), log_density)
        _, info = metropolis.step_by(
            state,
            log_density,
            lambda position, *, key: jnp.asarray(float(j)),
            log_proposal,
            key=jax.random.key(0),
        )
        return float(info.acceptance)

    accepted = np.array([[acceptance(i, j) for j in range(5)] for i in range(5)])
    flow = p[:, None] * q * accepted
    np.testing.assert_allclose(flow, flow.T, rtol=1e-13, atol=0)
    assert np.min(accepted) < 0.5
