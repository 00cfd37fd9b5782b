"""What a fit costs: time to the optimum beside peers, restarts, and warm starts.

    python -m benchmarks.fit [--small] [--data-dir ../shared/data] [--output results]
        [--gpytorch PYTHON] [--gpjax PYTHON]

Regressions with one lengthscale an input, and a binary classification by Laplace's
method, from the same start to the same optimum: the difference in log evidence from the
best of all is printed beside the seconds of a first fit in a process and of later ones.
Then nested EP on Iris: many restarts at once in multiples of one fit, and the sweeps
that starting from the sites of the step before saves. Peers that are not installed are
left out; those of another environment, as their pins are not ours, run with its Python.
"""

import argparse
import functools
import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import DEFAULT_DIRECTORY
from benchmarks.fit_one import FITS, PROBLEMS, friedman
from benchmarks.report import markdown

MODULES = {"scikit-learn": "sklearn", "GPyTorch": "gpytorch", "GPJax": "gpjax"}
RESTARTS = 64


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print tables, and write results/fit.json."""
    parser = argparse.ArgumentParser("benchmarks.fit")
    parser.add_argument("--small", action="store_true", help="less of everything")
    parser.add_argument("--data-dir", type=Path, default=DEFAULT_DIRECTORY)
    parser.add_argument("--output", type=Path, default=Path("results"))
    for library, module in MODULES.items():
        text = f"a Python that has {library}; by default this one, if it has"
        parser.add_argument(f"--{module}", metavar="PYTHON", help=text)
    _report(parser.parse_args(arguments))


def _report(options: argparse.Namespace) -> None:
    import jax

    from benchmarks.timing import machine

    jax.config.update("jax_enable_x64", True)
    rows = []
    for problem in PROBLEMS[:1] if options.small else PROBLEMS:
        if problem == "friedman" and not friedman(options.data_dir).exists():
            print(f"{friedman(options.data_dir)} is not there: pass --data-dir.")
            continue
        for library in FITS:
            python = _python(library, options)
            if python is None or _absent(problem, library):
                continue
            command = [python, "-m", "benchmarks.fit_one", problem, library]
            command += ["--data-dir", str(options.data_dir)]
            command += ["--small"] * options.small
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            rows.append({"problem": problem, "library": library, **found})
    rest = _nested_ep(8 if options.small else RESTARTS)
    head = ("problem", "library", "log evidence", "below the best", "first", "later")
    print(markdown(head, [_cells(row, rows) for row in rows]))
    print("\n".join(f"{name}: {value:.4g}" for name, value in rest.items()))
    print(", ".join(f"{name}: {value}" for name, value in machine().items()))
    options.output.mkdir(parents=True, exist_ok=True)
    result = {"fits": rows, "nested_ep": rest, "machine": machine()}
    (options.output / "fit.json").write_text(json.dumps(result, indent=1) + "\n")


def _cells(row: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    best = max(r["evidence"] for r in rows if r["problem"] == row["problem"])
    seconds = (f"{row[name]:.3g} s" for name in ("first", "later"))
    values = (f"{row['evidence']:.5f}", f"{best - row['evidence']:.1e}")
    return [row["problem"], row["library"], *values, *seconds]


def _python(library: str, options: argparse.Namespace) -> str | None:
    """The Python to run a library with, None where there is none."""
    if library not in MODULES:
        return sys.executable
    module = MODULES[library]
    given = getattr(options, module)
    here = importlib.util.find_spec(module) is not None
    return given or (sys.executable if here else None)


def _absent(problem: str, library: str) -> bool:
    """Whether a library has no fit of a problem's model."""
    return problem == "iris" and library in ("GPyTorch", "GPJax")


def _nested_ep(restarts: int) -> dict[str, float]:
    """Nested EP on Iris: one fit, many at once, and sweeps warm and cold."""
    import jax
    from sklearn.datasets import load_iris

    import jgp
    from benchmarks.timing import timed
    from jgp import kernels, likelihoods

    x, y = map(np.asarray, load_iris(return_X_y=True))
    order = np.random.RandomState(0).permutation(150)[:120]
    x, y = x[order], y[order]
    kernel = [kernels.SquaredExponential(1.0) for _ in range(3)]
    model = jgp.Model(jgp.independent(kernel), likelihoods.MultinomialProbit(3))
    fit_from = functools.partial(
        jgp.fit, x=x, y=y, init="model", throw=False, progress=False
    )
    fit = functools.partial(fit_from, model)
    way: list[Any] = []
    fit(callback=lambda _number, model, _value: way.append(model) and None)
    one = statistics.median(timed(fit).seconds for _ in range(3))
    several = functools.partial(fit, restarts=restarts, key=jax.random.key(0))
    many = timed(several)
    single, serial = fit(), _one_after_the_other(fit_from, model, many.value)
    cold = [int(jgp.nested_ep(m, x, y).num_steps) for m in way]
    warm, last = [], None
    for m in way:
        last = jgp.nested_ep(m, x, y, init=last)
        warm.append(int(last.num_steps))
    best = max(r.value for r in many.value.restarts)
    reached = sum(r.value > best - 1e-4 for r in many.value.restarts)
    return {
        "one fit (s)": one,
        "its evaluations": single.num_evaluations,
        f"{restarts} restarts (s)": many.seconds,
        "in fits from the model": many.seconds / one,
        "the same searches, one fit after the other (s)": serial,
        "in fits of mean length": restarts * many.seconds / serial,
        "restarts at the best optimum": reached,
        "sweeps, cold": sum(cold),
        "sweeps, warm": sum(warm),
        "warm over cold": sum(warm) / sum(cold),
    }


def _one_after_the_other(fit_from: Any, model: Any, many: Any) -> float:
    """Seconds of a fit from each start of many, nothing beside it."""
    import jax.numpy as jnp

    from benchmarks.timing import timed
    from jgp._free_parameters import free_parameters

    parameters, seconds = free_parameters(model), 0.0
    for restart in many.restarts:
        start = parameters.at(jnp.asarray(restart.start))
        seconds += timed(functools.partial(fit_from, start)).seconds
    return seconds


if __name__ == "__main__":
    main()
