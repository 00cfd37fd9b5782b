"""What a fit costs: time to the optimum beside peers, restarts, and warm starts.

    python -m benchmarks.fit [--small] [--data-dir ../shared/data] [--output results]

Regressions with one lengthscale an input, and a binary classification by Laplace's
method, from the same start to the same optimum: the difference in log evidence from the
best of all is printed beside the seconds of a first fit in a process and of later ones.
Then nested EP on Iris: many restarts at once in multiples of one fit, and the sweeps
that starting from the sites of the step before saves. Peers that are not installed are
left out.
"""

import argparse
import functools
import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import DEFAULT_DIRECTORY
from benchmarks.report import markdown

NOISE = 0.1
LENGTHSCALE = 1.0
PROBLEMS = ("friedman", "diabetes", "iris")
LIBRARIES = ("jgp", "scikit-learn", "GPyTorch", "GPJax")
MODULES = {"scikit-learn": "sklearn", "GPyTorch": "gpytorch", "GPJax": "gpjax"}
REPEATS = 3
RESTARTS = 64
MAX_STEPS = 200


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print tables, and write results/fit.json."""
    parser = argparse.ArgumentParser("benchmarks.fit")
    parser.add_argument("--small", action="store_true", help="less of everything")
    parser.add_argument("--data-dir", type=Path, default=DEFAULT_DIRECTORY)
    parser.add_argument("--output", type=Path, default=Path("results"))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        problem, library = options.one
        found = _one(problem, library, options.data_dir, options.small)
        print(json.dumps(found))
        return
    _report(options)


def _report(options: argparse.Namespace) -> None:
    import jax

    from benchmarks.timing import machine

    jax.config.update("jax_enable_x64", True)
    rows = []
    for problem in PROBLEMS[:1] if options.small else PROBLEMS:
        if problem == "friedman" and not _friedman(options.data_dir).exists():
            print(f"{_friedman(options.data_dir)} is not there: pass --data-dir.")
            continue
        for library in LIBRARIES:
            module = MODULES.get(library, library)
            if importlib.util.find_spec(module) is None or _absent(problem, library):
                continue
            command = [sys.executable, "-m", "benchmarks.fit", "--one", problem]
            command += [library, "--data-dir", str(options.data_dir)]
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


def _absent(problem: str, library: str) -> bool:
    """Whether a library has no fit of a problem's model."""
    return problem == "iris" and library in ("GPyTorch", "GPJax")


def _friedman(directory: Path) -> Path:
    return directory / "regression" / "friedman_100.csv"


def _data(problem: str, directory: Path, small: bool) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of unit variance; targets of mean 0 and variance 1, or two classes."""
    from sklearn.datasets import load_diabetes, load_iris

    if problem == "iris":
        x, y = map(np.asarray, load_iris(return_X_y=True))
        x, y = x[y > 0], y[y > 0] - 1
        return (x - x.mean(0)) / x.std(0), y
    if problem == "friedman":
        table = np.genfromtxt(_friedman(directory), delimiter=",", skip_header=1)
        x, y = table[:, :-1], table[:, -1]
    else:
        x, y = map(np.asarray, load_diabetes(return_X_y=True))
        x, y = x[:200], y[:200]
    if small:
        x, y = x[:50], y[:50]
    return (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()


def _one(problem: str, library: str, directory: Path, small: bool) -> dict[str, float]:
    """The first fit of a process and later ones."""
    import time

    x, y = _data(problem, directory, small)
    call = FITS[library](problem, x, y)
    seconds, value = [], 0.0
    for _ in range(1 + REPEATS):
        start = time.perf_counter()
        value = call()
        seconds.append(time.perf_counter() - start)
    later = statistics.median(seconds[1:])
    return {"evidence": float(value), "first": seconds[0], "later": later}


def _jgp(problem: str, x: np.ndarray, y: np.ndarray) -> Callable[[], float]:
    import jax

    import jgp
    from jgp import kernels, likelihoods

    jax.config.update("jax_enable_x64", True)
    if problem == "iris":
        kernel = 1.0 * kernels.SquaredExponential(LENGTHSCALE)
        likelihood: Any = likelihoods.BernoulliLogit  # pyright wants its properties
        likelihood = likelihood()
    else:
        kernel = 1.0 * kernels.SquaredExponential([LENGTHSCALE] * x.shape[1])
        likelihood = likelihoods.Gaussian(NOISE)
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihood)
    options: dict[str, Any] = {"init": "model", "throw": False, "progress": False}

    def call():
        return jgp.fit(model, x, y, max_steps=MAX_STEPS, **options).restarts[0].value

    return call


def _sklearn(problem: str, x: np.ndarray, y: np.ndarray) -> Callable[[], Any]:
    import warnings

    from sklearn.gaussian_process import (
        GaussianProcessClassifier,
        GaussianProcessRegressor,
    )
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    warnings.simplefilter("ignore")
    wide = (1e-6, 1e8)
    if problem == "iris":
        kernel = ConstantKernel(1.0, wide) * RBF(LENGTHSCALE, wide)
        return lambda: (
            GaussianProcessClassifier(kernel).fit(x, y).log_marginal_likelihood_value_
        )
    kernel = ConstantKernel(1.0, wide) * RBF([LENGTHSCALE] * x.shape[1], wide)
    kernel = kernel + WhiteKernel(NOISE, wide)
    return lambda: (
        GaussianProcessRegressor(kernel, alpha=0.0)
        .fit(x, y)
        .log_marginal_likelihood_value_
    )


def _gpytorch(problem: str, x: np.ndarray, y: np.ndarray) -> Callable[[], float]:
    import gpytorch  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]

    del problem
    inputs, targets = torch.from_numpy(x), torch.from_numpy(y)

    class Regression(gpytorch.models.ExactGP):
        def __init__(self, likelihood):
            super().__init__(inputs, targets, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            rbf = gpytorch.kernels.RBFKernel(ard_num_dims=x.shape[1])
            self.covar_module = gpytorch.kernels.ScaleKernel(rbf)

        def forward(self, x):
            moments = self.mean_module(x), self.covar_module(x)
            return gpytorch.distributions.MultivariateNormal(*moments)

    def call():
        positive = gpytorch.constraints.GreaterThan(1e-8)
        likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=positive)
        model = Regression(likelihood.double()).double()
        model.covar_module.base_kernel.lengthscale = LENGTHSCALE
        model.covar_module.outputscale = 1.0
        likelihood.noise = NOISE
        model.train()
        likelihood.train()
        marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        search = torch.optim.LBFGS(
            model.parameters(), max_iter=MAX_STEPS, line_search_fn="strong_wolfe"
        )

        def loss():
            search.zero_grad()
            value = -marginal(model(inputs), targets) * len(targets)
            value.backward()
            return value

        with gpytorch.settings.fast_computations(False, False, False):
            search.step(loss)
            return -loss().item()

    return call


def _gpjax(problem: str, x: np.ndarray, y: np.ndarray) -> Callable[[], float]:
    import gpjax  # pyright: ignore[reportMissingImports]
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_enable_x64", True)
    del problem
    data = gpjax.Dataset(jnp.asarray(x), jnp.asarray(y)[:, None])

    def objective(posterior, data):
        return -gpjax.objectives.conjugate_mll(posterior, data)

    def call():
        lengthscale = jnp.full(x.shape[1], LENGTHSCALE)
        kernel = gpjax.kernels.RBF(lengthscale=lengthscale, variance=1.0)
        zero = gpjax.mean_functions.Zero()
        prior = gpjax.gps.Prior(mean_function=zero, kernel=kernel)
        likelihood = gpjax.likelihoods.Gaussian(obs_stddev=NOISE**0.5)
        posterior = prior * likelihood
        found, _ = gpjax.fit_scipy(
            model=posterior,
            objective=objective,
            train_data=data,
            max_iters=MAX_STEPS,
            verbose=False,
        )
        return float(gpjax.objectives.conjugate_mll(found, data))

    return call


FITS = {
    "jgp": _jgp,
    "scikit-learn": _sklearn,
    "GPyTorch": _gpytorch,
    "GPJax": _gpjax,
}


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
    fit = functools.partial(
        jgp.fit, model, x, y, init="model", throw=False, progress=False
    )
    way: list[Any] = []
    fit(callback=lambda _number, model, _value: way.append(model) and None)
    one = statistics.median(timed(fit).seconds for _ in range(3))
    several = functools.partial(fit, restarts=restarts, key=jax.random.key(0))
    many = timed(several)
    single = fit()
    alone = one * many.value.num_evaluations / single.num_evaluations
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
        "in searches of mean length, one at a time": restarts * many.seconds / alone,
        "restarts at the best optimum": reached,
        "sweeps, cold": sum(cold),
        "sweeps, warm": sum(warm),
        "warm over cold": sum(warm) / sum(cold),
    }


if __name__ == "__main__":
    main()
