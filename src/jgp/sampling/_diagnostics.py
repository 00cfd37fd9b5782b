r"""Convergence of Markov chains and reliability of importance weights.

Draws have shape (chains, draws, ...), log weights (draws, ...); trailing dimensions
are examined one by one. A diagnostic that does not exist is NaN, which passes no
threshold: of input that contains NaN, R-hat of draws that are all equal, and anything
of weights that are all zero.

References:
    Vehtari, Gelman, Simpson, Carpenter & Bürkner 2021, Rank-normalization, folding, and
    localization: an improved R-hat, Bayesian Analysis 16.
    Geyer 1992, Practical Markov chain Monte Carlo, Statistical Science 7.
    Zhang & Stephens 2009, A new and efficient estimation method for the generalized
    Pareto distribution, Technometrics 51.
    Vehtari, Simpson, Gelman, Yao & Gabry 2024, Pareto smoothed importance sampling,
    JMLR 25.
"""

import functools
import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import logsumexp, ndtri
from jaxtyping import Array, ArrayLike, Float

from jgp._types import as_float

MIN_DRAWS = 4
# With fewer points beyond the cutoff a generalised Pareto fit has no meaning.
MIN_TAIL = 5


def rhat(draws: Float[ArrayLike, "chains draws *dims"]) -> Float[Array, "*dims"]:
    """Rank-normalised split R-hat, the larger of bulk and folded (Vehtari et al. 2021).

    Near 1 when the chains agree; above 1.01 they should not be used. One chain is
    enough, because each is split in two. NaN for draws that are all equal.

    Args:
        draws: Draws of each chain, at least 4.

    Raises:
        ValueError: If there are fewer than two dimensions or four draws.
    """
    return _rhat(_checked(draws))


def effective_sample_size(
    draws: Float[ArrayLike, "chains draws *dims"],
    kind: Literal["bulk", "tail", "mean"] = "bulk",
) -> Float[Array, "*dims"]:
    """The number of independent draws worth as much as the chains' draws.

    Draws that are all equal count in full, as in other software: R-hat tells whether a
    chain is stuck.

    Args:
        draws: Draws of each chain, at least 4.
        kind: "bulk" of rank-normalised draws, "tail" the smaller of the 5 % and 95 %
            quantiles', "mean" of the draws themselves (needs a finite variance).

    Raises:
        ValueError: If `kind` is another, or there are fewer than two dimensions or
            four draws.
    """
    if kind not in _ESS:
        raise ValueError(f"kind: expected one of {sorted(_ESS)}, got {kind!r}.")
    return _effective_sample_size(_checked(draws), kind)


def mcse_mean(draws: Float[ArrayLike, "chains draws *dims"]) -> Float[Array, "*dims"]:
    """The Monte Carlo standard error of the mean of all draws.

    Args:
        draws: Draws of each chain, at least 4, with a finite variance.

    Raises:
        ValueError: If there are fewer than two dimensions or four draws.
    """
    return _mcse_mean(_checked(draws))


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


def _checked(draws: ArrayLike) -> Array:
    draws = as_float(draws)
    if draws.ndim < 2 or draws.shape[0] < 1 or draws.shape[1] < MIN_DRAWS:
        raise ValueError(
            f"draws: expected shape (chains, draws, ...) with at least {MIN_DRAWS} "
            f"draws, got {draws.shape}."
        )
    return draws


def _checked_weights(log_weights: ArrayLike) -> Array:
    log_weights = as_float(log_weights)
    if log_weights.ndim < 1 or log_weights.shape[0] < 1:
        raise ValueError(
            "log_weights: expected shape (draws, ...) with at least one draw, got "
            f"{log_weights.shape}."
        )
    return log_weights


def _over_chains(diagnostic: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Apply a diagnostic of (chains, draws) to each trailing element."""

    def each(draws):
        batch_first = jnp.moveaxis(draws, (0, 1), (-2, -1))
        value = jnp.vectorize(diagnostic, signature="(c,d)->()")(batch_first)
        missing = jnp.any(jnp.isnan(batch_first), axis=(-2, -1))
        return jnp.where(missing, jnp.nan, value)

    return each


def _split(x: Float[Array, "c d"]) -> Float[Array, "halves half"]:
    half = x.shape[1] // 2
    return jnp.concatenate([x[:, :half], x[:, -half:]])


def _rank_normalised(x: Float[Array, "c d"]) -> Float[Array, "c d"]:
    """Normal scores of the average ranks, with Blom's offset 3/8."""
    ordered, flat = jnp.sort(x.ravel()), x.ravel()
    below = jnp.searchsorted(ordered, flat, side="left")
    up_to = jnp.searchsorted(ordered, flat, side="right")
    rank = (below + up_to + 1).astype(x.dtype) / 2
    return ndtri((rank - 0.375) / (x.size + 0.25)).reshape(x.shape)


def _variance(x: Array, axis: int = -1) -> Array:
    # Shifted, so that equal numbers have variance 0 and not the rounding of their mean.
    return jnp.var(x - lax.slice_in_dim(x, 0, 1, axis=axis), axis=axis, ddof=1)


def _potential_scale_reduction(x: Float[Array, "c d"]) -> Float[Array, ""]:
    num_draws = x.shape[1]
    between = num_draws * _variance(jnp.mean(x, axis=1))
    within = jnp.mean(_variance(x))
    return jnp.sqrt((between / within + num_draws - 1) / num_draws)


@jax.jit
@_over_chains
def _rhat(x: Float[Array, "c d"]) -> Float[Array, ""]:
    halves = _split(x)
    bulk = _potential_scale_reduction(_rank_normalised(halves))
    folded = jnp.abs(halves - jnp.median(halves))
    # fmax: draws of two values fold onto one, and then the bulk alone speaks.
    return jnp.fmax(bulk, _potential_scale_reduction(_rank_normalised(folded)))


def _autocovariance(x: Float[Array, "c d"]) -> Float[Array, "c d"]:
    num_draws = x.shape[1]
    # Zero padding to twice the length keeps the circular convolution from wrapping.
    length = 1 << (2 * num_draws - 1).bit_length()
    spectrum = jnp.fft.rfft(x - jnp.mean(x, axis=1, keepdims=True), n=length)
    power = jnp.square(jnp.real(spectrum)) + jnp.square(jnp.imag(spectrum))
    return jnp.fft.irfft(power, n=length)[:, :num_draws] / num_draws


def _split_ess(x: Float[Array, "c d"]) -> Float[Array, ""]:
    """The effective sample size of chains already split (Vehtari et al. 2021, 3.2)."""
    num_chains, num_draws = x.shape
    covariance = jnp.mean(_autocovariance(x), axis=0)
    within = covariance[0] * num_draws / (num_draws - 1)
    total = covariance[0] + _variance(jnp.mean(x, axis=1))
    correlation = (1 - (within - covariance) / total).at[0].set(1.0)

    # Geyer's sums of lags (2k, 2k + 1) are positive and decrease for a reversible
    # chain: truncate before the first that is not positive, force the rest to decrease,
    # and keep of the truncated pair the even lag, which makes antithetic chains right.
    num_pairs = max((num_draws - 3) // 2, 0) + 1
    pairs = correlation[: 2 * num_pairs].reshape(num_pairs, 2)
    sums = jnp.sum(pairs, axis=1)
    end = jnp.argmax((sums <= 0).at[-1].set(True))
    kept = jnp.where(jnp.arange(num_pairs) < end, lax.cummin(sums), 0.0)
    tau = -1 + 2 * jnp.sum(kept) + jnp.maximum(pairs[end, 0], 0.0)
    size = num_chains * num_draws
    ess = size / jnp.maximum(tau, 1 / math.log10(size))
    return jnp.where(jnp.max(x) == jnp.min(x), size, ess)


def _bulk_ess(x: Float[Array, "c d"]) -> Float[Array, ""]:
    return _split_ess(_rank_normalised(_split(x)))


def _tail_ess(x: Float[Array, "c d"]) -> Float[Array, ""]:
    # Below an interpolated quantile lies what lies below the order statistic under it,
    # whose index is exact; the interpolation would round it away.
    ordered = jnp.sort(x.ravel())
    low, high = ((x.size - 1) * part // 20 for part in (1, 19))
    below = [_split((x <= ordered[i]).astype(x.dtype)) for i in (low, high)]
    return jnp.minimum(_split_ess(below[0]), _split_ess(below[1]))


def _mean_ess(x: Float[Array, "c d"]) -> Float[Array, ""]:
    return _split_ess(_split(x))


_ESS = {"bulk": _bulk_ess, "tail": _tail_ess, "mean": _mean_ess}


@functools.partial(jax.jit, static_argnums=1)
def _effective_sample_size(draws: Array, kind: str) -> Array:
    return _over_chains(_ESS[kind])(draws)


@jax.jit
@_over_chains
def _mcse_mean(x: Float[Array, "c d"]) -> Float[Array, ""]:
    return jnp.sqrt(_variance(x.ravel()) / _mean_ess(x))


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
