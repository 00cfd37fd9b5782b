"""Densities whose moments are known, for every sampler."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

NUM_CHAINS = 100


class Target(NamedTuple):
    """A density of two numbers, and the means of some functions of them."""

    log_density: Callable
    functions: Callable
    means: np.ndarray


def _moments(f):
    x, y = f[..., 0], f[..., 1]
    return np.stack([x, y, x**2, y**2, x * y], axis=-1)


def _gaussian(f):
    """Correlation 0.99, mean (1, −1)."""
    a, b = f[0] - 1, f[1] + 1
    return -(a**2 - 2 * 0.99 * a * b + b**2) / (2 * (1 - 0.99**2))


def _banana(f):
    """N(0, 1) and, about its square, N(f₀², ¼)."""
    return -(f[0] ** 2) / 2 - 2 * (f[1] - f[0] ** 2) ** 2


def _truncated(f):
    """N(0, 1) on [½, 2], and an exponential number."""
    inside = (f[0] >= 0.5) & (f[0] <= 2) & (f[1] >= 0)
    return jnp.where(inside, -(f[0] ** 2) / 2 - f[1], -jnp.inf)


_CUT = stats.truncnorm(0.5, 2)
TARGETS = {
    "gaussian": Target(_gaussian, _moments, np.array([1, -1, 2, 2, -1 + 0.99])),
    "banana": Target(
        # E y⁴ = 60 would make its own z-score worthless: y² is left out.
        _banana,
        lambda f: np.delete(_moments(f), 3, axis=-1),
        np.array([0, 1, 1, 0]),
    ),
    "truncated": Target(
        _truncated,
        _moments,
        np.array([_CUT.mean(), 1, _CUT.moment(2), 2, _CUT.mean()]),
    ),
}
STARTS = {"gaussian": (0.0, 0.0), "banana": (0.5, 0.5), "truncated": (1.0, 0.5)}


def p_values(draws, target: Target):
    """Of the means of independent chains (chains, draws, 2), by their own spread."""
    each = np.mean(target.functions(np.asarray(draws)), axis=1)
    error = np.std(each, axis=0, ddof=1) / np.sqrt(len(each))
    t = (np.mean(each, axis=0) - target.means) / error
    return 2 * stats.t.sf(np.abs(t), len(each) - 1)


def two_modes(f):
    """Unit normals at −10 and 10, equally likely: log normaliser log 2π."""
    return jnp.logaddexp(
        *(-jnp.sum((f - m) ** 2) / 2 for m in (-10.0, 10.0))
    ) - jnp.log(2.0)


def funnel(f):
    """N(0, 3²) the logarithm of the variance of the other: log normaliser log 6π."""
    return -(f[0] ** 2) / 18 - f[1] ** 2 * jnp.exp(-f[0]) / 2 - f[0] / 2


def chains_from(name: str, key):
    start = jnp.asarray(STARTS[name], jnp.result_type(float))
    keys = jax.random.split(key, NUM_CHAINS)
    return jnp.broadcast_to(start, (NUM_CHAINS, 2)), keys
