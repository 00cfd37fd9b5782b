r"""Hyperparameters by maximum evidence, or another score, with priors.

The search is over `to_real(model)`, logarithms of positive parameters. The loop runs on
the host around one compiled function, the objective with its gradient, so that every
trial point shows its status: one at which inference failed is backed off from, never
stepped on. Several searches share the device: on CPU each trial is a call of its own,
as many at once as there are cores; elsewhere the trials that are wanted at a time are
one batch. A search that has ended asks for no more.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import ArrayLike, Float, PRNGKeyArray
from tqdm import tqdm

from jgp._archive import fingerprint
from jgp._bounds import at_bounds
from jgp._cross_validation import KFold
from jgp._evaluator import Evaluator
from jgp._free_parameters import check_inside, free_parameters
from jgp._model import Model
from jgp._objective import OBJECTIVES, Verb, problem
from jgp._results import RESULTS, InferenceError, InferenceWarning
from jgp._runs import Restart, Run, drive
from jgp._search import checked_tolerance, first_order, quasi_newton
from jgp._standardize import standardized
from jgp._starts import starts
from jgp._types import check_key, positive_integer
from jgp.inference import Approximation
from jgp.inference._data import bounded

INITS = ("data", "model")


class History(eqx.Module):
    """The objective, with the log prior, at each accepted point from the start."""

    objective: Float[np.ndarray, " steps"]
    gradient_norm: Float[np.ndarray, " steps"]


class Fit(eqx.Module):
    """The outcome of `fit`.

    Args:
        model: The model at the best point found.
        approximation: The approximation there.
        history: The objective and its gradient on the way there.
        result: How the best search ended.
        num_steps: Its accepted steps.
        num_evaluations: Evaluations of the objective and its gradient, of all searches.
        at_bound: Parameters that ran to a bound or to infinity, in words.
        restarts: Every search.
    """

    model: Model
    approximation: Approximation
    history: History
    result: RESULTS
    num_steps: int
    num_evaluations: int
    at_bound: tuple[str, ...]
    restarts: tuple[Restart, ...]

    @property
    def table(self) -> str:
        """Every search as a line of text, the best marked."""
        best = max(r.value for r in self.restarts)
        lines = [f"{'restart':>8}{'objective':>14}{'steps':>7}{'evaluations':>13}"]
        lines[0] += f"{'failures':>10}  status"
        for i, r in enumerate(self.restarts):
            mark = "*" if r.value == best else " "
            counts = f"{r.num_steps:>7}{r.num_evaluations:>13}{r.num_failures:>10}"
            status = RESULTS[r.result].split(". ")[0] or "successful"
            lines.append(f"{mark}{i:>7}{r.value:>14.6g}{counts}  {status}")
        return "\n".join(lines)


def fit(
    model: Model,
    x: ArrayLike,
    y: Any,
    *,
    infer: Callable[..., Approximation] | None = None,
    objective: str | KFold | Callable[[Approximation], Any] = "log_evidence",
    optimizer: optax.GradientTransformation | None = None,
    init: str = "data",
    standardize: bool = False,
    restarts: int = 1,
    key: PRNGKeyArray | None = None,
    max_steps: int = 200,
    tolerance: float | None = None,
    throw: bool = True,
    progress: bool = True,
    callback: Callable[[int, Model, float], Any] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 10.0,
    vectorize: bool | None = None,
) -> Fit:
    """Maximise the log evidence plus log prior over every parameter not frozen.

    Args:
        model: The model; `jgp.freeze` holds parameters fixed, `jgp.with_prior` gives
            them priors.
        x: (n, d) inputs.
        y: Targets, as the likelihood wants them.
        infer: The inference method, or a `functools.partial` of one; by default
            `exact` for Gaussian noise, `nested_ep` for the multinomial probit and
            `laplace` otherwise. Its sites start where those of the step before ended.
        objective: "log_evidence", "elbo" (`jgp.elbo`, the lower bound at the
            posterior found), "leave_one_out" (the log predictive density), `KFold` of
            the data, or any function of an `Approximation` that can be differentiated.
        optimizer: An optax chain, which takes `max_steps` steps unless the gradient
            vanishes; L-BFGS with a line search by default.
        init: "data" starts from the best of the model's own values and some that the
            data suggest (distances for lengthscales, the spread of the targets for
            variance and noise); "model" from the model's own values.
        standardize: Whether kernel and mean are of standardised inputs, and targets of
            a regression. Folded into the model: predictions, evidence and noise are in
            the units of the data. Steps are free of units without it; a start or
            priors that are meant for standardised data need it.
        restarts: Searches; all but the first start at random about the first.
        key: A PRNG key, required for more than one search.
        max_steps: Bound on steps.
        tolerance: Success when no entry of the gradient in raw (log) parameters
            exceeds tolerance · max(1, |objective|); 1e-7 in float64 and 1e-4 in
            float32 by default. With L-BFGS a predicted gain of less than a hundred
            rounding units of the objective, or no more than that gained in three steps,
            is success too: the dtype has no more to give.
        throw: Whether to raise `InferenceError` when inference fails at the start or
            the best search ends without success (but for an `optimizer` that took all
            of its steps), and to warn; otherwise look at `result` and `at_bound`.
        progress: Whether to show a progress bar after two seconds.
        callback: Called with the number of a search, its model and the objective at
            each accepted point; True ends all searches.
        checkpoint: A file that is written now and then, at once or not at all, and
            resumed from where it exists: the end is the same to the last bit. With
            more `max_steps` than before it goes on.
        checkpoint_every: Seconds between writings.
        vectorize: Whether trials of several searches are one batch; by default where
            the device is no CPU.

    Returns:
        A `Fit`. Interrupting the loop (Ctrl-C) returns the best point so far.

    Raises:
        ValueError: for input that cannot be right, a traced argument, nothing to
            fit, or a trainable parameter at zero.
        InferenceError: see `throw`.

    Warns:
        InferenceWarning: for parameters that ran to a bound, and failed restarts.
    """
    model, inputs, targets, verb = problem(model, x, y, infer)
    mask = verb.options.get("mask")
    shown = targets if mask is None else jnp.where(mask, targets, jnp.nan)
    model = standardized(model, inputs, shown) if standardize else model
    positive_integer("max_steps", max_steps)
    positive_integer("restarts", restarts)
    _check_choices(init, optimizer, callback)
    _check_key(key, restarts)
    path = _checked_path(checkpoint)
    bounded("checkpoint_every", checkpoint_every, 0.0, np.inf, np.float64)
    tolerance = checked_tolerance(tolerance, inputs.dtype)
    parameters = free_parameters(model)
    check_inside(parameters)
    score = _score(objective, model, targets, verb)
    evaluator = Evaluator(parameters, inputs, targets, verb, score, vectorize)

    # What lies on the real line has the units of the data: no step is long.
    limited = ~parameters.on_the_real_line

    def search(start, accepted):
        options = {"max_steps": max_steps, "tolerance": tolerance}
        if optimizer is None:
            return quasi_newton(start, accepted, limited=limited, **options)
        return first_order(start, accepted, optimizer, **options)

    begun = starts(evaluator, model, shown, init, restarts, key)
    runs = [Run(search, raw, approximation) for raw, approximation in begun]
    points = [run.start for run in runs]
    mark = fingerprint(
        parameters, inputs, targets, verb, score, points, optimizer is None
    )
    file = None if path is None else (path, mark, checkpoint_every)
    with tqdm(desc="fit", delay=2.0, disable=not progress, unit="step") as bar:
        interrupted = drive(runs, evaluator, bar, callback, file)
    return _finish(runs, evaluator, optimizer, interrupted, throw)


def _score(
    objective: Any, model: Model, targets: Any, infer: Verb
) -> Callable[[Approximation], Any]:
    """What is maximised, of an approximation."""
    if isinstance(objective, KFold):
        return objective.objective(model, targets, infer)
    if callable(objective):
        return objective
    if not isinstance(objective, str) or objective not in OBJECTIVES:
        raise ValueError(
            f"objective: got {objective!r}, wanted one of {', '.join(OBJECTIVES)}, "
            "a KFold, or a function of an Approximation."
        )
    return OBJECTIVES[objective]


def _check_choices(init: Any, optimizer: Any, callback: Any) -> None:
    if init not in INITS:
        raise ValueError(f"init: got {init!r}, wanted one of {', '.join(INITS)}.")
    if optimizer is not None and not hasattr(optimizer, "update"):
        raise ValueError(f"optimizer: got {optimizer!r}, wanted an optax chain.")
    if callback is not None and not callable(callback):
        raise ValueError(f"callback: got {callback!r}, wanted a function.")


def _check_key(key: Any, restarts: int) -> None:
    if restarts > 1 and key is None:
        raise ValueError(f"key: got None, wanted a PRNG key for {restarts} restarts.")
    if key is not None:
        check_key(key)


def _checked_path(checkpoint: Any) -> Path | None:
    if checkpoint is None:
        return None
    if not isinstance(checkpoint, str | Path):
        raise ValueError(f"checkpoint: got {checkpoint!r}, wanted a path.")
    path = Path(checkpoint)
    if not path.parent.is_dir():
        raise ValueError(f"checkpoint: got {path}, wanted a path in a directory.")
    return path


def _finish(
    runs: list[Run],
    evaluator: Evaluator,
    optimizer: Any,
    interrupted: bool,
    throw: bool,
) -> Fit:
    """The best of the searches as a `Fit`."""
    records = tuple(run.record() for run in runs)
    best = max(runs, key=lambda run: run.value)
    result = best.result
    steps_taken = optimizer is not None and bool(result == RESULTS.max_steps_reached)
    ended = bool(result == RESULTS.successful)
    stuck = bool(result == RESULTS.stagnated)
    bounds = at_bounds(best, evaluator) if ended or stuck or steps_taken else ()
    if bounds and (ended or stuck):
        # Where a parameter runs to its bound inference may fail before it is there.
        ended, result = True, RESULTS.at_bound
    failed = not (ended or steps_taken or interrupted)
    if throw and failed:
        largest = np.max(np.abs(best.best.gradient))
        raise InferenceError(
            f"fit by {best.approximation.method}: {_remedy(result)} "
            f"Steps: {best.num_steps}, objective: {best.value:.6g}, "
            f"largest gradient entry: {largest:.3g}. Pass throw=False to look at the "
            "best point found."
        )
    lost = sum(not np.isfinite(record.value) for record in records)
    if lost and throw:
        warnings.warn(
            f"fit: inference failed at the start of {lost} of {len(runs)} searches; "
            "`Fit.table` shows them.",
            InferenceWarning,
            stacklevel=3,
        )
    if bounds and throw:
        warnings.warn(
            f"fit: at bound: {'; '.join(bounds)}. {RESULTS[RESULTS.at_bound]}",
            InferenceWarning,
            stacklevel=3,
        )
    way = best.accepted or [best.best]
    history = History(
        np.array([-t.value for t in way]),
        np.array([np.max(np.abs(t.gradient)) for t in way]),
    )
    return Fit(
        best.approximation.model,
        best.approximation,
        history,
        result,
        best.num_steps,
        sum(record.num_evaluations for record in records),
        bounds,
        records,
    )


def _remedy(result: RESULTS) -> str:
    """What a search, rather than an iteration within it, can be given."""
    if bool(result == RESULTS.max_steps_reached):
        return (
            "The search ended at max_steps before its tolerance was met. Raise "
            "max_steps or tolerance."
        )
    if bool(result == RESULTS.stagnated):
        return (
            "The search found no better point where its gradient promised one. Raise "
            "tolerance, lower the optimizer's learning rate, or look at where "
            "inference fails (`Fit.table` counts that)."
        )
    return RESULTS[result]
