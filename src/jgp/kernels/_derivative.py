"""Derivatives of a process: their covariances by automatic differentiation.

Differentiation is linear, so a process and its partial derivatives are jointly
Gaussian with cov(∂ᵢf(x), ∂ⱼf(z)) = ∂²k/∂xᵢ∂zⱼ, where k has that derivative
(Cabral 2021, Theorem 4; Rasmussen & Williams 2006, §9.4).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jgp.kernels._base import AbstractKernel


class Derivative(AbstractKernel):
    """The covariance of ∂f/∂x_axis, ∂²k/∂x_axis∂z_axis.

    Args:
        kernel: The kernel of f, whose draws have a derivative; those of a
            `Matern12` for example have none.
        axis: The input dimension, counted from 0.
    """

    kernel: AbstractKernel
    axis: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        if self.axis < 0:
            raise ValueError(f"axis: got {self.axis}, wanted an integer >= 0.")
        check_smooth(self.kernel)

    @property
    def num_derivatives(self) -> float:
        """One less than those of f."""
        return self.kernel.num_derivatives - 1

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The covariance of the derivative at two points.

        Raises:
            ValueError: if the inputs have no such dimension.
        """
        if self.axis >= x.shape[0]:
            raise ValueError(
                f"axis: got {self.axis}, wanted an integer < {x.shape[0]}, the "
                "dimension of the inputs."
            )
        direction = jnp.zeros_like(x).at[self.axis].set(1)
        return _mixed(self.kernel, x, z, direction, direction)[3]


class WithDerivatives(AbstractKernel):
    """A process observed together with its partial derivatives.

    The last coordinate of each point says what is observed there: 0 the value, j the
    derivative in dimension j, counted from 1. Derivative observations and values thus
    mix freely in one x, for training and for prediction.

    Args:
        kernel: The kernel of f on the other d coordinates, differentiable.
    """

    kernel: AbstractKernel

    def __check_init__(self):
        check_smooth(self.kernel)

    @property
    def num_derivatives(self) -> float:
        """One less than those of f."""
        return self.kernel.num_derivatives - 1

    def __call__(
        self, x: Float[Array, " e"], z: Float[Array, " e"]
    ) -> Float[Array, ""]:
        """The covariance of two observations.

        Raises:
            ValueError: for points of a single coordinate.
        """
        d = x.shape[0] - 1
        if d < 1:
            raise ValueError(
                "x: got points of 1 coordinate, wanted one more than f has, which says "
                "what is observed: 0 the value, j the derivative in dimension j."
            )
        numbers = jnp.arange(1, d + 1, dtype=x.dtype)
        which_x, which_z = jnp.round(x[-1]), jnp.round(z[-1])
        directions = [
            (numbers == which).astype(x.dtype) for which in (which_x, which_z)
        ]
        parts = _mixed(self.kernel, x[:-1], z[:-1], *directions)
        row = jnp.where(which_x == 0, 0, 2)
        column = jnp.where(which_z == 0, 0, 1)
        return parts[row + column]

    def check_inputs(self, x: Float[Array, "n e"], name: str = "x") -> None:
        """Raise a `ValueError` unless last coordinates are 0, 1, ..., d."""
        which = np.unique(np.asarray(x)[:, -1])
        if not np.all(np.isin(which, np.arange(x.shape[1]))):
            raise ValueError(
                f"{name}: got {which} in the last coordinate, wanted integers "
                f"0 (the value) to {x.shape[1] - 1} (the derivative in that dimension)."
            )
        self.kernel.check_inputs(x[:, :-1], name)


def check_smooth(kernel: AbstractKernel) -> None:
    """Raise a `ValueError` for a kernel whose draws are known to have no derivative."""
    if kernel.num_derivatives < 1:
        raise ValueError(
            f"kernel: got {type(kernel).__name__} without mean-square derivatives, "
            "wanted one with at least one (a Matern32, say, and not a Matern12)."
        )


def _mixed(kernel: AbstractKernel, x, z, u, v) -> Float[Array, "4"]:
    """k, ∂k/∂z·v, ∂k/∂x·u and u·∂²k/∂x∂z·v."""

    def in_z(x):
        return jax.jvp(lambda z: kernel(x, z), (z,), (v,))

    (value, slope_z), (slope_x, both) = jax.jvp(in_z, (x,), (u,))
    return jnp.stack([value, slope_z, slope_x, both])
