"""One instance of every concrete class: what a law is tested on.

`test_architecture` fails if a public concrete class is missing here.
"""

from typing import Any, NamedTuple

import numpy as np

from jgp import kernels, likelihoods, means


class Case(NamedTuple):
    instance: Any
    dimension: int


KERNELS = {
    "Constant": Case(kernels.Constant(0.7), 2),
    "Matern12": Case(kernels.Matern12(0.8), 1),
    "Matern12 ARD": Case(kernels.Matern12(np.array([0.5, 2.0])), 2),
    "Matern32": Case(kernels.Matern32(0.8), 2),
    "Matern32 ARD": Case(kernels.Matern32(np.array([0.5, 1.0, 2.0])), 3),
    "Matern52": Case(kernels.Matern52(0.8), 1),
    "Matern52 ARD": Case(kernels.Matern52(np.array([0.5, 1.0, 2.0])), 3),
    "Power": Case(kernels.Matern32(1.5) ** 3, 2),
    "Product": Case(kernels.SquaredExponential(1.3) * kernels.Matern12(3.0), 2),
    "Scaled": Case(2.5 * kernels.Matern52(0.8), 2),
    "SquaredExponential": Case(kernels.SquaredExponential(0.8), 1),
    "SquaredExponential ARD": Case(
        kernels.SquaredExponential(np.array([0.5, 1.0, 2.0])), 3
    ),
    "Sum": Case(0.5 * kernels.SquaredExponential(1.3) + kernels.Matern32(0.4) + 0.3, 2),
    "Warped": Case(kernels.on(kernels.Matern52(np.array([0.7, 1.2])), (2, 0)), 3),
}

MEANS = {
    "Constant": Case(means.Constant(-0.4), 2),
    "Linear": Case(means.Linear(np.array([0.5, -2.0, 1.0]), 0.3), 3),
    "Zero": Case(means.Zero(), 2),
}

# The dimension of a likelihood's case is its number of latents.
LIKELIHOODS = {
    "Gaussian": Case(likelihoods.Gaussian(0.3), 1),
    "Gaussian of two outputs": Case(likelihoods.Gaussian(0.3), 2),
    "MultinomialProbit": Case(likelihoods.MultinomialProbit(3), 3),
    "Softmax": Case(likelihoods.Softmax(3), 3),
}


def points(dimension: int, num: int = 7, seed: int = 0) -> np.ndarray:
    """Points of unit spread; the last repeats the first."""
    x = np.random.default_rng(seed).normal(size=(num, dimension))
    x[-1] = x[0]
    return x
