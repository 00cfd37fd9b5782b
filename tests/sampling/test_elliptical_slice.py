"""Elliptical slice sampling against posteriors known in closed form."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jgp import sampling
from jgp.sampling import elliptical_slice

MEAN = np.array([1.0, -0.5, 0.3])
SIGMA = np.array([[1.0, 0.6, 0.2], [0.6, 1.5, -0.3], [0.2, -0.3, 0.8]])
Y = np.array([2.0, 0.0, -1.0])
NOISE = np.array([0.5, 1.0, 2.0])


def draw(key):
    lower = jnp.asarray(np.linalg.cholesky(SIGMA), jnp.result_type(float))
    return lower @ jax.random.normal(key, (3,))


def log_likelihood(f):
    y, noise = jnp.asarray(Y, f.dtype), jnp.asarray(NOISE, f.dtype)
    return -0.5 * jnp.sum((y - f) ** 2 / noise)


def run(log_likelihood, draw, mean, start, *, key, **counts):
    step = functools.partial(
        elliptical_slice.step, log_likelihood=log_likelihood, draw=draw, mean=mean
    )
    state = elliptical_slice.init(start, log_likelihood)
    return sampling.scan(step, state, key=key, **counts)


def standard_errors(draws, expected):
    """The error of the mean of (chains, draws, ...) in Monte Carlo standard errors."""
    error = np.mean(draws, axis=(0, 1)) - expected
    return np.abs(error) / np.asarray(sampling.mcse_mean(draws))


@pytest.mark.float32
def test_conjugate_gaussian_posterior(key):
    one = functools.partial(
        run,
        log_likelihood,
        draw,
        jnp.asarray(MEAN, jnp.result_type(float)),
        jnp.zeros(3),
        num_samples=2000,
        num_warmup=50,
    )
    chains = jax.jit(jax.vmap(lambda k: one(key=k)))(jax.random.split(key, 4))
    gain = SIGMA @ np.linalg.inv(SIGMA + np.diag(NOISE))
    mean, covariance = MEAN + gain @ (Y - MEAN), SIGMA - gain @ SIGMA
    # 4 standard errors: each of 12 numbers fails for one seed in 15 000.
    draws = np.asarray(chains.draws)
    centred = draws - mean
    products = (centred[..., :, None] * centred[..., None, :]).reshape(4, -1, 9)
    moments = np.concatenate([draws, products], axis=-1)
    expected = np.concatenate([mean, covariance.ravel()])
    assert np.all(standard_errors(moments, expected) < 4)
    assert np.all(chains.infos.moved)


@pytest.mark.float32
def test_likelihood_that_is_a_step_function(key):
    # N(0, 1) cut off below 0.5; half the plane has log likelihood −inf, and the NaN
    # beyond 3 must count as −inf too.
    def inside(f):
        return jnp.where(f > 3.0, jnp.nan, jnp.where(f > 0.5, 0.0, -jnp.inf))

    chain = jax.jit(
        lambda k: run(
            inside,
            jax.random.normal,
            None,
            1.0,
            key=k,
            num_samples=8000,
            num_warmup=50,
        )
    )(key)
    x = np.asarray(chain.draws)[None]
    truncated = stats.truncnorm(0.5, 3.0)
    assert np.all((x > 0.5) & (x <= 3.0))
    assert standard_errors(x, truncated.mean()) < 4
    assert standard_errors((x - truncated.mean()) ** 2, truncated.var()) < 4
    below = (x < truncated.ppf(0.25)).astype(x.dtype)
    assert standard_errors(below, 0.25) < 4


@pytest.mark.slow
@pytest.mark.float32
def test_pytree_position_is_the_concatenated_vector(key):
    def draw_tree(key):
        f = draw(key)
        return {"a": f[:2], "b": f[2]}

    def join(tree):
        return jnp.concatenate([tree["a"], tree["b"][None]])

    mean = jnp.asarray(MEAN, jnp.result_type(float))
    counts = {"num_samples": 20, "num_warmup": 0}
    flat = run(log_likelihood, draw, mean, jnp.zeros(3), key=key, **counts)
    tree = run(
        lambda t: log_likelihood(join(t)),
        draw_tree,
        {"a": mean[:2], "b": mean[2]},
        {"a": jnp.zeros(2), "b": 0.0},
        key=key,
        **counts,
    )
    joined = jax.vmap(join)(tree.draws)
    np.testing.assert_allclose(joined, flat.draws, rtol=1e-4, atol=1e-5)


@pytest.mark.float32
def test_a_step_stays_on_its_ellipse_and_slice(key):
    mean = jnp.asarray(MEAN, jnp.result_type(float))
    state = elliptical_slice.init(jnp.zeros(3), log_likelihood)
    directions = []

    def recorded(key):
        directions.append(draw(key))
        return directions[-1]

    new, info = elliptical_slice.step(state, log_likelihood, recorded, mean, key=key)
    theta = info.angle
    expected = mean - mean * jnp.cos(theta) + directions[0] * jnp.sin(theta)
    np.testing.assert_allclose(new.position, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(new.log_likelihood, log_likelihood(new.position))
    assert info.num_evaluations >= 1


@pytest.mark.float32
def test_exhausted_search_stays_put_and_says_so(key):
    # Only the starting point has likelihood: no other point of the ellipse is found.
    def point_mass(f):
        return jnp.where(f[0] == 1.0, 0.0, jnp.nan)

    state = elliptical_slice.init(jnp.array([1.0, 2.0]), point_mass)
    new, info = elliptical_slice.step(
        state, point_mass, lambda k: jax.random.normal(k, (2,)), key=key, max_steps=7
    )
    np.testing.assert_array_equal(new.position, state.position)
    assert new.log_likelihood == 0.0
    assert info.num_evaluations == 7
    assert not info.moved
    assert info.angle == 0.0


@pytest.mark.float32
def test_flat_likelihood_of_large_magnitude_accepts_at_once(key):
    # At −1e9 a threshold below the level may round to the level itself.
    def flat(f):
        return 0.0 * f - 1e9

    chain = run(
        flat, jax.random.normal, None, 0.0, key=key, num_samples=100, num_warmup=0
    )
    assert np.all(chain.infos.num_evaluations == 1)


@pytest.mark.float32
def test_start_of_zero_likelihood_can_only_move_to_a_positive_one(key):
    def right(f):
        return jnp.where(f > 0, -f, -jnp.inf)

    with pytest.raises(ValueError, match="log density at the start is -inf"):
        elliptical_slice.init(-1.0, right)
    state = jax.jit(lambda f: elliptical_slice.init(f, right))(-1.0)
    assert state.log_likelihood == -jnp.inf
    new, info = elliptical_slice.step(state, right, jax.random.normal, key=key)
    assert info.moved == (new.position > 0)
    assert np.isfinite(new.log_likelihood) == info.moved


def test_wrong_input_is_refused(key):
    state = elliptical_slice.init(jnp.zeros(3), log_likelihood)
    step = functools.partial(elliptical_slice.step, state, log_likelihood, key=key)
    with pytest.raises(ValueError, match=r"draw.*expected \(3,\), got \(3, 1\)"):
        step(lambda k: jnp.zeros((3, 1)))
    with pytest.raises(ValueError, match="mean must have the tree structure"):
        step(draw, [jnp.zeros(3)])
    with pytest.raises(ValueError, match="max_steps: got 0, wanted an integer >= 1"):
        step(draw, max_steps=0)
    with pytest.raises(ValueError, match=r"scalar: expected shape \(\), got \(3,\)"):
        elliptical_slice.init(jnp.zeros(3), lambda f: f)
