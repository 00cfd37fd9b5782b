"""Sequential Monte Carlo against normalisers known in closed form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jgp._results import RESULTS
from jgp.sampling import annealed_importance, elliptical_slice, importance_ess, smc

# q = N(0, I) and r = 3 N(y; f, NOISE): ∫ q r = 3 N(y; 0, I + NOISE), the target
# proportional to the posterior of f.
Y = np.array([1.0, -1.5, 2.0])
NOISE = np.array([0.3, 1.0, 0.5])
NUM_RUNS = 24
LOG_NORMALISER = np.log(3) + stats.norm.logpdf(Y, 0, np.sqrt(1 + NOISE)).sum()


def log_ratio(f):
    y, noise = jnp.asarray(Y, f.dtype), jnp.asarray(NOISE, f.dtype)
    density = -((y - f) ** 2) / noise / 2 - jnp.log(2 * jnp.pi * noise) / 2
    return jnp.log(jnp.asarray(3, f.dtype)) + jnp.sum(density)


def normal(key):
    return jax.random.normal(key, (3,))


def slices(log_ratio, draw=normal, num_moves=2):
    """Elliptical slices about q as a move."""

    def move(beta, particles):
        def power(f):
            return beta * log_ratio(f)

        def step(state, key):
            return elliptical_slice.step(state, power, draw, key=key)

        def kernel(particle, *, key):
            state = elliptical_slice.State(particle.position, beta * particle.log_ratio)
            state, infos = jax.lax.scan(step, state, jax.random.split(key, num_moves))
            moved = smc.Particle(state.position, state.log_likelihood / beta)
            return moved, {"evaluations": jnp.mean(infos.num_evaluations)}

        return kernel

    return move


def still(beta, particles):
    """The move that compiles fastest."""
    return lambda particle, *, key: (particle, beta)


def run(log_ratio, move, draw=normal, *, key, num=200, batch_size=None, **options):
    draw_key, run_key = jax.random.split(key)
    positions = jax.vmap(draw)(jax.random.split(draw_key, num))
    state = smc.init(positions, log_ratio, batch_size=batch_size)
    return smc.run(state, move, key=run_key, batch_size=batch_size, **options)


@functools.cache
def gaussian_runs():
    keys = jax.random.split(jax.random.key(0), NUM_RUNS)
    return jax.jit(jax.vmap(lambda k: run(log_ratio, slices(log_ratio), key=k)))(keys)


@pytest.mark.slow
@pytest.mark.float32
def test_gaussian_normaliser_has_no_bias():
    runs = gaussian_runs()
    assert np.all(runs.result == RESULTS.successful)
    ratios = np.exp(np.asarray(runs.state.log_normaliser) - LOG_NORMALISER)
    # Of estimates of the normaliser itself, not of its logarithm.
    assert abs(ratios.mean() - 1) < 4 * ratios.std(ddof=1) / np.sqrt(NUM_RUNS)
    assert ratios.std() < 0.2


@pytest.mark.float32
def test_particles_are_of_the_target():
    state = gaussian_runs().state
    moments = np.asarray(state.particles.position)
    variance = NOISE / (1 + NOISE)
    # Particles of one run share ancestors; the runs are independent.
    means = moments.mean(axis=1)
    error = means.mean(axis=0) - Y / (1 + NOISE)
    assert np.all(np.abs(error) < 4 * means.std(axis=0, ddof=1) / np.sqrt(NUM_RUNS))
    np.testing.assert_allclose(moments.var(axis=(0, 1)), variance, rtol=0.1)
    values = jax.vmap(jax.vmap(log_ratio))(state.particles.position)
    np.testing.assert_allclose(state.particles.log_ratio, values, rtol=1e-3, atol=1e-3)


@pytest.mark.float32
def test_temperatures_keep_the_effective_sample_size():
    runs = gaussian_runs()
    assert np.all(np.asarray(runs.num_steps) >= 3)
    for betas, ess, evaluations, num_steps in zip(
        runs.infos.beta,
        runs.infos.ess,
        runs.infos.moves["evaluations"],
        runs.num_steps,
        strict=True,
    ):
        assert betas[num_steps - 1] == 1
        assert np.all(np.diff(betas[:num_steps]) > 0)
        assert np.all(np.isnan(betas[num_steps:]))
        np.testing.assert_allclose(ess[: num_steps - 1], 160, rtol=1e-2)
        assert ess[num_steps - 1] >= 159
        # Nothing moves at the last.
        assert np.all(evaluations[: num_steps - 1] >= 1)
        assert np.isnan(evaluations[num_steps - 1])


@pytest.mark.slow
@pytest.mark.float32
def test_batches_and_jit_change_nothing(key):
    together = jax.jit(lambda k: run(log_ratio, slices(log_ratio), key=k, num=60))(key)
    # Batches of six, the largest divisor of 60 within seven.
    batched = run(log_ratio, slices(log_ratio), key=key, num=60, batch_size=7)
    np.testing.assert_allclose(
        batched.state.log_normaliser, together.state.log_normaliser, rtol=1e-4
    )
    assert batched.num_steps == together.num_steps


@pytest.mark.float32
def test_ratio_that_is_zero_or_nan_on_most_of_the_space(key):
    # The normaliser is the probability of the interval (1, 2) times e⁻³; r does not
    # vary within it, so that one temperature is enough.
    def inside(f):
        return jnp.where(f > 2, jnp.nan, jnp.where(f > 1, -3.0, -jnp.inf))

    ended = run(inside, still, jax.random.normal, key=key, num=4000)
    share = stats.norm.cdf(2) - stats.norm.cdf(1)
    error = np.sqrt((1 - share) / share / 4000)
    assert abs(ended.state.log_normaliser - np.log(share) + 3) < 4 * error
    assert ended.num_steps == 1
    position = np.asarray(ended.state.particles.position)
    assert np.all((position > 1) & (position <= 2))


@pytest.mark.float32
def test_bounded_number_of_temperatures_gives_a_status(key):
    def narrow(f):
        return -5e3 * jnp.sum((f - 1) ** 2)

    ended = run(narrow, still, key=key, num=50, max_steps=2)
    assert bool(ended.result == RESULTS.max_steps_reached)
    assert ended.num_steps == 2
    assert 0 < ended.state.beta < 1
    nowhere = run(lambda f: jnp.sum(f) * jnp.nan, still, key=key, num=50)
    assert bool(nowhere.result == RESULTS.non_finite)
    assert nowhere.state.log_normaliser == -np.inf
    assert nowhere.num_steps == 1


@pytest.mark.float32
def test_next_beta(key):
    log_ratios = 30 * jax.random.normal(key, (200,))
    start = jnp.zeros_like(log_ratios[0])
    next_beta = jax.jit(smc.next_beta)
    half = next_beta(log_ratios, start, 0.5)
    np.testing.assert_allclose(importance_ess(half * log_ratios), 100, rtol=1e-3)
    assert next_beta(log_ratios, start, 0.9) < half
    assert next_beta(log_ratios / 1000, start + 0.25, 0.9) == 1


@pytest.mark.float32
def test_systematic_resampling_is_fair(key):
    weights = jnp.asarray([0.0, 0.3, 0.0, 0.25, 0.45, 0.0], jnp.result_type(float))
    choose = jax.jit(jax.vmap(lambda k: smc.systematic_resampling(weights, key=k)))
    chosen = np.asarray(choose(jax.random.split(key, 4000)))
    counts = np.stack([np.bincount(row, minlength=6) for row in chosen])
    expected = 6 * np.asarray(weights)
    assert np.all(np.abs(counts - expected) < 1)
    np.testing.assert_allclose(counts.mean(axis=0), expected, atol=0.04)


def test_wrong_input_is_refused(key):
    with pytest.raises(ValueError, match="max_steps: got 0, wanted an integer >= 1"):
        run(log_ratio, slices(log_ratio), key=key, num=4, max_steps=0)
    with pytest.raises(ValueError, match=r"scalar: expected shape \(\), got \(3,\)"):
        smc.init(jnp.zeros((5, 3)), lambda f: f)
    for share in (0.0, 1.0, np.nan):
        with pytest.raises(ValueError, match=r"ess_fraction: expected a number in"):
            run(log_ratio, slices(log_ratio), key=key, num=4, ess_fraction=share)

    def bare(beta, particles):
        return lambda particle, *, key: particle.position

    with pytest.raises(ValueError, match=r"move\(beta, particles\): returned"):
        run(log_ratio, bare, key=key, num=4)


@pytest.mark.parametrize(
    "betas", [[0.0, 1.0], [0.5, 0.4, 1.0], [0.5, 0.9], [np.nan, 1.0], [0.5, 2.0, 1.0]]
)
def test_temperatures_that_do_not_increase_to_one_are_refused(betas, key):
    start = jnp.zeros((3, 2), jnp.result_type(float))
    with pytest.raises(ValueError, match="betas: expected numbers that increase"):
        annealed_importance.run(
            start, log_ratio, slices(log_ratio), key=key, betas=betas
        )
