"""A model: a prior process, a likelihood, and which parameters are held fixed."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float, PyTree

from jgp._constraints import AbstractConstraint, Increasing, Interval
from jgp._parameters import fixed_paths, is_concrete, select, table, where_paths
from jgp._process import AbstractProcess
from jgp.likelihoods import AbstractLikelihood


class Model(eqx.Module):
    """What every inference method takes.

    Args:
        process: The prior over the latent functions.
        likelihood: p(y | f), point by point.
        frozen: Paths of the leaves that `fit` leaves alone; see `freeze`.
        priors: Paths of leaves with the log density of each; see `with_prior`.
        bounds: Paths of leaves with the ends of an interval; see `bound`.
        tied: Groups of paths of leaves that have one value; see `tie`.

    Raises:
        ValueError: if the likelihood needs another number of latents than the
            process has, or a path is not one of a leaf.
    """

    process: AbstractProcess
    likelihood: AbstractLikelihood
    frozen: tuple[str, ...] = eqx.field(static=True, default=())
    priors: tuple[tuple[str, Callable], ...] = eqx.field(static=True, default=())
    bounds: tuple[tuple[str, float, float], ...] = eqx.field(static=True, default=())
    tied: tuple[tuple[str, ...], ...] = eqx.field(static=True, default=())

    def __check_init__(self):
        if not isinstance(self.process, AbstractProcess):
            raise ValueError(
                f"process: got {type(self.process).__name__}, wanted a process such as "
                "GaussianProcess(kernel) or independent([kernel, ...])."
            )
        if not isinstance(self.likelihood, AbstractLikelihood):
            raise ValueError(
                f"likelihood: got {type(self.likelihood).__name__}, wanted one of "
                "jgp.likelihoods."
            )
        wanted = self.likelihood.num_latents
        if wanted not in (None, self.process.num_latents):
            raise ValueError(
                f"process: got {self.process.num_latents} latent functions, wanted "
                f"{wanted} for {type(self.likelihood).__name__}."
            )
        for name, paths in (
            ("frozen", self.frozen),
            ("priors", tuple(path for path, _ in self.priors)),
            ("bounds", tuple(path for path, _, _ in self.bounds)),
            ("tied", tuple(path for group in self.tied for path in group)),
        ):
            known = where_paths(self, lambda m: m) if paths else ()
            unknown = [p for p in paths if p not in known]
            if unknown:
                raise ValueError(
                    f"{name}: got {unknown[0]!r}, which is no leaf of the model; "
                    "`jgp.table(model)` lists them."
                )


def freeze(model: Model, where: Callable[[Any], Any]) -> Model:
    """The same model with more leaves held fixed by `fit`.

    Args:
        model: A model.
        where: Selects leaves or subtrees, as for `equinox.tree_at`; for example
            `lambda model: model.process.kernels[0].lengthscale`.

    Raises:
        ValueError: if `where` selects no leaf.
    """
    frozen = dict.fromkeys(model.frozen + leading(model, where))
    return dataclasses.replace(model, frozen=tuple(frozen))


def with_prior(
    model: Model,
    where: Callable[[Any], Any],
    log_density: Callable[[Array], Array],
) -> Model:
    """The same model with a prior on some of its parameters, on their natural scale.

    `fit` then maximises the posterior density of the natural parameters: evidence
    times prior, without a Jacobian. Another prior on the same leaf replaces the first.

    Args:
        model: A model.
        where: Selects leaves or subtrees, as for `freeze`.
        log_density: The log density of each entry of an array: one of `jgp.priors`, or
            any function, which JAX must be able to differentiate. Models are compiled
            anew for another function, and for another value of one of `jgp.priors`.

    Raises:
        ValueError: if `where` selects no leaf, or a matrix of entries that depend on
            each other; if the log density is no function of each entry, or not finite
            where the model stands.
    """
    if not callable(log_density):
        raise ValueError(
            f"log_density: got {log_density!r}, wanted a function such as "
            "jgp.priors.LogNormal(1.0, 1.0)."
        )
    paths = leading(model, where)
    for path, leaf, constraint in table(dataclasses.replace(model, bounds=())):
        if path in paths:
            _check_prior(path, leaf, constraint, log_density)
    kept = dict(model.priors) | dict.fromkeys(paths, log_density)
    return dataclasses.replace(model, priors=tuple(kept.items()))


def _check_prior(
    path: str, leaf: Array, constraint: AbstractConstraint, log_density: Callable
) -> None:
    if not constraint.entrywise(leaf):
        raise ValueError(f"where: got {path}, wanted leaves of independent entries.")
    values = log_density(jnp.asarray(leaf))
    if jnp.shape(values) != jnp.shape(leaf):
        raise ValueError(
            f"log_density: got values of shape {jnp.shape(values)} at {path} of shape "
            f"{jnp.shape(leaf)}, wanted the log density of each entry."
        )
    if is_concrete(values) and not np.all(np.isfinite(values)):
        raise ValueError(
            f"log_density: got {values} at {path} = {leaf}, wanted finite values where "
            "the model stands; give the parameter another value first."
        )


def bound(model: Model, where: Callable[[Any], Any], low: float, high: float) -> Model:
    """The same model with parameters that `fit` keeps between two numbers.

    Args:
        model: A model.
        where: Selects leaves or subtrees, as for `freeze`.
        low: The lower end, which they stay above.
        high: The upper end, which they do not pass.

    Raises:
        ValueError: if `where` selects no leaf, or one outside the interval or that is
            a matrix, or the ends are not finite and in order.
    """
    try:
        low, high = float(low), float(high)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"low, high: got {low!r}, {high!r}, wanted numbers."
        ) from error
    if not -np.inf < low < high < np.inf:
        raise ValueError(
            f"low, high: got {low}, {high}, wanted finite numbers, low < high."
        )
    paths = leading(model, where)
    for path, leaf, constraint in table(dataclasses.replace(model, bounds=())):
        if path not in paths:
            continue
        value, inside = np.asarray(leaf), Interval(low, high)
        ends = np.nextafter(low, high), high
        natural = all(
            np.all(constraint.contains(np.full(value.shape, e))) for e in ends
        )
        if constraint.triangular(leaf) or isinstance(constraint, Increasing):
            raise ValueError(
                f"where: got {path}, wanted leaves of independent entries."
            )
        if not np.all(inside.contains(value)) or not natural:
            raise ValueError(
                f"low, high: got {low}, {high} for {path} of value {value} in "
                f"{constraint.description}, wanted an interval within that, about the "
                "value."
            )
    kept = {path: (low, high) for path, low, high in model.bounds}
    kept |= dict.fromkeys(paths, (low, high))
    return dataclasses.replace(
        model, bounds=tuple((path, *ends) for path, ends in kept.items())
    )


def tie(model: Model, where: Callable[[Any], Any]) -> Model:
    """The same model with leaves that have one value, that of the first, also in `fit`.

    Args:
        model: A model.
        where: Selects leaves or subtrees, as for `freeze`, of one shape and domain.

    Raises:
        ValueError: if `where` selects fewer than two leaves, some of another shape or
            domain, some that are tied already, or after the first one that is frozen,
            bounded or has a prior.
    """
    paths = tuple(dict.fromkeys(where_paths(model, where)))
    shapes = {leaf.shape for path, leaf, _ in table(model) if path in paths}
    unbounded = table(dataclasses.replace(model, bounds=()))
    domains = {c.description for path, _, c in unbounded if path in paths}
    if len(paths) < 2 or len(shapes) > 1 or len(domains) > 1:
        raise ValueError(
            f"where: got {', '.join(paths)} of shapes {sorted(shapes)}, "
            f"{' or '.join(sorted(domains))}, wanted at least two leaves of one shape "
            "and domain."
        )
    if any(path in group for group in model.tied for path in paths):
        raise ValueError(
            f"where: got {', '.join(paths)}, of which one is tied already."
        )
    said = [*model.frozen, *(p for p, *_ in (*model.priors, *model.bounds))]
    if several := [path for path in paths[1:] if path in said]:
        raise ValueError(
            f"where: got {several[0]}, which is frozen, bounded or has a prior; tie "
            "first, and then freeze, bound or give a prior to what is tied."
        )
    return with_ties(dataclasses.replace(model, tied=(*model.tied, paths)))


def leading(model: Model, where: Callable[[Any], Any]) -> tuple[str, ...]:
    """The paths that `where` selects, of tied leaves that of the first."""
    first = {path: group[0] for group in model.tied for path in group}
    found = (first.get(path, path) for path in where_paths(model, where))
    return tuple(dict.fromkeys(found))


def with_ties(model: Model) -> Model:
    """The model with the first value of each group of tied leaves in all of them."""
    if not model.tied:
        return model
    values = {path: leaf for path, leaf, _ in table(model)}
    first = {path: values[group[0]] for group in model.tied for path in group}
    return jtu.tree_map_with_path(
        lambda path, leaf: first.get(jtu.keystr(path), leaf), model
    )


def log_prior(model: Model) -> Float[Array, ""]:
    """The log density of the parameters under the model's priors, 0 without any.

    Tied leaves are one parameter.
    """
    densities = dict(model.priors)
    for _, *others in model.tied:
        for path in others:
            densities.pop(path, None)
    total = jnp.zeros((), jnp.result_type(*_floating(model)))
    for path, leaf, _ in table(model):
        if path in densities:
            total = total + jnp.sum(densities[path](leaf)).astype(total.dtype)
    return total


def _floating(model: Model) -> list[Array]:
    return [leaf for _, leaf, _ in table(model)] or [jnp.zeros(())]


def trainable(model: Model) -> PyTree[bool]:
    """A filter tree of the model: True at the floating leaves that `fit` may move."""
    held = {*model.frozen, *fixed_paths(model)}
    held |= {path for group in model.tied for path in group[1:]}
    from_paths = where_paths(model, lambda m: m)
    return select(model, tuple(p for p in from_paths if p not in held))
