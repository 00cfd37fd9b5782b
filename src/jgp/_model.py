"""A model: a prior process, a likelihood, and which parameters are held fixed."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jgp._parameters import fixed_paths, select, table, where_paths
from jgp._process import AbstractProcess
from jgp.likelihoods import AbstractLikelihood


class Model(eqx.Module):
    """What every inference method takes.

    Args:
        process: The prior over the latent functions.
        likelihood: p(y | f), point by point.
        frozen: Paths of the leaves that `fit` leaves alone; see `freeze`.
        priors: Paths of leaves with the log density of each; see `with_prior`.

    Raises:
        ValueError: if the likelihood needs another number of latents than the
            process has, or a path is not one of a leaf.
    """

    process: AbstractProcess
    likelihood: AbstractLikelihood
    frozen: tuple[str, ...] = eqx.field(static=True, default=())
    priors: tuple[tuple[str, Callable], ...] = eqx.field(static=True, default=())

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
        ):
            unknown = [p for p in paths if p not in where_paths(self, lambda m: m)]
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
    frozen = dict.fromkeys(model.frozen + where_paths(model, where))
    return Model(model.process, model.likelihood, tuple(frozen), model.priors)


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
        ValueError: if `where` selects no leaf, or the log density is no function.
    """
    if not callable(log_density):
        raise ValueError(
            f"log_density: got {log_density!r}, wanted a function such as "
            "jgp.priors.LogNormal(1.0, 1.0)."
        )
    kept = {**dict(model.priors)}
    kept |= dict.fromkeys(where_paths(model, where), log_density)
    return Model(model.process, model.likelihood, model.frozen, tuple(kept.items()))


def log_prior(model: Model) -> Float[Array, ""]:
    """The log density of the parameters under the model's priors, 0 without any."""
    densities = dict(model.priors)
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
    from_paths = where_paths(model, lambda m: m)
    return select(model, tuple(p for p in from_paths if p not in held))
