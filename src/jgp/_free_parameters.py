"""The trainable parameters of a model as one vector of real numbers."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from jgp._constraints import AbstractConstraint, Real
from jgp._model import Model, trainable, with_ties
from jgp._parameters import from_real, table, to_real


class FreeParameters(eqx.Module):
    """The trainable parameters of a model, and what is held.

    A vector has an entry for each number that can move: of a triangular or symmetric
    matrix, the lower triangle.

    Args:
        free: The trainable leaves, as the tree that they are; None elsewhere.
        fixed: All else of the model.
        names: The path of each entry.
        kept: Where each entry lies among all numbers of the trainable leaves.
        monotone: Whether an entry's natural value is a monotone function of it alone.
    """

    free: PyTree = eqx.field(repr=False)
    fixed: PyTree = eqx.field(repr=False)
    names: tuple[str, ...] = eqx.field(static=True)
    kept: tuple[int, ...] = eqx.field(static=True)
    monotone: tuple[bool, ...] = eqx.field(static=True)

    @property
    def raw(self) -> Float[Array, " p"]:
        """The vector at the model's own values."""
        return ravel_pytree(to_real(self.free))[0][np.asarray(self.kept, int)]

    def _tree(self, raw: Float[Array, " p"]) -> PyTree:
        whole, unravel = ravel_pytree(to_real(self.free))
        return unravel(whole.at[np.asarray(self.kept, int)].set(raw))

    def each(self, function: Callable[[str, Array, AbstractConstraint], Any]) -> list:
        """What a function of path, leaf and constraint says of each entry."""
        rows = table(self.free)
        values = [v for row in rows for v in [function(*row)] * row[1].size]
        return [values[i] for i in self.kept]

    @property
    def on_the_real_line(self) -> Bool[np.ndarray, " p"]:
        """Which entries have the units of the data: all others are logarithms.

        Of a triangular matrix those below the diagonal.
        """

        def free(leaf: Array, constraint: AbstractConstraint) -> np.ndarray:
            if constraint.triangular(leaf):
                return ~np.eye(leaf.shape[-1], dtype=bool)
            return np.full(leaf.shape, isinstance(constraint, Real))

        parts = [free(leaf, c).ravel() for _, leaf, c in table(self.free)]
        return np.concatenate(parts)[np.asarray(self.kept, int)]

    def at(self, raw: Float[Array, " p"]) -> Model:
        """The model with these values."""
        return with_ties(eqx.combine(from_real(self._tree(raw)), self.fixed))

    def natural(self, raw: Float[Array, " p"]) -> Float[Array, " p"]:
        """The natural values, entry by entry."""
        values, _ = ravel_pytree(from_real(self._tree(raw)))
        return values[np.asarray(self.kept, int)]

    def held(self, index: int, raw: float | np.floating) -> "FreeParameters":
        """All but one entry, which has a raw value that nothing moves."""
        values = self.raw.at[index].set(raw)
        free = from_real(self._tree(values))

        def others(entries: tuple) -> tuple:
            return entries[:index] + entries[index + 1 :]

        return FreeParameters(
            free,
            self.fixed,
            others(self.names),
            others(self.kept),
            others(self.monotone),
        )

    def log_jacobian(self, raw: Float[Array, " p"]) -> Float[Array, ""]:
        """log|∂natural/∂raw|."""
        rows = table(self.free)
        leaves = jax.tree.leaves(self._tree(raw))
        terms = (c.log_jacobian(v) for (_, _, c), v in zip(rows, leaves, strict=True))
        return sum(terms, jnp.zeros((), raw.dtype))


def free_parameters(model: Model) -> FreeParameters:
    """The trainable parameters of a model.

    Raises:
        ValueError: without any.
    """
    free, fixed = eqx.partition(model, trainable(model))
    if not jax.tree.leaves(free):
        raise ValueError("model: got one with every parameter frozen, nothing to fit.")
    names, kept, monotone, start = [], [], [], 0
    for path, leaf, constraint in table(free):
        # Of such a matrix the rest is no parameter.
        triangular = constraint.triangular(leaf)
        counts = np.tril(np.ones(leaf.shape)) if triangular else np.ones(leaf.shape)
        for i in np.flatnonzero(counts):
            names.append(path if leaf.size == 1 else f"{path}[{i}]")
            kept.append(start + int(i))
            monotone.append(constraint.entrywise(leaf))
        start += leaf.size
    return FreeParameters(free, fixed, tuple(names), tuple(kept), tuple(monotone))


def check_inside(parameters: FreeParameters) -> None:
    """Raise a `ValueError` for a trainable leaf on the edge of its domain."""

    def outside(leaf: Array, constraint: AbstractConstraint) -> bool:
        return not np.all(np.isfinite(np.asarray(constraint.to_real(leaf))))

    for path, leaf, constraint in table(parameters.free):
        if outside(leaf, constraint):
            raise ValueError(
                f"model{path}: got {leaf}, wanted a start inside its domain "
                f"({constraint.description}, by its logarithm), or the leaf frozen."
            )
