"""Classification problems with reference results, shared by several tests."""

import functools
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits, load_iris

import jgp
from jgp import kernels

REFERENCE = Path(__file__).parent / "reference"


class Problem(NamedTuple):
    x: np.ndarray
    y: np.ndarray
    x_new: np.ndarray
    y_new: np.ndarray


@functools.cache
def reference(name: str) -> dict:
    """The numbers of tests/reference/`name`.json."""
    return json.loads((REFERENCE / f"{name}.json").read_text())


@functools.cache
def iris(rows: str) -> Problem:
    """Fisher's iris, 120 to train and 30 to test, as scikit-learn or UCI has it."""
    x, y = load_iris(return_X_y=True)
    if rows == "uci":
        x[34] = x[37] = [4.9, 3.1, 1.5, 0.1]
    order = np.asarray(reference("classification")["meta"]["iris_permutation"])
    x, y = x[order], y[order]
    return Problem(x[:120], y[:120], x[120:], y[120:])


@functools.cache
def digits() -> Problem:
    """Rows 0..199 of scikit-learn's digits to train, the next 100 to test."""
    x, y = load_digits(return_X_y=True)
    return Problem(x[:200] / 16, y[:200], x[200:300] / 16, y[200:300])


@functools.cache
def toy(dtype: str = "float64", num_data: int = 12) -> Problem:
    """A few points in the plane, three classes, one of them with a single member."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(num_data + 4, 2)).astype(dtype)
    y = np.arange(num_data + 4) % 2
    y[0] = 2
    return Problem(x[:num_data], y[:num_data], x[num_data:], y[num_data:])


def squared_exponentials(likelihood, lengthscales, variance=None) -> jgp.Model:
    """A model with one squared exponential a class, of unit variance by default."""
    ks = [kernels.SquaredExponential(lengthscale) for lengthscale in lengthscales]
    if variance is not None:
        ks = [variance * k for k in ks]
    return jgp.Model(jgp.independent(ks), likelihood)
