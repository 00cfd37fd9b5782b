"""Likelihoods raised to a power: observations that count for more or less."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from jgp._types import as_float
from jgp.likelihoods._base import AbstractLikelihood
from jgp.likelihoods._gaussian import FIXED_NON_NEGATIVE
from jgp.likelihoods._latent_noise import NoisePredictive
from jgp.likelihoods._mixture import Predictive
from jgp.likelihoods._one_latent import Tilted, tilted_moments
from jgp.likelihoods._predictive import Categorical, Normal


class Weighted(AbstractLikelihood):
    """p(y | f)ʷ: an observation that counts w times (a tempered likelihood).

    Not normalised over y, which is that of the likelihood itself: `predict` and
    `observe` are of a new observation, of weight 1. Gaussian noise may be weighted (in
    `laplace`, as exact refuses it): that is noise_variance/w but for a constant.

    Args:
        likelihood: p(y | f).
        weights: w >= 0, one for all points or (n,), one a point; `fit` leaves them as
            they are. Zero is no observation.
    """

    likelihood: AbstractLikelihood
    weights: Float[Array, "*n"] = eqx.field(
        converter=as_float, metadata=FIXED_NON_NEGATIVE
    )
    num_latents: int | None = eqx.field(init=False, static=True)

    def __init__(self, likelihood: AbstractLikelihood, weights: ArrayLike):
        self.likelihood = likelihood
        self.weights = as_float(weights)
        if not isinstance(likelihood, AbstractLikelihood):
            raise ValueError(
                f"likelihood: got {type(likelihood).__name__}, wanted one of "
                "jgp.likelihoods."
            )
        if self.weights.ndim > 1:
            raise ValueError(
                f"weights: got shape {self.weights.shape}, wanted a scalar or (n,), a "
                "weight for each observation."
            )
        self.num_latents = likelihood.num_latents

    @property
    def log_concave(self) -> bool:
        """As the likelihood is."""
        return self.likelihood.log_concave

    @property
    def factorises(self) -> bool:
        """As the likelihood does."""
        return self.likelihood.factorises

    @property
    def classes(self) -> bool:
        """As the likelihood's targets."""
        return self.likelihood.classes

    def log_prob(self, f: Float[Array, " C"], y: Array) -> Float[Array, ""]:
        """The weight times log p(y | f) at one point, for a scalar weight.

        Raises:
            ValueError: for a weight a point: see `log_probs`.
        """
        if self.weights.ndim:
            raise ValueError(
                f"weights: got shape {self.weights.shape} for one point, wanted a "
                "scalar (or log_probs of all points)."
            )
        return self.weights * self.likelihood.log_prob(f, y)

    def log_probs(self, f: Float[Array, "n C"], y: Array) -> Float[Array, " n"]:
        """wᵢ log p(yᵢ | fᵢ) at every point."""
        return self.powers(f.shape[0]) * self.likelihood.log_probs(f, y)

    def powers(self, n: int) -> Float[Array, " n"]:
        """The weight of each of n points."""
        if self.weights.shape not in ((), (n,)):
            raise ValueError(
                f"weights: got shape {self.weights.shape} for {n} points, wanted a "
                "scalar or a weight for each."
            )
        return jnp.broadcast_to(self.weights, (n,))

    def at(
        self, x: Float[Array, "m d"], noise_variance: ArrayLike | None = None
    ) -> AbstractLikelihood:
        """The likelihood of new observations, without weights."""
        return self.likelihood.at(x, noise_variance)

    def at_data(self, x: Float[Array, "n d"]) -> "Weighted":
        """The likelihood of the training data, at their inputs.

        Raises:
            ValueError: for weights of another number than there are points.
        """
        self.powers(x.shape[0])
        return Weighted(self.likelihood.at_data(x), self.weights)

    def at_points(self, indices: Int[Array, " k"]) -> "Weighted":
        """That of some data points alone."""
        weights = self.weights[indices] if self.weights.ndim else self.weights
        return Weighted(self.likelihood.at_points(indices), weights)

    def observe(
        self, f: Float[Array, "n C"]
    ) -> Categorical | Normal | NoisePredictive | Predictive:
        """The distribution of a new y, of weight 1."""
        return self.likelihood.observe(f)

    def predict(
        self,
        mean: Float[Array, "n C"],
        covariance: Float[Array, "n C C"],
        *,
        method: str | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Categorical | Normal | NoisePredictive | Predictive:
        """The distribution of a new y, of weight 1."""
        return self.likelihood.predict(mean, covariance, method=method, key=key)

    def check_shape(self, shape: tuple[int, ...], num_latents: int) -> None:
        """As that of the likelihood's targets."""
        self.likelihood.check_shape(shape, num_latents)

    def targets(self, y: Any, num_latents: int) -> np.ndarray:
        """As the likelihood's targets."""
        return self.likelihood.targets(y, num_latents)


@tilted_moments.register
def _(
    likelihood: Weighted,
    mean: Float[Array, " n"],
    variance: Float[Array, " n"],
    y: Array,
    power: Float[Array, " n"] | None = None,
) -> Tilted:
    """Those of the likelihood at power ηw; at w = 0 those of the Gaussian."""
    weights = likelihood.powers(mean.shape[0])
    power = weights if power is None else power * weights
    # The power of an observation without weight is put to 1 and its result aside.
    nothing = power == 0
    base = tilted_moments(
        likelihood.likelihood, mean, variance, y, jnp.where(nothing, 1, power)
    )
    zero, one = jnp.zeros_like(mean), jnp.ones_like(mean)
    limits = Tilted(zero, zero, zero, one)
    return Tilted(
        *(jnp.where(nothing, a, b) for a, b in zip(limits, base, strict=True))
    )
