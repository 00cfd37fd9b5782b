"""Sets that parameters may lie in, each with a bijection to the real line.

The bijection of positive parameters is the logarithm: a change of units of x or y is
then a shift, so that optimiser steps are free of units. Matrices that are positive
definite go through their Cholesky factor, the logarithm on its diagonal.
"""

import abc
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jgp._linalg import cholesky


class AbstractConstraint(eqx.Module):
    """A set of real numbers with a bijection to the real line."""

    def triangular(self, value: Array) -> bool:
        """Whether a value is a matrix of which raw values use the lower triangle."""
        del value
        return False

    def entrywise(self, value: Array) -> bool:
        """Whether each entry of a value depends on its own raw entry alone."""
        return not self.triangular(value)

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """The set in words."""

    @abc.abstractmethod
    def to_real(self, value: Array) -> Array:
        """Map a value of the set to the real line."""

    @abc.abstractmethod
    def from_real(self, raw: Array) -> Array:
        """Map the real line to the set; the inverse of `to_real`."""

    @abc.abstractmethod
    def contains(self, value: Any) -> Any:
        """Whether each entry lies in the set (NumPy in, NumPy out)."""

    def log_jacobian(self, raw: Array) -> Array:
        """log|∂value/∂raw|, of the entries that are parameters; a scalar."""
        slopes = jax.jvp(self.from_real, (raw,), (jnp.ones_like(raw),))[1]
        return jnp.sum(jnp.log(jnp.abs(slopes)))


class Real(AbstractConstraint):
    """Any finite number."""

    @property
    def description(self) -> str:
        """The set in words."""
        return "finite numbers"

    def to_real(self, value: Array) -> Array:
        """The value itself."""
        return value

    def from_real(self, raw: Array) -> Array:
        """The value itself."""
        return raw

    def contains(self, value: Any) -> Any:
        """Whether each entry is finite."""
        return abs(value) < np.inf


class Positive(AbstractConstraint):
    """Numbers greater than zero, by the exponential."""

    @property
    def description(self) -> str:
        """The set in words."""
        return "finite numbers > 0"

    def to_real(self, value: Array) -> Array:
        """The logarithm."""
        return jnp.log(value)

    def from_real(self, raw: Array) -> Array:
        """The exponential."""
        return jnp.exp(raw)

    def contains(self, value: Any) -> Any:
        """Whether each entry is finite and greater than zero."""
        return (value > 0) & (value < np.inf)


class NonNegative(AbstractConstraint):
    """Numbers not less than zero; zero itself can be held but not trained."""

    @property
    def description(self) -> str:
        """The set in words."""
        return "finite numbers >= 0"

    def to_real(self, value: Array) -> Array:
        """The logarithm; zero maps to -inf and back."""
        return jnp.log(value)

    def from_real(self, raw: Array) -> Array:
        """The exponential."""
        return jnp.exp(raw)

    def contains(self, value: Any) -> Any:
        """Whether each entry is finite and not less than zero."""
        return (value >= 0) & (value < np.inf)


class Interval(AbstractConstraint):
    """Numbers above `low` and up to `high`, by the logistic function.

    `high` itself can be held but not trained.
    """

    low: float = eqx.field(static=True)
    high: float = eqx.field(static=True)

    @property
    def description(self) -> str:
        """The set in words."""
        return f"numbers in ({self.low}, {self.high}]"

    def to_real(self, value: Array) -> Array:
        """The log odds; `high` maps to inf and back."""
        return jnp.log(value - self.low) - jnp.log(self.high - value)

    def from_real(self, raw: Array) -> Array:
        """The logistic function, scaled to the interval."""
        return self.low + (self.high - self.low) * jax.nn.sigmoid(raw)

    def log_jacobian(self, raw: Array) -> Array:
        """Of the logistic function, where its slope underflows too."""
        slopes = -jax.nn.softplus(raw) - jax.nn.softplus(-raw)
        return jnp.sum(slopes + math.log(self.high - self.low))

    def contains(self, value: Any) -> Any:
        """Whether each entry is above `low` and not above `high`."""
        return (value > self.low) & (value <= self.high)


class Increasing(AbstractConstraint):
    """Vectors of increasing numbers, by the first and the logarithms of the gaps."""

    @property
    def description(self) -> str:
        """The set in words."""
        return "finite numbers, each greater than the one before"

    def entrywise(self, value: Array) -> bool:
        """Only of a single number."""
        return value.shape[-1] == 1

    def to_real(self, value: Array) -> Array:
        """The first number, then the logarithm of each difference."""
        gaps = jnp.log(jnp.diff(value, axis=-1))
        return jnp.concatenate([value[..., :1], gaps], axis=-1)

    def from_real(self, raw: Array) -> Array:
        """Sums of the first number and the gaps after it."""
        gaps = jnp.exp(raw[..., 1:])
        return jnp.cumsum(jnp.concatenate([raw[..., :1], gaps], axis=-1), axis=-1)

    def contains(self, value: Any) -> Any:
        """Whether each entry is finite and greater than the one before."""
        first = np.ones_like(value[..., :1], dtype=bool)
        rising = np.concatenate([first, value[..., 1:] > value[..., :-1]], axis=-1)
        return np.isfinite(value) & rising

    def log_jacobian(self, raw: Array) -> Array:
        """The Jacobian is triangular, with 1 and the gaps on its diagonal."""
        return jnp.sum(raw[..., 1:])


class Lengths(AbstractConstraint):
    """Positive scalars and vectors; lower triangular matrices of positive diagonal."""

    @property
    def description(self) -> str:
        """The set in words."""
        return "finite numbers > 0, or a lower triangular matrix of positive diagonal"

    def triangular(self, value: Array) -> bool:
        """Whether the value is a matrix."""
        return value.ndim == 2

    def to_real(self, value: Array) -> Array:
        """The logarithm, of a matrix that of the diagonal."""
        return jnp.log(value) if value.ndim < 2 else _log_diagonal(value)

    def from_real(self, raw: Array) -> Array:
        """The exponential, of a matrix that of the diagonal."""
        return jnp.exp(raw) if raw.ndim < 2 else _exp_diagonal(raw)

    def contains(self, value: Any) -> Any:
        """Whether each entry is as it should be."""
        if value.ndim < 2:
            return (value > 0) & (value < np.inf)
        diagonal = np.eye(value.shape[-1], dtype=bool)
        lower = np.tril(np.isfinite(value))
        return np.where(diagonal, lower & (value > 0), lower | (value == 0))

    def log_jacobian(self, raw: Array) -> Array:
        """Of the exponential, for a matrix that of the diagonal."""
        return jnp.sum(raw) if raw.ndim < 2 else jnp.trace(raw)


class Covariances(AbstractConstraint):
    """Positive scalars and vectors; symmetric positive definite matrices."""

    @property
    def description(self) -> str:
        """The set in words."""
        return "finite numbers > 0, or a symmetric positive definite matrix"

    def triangular(self, value: Array) -> bool:
        """Whether the value is a matrix."""
        return value.ndim == 2

    def to_real(self, value: Array) -> Array:
        """The logarithm, of a matrix that of its Cholesky factor's diagonal."""
        if value.ndim < 2:
            return jnp.log(value)
        return _log_diagonal(cholesky(value).lower)

    def from_real(self, raw: Array) -> Array:
        """The exponential, or the matrix LLᵀ."""
        if raw.ndim < 2:
            return jnp.exp(raw)
        lower = _exp_diagonal(raw)
        return lower @ lower.mT

    def contains(self, value: Any) -> Any:
        """Whether each entry is positive, or the whole matrix positive definite."""
        if value.ndim < 2:
            return (value > 0) & (value < np.inf)
        if not np.all(np.isfinite(value)):
            return np.isfinite(value)
        tolerance = 10 * np.finfo(value.dtype).eps * np.max(np.abs(value))
        symmetric = np.all(np.abs(value - np.swapaxes(value, -1, -2)) <= tolerance)
        return symmetric & np.all(np.linalg.eigvalsh(value) > 0)

    def log_jacobian(self, raw: Array) -> Array:
        """Of the exponential; of a matrix as well 2^p ∏ᵢ Lᵢᵢ^(p + 1 − i), of L to LLᵀ.

        In the entries on and below the diagonal (Muirhead 1982, theorem 2.1.9).
        """
        if raw.ndim < 2:
            return jnp.sum(raw)
        size = raw.shape[-1]
        powers = jnp.arange(size, 0, -1, dtype=raw.dtype) + 1
        return size * math.log(2) + jnp.sum(powers * jnp.diagonal(raw))


def _log_diagonal(lower: Array) -> Array:
    diagonal = jnp.eye(lower.shape[-1], dtype=bool)
    safe = jnp.where(diagonal, lower, jnp.ones_like(lower))
    return jnp.where(diagonal, jnp.log(safe), jnp.tril(lower))


def _exp_diagonal(raw: Array) -> Array:
    diagonal = jnp.eye(raw.shape[-1], dtype=bool)
    safe = jnp.where(diagonal, raw, jnp.zeros_like(raw))
    return jnp.where(diagonal, jnp.exp(safe), jnp.tril(raw, -1))


REAL = {"constraint": Real()}
POSITIVE = {"constraint": Positive()}
NON_NEGATIVE = {"constraint": NonNegative()}
INCREASING = {"constraint": Increasing()}
LENGTHS = {"constraint": Lengths()}
COVARIANCES = {"constraint": Covariances()}
