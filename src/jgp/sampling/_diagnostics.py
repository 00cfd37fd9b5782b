r"""Convergence of Markov chains.

Draws have shape (chains, draws, ...); trailing dimensions are examined one by one. A
diagnostic that does not exist is NaN, which passes no threshold: of input that contains
NaN, and R-hat of draws that are all equal.

References:
    Vehtari, Gelman, Simpson, Carpenter & Bürkner 2021, Rank-normalization, folding, and
    localization: an improved R-hat, Bayesian Analysis 16.
    Geyer 1992, Practical Markov chain Monte Carlo, Statistical Science 7.
"""

import functools
import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import betainc, ndtr, ndtri
from jaxtyping import Array, ArrayLike, Float

from jgp._types import as_float

MIN_DRAWS = 4


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

    0 for draws that are all equal; R-hat, NaN there, tells that a chain is stuck.

    Args:
        draws: Draws of each chain, at least 4, with a finite variance.

    Raises:
        ValueError: If there are fewer than two dimensions or four draws.
    """
    return _mcse_mean(_checked(draws))


def mcse_quantile(
    draws: Float[ArrayLike, "chains draws *dims"], probability: float
) -> Float[Array, "*dims"]:
    """The Monte Carlo standard error of a quantile of all draws.

    Half the distance between the draws whose places are one standard error of the
    number below the quantile apart, to either side (Vehtari et al. 2021, §4.4).

    Args:
        draws: Draws of each chain, at least 4.
        probability: Of which quantile, in (0, 1).

    Raises:
        ValueError: If there are fewer than two dimensions or four draws, or the
            probability is none.
    """
    if not 0 < probability < 1:
        raise ValueError(f"probability: expected one in (0, 1), got {probability}.")
    return _mcse_quantile(_checked(draws), float(probability))


def autocorrelation(
    draws: Float[ArrayLike, "chains draws *dims"],
) -> Float[Array, "chains draws *dims"]:
    """The autocorrelation of each chain at every lag, from 1 at lag 0.

    By the biased autocovariance, whose estimates go to 0 with the lag; NaN for a chain
    that does not move.

    Args:
        draws: Draws of each chain, at least 4.

    Raises:
        ValueError: If there are fewer than two dimensions or four draws.
    """
    return _autocorrelation(_checked(draws))


def _checked(draws: ArrayLike) -> Array:
    draws = as_float(draws)
    if draws.ndim < 2 or draws.shape[0] < 1 or draws.shape[1] < MIN_DRAWS:
        raise ValueError(
            f"draws: expected shape (chains, draws, ...) with at least {MIN_DRAWS} "
            f"draws, got {draws.shape}."
        )
    return draws


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
    return jnp.minimum(_below_ess(x, 0.05), _below_ess(x, 0.95))


def _below_ess(x: Float[Array, "c d"], probability: float) -> Float[Array, ""]:
    """The effective sample size of whether draws lie below a quantile."""
    # Below an interpolated quantile lies what lies below the order statistic under it,
    # whose index is exact; the interpolation would round it away.
    index = math.floor((x.size - 1) * probability + 1e-9)
    below = x <= jnp.sort(x.ravel())[index]
    return _split_ess(_split(below.astype(x.dtype)))


def _mean_ess(x: Float[Array, "c d"]) -> Float[Array, ""]:
    return _split_ess(_split(x))


_ESS = {"bulk": _bulk_ess, "tail": _tail_ess, "mean": _mean_ess}


@functools.partial(jax.jit, static_argnums=1)
def _effective_sample_size(draws: Array, kind: str) -> Array:
    return _over_chains(_ESS[kind])(draws)


@functools.partial(jax.jit, static_argnums=1)
def _mcse_quantile(draws: Array, probability: float) -> Array:
    return _over_chains(functools.partial(_quantile_error, p=probability))(draws)


def _quantile_error(x: Float[Array, "c d"], p: float) -> Float[Array, ""]:
    ess, size = _below_ess(x, p), x.size
    # One standard error of the share below, which is beta distributed.
    a, b = ess * p + 1, ess * (1 - p) + 1
    shares = (_beta_quantile(a, b, ndtr(jnp.asarray(z, x.dtype))) for z in (-1, 1))
    low, high = (share * size - 1 for share in shares)
    below = jnp.maximum(jnp.floor(low), 0).astype(int)
    above = jnp.minimum(jnp.ceil(high), size - 1).astype(int)
    ordered = jnp.sort(x.ravel())
    return (ordered[above] - ordered[below]) / 2


def _beta_quantile(a: Array, b: Array, probability: Array) -> Float[Array, ""]:
    """By bisection, to the last bit."""

    def halve(_, interval):
        low, high = interval
        middle = (low + high) / 2
        under = betainc(a, b, middle) < probability
        return jnp.where(under, middle, low), jnp.where(under, high, middle)

    ends = (jnp.zeros_like(a), jnp.ones_like(a))
    return lax.fori_loop(0, jnp.finfo(a.dtype).nmant + 8, halve, ends)[0]


@jax.jit
def _autocorrelation(draws: Array) -> Array:
    batch_first = jnp.moveaxis(draws, (0, 1), (-2, -1))
    covariance = jnp.vectorize(_autocovariance, signature="(c,d)->(c,d)")(batch_first)
    return jnp.moveaxis(covariance / covariance[..., :1], (-2, -1), (0, 1))


@jax.jit
@_over_chains
def _mcse_mean(x: Float[Array, "c d"]) -> Float[Array, ""]:
    return jnp.sqrt(_variance(x.ravel()) / _mean_ess(x))
