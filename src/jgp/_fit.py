r"""Hyperparameters by maximum evidence.

The search is over `to_real(model)`, logarithms of positive parameters, by L-BFGS with
a backtracking line search. The loop runs on the host around one compiled function, the
evidence with its gradient, so that every trial point shows its status: one at which
inference failed is backed off from, never stepped on.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree
from tqdm import tqdm

from jgp._lbfgs import lbfgs_direction, lbfgs_memory
from jgp._model import Model, trainable
from jgp._parameters import from_real, is_concrete, table, to_real
from jgp._results import RESULTS, InferenceError
from jgp.inference import Approximation, exact, laplace, nested_ep
from jgp.inference._data import bounded, positive_integer, prepare
from jgp.inference._exact import masked
from jgp.likelihoods import AbstractGaussian, MultinomialProbit

ARMIJO = 1e-4
MAX_BACKTRACKS = 25
ROUNDING_UNITS = 100
# Steps in a row that gain nothing above rounding, after which the search is at its end.
MAX_IDLE_STEPS = 3
# Longest step of any raw parameter: a factor of e³ in a positive one.
MAX_STEP = 3.0


class History(eqx.Module):
    """One entry for each accepted point, the start included."""

    log_evidence: Float[np.ndarray, " steps"]
    gradient_norm: Float[np.ndarray, " steps"]


class Fit(eqx.Module):
    """The outcome of `fit`.

    Args:
        model: The model at the best point found.
        approximation: The approximation there.
        history: Evidence and gradient along the way.
        result: How the search ended.
        num_steps: Accepted steps.
        num_evaluations: Evaluations of the evidence and its gradient.
    """

    model: Model
    approximation: Approximation
    history: History
    result: RESULTS
    num_steps: int
    num_evaluations: int


def fit(
    model: Model,
    x: ArrayLike,
    y: Any,
    *,
    infer: Callable[..., Approximation] | None = None,
    max_steps: int = 200,
    tolerance: float | None = None,
    throw: bool = True,
    progress: bool = True,
) -> Fit:
    """Maximise the log evidence over every parameter that is not frozen.

    Args:
        model: Where to start; `jgp.freeze` holds parameters fixed.
        x: (n, d) inputs.
        y: Targets, as the likelihood wants them.
        infer: The inference method, or a `functools.partial` of one; by default
            `exact` for Gaussian noise, `nested_ep` for the multinomial probit and
            `laplace` otherwise.
        max_steps: Bound on L-BFGS steps.
        tolerance: Success when no entry of the gradient in raw (log) parameters
            exceeds tolerance · max(1, |log evidence|); 1e-7 in float64 and 1e-4 in
            float32 by default. A predicted gain of less than a hundred rounding units
            of the evidence, or no more than that gained in three steps, is success
            too: the dtype has no more to give.
        throw: Whether to raise `InferenceError` when inference fails at the start
            or the search ends without success; otherwise look at `result`.
        progress: Whether to show a progress bar after two seconds.

    Returns:
        A `Fit`. Interrupting the loop (Ctrl-C) returns the best point so far.

    Raises:
        ValueError: for input that cannot be right, a traced argument, nothing to
            fit, or a trainable parameter at zero.
        InferenceError: see `throw`.
    """
    if not all(map(is_concrete, jax.tree.leaves((model, x, y)))):
        raise ValueError(
            "fit: got traced arguments, wanted concrete ones. fit is a loop on the "
            "host and cannot run inside jit, vmap or grad; loop over it instead."
        )
    positive_integer("max_steps", max_steps)
    y, _ = masked(y, getattr(infer, "keywords", {}).get("mask"))
    model, inputs, targets = prepare(model, x, y, regression=None)
    infer = default_infer(model) if infer is None else infer
    mask = trainable(model)
    _check_trainable(model, mask)
    if tolerance is None:
        tolerance = 1e-7 if jnp.finfo(inputs.dtype).bits == 64 else 1e-4
    bounded("tolerance", tolerance, 0.0, np.inf, inputs.dtype)
    search = _Search(model, mask, inputs, targets, infer)
    with tqdm(total=max_steps, desc="fit", delay=2.0, disable=not progress) as bar:
        result = search.minimise(max_steps, tolerance, bar)
    return search.finish(result, throw)


def default_infer(model: Model) -> Callable[..., Approximation]:
    """The method that suits a likelihood."""
    if isinstance(model.likelihood, AbstractGaussian):
        return exact
    return nested_ep if isinstance(model.likelihood, MultinomialProbit) else laplace


def _check_trainable(model: Model, mask: Any) -> None:
    chosen = eqx.filter(model, mask)
    if not jax.tree.leaves(chosen):
        raise ValueError("model: got one with every parameter frozen, nothing to fit.")
    for path, leaf, constraint in table(chosen):
        if not np.all(np.isfinite(np.asarray(constraint.to_real(leaf)))):
            raise ValueError(
                f"model{path}: got {leaf}, wanted a start inside its domain "
                f"({constraint.description}, by its logarithm), or the leaf frozen."
            )


class _Point(eqx.Module):
    raw: np.ndarray
    value: float
    gradient: np.ndarray
    approximation: Approximation

    @property
    def usable(self) -> bool:
        """Whether inference succeeded, with a finite value and gradient."""
        succeeded = bool(self.approximation.result == RESULTS.successful)
        return succeeded and bool(
            np.isfinite(self.value) and np.isfinite(self.gradient).all()
        )

    def curves_up_from(self, old: "_Point") -> bool:
        """Whether the gradient grew along the step from an earlier point."""
        return float((self.raw - old.raw) @ (self.gradient - old.gradient)) > 0


class _Search:
    """Minimises −log evidence in raw parameters, and keeps the record."""

    def __init__(self, model: Model, mask: PyTree, x: Array, y: Array, infer: Any):
        if isinstance(infer, functools.partial):
            # Partials made alike compare unequal; their options compare by value.
            if infer.args:
                raise ValueError(
                    f"infer: got a partial with positional arguments {infer.args}, "
                    "wanted keywords only."
                )
            self.verb, self.options = infer.func, dict(infer.keywords)
        else:
            self.verb, self.options = infer, {}
        start = self.options.pop("init", None)
        self.options = {**self.options, "throw": False}
        free, self.fixed = eqx.partition(model, mask)
        leaves, self.structure = jax.tree.flatten(to_real(free))
        self.like = [np.asarray(leaf) for leaf in leaves]
        self.x, self.y = x, y
        self.warm = self.verb(model, x, y, init=start, **self.options)
        if self.warm.log_evidence is None:
            raise ValueError(
                f"infer: got {self.warm.method}, which has no evidence to maximise."
            )
        self.num_evaluations = 0
        self.interrupted = False
        self.best: _Point
        self.values: list[float] = []
        self.gradient_norms: list[float] = []

    def at(self, raw: np.ndarray) -> _Point:
        """The objective at `raw`, its sites warm-started from the last success."""
        sizes = np.cumsum([leaf.size for leaf in self.like])[:-1]
        pieces = np.split(raw, sizes)
        leaves = [p.reshape(v.shape) for p, v in zip(pieces, self.like, strict=True)]
        free = jax.tree.unflatten(self.structure, leaves)
        value, gradient, approximation = _value_and_gradient(
            free, self.fixed, self.x, self.y, self.warm, self.verb, self.options
        )
        self.num_evaluations += 1
        point = _Point(raw, float(value), _flat(gradient), approximation)
        if point.usable:
            self.warm = approximation
        return point

    def minimise(self, max_steps: int, tolerance: float, bar: tqdm) -> RESULTS:
        """L-BFGS until the gradient is small; the best point is the last accepted."""
        point = self.at(_flat(self.like))
        self.record(point)
        if not point.usable:
            started = point.approximation.result
            failed = bool(started != RESULTS.successful)
            return started if failed else RESULTS.non_finite
        memory = lbfgs_memory(jnp.asarray(point.raw))
        fresh, eps = True, float(np.finfo(point.raw.dtype).eps)
        idle = 0
        try:
            while True:
                scale = max(1.0, abs(point.value))
                rounding = ROUNDING_UNITS * eps * scale
                flat = np.max(np.abs(point.gradient)) <= tolerance * scale
                if flat or idle == MAX_IDLE_STEPS:
                    return RESULTS.successful
                if len(self.values) > max_steps:
                    return RESULTS.max_steps_reached
                direction, memory = lbfgs_direction(point.gradient, memory, point.raw)
                direction = np.asarray(direction)
                gain = -float(direction @ point.gradient) / 2
                if not fresh and abs(gain) <= rounding:
                    return RESULTS.successful
                new = self.line_search(point, direction)
                if new is None and fresh:
                    return RESULTS.stagnated
                restart = new is None or not new.curves_up_from(point)
                gained = new is not None and point.value - new.value > rounding
                idle = 0 if gained else idle + 1
                point = point if new is None else new
                if new is not None:
                    self.record(new)
                    bar.update()
                    bar.set_postfix_str(f"log evidence {-new.value:.4f}", refresh=False)
                if restart:
                    memory = lbfgs_memory(jnp.asarray(point.raw))
                fresh = restart
        except KeyboardInterrupt:
            self.interrupted = True
            return RESULTS.max_steps_reached

    def record(self, point: _Point) -> None:
        """Keep the point; of those before it, only their values."""
        self.best = point
        self.values.append(-point.value)
        self.gradient_norms.append(float(np.max(np.abs(point.gradient))))

    def line_search(self, point: _Point, direction: np.ndarray) -> _Point | None:
        """A point with sufficient decrease (Nocedal & Wright 2006, eq. 3.4)."""
        slope = float(direction @ point.gradient)
        if not slope < 0:
            return None
        longest = np.max(np.abs(direction))
        size = min(1.0, MAX_STEP / longest)
        slack = 10 * np.finfo(point.raw.dtype).eps * max(1.0, abs(point.value))
        for _ in range(MAX_BACKTRACKS):
            new = self.at(point.raw + point.raw.dtype.type(size) * direction)
            if new.usable and new.value <= point.value + ARMIJO * size * slope + slack:
                return new
            shrink = 0.25
            if new.usable:
                # The minimum of the parabola through both values and the slope.
                curvature = new.value - point.value - size * slope
                shrink = float(np.clip(-size * slope / (2 * curvature), 0.1, 0.5))
            size *= shrink
        return None

    def finish(self, result: RESULTS, throw: bool) -> Fit:
        """The record as a `Fit`."""
        best, num_steps = self.best, len(self.values) - 1
        history = History(np.asarray(self.values), np.asarray(self.gradient_norms))
        failed = not bool(result == RESULTS.successful)
        if throw and failed and not self.interrupted:
            raise InferenceError(
                f"fit by {best.approximation.method}: {RESULTS[result]} "
                f"Steps: {num_steps}, log evidence: {-best.value:.6g}, "
                f"largest gradient entry: {self.gradient_norms[-1]:.3g}. Pass "
                "throw=False to look at the best point found."
            )
        return Fit(
            best.approximation.model,
            best.approximation,
            history,
            result,
            num_steps,
            self.num_evaluations,
        )


@eqx.filter_jit
def _value_and_gradient(free, fixed, x, y, warm, verb, options):
    def objective(free):
        model = eqx.combine(from_real(free), fixed)
        approximation = verb(model, x, y, init=warm, **options)
        return -approximation.log_evidence, approximation

    (value, approximation), gradient = eqx.filter_value_and_grad(
        objective, has_aux=True
    )(free)
    return value, gradient, approximation


def _flat(tree: PyTree) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
