"""What nested EP costs on one core, against n, against C, and beside its relatives.

    python -m benchmarks.nested_ep [--small] [--output results]

Warm calls in float64 on Gaussian clusters: time against the size of the data and the
number of classes, beside LAPACK's Cholesky factorisation of one n × n matrix; the
evidence with its gradient; 64 settings under `jax.vmap`; and scikit-learn's classifier.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed import use_one_core

SIZES = ((60, 3), (120, 3), (250, 3), (500, 3), (1000, 3), (2000, 3))
CLASSES = ((200, 2), (200, 5), (200, 10), (200, 20), (200, 50))
SHARED = (500, 10)
MEMORY = ((200, 10), (1000, 10))
GRADIENTS = ((120, 3), (500, 3), (200, 10))
SETTINGS = 64
# Seconds that the repeats of one measurement may take, beyond the first.
PATIENCE = 6.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print tables, and write results/nested_ep.json."""
    parser = argparse.ArgumentParser("benchmarks.nested_ep")
    parser.add_argument("--small", action="store_true", help="the smaller half")
    parser.add_argument("--output", type=Path, default=Path("results"))
    parser.add_argument("--peak", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    use_one_core()
    import jax

    jax.config.update("jax_enable_x64", True)
    if options.peak:
        print(json.dumps(_peak(*options.peak)))
        return
    _report(options.small, options.output)


def _report(small: bool, output: Path) -> None:
    from benchmarks.timing import machine

    kept = (lambda sizes: sizes[: (len(sizes) + 1) // 2]) if small else tuple
    sections: tuple[tuple[str, Callable[[], list[dict[str, Any]]]], ...] = (
        # First: on Linux a child inherits the peak of the process that starts it.
        ("memory", lambda: [memory(*MEMORY)]),
        ("against n", lambda: [cost(*size) for size in kept(SIZES)]),
        ("against C", lambda: [cost(*size) for size in kept(CLASSES)]),
        ("one kernel or C", lambda: [cost(*SHARED, shared=s) for s in (True, False)]),
        ("gradient", lambda: [gradient(*size) for size in kept(GRADIENTS)]),
        ("vmap", lambda: [batched(120, 3)]),
        ("scikit-learn", lambda: [peer(*each) for each in kept(PEERS)]),
    )
    results: dict[str, Any] = {}
    for title, measure in sections:
        results[title] = measure()
        _show(title, results[title])
    results["exponents"] = {
        "of n": exponent(results["against n"], "n"),
        "of C": exponent(results["against C"], "C"),
    }
    for name, value in results["exponents"].items():
        print(f"Exponent {name}, of a sweep's time in the larger half: {value:.2f}")
    results["machine"] = machine()
    output.mkdir(parents=True, exist_ok=True)
    (output / "nested_ep.json").write_text(json.dumps(results, indent=2) + "\n")


def _show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    from benchmarks.report import markdown

    cells = [[_cell(name, value) for name, value in row.items()] for row in rows]
    print(f"### {title}\n\n{markdown(list(rows[0]), cells)}\n", flush=True)


def _cell(name: str, value: Any) -> str:
    if name.endswith("ms"):
        return f"{value:.4g}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def exponent(rows: Sequence[dict[str, Any]], size: str) -> float:
    """Slope of log time a sweep on log size, over the larger half of the sizes."""
    import numpy as np

    larger = rows[len(rows) // 2 - 1 :]
    logs = np.log([[row[size], row["ms a sweep"]] for row in larger])
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def clusters(num_data: int, num_classes: int) -> tuple[Any, Any]:
    """Overlapping Gaussian clusters in four dimensions, one a class."""
    import numpy as np

    generator = np.random.default_rng(0)
    centres = 1.5 * generator.normal(size=(num_classes, 4))
    y = np.arange(num_data) % num_classes
    return centres[y] + generator.normal(size=(num_data, 4)), y


def model(lengthscales: Any, variance: Any, *, shared: bool = False) -> Any:
    """Squared exponentials; with `shared`, the first serves all classes."""
    import jgp

    ks = [variance * jgp.kernels.SquaredExponential(each) for each in lengthscales]
    num_classes = len(ks)
    one = jgp.independent(ks[0], num_latents=num_classes)
    process = one if shared else jgp.independent(ks)
    return jgp.Model(process, jgp.likelihoods.MultinomialProbit(num_classes))


def seconds(*functions: Callable[[], Any]) -> list[float]:
    """Median warm times, in turns so that what else runs disturbs all alike."""
    from benchmarks.timing import timed

    start = [timed(function).seconds for function in functions]
    repeats = min(15, int(PATIENCE / sum(start)))
    times = [[timed(f).seconds for f in functions] for _ in range(repeats)]
    return [statistics.median(each) for each in zip(*(times or [start]), strict=True)]


def flops(n: int, C: int) -> float:
    """Operations of a sweep, (10C/3 + 4/3) n³ + 2C² n².

    4n³/3 for each A_c⁻¹ and for the inverse factor U of P, 2n³ for each G_c = U E_c K_c
    and 2C²n² for the marginal covariances; the inner EP is of lower order.
    """
    return (10 * C + 4) / 3 * n**3 + 2 * C**2 * n**2


def cost(n: int, C: int, shared: bool = False) -> dict[str, Any]:
    """Time of a call and a sweep, and its rate beside that of LAPACK's Cholesky."""
    import numpy as np
    from scipy.linalg import get_lapack_funcs

    import jgp

    x, y = clusters(n, C)
    classes = model([2.0] * C, 1.0, shared=shared)
    # max_steps is traced: this compiles what is timed, at the price of one sweep.
    jgp.nested_ep(classes, x, y, max_steps=1, throw=False)
    sweeps = int(jgp.nested_ep(classes, x, y).num_steps)
    A = np.eye(n) + np.exp(-(np.subtract.outer(x[:, 0], x[:, 0]) ** 2))
    (potrf,) = get_lapack_funcs(("potrf",), (A,))
    (total,) = seconds(lambda: jgp.nested_ep(classes, x, y))
    # A symmetric matrix is its own transpose, and LAPACK wants columns.
    (factor,) = seconds(lambda: potrf(A.T, lower=1)[0])
    rate, lapack_rate = flops(n, C) * sweeps / total, n**3 / 3 / factor
    return {
        "n": n,
        "C": C,
        "kernels": 1 if shared else C,
        "sweeps": sweeps,
        "ms": 1e3 * total,
        "ms a sweep": 1e3 * total / sweeps,
        "Cholesky ms": 1e3 * factor,
        "Gflop/s": rate / 1e9,
        "of Cholesky's": rate / lapack_rate,
    }


def _peak(n: int, C: int) -> float:
    import jgp
    from benchmarks.timing import peak_memory

    jgp.nested_ep(model([2.0] * C, 1.0), *clusters(n, C), max_steps=3, throw=False)
    return peak_memory()


def memory(small: tuple[int, int], large: tuple[int, int]) -> dict[str, Any]:
    """Growth of the peak between two sizes, each in its own process."""
    peaks = []
    for size in (small, large):
        command = [sys.executable, "-m", "benchmarks.nested_ep", "--peak"]
        done = subprocess.run(
            command + [str(number) for number in size],
            check=True,
            capture_output=True,
            text=True,
        )
        peaks.append(json.loads(done.stdout.splitlines()[-1]))
    doubles = [8 * C * n**2 / 2**20 for n, C in (small, large)]
    return {
        "n": large[0],
        "C": large[1],
        "peak MB": peaks[1],
        f"at n = {small[0]}": peaks[0],
        "times C n² doubles": (peaks[1] - peaks[0]) / (doubles[1] - doubles[0]),
    }


def _evidence(x: Any, y: Any) -> Callable[[Any], Any]:
    """Log evidence of the logarithms of C lengthscales and a variance."""
    import jax.numpy as jnp

    import jgp

    def evidence(raw):
        scales = jnp.exp(raw)
        process = model(list(scales[:-1]), scales[-1])
        return jgp.nested_ep(process, x, y, throw=False).log_evidence

    return evidence


def gradient(n: int, C: int) -> dict[str, Any]:
    """The evidence with its gradient, over the evidence alone."""
    import jax
    import jax.numpy as jnp

    evidence = _evidence(*clusters(n, C))
    raw = jnp.log(jnp.array([2.0] * C + [1.0]))
    alone, both = jax.jit(evidence), jax.jit(jax.value_and_grad(evidence))
    jax.block_until_ready((alone(raw), both(raw)))
    value, with_gradient = seconds(lambda: alone(raw), lambda: both(raw))
    return {
        "n": n,
        "C": C,
        "evidence ms": 1e3 * value,
        "with gradient ms": 1e3 * with_gradient,
        "ratio": with_gradient / value,
    }


def batched(n: int, C: int) -> dict[str, Any]:
    """Many settings of the hyperparameters at once, beside one by one."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    evidence = _evidence(*clusters(n, C))
    centre = np.log([2.0] * C + [1.0])
    spread = np.random.default_rng(1).uniform(-0.7, 0.7, size=(SETTINGS, C + 1))
    raw = jnp.asarray(centre + spread)
    one, many = jax.jit(evidence), jax.jit(jax.vmap(evidence))
    jax.block_until_ready((one(raw[0]), many(raw)))
    single, together = seconds(lambda: [one(each) for each in raw], lambda: many(raw))
    single /= SETTINGS
    return {
        "n": n,
        "C": C,
        "settings": SETTINGS,
        "single ms": 1e3 * single,
        "vmap ms": 1e3 * together,
        "single runs": together / single,
    }


PEERS = (("iris", 120, 1.0), ("digits", 200, 3.0), ("digits", 1000, 3.0))


def peer(name: str, n: int, lengthscale: float) -> dict[str, Any]:
    """Nested EP beside scikit-learn's Laplace approximation, one against the rest."""
    import numpy as np
    from sklearn.datasets import load_digits, load_iris
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF

    import jgp

    x, y = map(
        np.asarray,
        load_iris(return_X_y=True) if name == "iris" else load_digits(return_X_y=True),
    )
    order = np.random.RandomState(0).permutation(len(x)) if name == "iris" else slice(n)
    x, y = x[order][:n] / (1 if name == "iris" else 16), y[order][:n]
    C = int(np.max(y)) + 1
    classes = model([lengthscale] * C, 1.0)
    # The stub knows no None, which is the documented way to keep the kernel.
    fixed: Any = None

    def ours():
        return jgp.nested_ep(classes, x, y, rtol=1e-4, atol=1e-4)

    def theirs():
        GaussianProcessClassifier(kernel=RBF(lengthscale), optimizer=fixed).fit(x, y)

    sweeps = int(ours().num_steps)
    mine, other = seconds(ours, theirs)
    return {
        "data": name,
        "n": n,
        "C": C,
        "sweeps": sweeps,
        "nested EP ms": 1e3 * mine,
        "scikit-learn ms": 1e3 * other,
        "ratio": mine / other,
    }


if __name__ == "__main__":
    main()
