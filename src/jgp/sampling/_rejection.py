r"""Rejection sampling: independent draws of a density under a bound that is known.

A draw of $Q$ is kept with probability $P/(cQ)$, where $P \le cQ$ everywhere; those kept
are draws of $P$, and the share kept estimates $\int P / c$ for a normalised $Q$
(von Neumann 1951).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray, PyTree

from jgp._parameters import is_concrete
from jgp._results import RESULTS, worst
from jgp._types import as_float, check_key, positive_integer
from jgp.sampling._target import evaluate

# How far log P may pass log cQ by rounding, in units of the larger.
ROUNDING_UNITS = 8


class Sample(NamedTuple):
    """Independent draws, and whether they are what they should be.

    Args:
        draws: Draws of P, stacked; beyond `num_accepted` NaN, or 0 for integers.
        num_accepted: Draws found.
        num_proposed: Draws of Q that were looked at for them.
        acceptance: The share of all draws of Q that were kept, which estimates
            ∫P / c.
        log_normaliser: log ∫P, of a normalised Q.
        standard_error: Of `log_normaliser`.
        largest_log_ratio: The largest log P/(cQ) met: 0 is the tightest c.
        result: `bound_exceeded` where it was above 0, `max_steps_reached` where too few
            were kept.
    """

    draws: PyTree[Array]
    num_accepted: Int[Array, ""]
    num_proposed: Int[Array, ""]
    acceptance: Float[Array, ""]
    log_normaliser: Float[Array, ""]
    standard_error: Float[Array, ""]
    largest_log_ratio: Float[Array, ""]
    result: RESULTS


def sample(
    log_density: Callable[[Any], Array],
    draw: Callable[[PRNGKeyArray], Any],
    log_proposal: Callable[[Any], Array],
    log_bound: ArrayLike,
    *,
    key: PRNGKeyArray,
    num: int,
    max_steps: int = 1000,
) -> Sample:
    """Draw from a density by throwing away draws of another.

    Args:
        log_density: log P, up to a constant that `log_bound` allows for; NaN counts as
            −inf.
        draw: Maps a key to a draw of Q.
        log_proposal: log Q.
        log_bound: log c, with P ≤ cQ everywhere; checked at every draw of Q.
        key: A typed random key.
        num: Draws wanted.
        max_steps: The most rounds, of `num` draws of Q each.

    Raises:
        ValueError: If a count is less than 1, `log_bound` no scalar or known not to be
            finite, or `key` no key.
    """
    check_key(key)
    num = int(positive_integer("num", num))
    max_steps = int(positive_integer("max_steps", max_steps))
    bound = as_float(log_bound)
    if bound.shape != ():
        raise ValueError(f"log_bound: expected a scalar, got shape {bound.shape}.")
    if is_concrete(bound) and not jnp.isfinite(bound):
        raise ValueError(f"log_bound: expected a finite number, got {bound}.")

    def propose(key):
        draw_key, accept_key = jax.random.split(key)
        position = jax.tree.map(jnp.asarray, draw(draw_key))
        log_q = evaluate(log_proposal, position)
        log_p = evaluate(log_density, position)
        possible = log_p > -jnp.inf
        ratio = log_p - log_q - bound.astype(log_p.dtype)
        ratio = jnp.where(possible, ratio, -jnp.inf)
        # −log of a uniform is exponential: never log(0).
        level = -jax.random.exponential(accept_key, dtype=ratio.dtype)
        # A ratio that is infinite, where Q is 0 but P is not, is beyond any rounding.
        scale = jnp.maximum(jnp.abs(log_p), jnp.abs(log_q))
        scale = jnp.where(jnp.isfinite(scale), scale, 1)
        slack = ROUNDING_UNITS * jnp.finfo(ratio.dtype).eps * jnp.maximum(scale, 1)
        # NaN is the ratio of two infinite densities.
        return position, ratio, (level < ratio) & possible, ~(ratio <= slack)

    def round_of(carry):
        draws, found, largest, exceeded, step = carry
        keys = jax.random.split(jax.random.fold_in(key, step), num)
        positions, ratios, kept, above = jax.vmap(propose)(keys)
        # Beyond the end nothing is written.
        places = jnp.where(kept, found + jnp.cumsum(kept, dtype=found.dtype) - 1, num)
        draws = jax.tree.map(
            lambda all, new: all.at[places].set(new, mode="drop"), draws, positions
        )
        found = found + jnp.sum(kept, dtype=found.dtype)
        largest = jnp.maximum(largest, jnp.max(ratios))
        return draws, found, largest, exceeded | jnp.any(above), step + 1

    def wanting(carry):
        return (carry[1] < num) & (carry[4] < max_steps)

    shapes = jax.eval_shape(propose, key)
    empty = jax.tree.map(lambda s: _missing((num, *s.shape), s.dtype), shapes[0])
    zero = jnp.zeros((), jnp.int32)
    start = (
        empty,
        zero,
        jnp.asarray(-jnp.inf, shapes[1].dtype),
        jnp.asarray(False),
        zero,
    )
    draws, found, largest, exceeded, steps = lax.while_loop(wanting, round_of, start)
    proposed = steps * num
    share = found.astype(largest.dtype) / proposed.astype(largest.dtype)
    enough = RESULTS.where(found >= num, RESULTS.successful, RESULTS.max_steps_reached)
    within = RESULTS.where(exceeded, RESULTS.bound_exceeded, RESULTS.successful)
    return Sample(
        draws,
        jnp.minimum(found, num),
        proposed,
        share,
        bound.astype(largest.dtype) + jnp.log(share),
        jnp.sqrt((1 - share) / jnp.maximum(found, 1).astype(largest.dtype)),
        largest,
        worst(enough, within),
    )


def _missing(shape: tuple[int, ...], dtype: Any) -> Array:
    inexact = jnp.issubdtype(dtype, jnp.inexact)
    return jnp.full(shape, jnp.nan if inexact else 0, dtype)
