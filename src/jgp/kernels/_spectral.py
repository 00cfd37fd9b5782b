r"""Random functions whose covariance is a kernel, as modules that can be evaluated.

A stationary kernel is the characteristic function of its spectral density (Bochner), so
with ω drawn from it and a, b ~ N(0, 1)

    f(x) = F^{-½} Σ_j [a_j cos(ω_jᵀx) + b_j sin(ω_jᵀx)]

has the kernel as its covariance, averaged over ω; the error of one draw of ω is of
order F^{-½} (Rahimi & Recht 2008). The density of a squared exponential is normal, that
of a Matérn a Student t with 2ν degrees of freedom, and that of a rational quadratic a
gamma mixture of normals; frequencies of a product add. A periodic kernel has a
discrete one: with θ = 2πτ/p, exp((cos θ − 1)/ℓ²) = Σ_k e^{−1/ℓ²} I_k(1/ℓ²) e^{ikθ},
whose weights are those of the difference of two Poisson numbers of mean 1/(2ℓ²).
"""

import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jgp import _lapack
from jgp.kernels._base import AbstractKernel, Constant, Product, Scaled, Sum
from jgp.kernels._distance import check_lengthscale
from jgp.kernels._dot_product import Linear
from jgp.kernels._periodic import Cosine, Periodic, check_each
from jgp.kernels._profiles import Matern, RationalQuadratic
from jgp.kernels._stationary import (
    AbstractStationary,
    Matern12,
    Matern32,
    Matern52,
    Matern72,
    SquaredExponential,
)
from jgp.kernels._transforms import DirectSum, Select, TensorProduct, Warped

SMOOTHNESS = {Matern12: 0.5, Matern32: 1.5, Matern52: 2.5, Matern72: 3.5}


class Waves(eqx.Module):
    """A sum of plane waves.

    Args:
        frequencies: ω.
        cosines: a/√F.
        sines: b/√F.
    """

    frequencies: Float[Array, "F d"]
    cosines: Float[Array, " F"]
    sines: Float[Array, " F"]

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The sum at a point."""
        phase = self.frequencies @ x
        return self.cosines @ jnp.cos(phase) + self.sines @ jnp.sin(phase)


class Plane(eqx.Module):
    """A linear function, slope · x + height."""

    slope: Float[Array, " d"]
    height: Float[Array, ""]

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The function at a point."""
        return self.slope @ x + self.height


class Combined(eqx.Module):
    """The sum of random functions, each times a weight where there are weights."""

    functions: tuple[Callable, ...]
    weights: Float[Array, " k"] | None = None

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The sum at a point."""
        values = jnp.stack([function(x) for function in self.functions])
        return jnp.sum(values if self.weights is None else self.weights * values)


class Rescaled(eqx.Module):
    """√variance · amplitude(x) · f(map(x))."""

    function: Callable
    variance: Float[Array, ""]
    amplitude: Callable | None = None
    map: Callable | None = None

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The function at a point."""
        value = self.function(x if self.map is None else self.map(x))
        value = jnp.sqrt(self.variance) * value
        return value if self.amplitude is None else value * self.amplitude(x)


@functools.singledispatch
def random_function(
    kernel: AbstractKernel,
    key: PRNGKeyArray,
    num_features: int,
    example: Float[Array, " d"],
) -> Callable[[Float[Array, " d"]], Float[Array, ""]]:
    """A draw of a function with the kernel as its covariance, by random features.

    Args:
        kernel: Stationary with a known spectral density, a `Constant`, `Linear`, or
            sums, scalings and warpings of those, and products of stationary ones.
        key: A PRNG key.
        num_features: F, for each stationary part.
        example: Any input, for its dimension and dtype.

    Raises:
        ValueError: for another kernel.
    """
    frequency_key, weight_key = jax.random.split(key)
    frequencies = _frequencies(kernel, frequency_key, num_features, example)
    return _waves(frequencies, weight_key)


@random_function.register
def _(kernel: Product, key, num_features, example):
    # Scalings of the factors are one scaling of the whole.
    factors, variance = [], jnp.ones((), example.dtype)
    for factor in kernel.kernels:
        while isinstance(factor, Scaled) and factor.amplitude is None:
            factor, variance = factor.kernel, variance * factor.variance
        if isinstance(factor, Constant):
            variance = variance * factor.variance
        else:
            factors.append(factor)
    if not factors:
        return random_function(Constant(variance), key, num_features, example)
    frequency_key, weight_key = jax.random.split(key)
    whole = Product(factors) if len(factors) > 1 else factors[0]
    frequencies = _frequencies(whole, frequency_key, num_features, example)
    return Rescaled(_waves(frequencies, weight_key), variance)


@random_function.register
def _(kernel: DirectSum | TensorProduct, key, num_features, example):
    return random_function(kernel.kernel, key, num_features, example)


@random_function.register
def _(kernel: Sum, key, num_features, example):
    keys = jax.random.split(key, len(kernel.kernels))
    parts = zip(kernel.kernels, keys, strict=True)
    return Combined(
        tuple(random_function(k, each, num_features, example) for k, each in parts)
    )


@random_function.register
def _(kernel: Scaled, key, num_features, example):
    function = random_function(kernel.kernel, key, num_features, example)
    return Rescaled(function, kernel.variance, kernel.amplitude)


@random_function.register
def _(kernel: Warped, key, num_features, example):
    inner = kernel.map(example)
    function = random_function(kernel.kernel, key, num_features, inner)
    return Rescaled(function, jnp.ones((), example.dtype), map=kernel.map)


@random_function.register
def _(kernel: Constant, key, num_features, example):
    height = jnp.sqrt(kernel.variance) * jax.random.normal(key, (), example.dtype)
    return Plane(jnp.zeros_like(example), height)


@random_function.register
def _(kernel: Linear, key, num_features, example):
    normals = jax.random.normal(key, example.shape, example.dtype)
    if kernel.variance.ndim == 2:
        slope = _lapack.cholesky(kernel.variance) @ normals
    else:
        slope = jnp.sqrt(kernel.variance) * normals
    return Plane(slope, jnp.zeros((), example.dtype))


def _waves(frequencies: Float[Array, "F d"], key: PRNGKeyArray) -> Waves:
    num = frequencies.shape[0]
    weights = jax.random.normal(key, (2, num), frequencies.dtype)
    return Waves(frequencies, weights[0] / num**0.5, weights[1] / num**0.5)


def _frequencies(
    kernel: AbstractKernel, key: PRNGKeyArray, num: int, example: Float[Array, " d"]
) -> Float[Array, "F d"]:
    """Draws of the spectral density, in radians a unit of the inputs.

    Raises:
        ValueError: for a kernel whose density is not known here.
    """
    if isinstance(kernel, Product):
        keys = jax.random.split(key, len(kernel.kernels))
        parts = zip(kernel.kernels, keys, strict=True)
        return jnp.asarray(
            sum(_frequencies(k, each, num, example) for k, each in parts)
        )
    normal_key, mixture_key = jax.random.split(key)
    normals = jax.random.normal(normal_key, (num, example.shape[0]), example.dtype)
    match kernel:
        case SquaredExponential():
            spread = jnp.ones(num, example.dtype)
        case RationalQuadratic():
            gamma = jax.random.gamma(mixture_key, kernel.alpha, (num,), example.dtype)
            spread = jnp.sqrt(gamma / kernel.alpha)
        case Periodic():
            check_each("lengthscale", kernel.lengthscale, example)
            check_each("period", kernel.period, example)
            rate = 1 / (2 * jnp.broadcast_to(kernel.lengthscale, example.shape) ** 2)
            ups, downs = jax.random.poisson(mixture_key, rate, (2, *normals.shape))
            return 2 * jnp.pi * (ups - downs).astype(example.dtype) / kernel.period
        case Warped(map=Select(dims=dims)):
            dims = np.array(dims)
            inner = _frequencies(kernel.kernel, key, num, example[dims])
            return jnp.zeros_like(normals).at[:, dims].add(inner)
        case Cosine():
            check_each("period", kernel.period, example)
            return jnp.broadcast_to(2 * jnp.pi / kernel.period, normals.shape)
        case Matern12() | Matern32() | Matern52() | Matern72() | Matern():
            nu = getattr(kernel, "nu", SMOOTHNESS.get(type(kernel)))
            nu = jnp.asarray(nu, example.dtype)
            gamma = jax.random.gamma(mixture_key, nu, (num,), example.dtype)
            spread = jnp.sqrt(nu / gamma)
        case _:
            raise ValueError(
                f"kernel: got {type(kernel).__name__}, which has no random features, "
                "wanted a squared exponential, Matérn, rational quadratic, periodic or "
                "cosine kernel, their products, or sums and scalings of those; any "
                "kernel has exact draws at given `inputs`."
            )
    return _per_unit(normals * spread[:, None], kernel)


def _per_unit(
    frequencies: Float[Array, "F d"], kernel: AbstractStationary
) -> Float[Array, "F d"]:
    """Frequencies for a lengthscale of 1 in units of the inputs."""
    lengthscale = kernel.lengthscale
    check_lengthscale(lengthscale, frequencies.shape[1])
    if lengthscale.ndim < 2:
        return frequencies / jnp.broadcast_to(lengthscale, frequencies.shape[1:])[None]
    lower = jnp.tril(lengthscale)
    return _lapack.triangular_solve(lower, frequencies.T, transpose=True).T
