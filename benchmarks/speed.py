"""Speed on one core: nested EP beside scikit-learn's classifier, and compilation.

python -m benchmarks.speed
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

THREADS = {
    "XLA_FLAGS": ("--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
# Where the permutation that published numbers refer to stands.
PERMUTATION = Path(__file__).parents[1] / "tests" / "reference" / "classification.json"
COMPILED = ("nested_ep", "laplace", "gradient of nested_ep")
STAGES = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, and write results/speed.json."""
    parser = argparse.ArgumentParser("benchmarks.speed")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--output", type=Path, default=Path("results"))
    parser.add_argument("--first-call", choices=COMPILED, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    use_one_core()
    if options.first_call:
        print(json.dumps(first_call(options.first_call)))
        return
    _report(options.repeats, options.output)


def use_one_core() -> None:
    """Threads of the libraries to one, and the process to one CPU; before imports."""
    os.environ.update(THREADS)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _report(repeats: int, output: Path) -> None:
    from tqdm import tqdm

    results: dict[str, Any] = {"ratios": [], "first_calls": []}
    with tqdm(total=2 + len(COMPILED), desc="speed", leave=False, delay=2.0) as bar:
        for name in COMPILED:
            bar.set_postfix_str(f"first call of {name}")
            command = [sys.executable, "-m", "benchmarks.speed", "--first-call", name]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results["first_calls"].append(json.loads(done.stdout.splitlines()[-1]))
            bar.update()
        for name in ("iris", "digits"):
            bar.set_postfix_str(name)
            results["ratios"].append(ratio(name, repeats))
            bar.update()

    from benchmarks.report import markdown
    from benchmarks.timing import machine

    results["machine"] = machine()
    print(markdown(*_ratio_table(results["ratios"])), end="\n\n")
    print(markdown(*_first_call_table(results["first_calls"])))
    output.mkdir(parents=True, exist_ok=True)
    (output / "speed.json").write_text(json.dumps(results, indent=2) + "\n")


def _problem(name: str) -> tuple[Any, Any, float]:
    """Inputs, labels and the lengthscale."""
    import numpy as np
    from sklearn.datasets import load_digits, load_iris

    if name == "digits":
        x, y = load_digits(return_X_y=True)
        return x[:200] / 16, y[:200], 3.0
    x, y = load_iris(return_X_y=True)
    if PERMUTATION.exists():
        reference = json.loads(PERMUTATION.read_text())
        order = np.asarray(reference["meta"]["iris_permutation"])
    else:
        order = np.random.RandomState(0).permutation(len(x))
    return x[order[:120]], y[order[:120]], 1.0


def _model(y: Any, lengthscale: float, likelihood: Any) -> Any:
    import jgp

    num_classes = int(y.max()) + 1
    kernel = jgp.kernels.SquaredExponential(lengthscale)
    process = jgp.independent([kernel] * num_classes)
    return jgp.Model(process, likelihood(num_classes))


def ratio(name: str, repeats: int) -> dict[str, Any]:
    """Warm times of nested EP and of scikit-learn's fit, in alternating order."""
    import jax
    import numpy as np
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF

    import jgp
    from benchmarks.timing import timed

    jax.config.update("jax_enable_x64", True)
    x, y, lengthscale = _problem(name)
    model = _model(y, lengthscale, jgp.likelihoods.MultinomialProbit)

    def ours():
        return jgp.nested_ep(model, x, y, rtol=1e-4, atol=1e-4)

    def theirs():
        # The stub knows no None, which is the documented way to keep the kernel.
        fixed: Any = None
        GaussianProcessClassifier(kernel=RBF(lengthscale), optimizer=fixed).fit(x, y)

    num_sweeps = int(ours().num_steps)
    theirs()
    pairs = []
    for repeat in range(repeats):
        first = [timed(f).seconds for f in ((ours, theirs), (theirs, ours))[repeat % 2]]
        pairs.append(first if repeat % 2 == 0 else first[::-1])
    jgp_seconds, sklearn_seconds = zip(*pairs, strict=True)
    # Resampled pairs: the spread of the very number that is reported.
    chosen = np.random.default_rng(0).integers(repeats, size=(2000, repeats))
    medians = np.median(np.asarray(pairs)[chosen], axis=1)
    interval = np.quantile(medians[:, 0] / medians[:, 1], [0.025, 0.975])
    return {
        "data": name,
        "num_train": len(y),
        "num_classes": int(y.max()) + 1,
        "sweeps": num_sweeps,
        "nested_ep_seconds": statistics.median(jgp_seconds),
        "scikit_learn_seconds": statistics.median(sklearn_seconds),
        "ratio": statistics.median(jgp_seconds) / statistics.median(sklearn_seconds),
        "ratio_interval": interval.tolist(),
        "repeats": repeats,
    }


def first_call(name: str) -> dict[str, Any]:
    """The first call on iris in this process, split by JAX's own clock."""
    import equinox as eqx
    import jax

    import jgp
    from benchmarks.timing import timed

    jax.config.update("jax_enable_x64", True)
    seconds = dict.fromkeys(STAGES.values(), 0.0)

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event in STAGES:
            seconds[STAGES[event]] += duration_secs

    jax.monitoring.register_event_duration_secs_listener(listen)
    x, y, lengthscale = _problem("iris")
    softmax = name == "laplace"
    likelihoods = jgp.likelihoods
    likelihood = likelihoods.Softmax if softmax else likelihoods.MultinomialProbit
    infer = jgp.laplace if softmax else jgp.nested_ep
    model = _model(y, lengthscale, likelihood)

    @eqx.filter_jit
    @eqx.filter_grad
    def gradient(model, x, y):
        return infer(model, x, y, throw=False).log_evidence

    if name.startswith("gradient"):
        first = timed(lambda: gradient(model, x, y)).seconds
        second = timed(lambda: gradient(model, x, y)).seconds
    else:
        first = timed(lambda: infer(model, x, y)).seconds
        second = timed(lambda: infer(model, x, y)).seconds
    return {"function": name, "first": first, "second": second, **seconds}


def _ratio_table(results: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    head = [
        "data",
        "n",
        "C",
        "sweeps",
        "nested EP",
        "scikit-learn",
        "ratio (95 %)",
    ]
    cells = []
    for r in results:
        low, high = r["ratio_interval"]
        seconds = [r["nested_ep_seconds"], r["scikit_learn_seconds"]]
        numbers = [str(r[k]) for k in ("num_train", "num_classes", "sweeps")]
        times = [f"{1e3 * s:.1f} ms" for s in seconds]
        spread = f"{r['ratio']:.2f} ({low:.2f} to {high:.2f})"
        cells.append([r["data"], *numbers, *times, spread])
    return head, cells


def _first_call_table(
    results: list[dict[str, Any]],
) -> tuple[list[str], list[list[str]]]:
    head = ["first call", "total", "trace", "lower", "compile", "second call"]
    cells = []
    for r in results:
        stages = [f"{r[k]:.2f} s" for k in ("first", "trace", "lower", "compile")]
        cells.append([r["function"], *stages, f"{1e3 * r['second']:.1f} ms"])
    return head, cells


if __name__ == "__main__":
    main()
