"""A model: a prior process, a likelihood, and which parameters are held fixed."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
from jaxtyping import PyTree

from jgp._parameters import fixed_paths, select, where_paths
from jgp._process import AbstractProcess
from jgp.likelihoods import AbstractLikelihood


class Model(eqx.Module):
    """What every inference method takes.

    Args:
        process: The prior over the latent functions.
        likelihood: p(y | f), point by point.
        frozen: Paths of the leaves that `fit` leaves alone; see `freeze`.

    Raises:
        ValueError: if the likelihood needs another number of latents than the
            process has.
    """

    process: AbstractProcess
    likelihood: AbstractLikelihood
    frozen: tuple[str, ...] = eqx.field(static=True, default=())

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
    return Model(model.process, model.likelihood, tuple(frozen))


def trainable(model: Model) -> PyTree[bool]:
    """A filter tree of the model: True at the floating leaves that `fit` may move."""
    held = {*model.frozen, *fixed_paths(model)}
    from_paths = where_paths(model, lambda m: m)
    return select(model, tuple(p for p in from_paths if p not in held))
