"""The objective of a fit at raw parameters, one point or several at a time."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jgp._free_parameters import FreeParameters
from jgp._model import log_prior
from jgp._objective import Verb, value_and_gradient
from jgp._results import RESULTS, SEVERITY
from jgp._search import Trial
from jgp.inference import Approximation


class Evaluator:
    """The objective of one fit, at raw parameters.

    Args:
        parameters: The free parameters.
        x: Inputs.
        y: Targets.
        infer: The method.
        score: Of an approximation; the log prior is added.
        vectorize: Whether trials that are wanted at once are one batch.
    """

    def __init__(
        self,
        parameters: FreeParameters,
        x: Array,
        y: Any,
        infer: Verb,
        score: Callable[[Approximation], Array],
        vectorize: bool | None,
    ):
        self.parameters, self.x, self.y = parameters, x, y
        self.infer, self.score = infer, score
        on_cpu = jax.default_backend() == "cpu"
        self.vectorize = not on_cpu if vectorize is None else vectorize

    def cold(self, raw: np.ndarray) -> tuple[Approximation, float]:
        """The approximation from no sites, and the score there or −∞."""
        model = self.parameters.at(jnp.asarray(raw))
        found = self.infer(model, self.x, self.y)
        if not isinstance(found, Approximation):
            raise ValueError(
                f"infer: got a function that returns {type(found).__name__}, wanted "
                "one that returns an Approximation."
            )
        score = _scored(self.score, found)
        if np.shape(score) != () or not np.isrealobj(score) or score is None:
            raise ValueError(
                f"objective: got a function that returns {score!r}, wanted a number."
            )
        value = float(score) + float(log_prior(model))
        usable = bool(found.result == RESULTS.successful) and np.isfinite(value)
        return found, value if usable else -np.inf

    def at(self, raw: np.ndarray, warm: Approximation) -> tuple[Trial, Approximation]:
        """The trial at a point, sites started from those of another."""
        found = value_and_gradient(
            jnp.asarray(raw),
            self.parameters,
            self.x,
            self.y,
            warm,
            self.infer,
            self.score,
        )
        return _trial(raw, *found)

    def at_each(
        self, raws: list[np.ndarray], warm: list[Approximation]
    ) -> list[tuple[Trial, Approximation]]:
        """The trials at several points, in one batch.

        Padded to a power of two: a batch that loses members is seldom compiled anew.
        """
        size = 2 ** (len(raws) - 1).bit_length()
        fill = [0] * (size - len(raws))
        stacked = jnp.stack([jnp.asarray(raws[i]) for i in (*range(len(raws)), *fill)])
        several = [warm[i] for i in (*range(len(warm)), *fill)]
        pairs = [eqx.partition(w, eqx.is_array) for w in several]
        arrays = [pair[0] for pair in pairs]
        together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays)
        values, gradients, found = _batch(
            stacked,
            together,
            pairs[0][1],
            self.parameters,
            self.x,
            self.y,
            self.infer,
            self.score,
        )
        arrays, rest = eqx.partition(found, eqx.is_array)
        host = np.asarray(values), np.asarray(gradients)
        results = []
        for i, raw in enumerate(raws):
            one = eqx.combine(jax.tree.map(lambda leaf, i=i: leaf[i], arrays), rest)
            results.append(_trial(raw, host[0][i], host[1][i], one))
        return results


@eqx.filter_jit
def _scored(score: Callable[[Approximation], Any], found: Approximation) -> Any:
    return score(found)


def _trial(raw, value, gradient, approximation) -> tuple[Trial, Approximation]:
    gradient = np.asarray(gradient)
    result = approximation.result
    code = next(i for i, status in enumerate(SEVERITY) if bool(result == status))
    return Trial(raw, float(value), gradient, code), approximation


@eqx.filter_jit
def _batch(raws, warm, rest, parameters, x, y, infer, score):
    def one(raw, warm):
        init = eqx.combine(warm, rest)
        return value_and_gradient(raw, parameters, x, y, init, infer, score)

    return eqx.filter_vmap(one)(raws, warm)
