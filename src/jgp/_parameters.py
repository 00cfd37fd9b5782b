"""Constraints on parameters: declared at the field, crossed in one place.

Leaves of a model hold natural values. The set each may lie in is metadata of its
dataclass field,

    lengthscale: Float[Array, "*d"] = eqx.field(converter=as_float, metadata=POSITIVE)

and only `to_real` and `from_real` apply the bijection between that set and the
real line.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, PyTree

from jgp._constraints import AbstractConstraint, Interval, Real
from jgp._types import is_floating


def constraints(model: PyTree) -> PyTree:
    """The constraint of each floating leaf of a model.

    Returns:
        A tree of the model's structure with an `AbstractConstraint` in the place
        of each floating array (`Real()` where the field declares none) and None in
        the place of every other leaf.
    """
    leaves, structure = jtu.tree_flatten_with_path(model)
    found = [_constraint_at(model, p) if is_floating(v) else None for p, v in leaves]
    return jtu.tree_unflatten(structure, found)


def _constraint_at(model: PyTree, path: tuple) -> AbstractConstraint:
    for bounded, low, high in getattr(model, "bounds", ()):
        if bounded == jtu.keystr(path):
            return Interval(low, high)
    return _metadata_at(model, path).get("constraint", Real())


def _metadata_at(model: PyTree, path: tuple) -> Mapping[str, Any]:
    """What the innermost dataclass field on the way to a leaf declares."""
    node, metadata = model, {}
    for key in path:
        match key:
            case jtu.GetAttrKey(name):
                field = getattr(type(node), "__dataclass_fields__", {}).get(name)
                metadata = {} if field is None else field.metadata
                node = getattr(node, name)
            case jtu.SequenceKey(index):
                node = node[index]
            case jtu.DictKey(name):
                node = node[name]
            case _:  # a foreign node: its fields declare nothing to jgp
                return {}
    return metadata


def fixed_paths(model: PyTree) -> tuple[str, ...]:
    """The paths of the leaves whose field says that nothing ever trains them."""
    leaves, _ = jtu.tree_flatten_with_path(model)
    return tuple(
        jtu.keystr(path) for path, _ in leaves if _metadata_at(model, path).get("fixed")
    )


def _map(function: Callable, model: PyTree) -> PyTree:
    """Apply `function(constraint, leaf)` to each floating leaf."""

    def one(leaf, constraint):
        return leaf if constraint is None else function(constraint, leaf)

    return jax.tree.map(
        one, model, constraints(model), is_leaf=lambda leaf: leaf is None
    )


def to_real(model: PyTree) -> PyTree:
    """The same tree with each floating leaf mapped to the real line."""
    return _map(lambda constraint, leaf: constraint.to_real(leaf), model)


def from_real(raw: PyTree) -> PyTree:
    """The model whose `to_real` is `raw`: each leaf back at its natural value."""
    return _map(lambda constraint, leaf: constraint.from_real(leaf), raw)


def cast(model: PyTree, dtype: DTypeLike) -> PyTree:
    """The same tree with floating leaves in `dtype`."""
    return jax.tree.map(lambda v: v.astype(dtype) if is_floating(v) else v, model)


def is_concrete(value: Any) -> bool:
    """Whether the value of an array can be read (it is not being traced)."""
    return not isinstance(value, Tracer)


def check_parameters(model: PyTree, name: str = "model") -> None:
    """Raise a `ValueError` for the first concrete leaf outside its constraint.

    Raises:
        ValueError: naming the leaf's path, its value and what is wanted.
    """
    leaves, _ = jtu.tree_flatten_with_path(model)
    for path, leaf in leaves:
        if not (is_floating(leaf) and is_concrete(leaf)):
            continue
        constraint, value = _constraint_at(model, path), np.asarray(leaf)
        if not np.all(constraint.contains(value)):
            raise ValueError(
                f"{name}{jtu.keystr(path)}: got {np.array2string(value)}, "
                f"wanted {constraint.description}."
            )


Row = tuple[str, Array, AbstractConstraint]


class Table(list[Row]):
    """Rows (path, natural value, constraint) that print as a table."""

    def __init__(self, rows: Iterable[Row], model: PyTree):
        super().__init__(rows)
        held = {*getattr(model, "frozen", ()), *fixed_paths(model)}
        self._state = dict.fromkeys(held, "held")
        for first, *others in getattr(model, "tied", ()):
            self._state |= dict.fromkeys(others, f"= {first}")
        self._priors = dict(getattr(model, "priors", ()))

    def __str__(self) -> str:
        cells = [("parameter", "value", "in", "prior", "")]
        cells.extend(
            (
                path,
                _shown(leaf),
                constraint.description,
                _named(self._priors.get(path)),
                self._state.get(path, "free"),
            )
            for path, leaf, constraint in self
        )
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = (
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True))
            for row in cells
        )
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__


def _shown(leaf: Array) -> str:
    if not is_concrete(leaf):
        return str(leaf)
    return np.array2string(np.asarray(leaf), precision=6, threshold=8)


def _named(prior: Any) -> str:
    if prior is None:
        return ""
    return getattr(prior, "__name__", None) or repr(prior)


def table(model: PyTree) -> Table:
    """Each floating leaf of a model as a row (path, natural value, constraint).

    Printed, the rows are a table that also tells priors and what is held fixed.
    """
    leaves, _ = jtu.tree_flatten_with_path(model)
    rows = (
        (jtu.keystr(path), leaf, _constraint_at(model, path))
        for path, leaf in leaves
        if is_floating(leaf)
    )
    return Table(rows, model)


def where_paths(model: PyTree, where: Callable[[Any], Any]) -> tuple[str, ...]:
    """The paths of the array leaves that `where(model)` selects.

    Args:
        model: Any pytree.
        where: A function of the model that returns a leaf, a subtree, or a tuple
            of them, as for `equinox.tree_at`.

    Raises:
        ValueError: if nothing that `where` returns is a leaf of the model.
    """
    if not callable(where):
        raise ValueError(f"where: got {where!r}, wanted a function of the model.")
    leaves, structure = jtu.tree_flatten_with_path(model)
    paths = [jtu.keystr(path) for path, _ in leaves]
    numbered = jtu.tree_unflatten(structure, [_Numbered(i) for i in range(len(leaves))])
    chosen = [v for v in jax.tree.leaves(where(numbered)) if isinstance(v, _Numbered)]
    if not chosen:
        raise ValueError(
            "where: got a function that selects no leaf of the model, wanted one "
            "such as `lambda model: model.process.kernel.lengthscale`; the leaves "
            f"are {', '.join(paths)}."
        )
    return tuple(paths[leaf.index] for leaf in chosen)


class _Numbered:
    """Stands in for a leaf so that `where` can be asked which ones it picks."""

    def __init__(self, index: int):
        self.index = index


def select(model: PyTree, paths: tuple[str, ...]) -> PyTree[Bool]:
    """A filter tree: True at the floating leaves whose path is in `paths`."""
    return jtu.tree_map_with_path(
        lambda path, leaf: is_floating(leaf) and jtu.keystr(path) in paths, model
    )
