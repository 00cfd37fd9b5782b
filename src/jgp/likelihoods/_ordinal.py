"""The cumulative probit likelihood of ordered classes."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jgp._constraints import INCREASING, POSITIVE
from jgp._cubature import gauss_legendre
from jgp._normal import LOG_SQRT_2PI, log_ndtr
from jgp._types import as_float
from jgp.likelihoods._base import check_method
from jgp.likelihoods._categorical import class_labels
from jgp.likelihoods._counts import check_scalar
from jgp.likelihoods._one_latent import AbstractOneLatent
from jgp.likelihoods._predictive import Categorical

NUM_NODES = 4


class OrdinalProbit(AbstractOneLatent):
    """p(y = k | f) = Φ((b_{k+1} − f)/s) − Φ((b_k − f)/s), b_0 = −∞ and b_K = ∞.

    The class is that of f plus noise N(0, s²) among the thresholds (Chu & Ghahramani
    2005).

    Args:
        thresholds: b_1 < … < b_{K−1} for K ordered classes 0..K−1, K >= 2.
        scale: s, the standard deviation of the noise. Of thresholds, scale and the
            prior's amplitude one can be held fixed.
    """

    thresholds: Float[Array, " K-1"] = eqx.field(
        converter=as_float, metadata=INCREASING
    )
    scale: Float[Array, ""] = eqx.field(
        default=1.0, converter=as_float, metadata=POSITIVE
    )

    def __check_init__(self):
        shape = self.thresholds.shape
        if len(shape) != 1 or shape == (0,):
            raise ValueError(
                f"thresholds: got shape {shape}, wanted (K − 1,) increasing numbers."
            )
        check_scalar(self.scale, "scale")

    @property
    def num_classes(self) -> int:
        """K."""
        return self.thresholds.shape[0] + 1

    @property
    def classes(self) -> bool:
        """Labels."""
        return True

    @property
    def log_concave(self) -> bool:
        """It is."""
        return True

    def log_density(self, f: Float[Array, "*n"], y: Array) -> Float[Array, "*n"]:
        """Log p(y | f), elementwise."""
        scale = jnp.broadcast_to(self.scale, f.shape)
        return log_class(self.thresholds, scale, f, jnp.asarray(y).astype(jnp.int32))

    def features(
        self, y: Int[Array, " n"]
    ) -> tuple[Float[Array, "n 2"], Float[Array, "n 2"]]:
        """About the ends of the class, over distances of the scale."""
        y = y.astype(jnp.int32)
        last = self.num_classes - 1
        ends = jnp.stack([jnp.maximum(y, 1) - 1, jnp.minimum(y, last - 1)], axis=1)
        at = self.thresholds[ends]
        return at, jnp.broadcast_to(self.scale.astype(at.dtype), at.shape)

    def conditional_mean(self, f: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Σ k p(y = k | f)."""
        return self._probabilities(f, self.scale) @ self._labels(f)

    def conditional_variance(self, f: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Σ (k − E[y | f])² p(y = k | f)."""
        probs, labels = self._probabilities(f, self.scale), self._labels(f)
        mean = (probs @ labels)[..., None]
        labels = jnp.broadcast_to(labels, probs.shape)
        return jnp.sum(probs * (labels - mean) ** 2, axis=-1)

    def sample(self, f: Float[Array, "*n"], *, key: PRNGKeyArray) -> Int[Array, "*n"]:
        """The label of f plus noise, for each f."""
        noisy = f + self.scale * jax.random.normal(key, f.shape, f.dtype)
        labels = jnp.searchsorted(self.thresholds, noisy.ravel())
        return labels.reshape(f.shape).astype(jnp.int32)

    def observe(self, f: Float[Array, "n 1"]) -> Categorical:
        """p(y = k | f) of every class."""
        return Categorical(self._probabilities(f[:, 0], self.scale))

    def predict(
        self,
        mean: Float[Array, "n 1"],
        covariance: Float[Array, "n 1 1"],
        *,
        method: str | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Categorical:
        """The class of f plus noise N(0, s² + v), in closed form."""
        del key
        check_method(method, ("closed_form",))
        total = jnp.sqrt(self.scale**2 + covariance[:, 0, 0])
        return Categorical(self._probabilities(mean[:, 0], total))

    def targets(self, y: Any, num_latents: int) -> np.ndarray:
        """Integer labels 0..K-1."""
        del num_latents
        return class_labels(y, self.num_classes)

    def _labels(self, f: Array) -> Float[Array, " K"]:
        return jnp.arange(self.num_classes, dtype=f.dtype)

    def _probabilities(
        self, f: Float[Array, "*n"], scale: Float[Array, "*n"]
    ) -> Float[Array, "*n K"]:
        """p(y = k | f) of every class, for noise of these standard deviations."""
        shape = (*f.shape, self.num_classes)
        labels = jnp.broadcast_to(jnp.arange(shape[-1], dtype=jnp.int32), shape)
        f, scale = f[..., None], jnp.broadcast_to(scale, f.shape)[..., None]
        return jnp.exp(log_class(self.thresholds, scale, f, labels))


def log_class(
    thresholds: Float[Array, " K-1"],
    scale: Float[Array, "*n"],
    f: Float[Array, "*n"],
    y: Int[Array, "*n"],
) -> Float[Array, "*n"]:
    """Log of the probability that f plus noise N(0, scale²) is in class y."""
    last = thresholds.shape[0]
    upper = (thresholds[jnp.minimum(y, last - 1)] - f) / scale
    lower = (thresholds[jnp.maximum(y, 1) - 1] - f) / scale
    inner = (y > 0) & (y < last)
    between = log_ndtr_difference(
        jnp.where(inner, lower, -1), jnp.where(inner, upper, 1)
    )
    outer = jnp.where(y == 0, log_ndtr(upper), log_ndtr(-lower))
    return jnp.where(inner, between, outer)


def log_ndtr_difference(
    lower: Float[Array, "*n"], upper: Float[Array, "*n"]
) -> Float[Array, "*n"]:
    """Log(Φ(upper) − Φ(lower)) for lower < upper, relatively accurate in both tails.

    log Φ(u) + log(1 − Φ(l)/Φ(u)) on the side where Φ is small; where the ends are so
    close that this would cancel, ∫φ between them by Gauss-Legendre about their middle
    c: log 2φ(c) + log ∫ cosh(ct) exp(−½t²) dt from 0 to half their distance.
    """
    middle = (lower + upper) / 2
    close = (upper - lower) * (1 + jnp.abs(middle)) < 1
    width, c = jnp.where(close, upper - lower, 1), jnp.where(close, middle, 0)
    unit, weights = gauss_legendre(NUM_NODES, width.dtype)
    t = width[None] * (unit / 2).reshape(-1, *(1,) * width.ndim)
    values = jnp.cosh(c[None] * t) * jnp.exp(-(t**2) / 2)
    total = jnp.tensordot(weights, values, axes=1)
    narrow = jnp.log(width) + jnp.log(total) - c**2 / 2 - LOG_SQRT_2PI
    flip = middle > 0
    low = jnp.where(close, -1, jnp.where(flip, -upper, lower))
    high = jnp.where(close, 1, jnp.where(flip, -lower, upper))
    log_high = log_ndtr(high)
    wide = log_high + jnp.log(-jnp.expm1(log_ndtr(low) - log_high))
    return jnp.where(close, narrow, wide)
