"""Evidence and gradient of exact regression on one core, beside peers and LAPACK.

    python -m benchmarks.regression [--sizes 500,1000,2000,4000] [--peer-python PATH]

Each library runs in its own process, in float64 and on one core, as its documentation
calls it, with an ARD squared exponential in 8 dimensions; in the same process LAPACK's
potrf and potri of such a matrix are timed in alternation, and times are given as
multiples of those. All keep the memory that they free (see KEEP_MEMORY). Peers that are
not installed are reported as such; `--peer-python` is another interpreter that has
them.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed import use_one_core

LIBRARIES = ("jgp", "scikit-learn", "tinygp", "GPJax", "GPyTorch")
DIMENSION = 8
NOISE_VARIANCE = 0.1
# glibc gives large blocks back to the system as soon as they are free, and the system
# clears every page that is asked for again: a third of a call here. LAPACK alone, in
# place, is not concerned.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**36),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, and write results/regression.json."""
    parser = argparse.ArgumentParser("benchmarks.regression")
    parser.add_argument("--sizes", default="500,1000,2000,4000")
    parser.add_argument("--libraries", default=",".join(LIBRARIES))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--output", type=Path, default=Path("results"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    sizes = [int(size) for size in options.sizes.split(",")]
    if options.one:
        use_one_core()
        print(json.dumps([measure(options.one, n, options.repeats) for n in sizes]))
        return
    rows = []
    for name in options.libraries.split(","):
        python = sys.executable if name in ("jgp", "scikit-learn") else None
        rows += _in_process(name, python or options.peer_python, options)
    _report(rows, sizes, options.output)


def _in_process(name: str, python: str, options: Any) -> list[dict[str, Any]]:
    command = [python, "-m", "benchmarks.regression", "--one", name]
    command += ["--sizes", options.sizes, "--repeats", str(options.repeats)]
    environment = {**os.environ, **KEEP_MEMORY}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    reason = done.stderr.strip().splitlines()[-1:]
    return [{"library": name, "failed": " ".join(reason)}]


def measure(name: str, n: int, repeats: int) -> dict[str, Any]:
    """Times of evidence and gradient at n points, and of LAPACK, in alternation."""
    import statistics
    import time

    import numpy as np
    from scipy.linalg import get_lapack_funcs

    x, y = problem(n)
    call = CALLS[name](x, y)
    S = np.exp(-np.sum((x[:, None] - x[None]) ** 2, axis=2) / 2 / DIMENSION)
    S = np.asfortranarray(S + NOISE_VARIANCE * np.eye(n))

    potrf, potri = get_lapack_funcs(("potrf", "potri"), (S,))

    def lapack() -> None:
        lower, _ = potrf(S, lower=1)
        potri(lower, lower=1)

    log_evidence, gradient = call()
    lapack()
    ours, theirs = [], []
    for _ in range(repeats):
        for function, seconds in ((call, ours), (lapack, theirs)):
            start = time.perf_counter()
            function()
            seconds.append(time.perf_counter() - start)
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    return {
        "library": name,
        "n": n,
        "log_evidence": float(log_evidence),
        "largest_slope": float(np.max(np.abs(gradient))),
        "seconds": statistics.median(ours),
        "lapack_seconds": statistics.median(theirs),
        "ratio": statistics.median(ours) / statistics.median(theirs),
        "lowest_ratio": ratios[0],
        "highest_ratio": ratios[-1],
    }


def problem(n: int) -> tuple[Any, Any]:
    """A smooth function of 8 inputs with noise."""
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(n, DIMENSION))
    y = np.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2] + 0.3 * rng.normal(size=n)
    return x, y


def _jgp(x: Any, y: Any) -> Callable[[], tuple[Any, Any]]:
    import equinox as eqx
    import jax
    import numpy as np

    import jgp

    jax.config.update("jax_enable_x64", True)
    kernel = 1.0 * jgp.kernels.SquaredExponential(np.full(DIMENSION, DIMENSION**0.5))
    likelihood = jgp.likelihoods.Gaussian(NOISE_VARIANCE)
    raw = jgp.to_real(jgp.Model(jgp.GaussianProcess(kernel), likelihood))

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def evidence(raw, x, y):
        return jgp.exact(jgp.from_real(raw), x, y).log_evidence

    def call():
        value, gradient = jax.block_until_ready(evidence(raw, x, y))
        return value, np.concatenate([np.ravel(g) for g in jax.tree.leaves(gradient)])

    return call


def _sklearn(x: Any, y: Any) -> Callable[[], tuple[Any, Any]]:
    import numpy as np
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    lengthscale: Any = np.full(DIMENSION, DIMENSION**0.5)
    kernel = ConstantKernel(1.0) * RBF(lengthscale) + WhiteKernel(NOISE_VARIANCE)
    regressor: Any = GaussianProcessRegressor
    found = regressor(kernel, optimizer=None, alpha=0.0).fit(x, y)
    theta = found.kernel_.theta
    return lambda: found.log_marginal_likelihood(
        theta, eval_gradient=True, clone_kernel=False
    )


def _tinygp(x: Any, y: Any) -> Callable[[], tuple[Any, Any]]:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from tinygp import GaussianProcess, kernels, transforms  # pyright: ignore[reportMissingImports]

    jax.config.update("jax_enable_x64", True)

    @jax.jit
    @jax.value_and_grad
    def evidence(parameters, x, y):
        kernel = jnp.exp(parameters["variance"]) * transforms.Linear(
            jnp.exp(-parameters["lengthscale"]), kernels.ExpSquared()
        )
        process = GaussianProcess(kernel, x, diag=jnp.exp(parameters["noise"]))
        return process.log_probability(y)

    parameters = {
        "variance": jnp.zeros(()),
        "lengthscale": jnp.full(DIMENSION, np.log(DIMENSION) / 2),
        "noise": jnp.log(NOISE_VARIANCE),
    }

    def call():
        value, gradient = jax.block_until_ready(evidence(parameters, x, y))
        return value, np.concatenate([np.ravel(g) for g in jax.tree.leaves(gradient)])

    return call


def _gpjax(x: Any, y: Any) -> Callable[[], tuple[Any, Any]]:
    import equinox as eqx
    import gpjax  # pyright: ignore[reportMissingImports]
    import jax
    import jax.numpy as jnp
    import numpy as np

    jax.config.update("jax_enable_x64", True)
    data = gpjax.Dataset(jnp.asarray(x), jnp.asarray(y)[:, None])
    lengthscale = jnp.full(DIMENSION, DIMENSION**0.5)
    kernel = gpjax.kernels.RBF(lengthscale=lengthscale, variance=1.0)
    prior = gpjax.gps.Prior(mean_function=gpjax.mean_functions.Zero(), kernel=kernel)
    posterior = prior * gpjax.likelihoods.Gaussian(obs_stddev=NOISE_VARIANCE**0.5)

    @eqx.filter_jit
    @eqx.filter_value_and_grad
    def evidence(posterior, data):
        return gpjax.objectives.conjugate_mll(posterior, data)

    def call():
        value, gradient = jax.block_until_ready(evidence(posterior, data))
        return value, np.concatenate([np.ravel(g) for g in jax.tree.leaves(gradient)])

    return call


def _gpytorch(x: Any, y: Any) -> Callable[[], tuple[Any, Any]]:
    import gpytorch  # pyright: ignore[reportMissingImports]
    import numpy as np
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)

    class Regression(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(inputs, targets, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            rbf = gpytorch.kernels.RBFKernel(ard_num_dims=DIMENSION)
            self.covar_module = gpytorch.kernels.ScaleKernel(rbf)

        def forward(self, x):
            moments = self.mean_module(x), self.covar_module(x)
            return gpytorch.distributions.MultivariateNormal(*moments)

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    model = Regression(likelihood).double()
    model.covar_module.base_kernel.lengthscale = DIMENSION**0.5
    model.covar_module.outputscale = 1.0
    likelihood.noise = NOISE_VARIANCE
    model.train()
    likelihood.train()
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)

    def call():
        model.zero_grad()
        with gpytorch.settings.fast_computations(False, False, False):
            value = marginal(model(inputs), targets) * len(targets)
            value.backward()
        slopes = [p.grad.numpy().ravel() for p in model.parameters()]
        return value.item(), np.concatenate(slopes)

    return call


CALLS = {
    "jgp": _jgp,
    "scikit-learn": _sklearn,
    "tinygp": _tinygp,
    "GPJax": _gpjax,
    "GPyTorch": _gpytorch,
}


def _report(rows: list[dict[str, Any]], sizes: list[int], output: Path) -> None:
    from benchmarks.report import markdown
    from benchmarks.timing import machine

    header = ["library", *(f"n = {n}: ratio (lowest to highest), ms" for n in sizes)]
    body = []
    for name in dict.fromkeys(row["library"] for row in rows):
        own = {row.get("n"): row for row in rows if row["library"] == name}
        if None in own:
            body.append(
                [name, f"not run: {own[None]['failed']}", *[""] * (len(sizes) - 1)]
            )
            continue
        body.append([name, *map(_cell, (own[n] for n in sizes))])
    print(markdown(header, body))
    output.mkdir(parents=True, exist_ok=True)
    record = {"rows": rows, "machine": machine()}
    (output / "regression.json").write_text(json.dumps(record, indent=2) + "\n")


def _cell(row: dict[str, Any]) -> str:
    return (
        f"{row['ratio']:.2f} "
        f"({row['lowest_ratio']:.2f} to {row['highest_ratio']:.2f}), "
        f"{1e3 * row['seconds']:.0f}"
    )


if __name__ == "__main__":
    main()
