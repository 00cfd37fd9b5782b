"""What every likelihood offers."""

import abc
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from jgp.likelihoods._predictive import Categorical, Normal

if TYPE_CHECKING:
    from jgp.likelihoods._latent_noise import NoisePredictive
    from jgp.likelihoods._mixture import Predictive


class AbstractLikelihood(eqx.Module):
    """p(y | f), factorising over data points.

    `num_latents` is the number C of latents a point needs, or None where any number
    will do (one output a latent).
    """

    num_latents: eqx.AbstractVar[int | None]

    @property
    def factorises(self) -> bool:
        """Whether log p(y | f) is a sum over the latents of a point too."""
        return self.num_latents in (None, 1)

    @property
    def log_concave(self) -> bool:
        """Whether log p(y | f) is concave in f, for every y and every parameter."""
        return False

    def at_points(self, indices: Int[Array, " k"]) -> "AbstractLikelihood":
        """That of some data points alone; itself where points have no parameters."""
        del indices
        return self

    @property
    def classes(self) -> bool:
        """Whether targets are integer labels; else they are numbers, as the inputs."""
        return False

    @abc.abstractmethod
    def log_prob(self, f: Float[Array, " C"], y: Array) -> Float[Array, ""]:
        """Log p(y | f) at one point."""

    def log_probs(self, f: Float[Array, "n C"], y: Array) -> Float[Array, " n"]:
        """Log p(yᵢ | fᵢ) at every point."""
        return jax.vmap(self.log_prob)(f, y)

    def at(
        self, x: Float[Array, "m d"], noise_variance: ArrayLike | None = None
    ) -> "AbstractLikelihood":
        """The likelihood of observations at new inputs; itself where it is the same.

        Args:
            x: The inputs.
            noise_variance: The noise there, for a likelihood that has to be told.

        Raises:
            ValueError: for a noise variance that the likelihood has no use for.
        """
        del x
        if noise_variance is not None:
            raise ValueError(
                f"noise_variance: got one for {type(self).__name__}, which has its "
                "own, wanted None."
            )
        return self

    def at_data(self, x: Float[Array, "n d"]) -> "AbstractLikelihood":
        """The likelihood of the training data, at their inputs."""
        return self.at(x)

    @abc.abstractmethod
    def observe(
        self, f: Float[Array, "n C"]
    ) -> "Categorical | Normal | NoisePredictive | Predictive":
        """The distribution of y at inputs whose latents are f."""

    @abc.abstractmethod
    def predict(
        self,
        mean: Float[Array, "n C"],
        covariance: Float[Array, "n C C"],
        *,
        method: str | None = None,
        key: PRNGKeyArray | None = None,
    ) -> "Categorical | Normal | NoisePredictive | Predictive":
        """The distribution of y at inputs whose latents are N(mean, covariance).

        Args:
            mean: Latent means.
            covariance: Latent covariances between the C latents of an input.
            method: Which integration rule, for likelihoods that have several.
            key: Randomises a rule that is otherwise deterministic.
        """

    @abc.abstractmethod
    def check_shape(self, shape: tuple[int, ...], num_latents: int) -> None:
        """Raise a `ValueError` for targets of the wrong shape."""

    @abc.abstractmethod
    def targets(self, y: Any, num_latents: int) -> np.ndarray:
        """The targets as an array of the wanted kind and shape.

        Raises:
            ValueError: naming `y`, what was got and what was wanted.
        """


def check_method(method: str | None, methods: tuple[str, ...]) -> str:
    """The method asked for, the first of `methods` by default.

    Raises:
        ValueError: if it is none of them.
    """
    if method is None:
        return methods[0]
    if method not in methods:
        raise ValueError(f"method: got {method!r}, wanted one of {', '.join(methods)}.")
    return method
