"""Kernels made from kernels: input maps, blocks of dimensions, normalisation."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jgp.kernels._base import (
    AbstractKernel,
    Constant,
    Product,
    Scaled,
    Sum,
    kernels_in,
)
from jgp.kernels._derivative import Derivative, WithDerivatives
from jgp.kernels._integral import WithIntegrals


class Warped(AbstractKernel):
    """A kernel on mapped inputs, k(map(x), map(z)).

    Args:
        kernel: The kernel in the space the map leads to.
        map: A function of one point, (d,) -> (e,). The parameters of an
            `equinox.Module` are trained along with those of the kernel: a network
            gives deep kernel learning (Wilson et al. 2016).
    """

    kernel: AbstractKernel
    map: Callable[[Float[Array, " d"]], Float[Array, " e"]]

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The kernel's value at the two mapped points."""
        return self.kernel(self.map(x), self.map(z))

    def matrix(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"]
    ) -> Float[Array, "n m"]:
        """The kernel's matrix at the mapped points."""
        return self.kernel.matrix(jax.vmap(self.map)(x), jax.vmap(self.map)(z))

    def check_inputs(self, x: Float[Array, "n d"], name: str = "x") -> None:
        """Hold the mapped points against the kernel's domain."""
        if _has_domain(self.kernel):
            self.kernel.check_inputs(jax.vmap(self.map)(x), name)


def _has_domain(kernel: AbstractKernel) -> bool:
    own = type(kernel).check_inputs not in _GENERAL_CHECKS
    return own or any(map(_has_domain, kernels_in(kernel)))


_GENERAL_CHECKS = (AbstractKernel.check_inputs, Warped.check_inputs)


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


def _blocks(
    kernels: Sequence[AbstractKernel], sizes: Sequence[int]
) -> tuple[Warped, ...]:
    if len(kernels) != len(sizes) or not kernels or any(size < 1 for size in sizes):
        raise ValueError(
            f"sizes: got {tuple(sizes)} for {len(kernels)} kernels, wanted the number "
            "of dimensions of each, at least 1."
        )
    starts = np.cumsum([0, *sizes]).tolist()
    bounds = itertools.pairwise(starts)
    return tuple(
        on(kernel, range(*bound)) for kernel, bound in zip(kernels, bounds, strict=True)
    )


def _check_size(sizes: tuple[int, ...], d: int) -> None:
    if sum(sizes) != d:
        raise ValueError(
            f"sizes: got blocks of {sum(sizes)} dimensions in all, wanted {d}, the "
            "dimension of the inputs."
        )


class DirectSum(AbstractKernel):
    """Σ_b k_b(x_b, z_b) over consecutive blocks of dimensions.

    Cabral 2021, §3.4.3; Rasmussen & Williams 2006, §4.2.4.

    Args:
        kernels: One kernel a block.
        sizes: The number of dimensions of each block.
    """

    kernel: Sum
    sizes: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, kernels: Sequence[AbstractKernel], sizes: Sequence[int]):
        self.kernel = Sum(_blocks(kernels, sizes))
        self.sizes = tuple(int(size) for size in sizes)

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The sum of the values on the blocks.

        Raises:
            ValueError: if the blocks do not make up the inputs' dimension.
        """
        _check_size(self.sizes, x.shape[0])
        return self.kernel(x, z)

    def matrix(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"]
    ) -> Float[Array, "n m"]:
        """The sum of the blocks' matrices."""
        _check_size(self.sizes, x.shape[1])
        return self.kernel.matrix(x, z)


class TensorProduct(AbstractKernel):
    """Π_b k_b(x_b, z_b) over consecutive blocks of dimensions.

    Cabral 2021, §3.4.3; Rasmussen & Williams 2006, §4.2.4.

    Args:
        kernels: One kernel a block.
        sizes: The number of dimensions of each block.
    """

    kernel: Product
    sizes: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, kernels: Sequence[AbstractKernel], sizes: Sequence[int]):
        self.kernel = Product(_blocks(kernels, sizes))
        self.sizes = tuple(int(size) for size in sizes)

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The product of the values on the blocks.

        Raises:
            ValueError: if the blocks do not make up the inputs' dimension.
        """
        _check_size(self.sizes, x.shape[0])
        return self.kernel(x, z)

    def matrix(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"]
    ) -> Float[Array, "n m"]:
        """The product of the blocks' matrices."""
        _check_size(self.sizes, x.shape[1])
        return self.kernel.matrix(x, z)


class Normalized(AbstractKernel):
    """k(x, z)/√(k(x, x) k(z, z)): the correlation, of unit variance.

    Cabral 2021, §3.4.3. The kernel's variance must not vanish at any input.
    """

    kernel: AbstractKernel

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The correlation at two points."""
        scale = jnp.sqrt(self.kernel(x, x)) * jnp.sqrt(self.kernel(z, z))
        return self.kernel(x, z) / scale

    def matrix(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"]
    ) -> Float[Array, "n m"]:
        """The correlations between all pairs."""
        scales = [jnp.sqrt(_variances(self.kernel, points)) for points in (x, z)]
        return self.kernel.matrix(x, z) / (scales[0][:, None] * scales[1][None])


class HarmonicNormalized(AbstractKernel):
    """2 k(x, z)/(k(x, x) + k(z, z)), of unit variance.

    The product of k with the Cauchy kernel 1/(s + t) at s = k(x, x), t = k(z, z)
    (Cabral 2021, §3.4.3). The kernel's variance must not vanish at any input.
    """

    kernel: AbstractKernel

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The normalised covariance at two points."""
        return 2 * self.kernel(x, z) / (self.kernel(x, x) + self.kernel(z, z))

    def matrix(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"]
    ) -> Float[Array, "n m"]:
        """The normalised covariances between all pairs."""
        sums = _variances(self.kernel, x)[:, None] + _variances(self.kernel, z)[None]
        return 2 * self.kernel.matrix(x, z) / sums


def _variances(kernel: AbstractKernel, x: Float[Array, "n d"]) -> Float[Array, " n"]:
    return jax.vmap(lambda point: kernel(point, point))(x)


def terms(kernel: AbstractKernel) -> tuple[AbstractKernel, ...]:
    """The kernels whose sum a kernel is; itself alone where it is no sum.

    Scalings, maps of the inputs, derivatives and integrals of a sum are taken apart.
    """
    if isinstance(kernel, Sum):
        return kernel.kernels
    if isinstance(kernel, DirectSum):
        return terms(kernel.kernel)
    if isinstance(
        kernel, Derivative | Scaled | Warped | WithDerivatives | WithIntegrals
    ):
        # Linear in the kernel inside.
        parts = terms(kernel.kernel)
        return tuple(dataclasses.replace(kernel, kernel=part) for part in parts)
    return (kernel,)


def split_terms(
    kernel: AbstractKernel, which: Sequence[int]
) -> tuple[AbstractKernel, AbstractKernel]:
    """The sum of some of the `terms` of a kernel, by their numbers, and of the others.

    Raises:
        ValueError: if there are no such terms, or one is asked for twice.
    """
    parts = terms(kernel)
    check_numbers(which, len(parts))
    rest = [part for number, part in enumerate(parts) if number not in which]
    chosen = [parts[number] for number in which]
    return _sum(chosen), _sum(rest) if rest else Constant(0.0)


def _sum(parts: Sequence[AbstractKernel]) -> AbstractKernel:
    return parts[0] if len(parts) == 1 else Sum(parts)


def check_numbers(which: Sequence[int], num: int) -> Sequence[int]:
    """Numbers of terms; a `ValueError` unless they are 0 to num − 1 and differ."""
    integral = all(isinstance(n, int | np.integer) for n in which)
    if not which or not integral or not set(which) <= set(range(num)):
        raise ValueError(f"which: got {which}, wanted numbers 0 to {num - 1}.")
    if len(set(which)) < len(which):
        raise ValueError(f"which: got {which}, wanted each number once.")
    return which
