"""How often nested EP converges on random problems that are made to be hard.

python -m benchmarks.hard_problems --num 200 --seed 0

Variances from 1e-2 to 1e4, lengthscales from 1e-2 to 1e2, repeated rows, and repeated
rows whose labels contradict each other; every option of `nested_ep` at its default.
"""

import argparse
import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

import jgp
from benchmarks.report import markdown
from jgp._results import RESULTS

# Few sizes: each is compiled once, which takes longer than all of its runs.
SIZES = ((5, 2), (12, 3), (16, 10), (25, 5), (40, 2), (60, 7), (80, 3))


class Problem(NamedTuple):
    """Data, the hyperparameters of every class, and where it came from."""

    number: int
    x: np.ndarray
    y: np.ndarray
    variances: np.ndarray
    lengthscales: np.ndarray


class Outcome(NamedTuple):
    """What nested EP said of a problem."""

    problem: Problem
    result: str
    num_steps: int
    residual: float
    log_evidence: float
    finite: bool


def problem(seed: int, number: int) -> Problem:
    """The hard problem of that number."""
    generator = np.random.default_rng([seed, number])
    num_data, num_classes = SIZES[number % len(SIZES)]
    x = generator.normal(size=(num_data, 2))
    y = _labels(generator, x, num_classes)
    # Rows from the first third come again, half of them under another label.
    num_repeated = generator.integers(0, num_data // 3 + 1)
    for row in range(num_repeated):
        x[-1 - row] = x[row]
        other = generator.integers(1, num_classes)
        contradicts = generator.random() < 0.5
        y[-1 - row] = (y[row] + other) % num_classes if contradicts else y[row]
    shape = 1 if generator.random() < 0.5 else num_classes
    variances = 10 ** generator.uniform(-2, 4, size=shape)
    lengthscales = 10 ** generator.uniform(-2, 2, size=shape)
    return Problem(
        number,
        x,
        y,
        np.broadcast_to(variances, num_classes),
        np.broadcast_to(lengthscales, num_classes),
    )


def _labels(generator: Any, x: np.ndarray, num_classes: int) -> np.ndarray:
    """The nearest of C centres, or noise alone."""
    if generator.random() < 0.5:
        return generator.integers(0, num_classes, size=len(x))
    centres = generator.normal(size=(num_classes, x.shape[1]))
    return np.argmin(np.linalg.norm(x[:, None] - centres, axis=2), axis=1)


def model(problem: Problem) -> jgp.Model:
    """Squared exponentials of one variance and one lengthscale a class."""
    scales = zip(problem.variances, problem.lengthscales, strict=True)
    kernels = [
        float(variance) * jgp.kernels.SquaredExponential(float(lengthscale))
        for variance, lengthscale in scales
    ]
    likelihood = jgp.likelihoods.MultinomialProbit(len(kernels))
    return jgp.Model(jgp.independent(kernels), likelihood)


def run(problem: Problem, dtype: Any, **options: Any) -> Outcome:
    """Nested EP on one problem."""
    approximation = jgp.nested_ep(
        model(problem), problem.x.astype(dtype), problem.y, throw=False, **options
    )
    kept = jax.tree.leaves(
        (approximation.log_evidence, approximation.sites, approximation.posterior)
    )
    assert approximation.log_evidence is not None
    result = next(n for n in NAMES if approximation.result == getattr(RESULTS, n))
    return Outcome(
        problem,
        result,
        int(approximation.num_steps),
        float(approximation.residual),
        float(approximation.log_evidence),
        all(bool(np.isfinite(leaf).all()) for leaf in kept),
    )


NAMES = (
    "successful",
    "max_steps_reached",
    "stagnated",
    "oscillating",
    "linear_solve_failed",
    "diverged",
    "not_positive_definite",
    "non_finite",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the problems and print what became of them."""
    parser = argparse.ArgumentParser("benchmarks.hard_problems")
    parser.add_argument("--num", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--float32", action="store_true")
    options = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", not options.float32)
    dtype = np.float32 if options.float32 else np.float64
    outcomes = [
        run(problem(options.seed, number), dtype)
        for number in tqdm(range(options.num), desc="hard", leave=False, delay=2.0)
    ]
    print(summary(outcomes))


def summary(outcomes: Sequence[Outcome]) -> str:
    """Counts, the distribution of sweeps, and the failures one by one."""
    results = collections.Counter(outcome.result for outcome in outcomes)
    counts = markdown(["result", "count"], [[k, str(v)] for k, v in results.items()])
    good = [outcome for outcome in outcomes if outcome.result == "successful"]
    failed = [outcome for outcome in outcomes if outcome.result != "successful"]
    levels = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
    sweeps = np.quantile([outcome.num_steps for outcome in good] or [np.nan], levels)
    quantiles = markdown(
        ["quantile", *(f"{level:.0%}" for level in levels)],
        [["sweeps", *(f"{sweep:.0f}" for sweep in sweeps)]],
    )
    infinite = sum(not outcome.finite for outcome in outcomes)
    parts = [counts, quantiles, f"With numbers that are not finite: {infinite}."]
    if failed:
        parts.append(markdown(*_failures(failed)))
    return "\n\n".join(parts)


def _failures(failed: Sequence[Outcome]) -> tuple[list[str], list[list[str]]]:
    head = ["number", "n", "C", "variances", "lengthscales", "result", "sweeps"]
    cells = []
    for problem, result, num_steps, residual, log_evidence, _ in failed:
        size = [str(len(problem.y)), str(len(problem.variances))]
        scales = [_span(problem.variances), _span(problem.lengthscales)]
        numbers = [f"{residual:.3g}", f"{log_evidence:.6g}"]
        cells.append(
            [str(problem.number), *size, *scales, result, str(num_steps), *numbers]
        )
    return [*head, "residual", "log evidence"], cells


def _span(values: np.ndarray) -> str:
    low, high = values.min(), values.max()
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


if __name__ == "__main__":
    main()
