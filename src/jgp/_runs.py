"""Searches on a device: who evaluates what, and what is kept of each search."""

import concurrent.futures
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float
from tqdm import tqdm

from jgp import _checkpoint
from jgp._cores import side_by_side
from jgp._evaluator import Evaluator
from jgp._model import Model
from jgp._results import RESULTS
from jgp._search import Search, Trial
from jgp.inference import Approximation


class Restart(eqx.Module):
    """How one search went.

    Args:
        start: Its raw parameters at the start.
        value: The objective at its best point; −∞ if its start failed.
        result: How it ended.
        num_steps: Accepted steps.
        num_evaluations: Evaluations of the objective and its gradient.
        num_failures: Those at which inference failed, which were backed off from.
    """

    start: Float[np.ndarray, " p"]
    value: float
    result: RESULTS
    num_steps: int
    num_evaluations: int
    num_failures: int


class Run:
    """One search with all that it has been sent.

    Args:
        search: Makes the coroutine from a start and the list of accepted trials.
        start: Raw parameters.
        approximation: The approximation there.
    """

    def __init__(
        self,
        search: Callable[[np.ndarray, list[Trial]], Search],
        start: np.ndarray,
        approximation: Approximation,
    ):
        self.start = start
        self.accepted: list[Trial] = []
        self.num_seen = 0
        self.top: Trial | None = None
        self.trials: list[Trial] = []
        self.approximation = self.warm = approximation
        self.search = search(start, self.accepted)
        self.wanted: np.ndarray | None = next(self.search)
        self.result = RESULTS.max_steps_reached

    @property
    def best(self) -> Trial:
        """The best accepted trial; the first where none is."""
        for trial in self.accepted[self.num_seen :]:
            if self.top is None or trial.value < self.top.value:
                self.top = trial
        self.num_seen = len(self.accepted)
        return self.trials[0] if self.top is None else self.top

    @property
    def value(self) -> float:
        """The objective at the best point, −∞ if the start failed."""
        return -self.best.value if self.accepted else -np.inf

    @property
    def num_steps(self) -> int:
        """Accepted steps."""
        return max(0, len(self.accepted) - 1)

    def send(self, trial: Trial, approximation: Approximation | None) -> None:
        """Go on from a trial; without an approximation, one that is replayed."""
        self.trials.append(trial)
        before = self.value
        try:
            self.wanted = self.search.send(trial)
        except StopIteration as ended:
            self.wanted, self.result = None, ended.value
        if approximation is None:
            return
        if trial.usable:
            self.warm = approximation
        if len(self.trials) == 1 or self.value > before:
            self.approximation = approximation

    def record(self) -> Restart:
        """What `Fit` keeps of it."""
        return Restart(
            self.start,
            self.value,
            self.result,
            self.num_steps,
            len(self.trials),
            sum(not t.usable for t in self.trials),
        )


def drive(
    runs: list[Run],
    evaluator: Evaluator,
    bar: tqdm,
    callback: Callable[[int, Model, float], Any] | None,
    file: tuple[Path, str, float] | None,
) -> bool:
    """Run all searches to their ends; whether they were interrupted.

    Args:
        runs: The searches.
        evaluator: Where they are evaluated.
        bar: Shows steps and the best value.
        callback: As for `fit`.
        file: A checkpoint, its fingerprint, and the seconds between writings.
    """
    if file is not None and file[0].exists():
        states = [(run.warm, run.approximation) for run in runs]
        loaded = _checkpoint.load(file[0], file[1], states)
        for run, (trials, state) in zip(runs, loaded, strict=True):
            if trials and not _same_objective(run, trials[0], evaluator):
                raise ValueError(
                    f"checkpoint: got {file[0]}, which is of another objective, prior "
                    "or method. Delete it, or pass another path."
                )
            for trial in trials:
                if run.wanted is None or not np.array_equal(trial.raw, run.wanted):
                    raise ValueError(
                        f"checkpoint: got {file[0]}, which is of a fit with other "
                        "options. Delete it, or pass another path."
                    )
                run.send(trial, None)
            run.warm, run.approximation = state
    written = time.monotonic()

    def write() -> None:
        if file is not None:
            states = [(run.warm, run.approximation) for run in runs]
            _checkpoint.save(file[0], file[1], [r.trials for r in runs], states)

    def told(run: Run, found: tuple[Trial, Approximation]) -> bool:
        """Send a trial on; whether the callback ends it all."""
        nonlocal written
        steps = len(run.accepted)
        run.send(*found)
        if file is not None and time.monotonic() - written >= file[2]:
            write()
            written = time.monotonic()
        if len(run.accepted) == steps:
            return False
        bar.update()
        bar.set_postfix_str(f"objective {max(r.value for r in runs):.4f}", False)
        if callback is None:
            return False
        last = run.accepted[-1]
        told = callback(runs.index(run), found[1].model, -last.value)
        return isinstance(told, bool | np.bool_) and bool(told)

    try:
        together = evaluator.vectorize and len(runs) > 1
        return (_in_batches if together else _side_by_side)(runs, evaluator, told)
    except KeyboardInterrupt:
        if not all(run.trials for run in runs[:1]):
            raise
        return True
    finally:
        write()


def _same_objective(run: Run, first: Trial, evaluator: Evaluator) -> bool:
    """Whether the first recorded trial is what is found there now."""
    if run.wanted is None or not np.array_equal(first.raw, run.wanted):
        # The replay says what is wrong.
        return True
    value = evaluator.at(run.wanted, run.warm)[0].value
    tolerance = 1e4 * float(np.finfo(first.raw.dtype).eps)
    return bool(np.isclose(value, first.value, tolerance, tolerance, equal_nan=True))


def _in_batches(runs: list[Run], evaluator: Evaluator, told: Callable) -> bool:
    while active := [run for run in runs if run.wanted is not None]:
        wanted = [run.wanted for run in active if run.wanted is not None]
        found = evaluator.at_each(wanted, [run.warm for run in active])
        if any([told(run, one) for run, one in zip(active, found, strict=True)]):
            return True
    return False


def _side_by_side(runs: list[Run], evaluator: Evaluator, told: Callable) -> bool:
    """Each search in its own time, as many evaluations at once as there are cores."""
    if len(runs) == 1:
        (run,) = runs
        while run.wanted is not None:
            if told(run, evaluator.at(run.wanted, run.warm)):
                return True
        return False
    with side_by_side() as pool:
        futures = {
            pool.submit(evaluator.at, run.wanted, run.warm): run
            for run in runs
            if run.wanted is not None
        }
        while futures:
            done, _ = concurrent.futures.wait(
                futures, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in done:
                run = futures.pop(future)
                if told(run, future.result()):
                    return True
                if run.wanted is not None:
                    again = pool.submit(evaluator.at, run.wanted, run.warm)
                    futures[again] = run
    return False
