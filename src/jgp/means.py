"""Mean functions of single points; any callable module of one point will do.

Means add and multiply, with each other, with numbers (trained like the rest) and with
any other callable. `Basis` alone is not a function but a space of them.
"""

import abc
import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jgp._cubature import box_rule
from jgp._types import as_float

__all__ = ["AbstractMean", "Basis", "Constant", "Linear", "Monomials", "Product"]
__all__ += ["Sum", "WithDerivatives", "WithIntegrals", "Zero", "polynomial"]


class AbstractMean(eqx.Module):
    """A function of a single point (d,) to a scalar, with an algebra."""

    # NumPy would otherwise take `np.float64(2) * mean` as an array of objects.
    __array_ufunc__ = None

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The mean at a point."""

    def __add__(self, other: Any) -> "Sum":
        return Sum((self, _as_mean(other)))

    def __radd__(self, other: Any) -> "AbstractMean":
        # So that `sum(means)`, which starts at 0, adds no constant.
        if type(other) is int and other == 0:
            return self
        return Sum((_as_mean(other), self))

    def __mul__(self, other: Any) -> "Product":
        return Product((self, _as_mean(other)))

    def __rmul__(self, other: Any) -> "Product":
        return Product((_as_mean(other), self))


class Zero(AbstractMean):
    """The mean 0."""

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """Zero, in the dtype of x."""
        return jnp.zeros((), x.dtype)


class Constant(AbstractMean):
    """The same mean everywhere.

    Args:
        value: The mean, in units of the latent function.
    """

    value: Float[Array, ""] = eqx.field(default=0.0, converter=as_float)

    def __check_init__(self):
        if self.value.ndim != 0:
            raise ValueError(
                f"value: got shape {self.value.shape}, wanted a scalar (one mean for "
                "each latent function)."
            )

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The value."""
        return self.value


class Linear(AbstractMean):
    """The mean weights · x + bias.

    Args:
        weights: One slope for each input dimension.
        bias: The mean at the origin.
    """

    weights: Float[Array, " d"] = eqx.field(converter=as_float)
    bias: Float[Array, ""] = eqx.field(default=0.0, converter=as_float)

    def __check_init__(self):
        if self.weights.ndim != 1:
            raise ValueError(
                f"weights: got shape {self.weights.shape}, wanted a vector with one "
                "entry for each input dimension."
            )
        if self.bias.ndim != 0:
            raise ValueError(f"bias: got shape {self.bias.shape}, wanted a scalar.")

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The linear function at a point.

        Raises:
            ValueError: if there is not one weight for each dimension of x.
        """
        if self.weights.shape != x.shape:
            raise ValueError(
                f"weights: got {self.weights.shape[0]} entries, wanted {x.shape[0]}, "
                "the dimension of the inputs."
            )
        return jnp.dot(self.weights, x) + self.bias


class Sum(AbstractMean):
    """The sum of mean functions."""

    means: tuple[Callable, ...]

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The sum of the values."""
        return jnp.asarray(sum(mean(x) for mean in self.means))


class Product(AbstractMean):
    """The product of mean functions."""

    means: tuple[Callable, ...]

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The product of the values."""
        value = self.means[0](x)
        for mean in self.means[1:]:
            value = value * mean(x)
        return value


class WithDerivatives(AbstractMean):
    """The mean of a process observed together with its derivatives.

    The last coordinate of each point says what is observed there, as for
    `kernels.WithDerivatives`: 0 the value, j the derivative in dimension j.

    Args:
        mean: The mean of f, a differentiable function of the other d coordinates; or
            features of them, for a `Basis`.

    Raises:
        ValueError: for a `Basis`, wanted inside: `Basis(WithDerivatives(features))`.
    """

    mean: Callable

    def __check_init__(self):
        check_function("mean", self.mean, type(self).__name__)

    def __call__(self, x: Float[Array, " e"]) -> Float[Array, "*p"]:
        """The mean of what is observed at a point."""
        which = jnp.round(x[-1])
        direction = (jnp.arange(1, x.shape[0], dtype=x.dtype) == which).astype(x.dtype)
        value, slope = jax.jvp(self.mean, (x[:-1],), (direction,))
        return jnp.where(which == 0, value, slope)


class WithIntegrals(AbstractMean):
    """The mean of a process observed by its means over boxes, or its integrals.

    A point is the lower and the upper corner of a box, as for `kernels.WithIntegrals`.

    Args:
        mean: The mean of f, a function of d coordinates; or features, for a `Basis`.
        num_nodes: Gauss-Legendre nodes a dimension; exact for polynomials of degree
            2 num_nodes − 1.
        integrals: As for the kernel.

    Raises:
        ValueError: for a `Basis`, wanted inside: `Basis(WithIntegrals(features))`.
    """

    mean: Callable
    num_nodes: int = eqx.field(static=True, default=8)
    integrals: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        check_function("mean", self.mean, type(self).__name__)

    def __call__(self, x: Float[Array, " e"]) -> Float[Array, "*p"]:
        """The mean of what is observed over a box."""
        lower, upper = jnp.split(x, 2)
        points, weights = box_rule(lower, upper, self.num_nodes)
        mean = jnp.tensordot(weights, jax.vmap(self.mean)(points), 1)
        return mean * jnp.prod(upper - lower) if self.integrals else mean


class Basis(eqx.Module):
    """The mean h(x)ᵀβ, its coefficients β integrated out under a flat prior.

    For exact regression (Rasmussen & Williams 2006, §2.7): nothing is penalised that
    the basis spans, and the evidence is the limit of a prior N(0, B), B⁻¹ → 0, without
    the infinite factor. For a proper prior N(0, B) add h(x)ᵀBh(z) to the kernel:
    `Warped(Linear(B), features)`.

    Args:
        features: h, a function of a single point (d,) to p features.
        mean: A function added to it; zero if left out.
    """

    features: Callable[[Float[Array, " d"]], Float[Array, " p"]]
    mean: Callable[[Float[Array, " d"]], Float[Array, ""]] = Zero()

    def __check_init__(self):
        for name in ("features", "mean"):
            if not callable(value := getattr(self, name)):
                raise ValueError(
                    f"{name}: got {type(value).__name__}, wanted a function of one "
                    "point."
                )

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """What is not integrated out."""
        return self.mean(x)


class Monomials(eqx.Module):
    """All monomials of a point up to a total degree, the constant first.

    Args:
        degree: The total degree, >= 0.
    """

    degree: int = eqx.field(static=True)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " p"]:
        """The p = (d + degree choose degree) features."""
        dimensions = range(x.shape[0])
        choices = itertools.chain.from_iterable(
            itertools.combinations_with_replacement(dimensions, total)
            for total in range(self.degree + 1)
        )
        return jnp.stack([jnp.prod(x[np.asarray(chosen, int)]) for chosen in choices])


def polynomial(degree: int, mean: Callable | None = None) -> Basis:
    """A polynomial mean of a total degree, its coefficients integrated out.

    Args:
        degree: >= 0; 0 is an unknown constant, 1 an unknown linear function.
        mean: A function added to it.

    Raises:
        ValueError: for another degree.
    """
    if not isinstance(degree, int) or degree < 0:
        raise ValueError(f"degree: got {degree!r}, wanted an integer >= 0.")
    return Basis(Monomials(degree), Zero() if mean is None else mean)


def check_function(name: str, function: Any, wrapper: str = "") -> None:
    """Raise a `ValueError` for a `Basis`, which is a space of functions."""
    if isinstance(function, Basis):
        instead = f": Basis({wrapper}(features))" if wrapper else ""
        raise ValueError(
            f"{name}: got a Basis, wanted a function of one point{instead}."
        )


def _as_mean(value: Any) -> Callable:
    if isinstance(value, Basis):
        raise TypeError("Basis: is no function to add; give it a `mean` instead.")
    return value if callable(value) else Constant(value)
