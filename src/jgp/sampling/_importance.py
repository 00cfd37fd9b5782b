r"""Importance sampling: expectations under one density by draws of another.

With weights $w = P/Q$ of draws of $Q$, the mean of $w f$ estimates
$\int P f$ without bias (plain, $Q$ normalised), and $\sum w f / \sum w$ the expectation
of $f$ under $P$ normalised (self-normalised). Neither is to be trusted where the Pareto
$\hat k$ of the weights exceeds 0.7 (Vehtari, Simpson, Gelman, Yao & Gabry 2024).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jgp._results import RESULTS
from jgp._types import check_key, is_floating, positive_integer
from jgp.sampling._target import evaluate
from jgp.sampling._tempering import in_batches
from jgp.sampling._weights import importance_ess, pareto_k


class Estimate(NamedTuple):
    """A number, or an array of them, and its standard error."""

    value: Float[Array, "*dims"]
    standard_error: Float[Array, "*dims"]


class Sample(NamedTuple):
    """Weighted draws.

    Args:
        draws: Draws of Q, stacked along a leading axis.
        log_weights: log P/Q of each.
        ess: How many draws of P they are worth.
        pareto_k: k̂ of the weights: above 0.7 nothing here is to be trusted.
        result: `non_finite` where all weights are 0 or one is infinite.
    """

    draws: PyTree[Array]
    log_weights: Float[Array, " num"]
    ess: Float[Array, ""]
    pareto_k: Float[Array, ""]
    result: RESULTS

    @property
    def log_normaliser(self) -> Estimate:
        """Log ∫P, of a normalised Q."""
        num = self.log_weights.shape[0]
        log_mean = jax.nn.logsumexp(self.log_weights) - math.log(num)
        weights = jnp.exp(self.log_weights - log_mean)
        return Estimate(log_mean, jnp.std(weights, ddof=1) / math.sqrt(num))

    def expectation(self, function: Callable[[Any], Array]) -> Estimate:
        """The mean of a function of a draw under P normalised.

        Self-normalised, with a bias of order 1/num, and its standard error by the delta
        method (Owen 2013, eq. 9.8).
        """
        values = jax.vmap(function)(self.draws)
        shares = _aligned(jax.nn.softmax(self.log_weights), values)
        value = jnp.sum(_where(shares, values), axis=0)
        error = jnp.sqrt(jnp.sum(_where(shares, values - value[None]) ** 2, axis=0))
        return Estimate(value, error)

    def integral(self, function: Callable[[Any], Array]) -> Estimate:
        """∫P times a function of a draw, without bias, of a normalised Q.

        The error is NaN where all weights are 0.
        """
        values = jax.vmap(function)(self.draws)
        num = values.shape[0]
        terms = _where(_aligned(jnp.exp(self.log_weights), values), values)
        error = jnp.std(terms, axis=0, ddof=1) / math.sqrt(num)
        # Draws that all miss P do not know how much of it they miss.
        hit = jnp.any(self.log_weights > -jnp.inf)
        return Estimate(jnp.mean(terms, axis=0), jnp.where(hit, error, jnp.nan))

    def resample(self, *, key: PRNGKeyArray, num: int) -> PyTree[Array]:
        """Draws of about P, with repetitions, by the weights; NaN where these fail."""
        check_key(key)
        num = int(positive_integer("num", num))
        total = jnp.cumsum(jax.nn.softmax(self.log_weights))
        u = total[-1] * jax.random.uniform(key, (num,), total.dtype)
        # The first whose total exceeds u: never one of weight 0.
        chosen = jnp.searchsorted(total, u, side="right")
        chosen = jnp.minimum(chosen, total.size - 1)
        usable = self.result == RESULTS.successful

        def of(leaf: Array) -> Array:
            lost = jnp.nan if is_floating(leaf) else 0
            return jnp.where(usable, leaf[chosen], jnp.asarray(lost, leaf.dtype))

        return jax.tree.map(of, self.draws)


def sample(
    log_density: Callable[[Any], Array],
    draw: Callable[[PRNGKeyArray], Any],
    log_proposal: Callable[[Any], Array],
    *,
    key: PRNGKeyArray,
    num: int,
    batch_size: int | None = None,
) -> Sample:
    """Weigh draws of a density by another.

    Args:
        log_density: log P, up to a constant for all but integrals; NaN counts as −inf.
        draw: Maps a key to a draw of Q, which must reach wherever P does.
        log_proposal: log Q.
        key: A typed random key.
        num: Draws, at least 2.
        batch_size: Draws at once; all by default.

    Raises:
        ValueError: If there are fewer than two draws, or `key` is no key.
    """
    check_key(key)
    num = int(positive_integer("num", num, least=2))

    def one(key):
        position = draw(key)
        log_p = evaluate(log_density, position)
        log_weight = log_p - evaluate(log_proposal, position)
        # Where P is 0, so is the weight, whatever Q.
        return position, jnp.where(log_p > -jnp.inf, log_weight, -jnp.inf)

    draws, log_weights = in_batches(one, jax.random.split(key, num), batch_size)
    usable = jnp.isfinite(jnp.max(log_weights))
    return Sample(
        draws,
        log_weights,
        importance_ess(log_weights),
        pareto_k(log_weights),
        RESULTS.where(usable, RESULTS.successful, RESULTS.non_finite),
    )


def _aligned(weights: Float[Array, " num"], values: Array) -> Array:
    return weights.reshape(weights.shape + (1,) * (values.ndim - 1))


def _where(weights: Array, values: Array) -> Array:
    """Weights times values; a weight of 0 hides what is not finite."""
    return jnp.where(weights == 0, 0, weights * values)
