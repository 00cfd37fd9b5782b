r"""Sequential Monte Carlo from a distribution that can be drawn from to any other.

Particles go through $\pi_\beta(f) \propto q(f)\,r(f)^\beta$, $\beta$ from 0 to 1, where
$r$ is the density of the target, which need not be normalised, over $q$. A temperature
weighs each particle by $r^{\beta' - \beta}$, resamples and moves them by a kernel that
leaves $\pi_{\beta'}$ invariant. The product of the mean weights estimates
$\int q\,r$, the target's normaliser.

With temperatures fixed in advance that estimate has no bias. Those chosen from the
particles themselves give one of order 1/N, below the standard error by a factor of
order $1/\sqrt N$ (Beskos, Jasra, Kantas & Thiery 2016).

References:
    Del Moral, Doucet & Jasra 2006, Sequential Monte Carlo samplers, JRSS B 68.
    Jasra, Stephens, Doucet & Tsagaris 2011, Inference for Lévy-driven stochastic
    volatility models via adaptive sequential Monte Carlo, Scand. J. Statist. 38.
    Zhou, Johansen & Aston 2016, Toward automatic model comparison: an adaptive
    sequential Monte Carlo approach, J. Comput. Graph. Statist. 25.
    Carpenter, Clifford & Fearnhead 1999, Improved particle filter for nonlinear
    problems, IEE Proc. Radar 146 (systematic resampling).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray, PyTree

from jgp._parameters import is_concrete
from jgp._results import RESULTS, unless
from jgp._types import as_float, check_key, positive_integer
from jgp.sampling._steps import moved
from jgp.sampling._target import evaluate
from jgp.sampling._tempering import Move, Particle, in_batches, log_power, next_beta
from jgp.sampling._weights import importance_ess


class State(NamedTuple):
    """Equally weighted particles of π_β, and log of the estimate of ∫ q r^β."""

    particles: Particle
    beta: Float[Array, ""]
    log_normaliser: Float[Array, ""]


class Info(NamedTuple):
    """What one step did.

    `ess` is the effective sample size of the weights that led to the new `beta`, and
    `moves` holds the means over particles of what the moves told.
    """

    beta: Float[Array, ""]
    ess: Float[Array, ""]
    moves: PyTree[Array]


class Run(NamedTuple):
    """The last state, an info a step, and how the run ended.

    `infos` have a leading axis of length `max_steps`, NaN beyond `num_steps`. `result`
    is `successful` at β = 1, `max_steps_reached` before, and `non_finite` where r is 0
    at every particle or infinite at one.
    """

    state: State
    infos: Info
    num_steps: Int[Array, ""]
    result: RESULTS


def init(
    positions: PyTree,
    log_ratio: Callable[[Any], Array],
    *,
    batch_size: int | None = None,
) -> State:
    """The state at β = 0.

    Args:
        positions: Draws of q, stacked along a leading axis. They need not be
            independent of one another: antithetic pairs serve.
        log_ratio: Maps a position to log r, a scalar; NaN counts as −inf.
        batch_size: Evaluations at once; all by default.
    """
    positions = jax.tree.map(as_float, positions)
    values = in_batches(lambda f: evaluate(log_ratio, f), positions, batch_size)
    zero = jnp.zeros((), values.dtype)
    return State(Particle(positions, values), zero, zero)


def step(
    state: State,
    move: Move,
    *,
    key: PRNGKeyArray,
    ess_fraction: ArrayLike = 0.8,
    batch_size: int | None = None,
) -> tuple[State, Info]:
    """Go to the next temperature: weigh, resample and move.

    At β = 1 particles are not moved, which would not change the normaliser:
    `rejuvenate` does so, and parts those that were resampled from one.

    Args:
        state: The state, from `init` or the step before.
        move: `move(beta, particles)`, called once a temperature, returns a kernel that
            leaves π_β invariant: `kernel(particle, key=key)` returns a particle and an
            info, an array or a pytree of arrays. It may learn from the particles, which
            are stacked and weigh alike; as with temperatures, the bias of that is of
            order 1/N.
        key: A typed random key.
        ess_fraction: As for `next_beta`.
        batch_size: Particles that move at once; all by default.

    Raises:
        ValueError: If `ess_fraction` is known not to lie in (0, 1), `key` is no key, or
            a kernel returns no particle.
    """
    check_key(key)
    _check_fraction(ess_fraction)
    resample_key, move_key = jax.random.split(key)
    particles, beta, log_normaliser = state
    log_ratios = particles.log_ratio
    new = next_beta(log_ratios, beta, ess_fraction)
    log_weights = log_power(log_ratios, new - beta)
    total = jax.nn.logsumexp(log_weights)
    weights = jnp.exp(log_weights - total)
    chosen = systematic_resampling(weights, key=resample_key)
    state = State(
        jax.tree.map(lambda leaf: leaf[chosen], particles),
        new,
        log_normaliser + total - math.log(log_ratios.shape[0]),
    )

    def rejuvenated():
        return rejuvenate(state, move, key=move_key, batch_size=batch_size)

    def unmoved():
        shape = jax.eval_shape(rejuvenated)[1]
        nothing = jax.tree.map(lambda s: jnp.full(s.shape, jnp.nan, s.dtype), shape)
        return state, nothing

    under_way = (new < 1) & jnp.isfinite(total)
    state, infos = lax.cond(under_way, rejuvenated, unmoved)
    return state, Info(new, importance_ess(log_weights), infos)


def rejuvenate(
    state: State,
    move: Move,
    *,
    key: PRNGKeyArray,
    batch_size: int | None = None,
) -> tuple[State, PyTree[Array]]:
    """Move each particle once, at the same temperature.

    Args:
        state: A state.
        move: As for `step`.
        key: A typed random key.
        batch_size: Particles that move at once; all by default.

    Returns:
        The state, and the means over particles of what the moves told.
    """
    check_key(key)
    dtype = state.beta.dtype
    keys = jax.random.split(key, state.particles.log_ratio.shape[0])

    kernel = move(state.beta, state.particles)

    def one(particle_and_key):
        particle, key = particle_and_key
        return moved(kernel(particle, key=key), particle, "move(beta, particles)")

    particles, infos = in_batches(one, (state.particles, keys), batch_size)
    means = jax.tree.map(lambda a: jnp.mean(a.astype(dtype), axis=0), infos)
    return state._replace(particles=particles), means


def run(
    state: State,
    move: Move,
    *,
    key: PRNGKeyArray,
    ess_fraction: ArrayLike = 0.8,
    max_steps: int = 200,
    batch_size: int | None = None,
) -> Run:
    """Go from β = 0 to 1; compiles under `jit`, batches under `vmap` over keys.

    Args:
        state: A state from `init`.
        move: As for `step`.
        key: A typed random key. Step t uses `fold_in(key, t)`.
        ess_fraction: As for `next_beta`.
        max_steps: The most temperatures.
        batch_size: Particles that move at once; all by default.

    Raises:
        ValueError: As for `step`, or if `max_steps` is no integer of at least 1.
    """
    check_key(key)
    max_steps = int(positive_integer("max_steps", max_steps))

    def advance(state, t):
        return step(
            state,
            move,
            key=jax.random.fold_in(key, t),
            ess_fraction=ess_fraction,
            batch_size=batch_size,
        )

    def under_way(carry):
        state, _, t = carry
        possible = jnp.isfinite(state.log_normaliser)
        return (state.beta < 1) & possible & (t < max_steps)

    def body(carry):
        state, infos, t = carry
        state, info = advance(state, t)
        infos = jax.tree.map(lambda old, new: old.at[t].set(new), infos, info)
        return state, infos, t + 1

    start = jnp.zeros((), jnp.int32)
    shapes = jax.eval_shape(advance, state, start)[1]
    empty = jax.tree.map(
        lambda s: jnp.full((max_steps, *s.shape), jnp.nan, s.dtype), shapes
    )
    state, infos, num_steps = lax.while_loop(under_way, body, (state, empty, start))
    reached = unless(state.beta >= 1, RESULTS.max_steps_reached)
    finite = jnp.isfinite(state.log_normaliser)
    result = RESULTS.where(finite, reached, RESULTS.non_finite)
    return Run(state, infos, num_steps, result)


def _check_fraction(ess_fraction: ArrayLike) -> None:
    if is_concrete(ess_fraction) and not 0 < float(np.asarray(ess_fraction)) < 1:
        raise ValueError(
            f"ess_fraction: expected a number in (0, 1), got {ess_fraction}."
        )


def systematic_resampling(
    weights: Float[Array, " num"], *, key: PRNGKeyArray
) -> Int[Array, " num"]:
    """Indices of as many particles, each ⌊Nw⌋ or ⌈Nw⌉ times and Nw on average.

    A weight of 0 is never chosen (Carpenter, Clifford & Fearnhead 1999).

    Args:
        weights: Non-negative, with a positive sum.
        key: A typed random key.
    """
    check_key(key)
    num, dtype = weights.shape[0], weights.dtype
    up_to = jnp.cumsum(weights)
    teeth = jnp.arange(num, dtype=dtype) + jax.random.uniform(key, dtype=dtype)
    # A tooth that rounds to 1 would lie beyond the last weight.
    below_one = 1 - jnp.finfo(dtype).epsneg
    teeth = jnp.minimum(teeth / num, below_one) * up_to[-1]
    return jnp.minimum(jnp.searchsorted(up_to, teeth, side="right"), num - 1)
