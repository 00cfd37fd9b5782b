"""What every likelihood offers."""

import abc
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jgp.likelihoods._predictive import Categorical, Normal


class AbstractLikelihood(eqx.Module):
    """p(y | f), factorising over data points.

    `num_latents` is the number C of latents a point needs, or None where any number
    will do (one output a latent).
    """

    num_latents: eqx.AbstractVar[int | None]

    @abc.abstractmethod
    def log_prob(self, f: Float[Array, " C"], y: Array) -> Float[Array, ""]:
        """Log p(y | f) at one point."""

    @abc.abstractmethod
    def observe(self, f: Float[Array, "n C"]) -> Categorical | Normal:
        """The distribution of y at inputs whose latents are f."""

    @abc.abstractmethod
    def predict(
        self,
        mean: Float[Array, "n C"],
        covariance: Float[Array, "n C C"],
        *,
        method: str | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Categorical | Normal:
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
