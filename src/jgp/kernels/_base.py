"""The kernel interface and its algebra: sums, products, powers, scaling."""

import abc
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from numbers import Integral
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jgp._constraints import NON_NEGATIVE
from jgp._types import as_float

# Entries of a matrix that are computed at once.
ROWS_SIZE = 2**20


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

    def matrix(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"]
    ) -> Float[Array, "n m"]:
        """The covariances between all pairs: `__call__` under `vmap`.

        A subclass that has a faster way overrides it; the values stay the same.
        """
        return by_rows(self, x, z)

    def check_inputs(self, x: Float[Array, "n d"], name: str = "x") -> None:
        """Raise a `ValueError` if points lie outside the kernel's domain.

        A kernel that takes every point leaves this as it is; the others say what was
        got and what was wanted.
        """
        for kernel in kernels_in(self):
            kernel.check_inputs(x, name)

    def support(self) -> Float[Array, ""] | None:
        """The distance in one dimension from which on the kernel is zero, if any."""
        return None

    @property
    def num_derivatives(self) -> float:
        """How many derivatives draws have, in mean square; `inf` if all.

        Where a parameter that decides is traced, the most it could be. Functions of
        categories and the like count as constants.
        """
        return min((k.num_derivatives for k in kernels_in(self)), default=math.inf)

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

    def matrix(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"]
    ) -> Float[Array, "n m"]:
        """The sum of the kernels' matrices."""
        return jnp.asarray(sum(kernel.matrix(x, z) for kernel in self.kernels))

    def support(self) -> Float[Array, ""] | None:
        """The largest support, where all kernels have one."""
        radii = [r for k in self.kernels if (r := k.support()) is not None]
        return jnp.max(jnp.stack(radii)) if len(radii) == len(self.kernels) else None


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

    def matrix(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"]
    ) -> Float[Array, "n m"]:
        """The product of the kernels' matrices, element by element."""
        return jnp.asarray(math.prod(kernel.matrix(x, z) for kernel in self.kernels))

    def support(self) -> Float[Array, ""] | None:
        """The smallest support, of those kernels that have one."""
        radii = [r for k in self.kernels if (r := k.support()) is not None]
        return jnp.min(jnp.stack(radii)) if radii else None


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

    def matrix(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"]
    ) -> Float[Array, "n m"]:
        """The kernel's matrix to the power `exponent`, element by element."""
        return self.kernel.matrix(x, z) ** self.exponent

    def support(self) -> Float[Array, ""] | None:
        """The kernel's support."""
        return self.kernel.support()


class Scaled(AbstractKernel):
    """A kernel times a variance, and by a function: variance · a(x) k(x, z) a(z).

    Args:
        kernel: k.
        variance: A non-negative number; `variance * kernel` makes one.
        amplitude: a, a function of one point to a scalar; 1 if left out.
    """

    kernel: AbstractKernel
    variance: Float[Array, ""] = eqx.field(
        default=1.0, converter=as_float, metadata=NON_NEGATIVE
    )
    amplitude: Callable[[Float[Array, " d"]], Float[Array, ""]] | None = None

    def __check_init__(self):
        check_scalar("variance", self.variance)

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The kernel's value, scaled."""
        value = self.variance * self.kernel(x, z)
        if self.amplitude is None:
            return value
        # The factors in this order, so that swapping x and z changes no digit.
        return value * (self.amplitude(x) * self.amplitude(z))

    def matrix(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"]
    ) -> Float[Array, "n m"]:
        """The kernel's matrix, scaled."""
        K = self.variance * self.kernel.matrix(x, z)
        if self.amplitude is None:
            return K
        amplitude = jax.vmap(self.amplitude)
        return K * (amplitude(x)[:, None] * amplitude(z)[None])

    def support(self) -> Float[Array, ""] | None:
        """The kernel's support."""
        return self.kernel.support()


class Constant(AbstractKernel):
    """The same covariance between any two points: a random constant function.

    Args:
        variance: The prior variance of the constant.
    """

    variance: Float[Array, ""] = eqx.field(
        default=1.0, converter=as_float, metadata=NON_NEGATIVE
    )

    def __check_init__(self):
        check_scalar("variance", self.variance)

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The variance."""
        return self.variance


def by_rows(
    kernel: AbstractKernel,
    x: Float[Array, "n d"],
    z: Float[Array, "m d"],
    size: int = ROWS_SIZE,
) -> Float[Array, "n m"]:
    """The matrix of a kernel, beyond `size` entries a block of rows at a time.

    Blocks are computed again in the reverse pass: what a kernel computes on the way,
    often tens of numbers an entry, is held for one block only.
    """

    def row(a: Float[Array, " d"]) -> Float[Array, " m"]:
        return jax.vmap(lambda b: kernel(a, b))(z)

    if x.shape[0] * z.shape[0] <= size:
        return jax.vmap(row)(x)
    return lax.map(jax.checkpoint(row), x, batch_size=max(1, size // z.shape[0]))


def kernels_in(kernel: AbstractKernel) -> Iterator[AbstractKernel]:
    """The kernels that a kernel is made of."""
    for field in dataclasses.fields(kernel):
        value = getattr(kernel, field.name)
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, AbstractKernel):
                yield part


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number | np.ndarray | jax.Array)


def _flat(kind: type, kernels: Iterable[Any]) -> tuple[AbstractKernel, ...]:
    parts = [k.kernels if isinstance(k, kind) else (k,) for k in kernels]
    if not parts:
        raise ValueError("kernels: got none, wanted at least one.")
    return tuple(kernel for part in parts for kernel in part)


def check_scalar(name: str, value: Array) -> None:
    """Raise a `ValueError` unless a parameter is a single number."""
    if value.ndim != 0:
        raise ValueError(f"{name}: got shape {value.shape}, wanted a scalar.")
