r"""What goes from one distribution to another by temperatures has in common.

Between $q$ and the density $q(f)\,r(f)$ stand $\pi_\beta(f) \propto q(f)\,r(f)^\beta$,
and a particle is a position with the log of $r$ there.

References:
    Zhou, Johansen & Aston 2016, Toward automatic model comparison: an adaptive
    sequential Monte Carlo approach, J. Comput. Graph. Statist. 25.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float, PyTree

from jgp.sampling._weights import importance_ess

# Halvings of the interval of the next temperature: enough for log ratios that vary by
# 1e10 from particle to particle.
NUM_HALVINGS = 50


class Particle(NamedTuple):
    """A position and log r there."""

    position: PyTree[Array]
    log_ratio: Float[Array, "*num"]


# Maps β and the particles, stacked, to a kernel that leaves π_β invariant: a function
# of a particle, and a key by keyword, to a particle and an info.
Move = Callable[[Array, Particle], Callable[..., tuple[Particle, Any]]]


def next_beta(
    log_ratios: Float[Array, " num"],
    beta: Float[Array, ""],
    ess_fraction: ArrayLike = 0.8,
) -> Float[Array, ""]:
    """The largest β' ≤ 1 at which the weights r^(β' − β) keep a share of their ESS.

    The effective sample size falls as β' grows, so that bisection finds it. Of equally
    weighted particles it is the conditional one of Zhou et al. 2016.

    Args:
        log_ratios: log r of equally weighted particles of π_β.
        beta: β.
        ess_fraction: The effective sample size wanted, as a share of the particles at
            which r is not 0, in (0, 1). Weights of log variance v leave exp(−v) of it
            and add exp(v) − 1 to the variance of the estimate times the number of
            particles: at equal work 0.8 loses a tenth to ever closer temperatures, 0.5
            two fifths.
    """
    dtype = log_ratios.dtype
    alive = jnp.sum(log_ratios > -jnp.inf).astype(dtype)
    wanted = jnp.asarray(ess_fraction, dtype) * alive

    def enough(delta):
        return importance_ess(log_power(log_ratios, delta)) >= wanted

    def halve(_, interval):
        low, high = interval
        middle = (low + high) / 2
        right = enough(middle)
        return jnp.where(right, middle, low), jnp.where(right, high, middle)

    whole = 1 - beta
    interval = (jnp.zeros_like(beta), whole)
    low, _ = lax.fori_loop(0, NUM_HALVINGS, halve, interval)
    return jnp.where(enough(whole), jnp.ones_like(beta), beta + low)


def log_power(log_ratios: Float[Array, " num"], delta: Array) -> Float[Array, " num"]:
    """Log r^δ, −inf for r = 0 even where δ is 0."""
    return jnp.where(log_ratios > -jnp.inf, delta * log_ratios, -jnp.inf)


def in_batches(
    function: Callable[[Any], Any], over: PyTree, batch_size: int | None
) -> Any:
    """`vmap`, in equal batches where memory has a bound: a rest compiles once more."""
    num = jax.tree.leaves(over)[0].shape[0]
    if batch_size is None or batch_size >= num:
        return jax.vmap(function)(over)
    batch_size = next(b for b in range(batch_size, 0, -1) if num % b == 0)
    return lax.map(function, over, batch_size=None if batch_size == 1 else batch_size)
