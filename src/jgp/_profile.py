r"""Profiles of the evidence: one parameter held, all others at their best for it.

Twice the fall of a profile from its maximum is about χ²₁ when the value held is the
true one, which gives intervals that need neither a quadratic evidence nor a scale
(Cox & Hinkley 1974, §9.3), unlike those of the Fisher information.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import ArrayLike, Float
from tqdm import tqdm

from jgp._constraints import AbstractConstraint
from jgp._evaluator import Evaluator
from jgp._free_parameters import FreeParameters, check_inside, free_parameters
from jgp._information import fisher_information
from jgp._model import Model, leading
from jgp._objective import log_evidence, problem
from jgp._results import RESULTS, InferenceWarning
from jgp._runs import Run, drive
from jgp._search import checked_tolerance, quasi_newton
from jgp._types import positive_integer
from jgp.inference import Approximation
from jgp.likelihoods._predictive import check_level

# Standard errors on either side of the estimate.
WIDTH = 3.0


class Profile(eqx.Module):
    """The evidence, with the priors, over one parameter.

    Args:
        name: The path of the parameter.
        values: Its values, increasing, in natural units.
        objective: The largest log evidence plus log prior with the parameter there;
            NaN where inference failed.
        models: The model at each of them.
        results: How the search for each ended.
        constraint: What values the parameter may have.
    """

    name: str = eqx.field(static=True)
    values: Float[np.ndarray, " num"]
    objective: Float[np.ndarray, " num"]
    models: tuple[Model, ...] = eqx.field(repr=False)
    results: tuple[RESULTS, ...] = eqx.field(repr=False)
    constraint: AbstractConstraint

    @property
    def best(self) -> Model:
        """The model where the profile is highest."""
        return self.models[int(np.nanargmax(self.objective))]

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Where the profile is less than χ²₁'s quantile over 2 below its maximum.

        Between two values the root of the fall is taken as linear in the raw parameter.
        An end that the values do not reach is that of the parameter's domain.

        Args:
            level: The confidence, in (0, 1).

        Raises:
            ValueError: for a level that is no probability.
        """
        check_level(level)
        z = float(ndtri((1 + level) / 2))
        there = np.isfinite(self.objective)
        if not there.any():
            raise ValueError(
                "interval: inference failed at every value of the profile."
            )
        heights = self.objective[there]
        raw = np.asarray(self.constraint.to_real(jnp.asarray(self.values[there])))
        top = int(np.argmax(heights))
        falls = np.sqrt(2 * (heights[top] - heights))
        up = _crossing(raw[top:], falls[top:], z)
        down = -_crossing(-raw[: top + 1][::-1], falls[: top + 1][::-1], z)
        low, high = (self.constraint.from_real(jnp.asarray(e)) for e in (down, up))
        return float(low), float(high)


def _crossing(raw: np.ndarray, falls: np.ndarray, z: float) -> float:
    """Where falls that start at 0 first reach z, ∞ if they do not."""
    beyond = np.flatnonzero(falls >= z)
    if beyond.size == 0:
        return np.inf
    i = beyond[0]
    share = (z - falls[i - 1]) / (falls[i] - falls[i - 1])
    return float(raw[i - 1] + share * (raw[i] - raw[i - 1]))


def profile(
    model: Model,
    x: ArrayLike,
    y: Any,
    where: Callable[[Any], Any],
    *,
    index: int = 0,
    values: ArrayLike | None = None,
    num: int = 21,
    infer: Callable[..., Approximation] | None = None,
    max_steps: int = 200,
    tolerance: float | None = None,
    progress: bool = True,
) -> Profile:
    """The profile of the log evidence plus log prior over one parameter.

    Args:
        model: The model at a maximum of it, as `fit` found it.
        x: (n, d) inputs.
        y: Targets, as the likelihood wants them.
        where: Selects the leaf, as for `freeze`.
        index: Which entry of it.
        values: Where to hold it beside the model's own value, in natural units; by
            default `num` values in all, three standard errors (by the Fisher
            information; a factor of e³ where it says nothing) to either side of it.
        num: How many.
        infer: As for `fit`.
        max_steps: As for `fit`, at each value.
        tolerance: As for `fit`.
        progress: As for `fit`.

    Raises:
        ValueError: for input that cannot be right, a parameter that is not trained or
            is an entry of a matrix, or values outside its domain.

    Warns:
        InferenceWarning: for values at which the search did not end well.
    """
    model, inputs, targets, verb = problem(model, x, y, infer)
    positive_integer("num", num, least=3)
    positive_integer("max_steps", max_steps)
    parameters = free_parameters(model)
    check_inside(parameters)
    entry, constraint = _entry(parameters, model, where, index)
    dtype = inputs.dtype
    tolerance = checked_tolerance(tolerance, dtype)
    own = np.asarray(parameters.raw)
    if values is None:
        information = fisher_information(model, x, y, infer=infer)
        error = float(np.sqrt(np.asarray(information.raw_covariance)[entry, entry]))
        error = error if np.isfinite(error) and error > 0 else 1.0
        raws = own[entry] + error * np.linspace(-WIDTH, WIDTH, num)
    else:
        # Falls are from the maximum, which is at the model's own value.
        raws = np.append(_checked(values, constraint, dtype), own[entry])
        raws = np.unique(raws)
    raws = raws.astype(dtype)
    found: list[tuple[float, Approximation, RESULTS] | None] = [None] * raws.size
    warm = verb(model, inputs, targets)
    with tqdm(total=raws.size, desc="profile", delay=2.0, disable=not progress) as bar:
        for way in _outwards(raws, own[entry]):
            start, approximation = np.delete(own, entry), warm
            for i in way:
                held = parameters.held(entry, raws[i])
                evaluator = Evaluator(held, inputs, targets, verb, log_evidence, None)
                value, start, approximation, result = _highest(
                    evaluator, start, approximation, max_steps, tolerance, bar
                )
                found[i] = value, approximation, result
    points = [point for point in found if point is not None]
    unended = [p for p in points if not bool(p[2] == RESULTS.successful)]
    if unended:
        warnings.warn(
            f"profile: the search failed at {len(unended)} of {raws.size} values: "
            f"{RESULTS[unended[0][2]]} See `Profile.results`.",
            InferenceWarning,
            stacklevel=2,
        )
    return Profile(
        parameters.names[entry],
        np.asarray(constraint.from_real(jnp.asarray(raws))),
        np.array([value for value, *_ in points]),
        tuple(approximation.model for _, approximation, _ in points),
        tuple(result for *_, result in points),
        constraint,
    )


def _highest(
    evaluator: Evaluator,
    start: np.ndarray,
    warm: Approximation,
    max_steps: int,
    tolerance: float,
    bar: tqdm,
) -> tuple[float, np.ndarray, Approximation, RESULTS]:
    """The objective, raw parameters and approximation at the best of the others."""
    if start.size == 0:
        approximation, value = evaluator.cold(start)
        return _finite(value), start, approximation, approximation.result
    limited = ~evaluator.parameters.on_the_real_line

    def search(start, accepted):
        return quasi_newton(
            start, accepted, max_steps=max_steps, tolerance=tolerance, limited=limited
        )

    run = Run(search, start, warm)
    if drive([run], evaluator, bar, None, None):
        raise KeyboardInterrupt
    best = run.best.raw if run.accepted else start
    return _finite(run.value), best, run.approximation, run.result


def _finite(value: float) -> float:
    return value if np.isfinite(value) else np.nan


def _outwards(raws: np.ndarray, centre: float) -> Iterator[list[int]]:
    """The places from the centre up, and from there down."""
    yield [i for i in range(raws.size) if raws[i] >= centre]
    yield [i for i in reversed(range(raws.size)) if raws[i] < centre]


def _entry(
    parameters: FreeParameters, model: Model, where: Callable[[Any], Any], index: int
) -> tuple[int, AbstractConstraint]:
    """Which of the free parameters is meant, and its constraint."""
    paths = leading(model, where)
    if len(paths) != 1:
        raise ValueError(f"where: got leaves {', '.join(paths)}, wanted one.")
    (path,) = paths
    rows = parameters.each(lambda path, leaf, constraint: (path, leaf, constraint))
    own = [i for i, row in enumerate(rows) if row[0] == path]
    if not own:
        raise ValueError(f"where: got {path}, which is not trained; unfreeze it.")
    if isinstance(index, bool) or index not in range(len(own)):
        raise ValueError(f"index: got {index!r}, wanted one of 0..{len(own) - 1}.")
    _, leaf, constraint = rows[own[index]]
    if not constraint.entrywise(leaf):
        raise ValueError(
            f"where: got {path}, whose entries depend on each other, wanted a "
            "parameter of its own."
        )
    return own[index], constraint


def _checked(values: Any, constraint: AbstractConstraint, dtype: Any) -> np.ndarray:
    """Raw values, increasing."""
    values = np.unique(np.asarray(values, dtype))
    inside = values.size > 0 and np.all(constraint.contains(values))
    raws = np.asarray(constraint.to_real(jnp.asarray(values)))
    if not inside or not np.all(np.isfinite(raws)):
        raise ValueError(
            f"values: got {values}, wanted {constraint.description}, inside the domain."
        )
    return raws
