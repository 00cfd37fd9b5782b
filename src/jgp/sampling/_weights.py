"""Reliability of importance weights.

Log weights have shape (draws, ...); trailing dimensions are examined one by one. A
diagnostic that does not exist is NaN, which passes no threshold.

References:
    Zhang & Stephens 2009, A new and efficient estimation method for the generalized
    Pareto distribution, Technometrics 51.
    Vehtari, Simpson, Gelman, Yao & Gabry 2024, Pareto smoothed importance sampling,
    JMLR 25.
"""

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, ArrayLike, Float

from jgp._types import as_float

# With fewer points beyond the cutoff a generalised Pareto fit has no meaning.
MIN_TAIL = 5


def pareto_k(log_weights: Float[ArrayLike, "draws *dims"]) -> Float[Array, "*dims"]:
    r"""The shape k̂ of a generalised Pareto fit to the largest importance weights.

    Below $\min(1 - 1/\log_{10} S, 0.7)$ estimates from $S$ weights can be trusted;
    above 1 not even their mean exists. The tail is the largest
    $\min(S/5, 3\sqrt S)$ weights. With fewer than five of them above the cutoff (few
    draws, or ties at the largest weight) there is no fit, and k̂ is infinite.

    Args:
        log_weights: Unnormalised log weights; −inf is a weight of zero.

    Raises:
        ValueError: If there are no weights.
    """
    return _pareto_k(_checked_weights(log_weights))


def importance_ess(
    log_weights: Float[ArrayLike, "draws *dims"],
) -> Float[Array, "*dims"]:
    """The effective sample size 1/Σw² of importance weights normalised to sum to 1.

    Args:
        log_weights: Unnormalised log weights; −inf is a weight of zero.

    Raises:
        ValueError: If there are no weights.
    """
    log_weights = _checked_weights(log_weights)
    total, squares = logsumexp(log_weights, 0), logsumexp(2 * log_weights, 0)
    return jnp.exp(2 * total - squares)


def _checked_weights(log_weights: ArrayLike) -> Array:
    log_weights = as_float(log_weights)
    if log_weights.ndim < 1 or log_weights.shape[0] < 1:
        raise ValueError(
            "log_weights: expected shape (draws, ...) with at least one draw, got "
            f"{log_weights.shape}."
        )
    return log_weights


@jax.jit
def _pareto_k(log_weights: Array) -> Array:
    batch_first = jnp.moveaxis(log_weights, 0, -1)
    return jnp.vectorize(_tail_shape, signature="(s)->()")(batch_first)


def _tail_shape(log_weights: Float[Array, " s"]) -> Float[Array, ""]:
    size, dtype = log_weights.size, log_weights.dtype
    # ceil(min(S/5, 3√S)) in integers.
    length = min(-(-size // 5), math.isqrt(9 * size - 1) + 1)
    if length < MIN_TAIL:
        return jnp.asarray(jnp.inf, dtype)
    ordered = jnp.sort(log_weights - jnp.max(log_weights))
    info = jnp.finfo(dtype)
    # The reciprocal of an exceedance must not overflow.
    cutoff = jnp.maximum(ordered[-length - 1], math.log(info.tiny / info.eps))
    tail = ordered[-length:]
    beyond = tail > cutoff
    exceedances = jnp.where(beyond, -jnp.exp(tail) * jnp.expm1(cutoff - tail), 0.0)
    count = jnp.sum(beyond)
    shape = jnp.where(count < MIN_TAIL, jnp.inf, _pareto_fit(exceedances, count))
    return jnp.where(jnp.any(jnp.isnan(ordered)), jnp.nan, shape)


def _pareto_fit(x: Float[Array, " t"], count: Array) -> Float[Array, ""]:
    """Posterior mean of the shape, given the last `count` of `x`, increasing.

    The leading zeros of `x` are ties with the cutoff and add nothing to any sum. The
    profile likelihood is that of Zhang & Stephens 2009, sec. 3, in b = −k/σ; the shape
    is shrunk to 1/2 by a prior worth ten observations (Vehtari et al. 2024, app. G).
    """
    n = count.astype(x.dtype)
    num_points = 30 + jnp.floor(jnp.sqrt(n))
    index = jnp.arange(1, 31 + math.isqrt(x.size), dtype=x.dtype)
    quartile = x[x.size - count + (count + 2) // 4 - 1]
    b = 1 / x[-1] + (1 - jnp.sqrt(num_points / (index - 0.5))) / (3 * quartile)
    k = jnp.sum(jnp.log1p(-b[:, None] * x[None, :]), axis=1) / n
    log_profile = n * (jnp.log(-b / k) - k - 1)
    weights = jax.nn.softmax(jnp.where(index <= num_points, log_profile, -jnp.inf))
    shape = jnp.sum(jnp.log1p(-jnp.sum(weights * b) * x)) / n
    return (n * shape + 10 * 0.5) / (n + 10)
