"""One instance of every concrete class: what a law is tested on.

`test_architecture` fails if a public concrete class is missing here.
"""

from collections.abc import Container, Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from jgp import kernels, likelihoods, means


class Case(NamedTuple):
    instance: Any
    dimension: int
    domain: str = "real"


class Cubic(eqx.Module):
    """A function of one point with a parameter, for kernels that take functions."""

    slope: Float[Array, ""]

    def __call__(self, x):
        return jnp.exp(-0.3 * self.slope * jnp.sum(x) ** 2 / (1 + jnp.sum(x**2))) + 0.2


class Metric(eqx.Module):
    """A positive definite matrix at each point."""

    slope: Float[Array, ""]

    def __call__(self, x):
        bend = 0.3 * jnp.sin(self.slope * x[0])
        first = jnp.stack([1 + x[1] ** 2, bend])
        return jnp.stack([first, jnp.stack([bend, jnp.full_like(bend, 0.6)])])


def smoother(x, u):
    return jnp.exp(-jnp.sum((x - u) ** 2))


NODES = np.stack(np.meshgrid(np.linspace(-3, 3, 5), np.linspace(-3, 3, 5)), -1)
CUBIC = Cubic(jnp.asarray(1.2))
SPD = np.array([[0.7, 0.1, -0.2], [0.1, 1.3, 0.3], [-0.2, 0.3, 0.8]])
SE, M52 = kernels.SquaredExponential, kernels.Matern52

KERNELS = {
    "ArcCosine 0": Case(kernels.ArcCosine(0, 0.8, 0.3), 2),
    "ArcCosine 1": Case(kernels.ArcCosine(1, np.array([0.8, 1.4]), 0.3), 2),
    "ArcCosine 2": Case(kernels.ArcCosine(2, 0.8, 0.3), 3),
    "Categorical": Case(kernels.Categorical(4, 0.3), 1, "index"),
    "Cauchy": Case(kernels.Cauchy(), 1, "positive"),
    "Constant": Case(kernels.Constant(0.7), 2),
    "Convolved": Case(
        kernels.Convolved(SE(0.8), smoother, NODES.reshape(-1, 2), np.full(25, 2.25)), 2
    ),
    "Coregionalization": Case(
        kernels.Coregionalization([[1.0], [-0.5], [0.3], [2.0]], np.full(4, 0.2)),
        1,
        "index",
    ),
    "Cosine": Case(kernels.Cosine(1.7), 2),
    "Derivative": Case(kernels.Derivative(M52(0.8), 1), 2),
    "DirectSum": Case(kernels.DirectSum((kernels.Matern32(0.8), SE(1.2)), (1, 2)), 3),
    "GammaExponential": Case(kernels.GammaExponential(1.3, 0.8), 2),
    "GammaExponential 2": Case(kernels.GammaExponential(2.0, 0.8), 2),
    "GaussianSmoothed": Case(kernels.GaussianSmoothed(SE(0.8), [0.4, 0.7]), 2),
    "Gibbs": Case(kernels.Gibbs(CUBIC), 2),
    "HarmonicNormalized": Case(kernels.HarmonicNormalized(kernels.Polynomial()), 2),
    "IntegratedWiener": Case(kernels.IntegratedWiener(), 1, "positive"),
    "Linear": Case(kernels.Linear(np.array([0.5, 2.0])), 2),
    "Matern": Case(kernels.Matern(1.7, 0.8), 2),
    "Matern rough": Case(kernels.Matern(0.4, 0.8), 1),
    "Matern12": Case(kernels.Matern12(0.8), 1),
    "Matern12 ARD": Case(kernels.Matern12(np.array([0.5, 2.0])), 2),
    "Matern32": Case(kernels.Matern32(0.8), 2),
    "Matern32 ARD": Case(kernels.Matern32(np.array([0.5, 1.0, 2.0])), 3),
    "Matern52": Case(M52(0.8), 1),
    "Matern52 ARD": Case(M52(np.array([0.5, 1.0, 2.0])), 3),
    "Matern52 metric": Case(M52(np.linalg.cholesky(SPD)), 3),
    "Matern72": Case(kernels.Matern72(0.8), 2),
    "MeanSSIM": Case(kernels.MeanSSIM((4, 3), 2, c1=0.02, c2=0.05), 12, "image"),
    "NeuralNetwork": Case(kernels.NeuralNetwork(SPD), 2),
    "NonStationary": Case(
        kernels.NonStationary(kernels.Matern32(0.9), Metric(jnp.asarray(0.7))), 2
    ),
    "Normalized": Case(kernels.Normalized(kernels.Polynomial(3)), 2),
    "Periodic": Case(kernels.Periodic(0.8, 1.7), 1),
    "Periodic ARD": Case(kernels.Periodic([0.8, 1.2], [1.7, 3.0]), 2),
    "Polynomial": Case(kernels.Polynomial(2, SPD, 0.5), 3),
    "Power": Case(kernels.Matern32(1.5) ** 3, 2),
    "Product": Case(SE(1.3) * kernels.Matern12(3.0), 2),
    "RationalQuadratic": Case(kernels.RationalQuadratic(0.7, 0.8), 2),
    "SSIM": Case(kernels.SSIM(0.02, 0.05), 9, "image"),
    "Scaled": Case(2.5 * M52(0.8), 2),
    "Scaled by a function": Case(kernels.Scaled(M52(0.8), 1.5, CUBIC), 2),
    "SpectralMixture": Case(
        kernels.SpectralMixture(
            np.array([0.7, 0.4]),
            np.array([[0.2, 0.5], [1.0, 0.1]]),
            np.array([[0.1, 0.3], [0.2, 0.2]]),
        ),
        2,
    ),
    "SquaredExponential": Case(SE(0.8), 1),
    "SquaredExponential ARD": Case(SE(np.array([0.5, 1.0, 2.0])), 3),
    "SquaredExponential metric": Case(SE(np.linalg.cholesky(SPD)), 3),
    "Sum": Case(0.5 * SE(1.3) + kernels.Matern32(0.4) + 0.3, 2),
    "TensorProduct": Case(
        kernels.TensorProduct((kernels.Periodic(1.0, 2.0), M52(1.2)), (1, 2)), 3
    ),
    "TrigonometricCompact": Case(kernels.TrigonometricCompact(np.array([2.0, 3.0])), 2),
    "Warped": Case(kernels.on(M52(np.array([0.7, 1.2])), (2, 0)), 3),
    "Wendland 0": Case(kernels.Wendland(0, 3.0), 2),
    "Wendland 1": Case(kernels.Wendland(1, 3.0), 3),
    "Wendland 2": Case(kernels.Wendland(2, np.array([3.0, 2.0])), 2),
    "Wendland 5": Case(kernels.Wendland(5, 4.0), 2),
    "White": Case(kernels.White(0.4), 2),
    "Wiener": Case(kernels.Wiener(), 1, "positive"),
    "WithDerivatives": Case(kernels.WithDerivatives(M52(0.8)), 3, "derivatives"),
    "WithIntegrals": Case(kernels.WithIntegrals(M52(0.8)), 2, "boxes"),
    "WithIntegrals 2": Case(kernels.WithIntegrals(SE(0.8), 4, True), 4, "boxes"),
}

# What `make test` runs every law on; `make test-slow` runs them on all the others.
QUICK = {
    "ArcCosine 1",
    "Categorical",
    "Gibbs",
    "Matern32 ARD",
    "Matern52 metric",
    "MeanSSIM",
    "Periodic",
    "Product",
    "Scaled by a function",
    "SpectralMixture",
    "SquaredExponential",
    "Sum",
    "Warped",
    "Wendland 1",
    "WithDerivatives",
    "WithIntegrals",
}


def each_kernel(names: Iterable[str] = KERNELS) -> list:
    """Names of kernels as parameters of a test, slow unless among the quick ones."""
    return slow_unless(QUICK, names)


def slow_unless(quick: Container[Any], values: Iterable[Any]) -> list:
    """Parameters of a test, of which `make test` takes the quick ones only."""
    return [
        value if value in quick else pytest.param(value, marks=pytest.mark.slow)
        for value in values
    ]


MEANS = {
    "Basis": Case(means.polynomial(2, means.Constant(0.3)), 2),
    "Constant": Case(means.Constant(-0.4), 2),
    "Linear": Case(means.Linear(np.array([0.5, -2.0, 1.0]), 0.3), 3),
    "Product": Case(means.Constant(2.0) * means.Linear(np.array([0.5, -2.0])), 2),
    "Sum": Case(1.0 + means.Linear(np.array([0.5, -2.0])) + CUBIC, 2),
    "WithDerivatives": Case(means.WithDerivatives(CUBIC), 3, "derivatives"),
    "WithIntegrals": Case(means.WithIntegrals(CUBIC), 4, "boxes"),
    "Zero": Case(means.Zero(), 2),
}

# The dimension of a likelihood's case is its number of latents.
LIKELIHOODS = {
    "BernoulliLogit": Case(likelihoods.BernoulliLogit(), 1, "binary"),
    "BernoulliProbit": Case(likelihoods.BernoulliProbit(), 1, "binary"),
    "Beta": Case(likelihoods.Beta(5.0), 1, "unit"),
    "CorrelatedGaussian": Case(
        likelihoods.CorrelatedGaussian([[0.5, 0.2], [0.2, 0.3]]), 2
    ),
    "FixedNoiseGaussian": Case(likelihoods.FixedNoiseGaussian(np.full(7, 0.3)), 1),
    "Gaussian": Case(likelihoods.Gaussian(0.3), 1),
    "Gaussian a variance an output": Case(likelihoods.Gaussian([0.3, 0.1]), 2),
    "Gaussian of two outputs": Case(likelihoods.Gaussian(0.3), 2),
    "HeteroscedasticGaussian": Case(likelihoods.HeteroscedasticGaussian(CUBIC), 1),
    "LatentNoiseGaussian": Case(likelihoods.LatentNoiseGaussian(), 2),
    "LaplaceNoise": Case(likelihoods.LaplaceNoise(0.3), 1),
    "MultinomialProbit": Case(likelihoods.MultinomialProbit(3), 3),
    "NegativeBinomial": Case(likelihoods.NegativeBinomial(0.4), 1, "count"),
    "OrdinalProbit": Case(
        likelihoods.OrdinalProbit([-1.0, 0.4, 2.0], 0.7), 1, "ordinal"
    ),
    "Poisson": Case(likelihoods.Poisson(), 1, "count"),
    "Softmax": Case(likelihoods.Softmax(3), 3),
    "StudentT": Case(likelihoods.StudentT(4.0, 0.3), 1),
    "Weighted": Case(
        likelihoods.Weighted(likelihoods.Poisson(), np.linspace(0, 1.5, 7)), 1, "count"
    ),
}

# Observations that a likelihood of one latent may meet, by the domain of its case.
OBSERVATIONS = {
    "binary": np.array([0, 1, 1]),
    "count": np.array([0.0, 3.0, 20.0]),
    "ordinal": np.array([0, 1, 3]),
    "real": np.array([-1.5, 0.2, 3.0]),
    "unit": np.array([0.02, 0.4, 0.97]),
}


def points(
    dimension: int, num: int = 7, seed: int = 0, domain: str = "real"
) -> np.ndarray:
    """Points of unit spread in a kernel's domain; the last repeats the first."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num, dimension))
    match domain:
        case "positive":
            x = np.abs(x) + 0.1
        case "index":
            x = np.floor(4 * rng.uniform(size=(num, dimension)))
        case "image":
            x = rng.uniform(size=(num, dimension))
        case "derivatives":
            x[:, -1] = rng.permutation(num) % dimension
        case "boxes":
            lower, width = x[:, : dimension // 2], np.abs(x[:, dimension // 2 :])
            # The second point is a value, a box without width.
            width[1] = 0
            x = np.concatenate([lower, lower + width], axis=1)
    x[-1] = x[0]
    return x
