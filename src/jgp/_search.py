r"""Searches for a minimum, each as a coroutine that asks for one trial at a time.

A search yields the raw parameters where it wants the objective and is sent the `Trial`
there; it ends by returning its status. Nothing in it evaluates anything, so that many
searches can share a device, and one that is replayed takes the same path.
"""

from collections.abc import Generator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jgp._lbfgs import lbfgs_direction, lbfgs_memory
from jgp._results import RESULTS, SEVERITY
from jgp.inference._data import bounded

ARMIJO = 1e-4
MAX_BACKTRACKS = 25
ROUNDING_UNITS = 100
# Steps in a row that gain nothing above rounding, after which the search is at its end.
MAX_IDLE_STEPS = 3
# Longest step of a raw parameter that is not its own: e³ in a positive one.
MAX_STEP = 3.0
SUCCESSFUL = 0


def checked_tolerance(tolerance: float | None, dtype: Any) -> float:
    """The bound on gradients that a search is given, 1e-7, or 1e-4 in float32."""
    if tolerance is None:
        return 1e-7 if np.finfo(dtype).bits == 64 else 1e-4
    bounded("tolerance", tolerance, 0.0, np.inf, dtype)
    return tolerance


class Trial(NamedTuple):
    """The objective at a point.

    Args:
        raw: The raw parameters.
        value: What is minimised.
        gradient: Its gradient.
        code: How inference ended there, as its place in `SEVERITY`.
    """

    raw: np.ndarray
    value: float
    gradient: np.ndarray
    code: int

    @property
    def usable(self) -> bool:
        """Whether inference succeeded, with a finite value and gradient."""
        finite = np.isfinite(self.value) and np.isfinite(self.gradient).all()
        return self.code == SUCCESSFUL and bool(finite)

    @property
    def failure(self) -> RESULTS:
        """The status of a trial that is not usable."""
        return RESULTS.non_finite if self.code == SUCCESSFUL else SEVERITY[self.code]

    def curves_up_from(self, old: "Trial") -> bool:
        """Whether the gradient grew along the step from an earlier point."""
        return float((self.raw - old.raw) @ (self.gradient - old.gradient)) > 0

    def small_gradient(self, tolerance: float) -> bool:
        """Whether no entry exceeds tolerance · max(1, |value|)."""
        scale = max(1.0, abs(self.value))
        return bool(np.max(np.abs(self.gradient)) <= tolerance * scale)


Search = Generator[np.ndarray, Trial, RESULTS]


def quasi_newton(
    start: np.ndarray,
    accepted: list[Trial],
    *,
    max_steps: int,
    tolerance: float,
    limited: np.ndarray | bool = True,
) -> Search:
    """L-BFGS with a backtracking line search (Nocedal & Wright 2006, eq. 3.4).

    Args:
        start: Where to start.
        accepted: Grows by each accepted trial, of falling values; the start is one.
        max_steps: Bound on steps.
        tolerance: On the gradient, see `Trial.small_gradient`.
        limited: Which entries no step changes by more than `MAX_STEP`.
    """
    point = yield start
    if not point.usable:
        return point.failure
    accepted.append(point)
    memory = lbfgs_memory(jnp.asarray(point.raw))
    fresh, eps, idle = True, float(np.finfo(point.raw.dtype).eps), 0
    walled = False
    while True:
        rounding = ROUNDING_UNITS * eps * max(1.0, abs(point.value))
        if point.small_gradient(tolerance):
            return RESULTS.successful
        if idle == MAX_IDLE_STEPS:
            # Steps kept short by failures say nothing of an optimum.
            return RESULTS.stagnated if walled else RESULTS.successful
        if len(accepted) > max_steps:
            return RESULTS.max_steps_reached
        direction, memory = lbfgs_direction(point.gradient, memory, point.raw)
        direction = np.asarray(direction)
        gain = -float(direction @ point.gradient) / 2
        if not fresh and abs(gain) <= rounding:
            return RESULTS.successful
        longest = float(np.max(np.abs(direction), where=limited, initial=0))
        first = min(1.0, MAX_STEP / longest) if longest > 0 else 1.0
        new, failed = yield from _line_search(point, direction, first)
        if new is None and fresh:
            return RESULTS.stagnated
        restart = new is None or not new.curves_up_from(point)
        gained = new is not None and point.value - new.value > rounding
        idle, walled = (0, False) if gained else (idle + 1, walled or failed)
        if new is not None:
            point = new
            accepted.append(new)
        if restart:
            memory = lbfgs_memory(jnp.asarray(point.raw))
        fresh = restart


def _line_search(
    point: Trial, direction: np.ndarray, size: float
) -> Generator[np.ndarray, Trial, tuple[Trial | None, bool]]:
    """A point with sufficient decrease, from a step of this size down, or None.

    And whether inference failed on the way.
    """
    slope = float(direction @ point.gradient)
    if not slope < 0:
        return None, False
    failed = False
    slack = 10 * np.finfo(point.raw.dtype).eps * max(1.0, abs(point.value))
    for _ in range(MAX_BACKTRACKS):
        new = yield point.raw + point.raw.dtype.type(size) * direction
        if new.usable and new.value <= point.value + ARMIJO * size * slope + slack:
            return new, failed
        failed = failed or not new.usable
        shrink = 0.25
        if new.usable:
            # The minimum of the parabola through both values and the slope.
            curvature = new.value - point.value - size * slope
            shrink = float(np.clip(-size * slope / (2 * curvature), 0.1, 0.5))
        size *= shrink
    return None, failed


def first_order(
    start: np.ndarray,
    accepted: list[Trial],
    optimizer: optax.GradientTransformation,
    *,
    max_steps: int,
    tolerance: float,
) -> Search:
    """Any optax chain; a step to where inference fails is halved.

    Args:
        start: Where to start.
        accepted: Grows by each trial stepped to; values may rise.
        optimizer: The chain.
        max_steps: Steps; all are taken unless the gradient vanishes before.
        tolerance: On the gradient, see `Trial.small_gradient`.
    """
    point = yield start
    if not point.usable:
        return point.failure
    accepted.append(point)
    state = optimizer.init(jnp.asarray(point.raw))
    while len(accepted) <= max_steps:
        if point.small_gradient(tolerance):
            return RESULTS.successful
        updates, state = _optax_step(optimizer, point.gradient, state, point.raw)
        step = np.asarray(updates, point.raw.dtype)
        for _ in range(MAX_BACKTRACKS):
            new = yield point.raw + step
            if new.usable:
                break
            step = step / 2
        else:
            return RESULTS.stagnated
        point = new
        accepted.append(point)
    small = point.small_gradient(tolerance)
    return RESULTS.successful if small else RESULTS.max_steps_reached


@eqx.filter_jit
def _optax_step(optimizer, gradient, state, raw):
    # optax mixes integer widths, which strict promotion forbids.
    with jax.numpy_dtype_promotion("standard"):
        return optimizer.update(jnp.asarray(gradient), state, jnp.asarray(raw))
