"""The kernel interface and its algebra: sums, products, scaling, input maps."""

import abc
import functools
import math
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jgp._parameters import NON_NEGATIVE
from jgp._types import as_float


class AbstractKernel(eqx.Module):
    """A positive semidefinite function of two points.

    A subclass implements `__call__` on single points; `gram` and `diagonal` do the
    batching. Kernels add, multiply and take integer powers. A number times a kernel
    is `Scaled` and a number added is a `Constant`: both are trainable non-negative
    variances. The integer 0 added is dropped, so that `sum(kernels)` works.
    """

    # NumPy would otherwise take `np.float64(2) * kernel` as an array of objects.
    __array_ufunc__ = None

    @abc.abstractmethod
    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The covariance of the process at two points.

        Raises:
            ValueError: if the kernel does not take points of dimension d.
        """

    def __add__(self, other: Any) -> "AbstractKernel":
        if isinstance(other, AbstractKernel):
            return Sum((self, other))
        if type(other) is int and other == 0:
            return self
        return Sum((self, Constant(other))) if _is_number(other) else NotImplemented

    def __radd__(self, other: Any) -> "AbstractKernel":
        return self + other

    def __mul__(self, other: Any) -> "AbstractKernel":
        if isinstance(other, AbstractKernel):
            return Product((self, other))
        return Scaled(self, other) if _is_number(other) else NotImplemented

    def __rmul__(self, other: Any) -> "AbstractKernel":
        return self * other

    def __pow__(self, exponent: int) -> "AbstractKernel":
        return Power(self, exponent)


class Sum(AbstractKernel):
    """The sum of kernels; sums within are merged into one flat tuple."""

    kernels: tuple[AbstractKernel, ...] = eqx.field(converter=lambda k: _flat(Sum, k))

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The sum of the kernels' values."""
        return jnp.asarray(sum(kernel(x, z) for kernel in self.kernels))


class Product(AbstractKernel):
    """The product of kernels; products within are merged into one flat tuple."""

    kernels: tuple[AbstractKernel, ...] = eqx.field(
        converter=lambda k: _flat(Product, k)
    )

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The product of the kernels' values."""
        return jnp.asarray(math.prod(kernel(x, z) for kernel in self.kernels))


class Power(AbstractKernel):
    """A kernel to an integer power of at least one."""

    kernel: AbstractKernel
    exponent: int = eqx.field(static=True)

    def __check_init__(self):
        if not isinstance(self.exponent, Integral) or self.exponent < 1:
            raise ValueError(
                f"exponent: got {self.exponent!r}, wanted an integer >= 1 (other "
                "powers of a kernel need not be positive semidefinite)."
            )

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The kernel's value to the power `exponent`."""
        return self.kernel(x, z) ** self.exponent


class Scaled(AbstractKernel):
    """A kernel times a variance: `variance * kernel`."""

    kernel: AbstractKernel
    variance: Float[Array, ""] = eqx.field(converter=as_float, metadata=NON_NEGATIVE)

    def __check_init__(self):
        _check_scalar("variance", self.variance)

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The kernel's value times the variance."""
        return self.variance * self.kernel(x, z)


class Constant(AbstractKernel):
    """The same covariance between any two points: a random constant function.

    Args:
        variance: The prior variance of the constant.
    """

    variance: Float[Array, ""] = eqx.field(
        default=1.0, converter=as_float, metadata=NON_NEGATIVE
    )

    def __check_init__(self):
        _check_scalar("variance", self.variance)

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The variance."""
        return self.variance


class Warped(AbstractKernel):
    """A kernel on mapped inputs, k(map(x), map(z)).

    Args:
        kernel: The kernel in the space the map leads to.
        map: A function of one point, (d,) -> (e,). The parameters of an
            `equinox.Module` are trained along with those of the kernel.
    """

    kernel: AbstractKernel
    map: Callable[[Float[Array, " d"]], Float[Array, " e"]]

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The kernel's value at the two mapped points."""
        return self.kernel(self.map(x), self.map(z))


class Select(eqx.Module):
    """The map from a point to some of its coordinates, in the order given."""

    dims: tuple[int, ...] = eqx.field(static=True)

    def __check_init__(self):
        if not self.dims or any(dim < 0 for dim in self.dims):
            raise ValueError(f"dims: got {self.dims}, wanted integers >= 0.")

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " e"]:
        """The chosen coordinates of a point.

        Raises:
            ValueError: if a chosen dimension is not one of the point's.
        """
        # JAX would clamp an index out of range and take another coordinate.
        if max(self.dims) >= x.shape[0]:
            raise ValueError(
                f"dims: got {self.dims}, wanted integers < {x.shape[0]}, the "
                "dimension of the inputs."
            )
        return x[np.array(self.dims)]


def on(kernel: AbstractKernel, dims: int | Iterable[int]) -> Warped:
    """The kernel acting on some of the input dimensions.

    Args:
        kernel: A kernel for points of dimension `len(dims)`.
        dims: One dimension or several, counted from 0.

    Raises:
        ValueError: if `dims` is empty or negative; when the kernel is evaluated, if
            the inputs have too few dimensions.
    """
    dims = (dims,) if isinstance(dims, int | np.integer) else dims
    return Warped(kernel, Select(tuple(int(dim) for dim in dims)))


def check_dimension(kernel: AbstractKernel, d: int) -> None:
    """Check, without computing anything, that a kernel takes points of dimension d.

    Raises:
        ValueError: naming the parameter that disagrees with d, what was got and what
            was wanted; or if the kernel's value is not a scalar.
    """
    leaves, structure = jax.tree.flatten(kernel)
    abstract = tuple(
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if hasattr(leaf, "dtype") else leaf
        for leaf in leaves
    )
    shape = _value_shape(structure, abstract, d)
    if shape != ():
        raise ValueError(
            f"kernel: got a value of shape {shape} between two points, wanted a scalar."
        )


# Tracing a kernel takes milliseconds, and every inference asks this of every kernel.
@functools.lru_cache(maxsize=256)
def _value_shape(structure: Any, leaves: tuple, d: int) -> tuple[int, ...]:
    kernel = jax.tree.unflatten(structure, leaves)
    point = jax.ShapeDtypeStruct((d,), jnp.result_type(float))
    # Only shapes are asked for: a kernel in another precision is not an error here.
    with jax.numpy_dtype_promotion("standard"):
        return eqx.filter_eval_shape(
            lambda k, x, z: k(x, z), kernel, point, point
        ).shape


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number | np.ndarray | jax.Array)


def _flat(kind: type, kernels: Iterable[Any]) -> tuple[AbstractKernel, ...]:
    parts = [k.kernels if isinstance(k, kind) else (k,) for k in kernels]
    if not parts:
        raise ValueError("kernels: got none, wanted at least one.")
    return tuple(kernel for part in parts for kernel in part)


def _check_scalar(name: str, value: Array) -> None:
    if value.ndim != 0:
        raise ValueError(f"{name}: got shape {value.shape}, wanted a scalar.")
