"""The approximations that are compared, and the model each starts from."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import jgp
from jgp import kernels, likelihoods


class Method(NamedTuple):
    """An approximation, its likelihood, and the temper of its importance sampling."""

    label: str
    infer: Callable[..., jgp.Approximation]
    likelihood: Callable[[int], Any]
    link: str
    temper: float


METHODS = {
    "nested_ep": Method(
        "nested EP", jgp.nested_ep, likelihoods.MultinomialProbit, "probit", 1.0
    ),
    "laplace": Method("Laplace", jgp.laplace, likelihoods.Softmax, "softmax", 0.75),
}


def start_model(method: Method, x: np.ndarray, num_classes: int) -> jgp.Model:
    """A squared exponential of unit variance a class, at the median distance."""
    some = x[:500]
    squared = np.sum((some[:, None] - some[None]) ** 2, axis=2)
    lengthscale = float(np.sqrt(np.median(squared[squared > 0])))
    ks = [kernels.SquaredExponential(lengthscale) for _ in range(num_classes)]
    return jgp.Model(jgp.independent(ks), method.likelihood(num_classes))
