"""One library's fit of one problem in a process of its own: evidence and seconds.

    python -m benchmarks.fit_one friedman GPyTorch [--small] [--data-dir ../shared/data]

Imports only what that library needs, so that it runs where jgp is not installed.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.data import DEFAULT_DIRECTORY

NOISE = 0.1
LENGTHSCALE = 1.0
PROBLEMS = ("friedman", "diabetes", "iris")
REPEATS = 3
MAX_STEPS = 200


def main() -> None:
    """Fit, and print what was found as JSON."""
    parser = argparse.ArgumentParser("benchmarks.fit_one")
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("package", choices=FITS)
    parser.add_argument("--small", action="store_true", help="fewer data")
    parser.add_argument("--data-dir", type=Path, default=DEFAULT_DIRECTORY)
    options = parser.parse_args()
    x, y = _data(options.problem, options.data_dir, options.small)
    print(json.dumps(_timed(FITS[options.package](options.problem, x, y))))


def friedman(directory: Path) -> Path:
    """The file of that data set."""
    return directory / "regression" / "friedman_100.csv"


def _data(problem: str, directory: Path, small: bool) -> tuple[np.ndarray, np.ndarray]:
    """Inputs of unit variance; targets of mean 0 and variance 1, or two classes."""
    from sklearn.datasets import load_diabetes, load_iris

    if problem == "iris":
        x, y = map(np.asarray, load_iris(return_X_y=True))
        x, y = x[y > 0], y[y > 0] - 1
        return (x - x.mean(0)) / x.std(0), y
    if problem == "friedman":
        table = np.genfromtxt(friedman(directory), delimiter=",", skip_header=1)
        x, y = table[:, :-1], table[:, -1]
    else:
        x, y = map(np.asarray, load_diabetes(return_X_y=True))
        x, y = x[:200], y[:200]
    if small:
        x, y = x[:50], y[:50]
    return (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()


def _timed(call: Callable[[], float]) -> dict[str, float]:
    """The first fit of a process and later ones."""
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


if __name__ == "__main__":
    main()
