r"""Stationary kernels of unit variance, written in the squared scaled distance.

With s = ‖(x − z)/ℓ‖², a stationary kernel is φ(s). A profile that is written in the
distance √s instead has a derivative of the form 0/0 at coincident points; what
automatic differentiation then returns depends on how it was guarded. In s, the
Matérn profiles have finite derivatives and are closed under differentiation. With
q = √t and

    M₀(t) = e^{−q},  M₁(t) = (1 + q) e^{−q},  M₂(t) = (1 + q + q²/3) e^{−q},

dq/dt = 1/(2q) gives

    M₁′ = −q e^{−q} / (2q) = −½ M₀,    M₂′ = −⅓ q (1 + q) e^{−q} / (2q) = −⅙ M₁,

and these are the derivative rules below. Every derivative that the kernel has is
then exact, coincident points included, to any order and in any dimension.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp._parameters import POSITIVE
from jgp._types import as_float
from jgp.kernels._base import AbstractKernel


class AbstractStationary(AbstractKernel):
    """A kernel of unit variance that depends on the scaled distance alone."""

    lengthscale: eqx.AbstractVar[Float[Array, "*d"]]

    @abc.abstractmethod
    def profile(self, squared_distance: Float[Array, ""]) -> Float[Array, ""]:
        """The kernel as a function of s = ‖(x − z)/lengthscale‖²; 1 at s = 0."""

    def __check_init__(self):
        if self.lengthscale.ndim > 1:
            raise ValueError(
                f"lengthscale: got shape {self.lengthscale.shape}, wanted a scalar or "
                "a vector with one entry for each input dimension."
            )

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The correlation of the process at two points."""
        return self.profile(squared_distance(x, z, self.lengthscale))


def squared_distance(
    x: Float[Array, " d"], z: Float[Array, " d"], lengthscale: Float[Array, "*d"]
) -> Float[Array, ""]:
    """‖(x − z)/lengthscale‖², from differences: no digits are lost to an offset.

    In float32 differences must lie within 1e-18 and 1e18 for their squares to exist.

    Raises:
        ValueError: if a vector of lengthscales has not one entry a dimension.
    """
    if lengthscale.ndim == 0:
        # Scaled last: the kernels of a sum share ‖x − z‖², and the gradient in the
        # lengthscale needs no (n, n, d) array.
        return jnp.sum(jnp.square(x - z)) / lengthscale / lengthscale
    # A vector of one entry would broadcast to any dimension.
    if lengthscale.shape != x.shape:
        raise ValueError(
            f"lengthscale: got {lengthscale.shape[0]} entries, wanted one, or "
            f"{x.shape[0]}, the dimension of the inputs."
        )
    return jnp.sum(jnp.square((x - z) / lengthscale))


class SquaredExponential(AbstractStationary):
    """exp(−r²/(2ℓ²)): infinitely differentiable draws.

    Rasmussen & Williams 2006, eq. 4.9.

    Args:
        lengthscale: ℓ, in units of the inputs; a vector scales each dimension.
    """

    lengthscale: Float[Array, "*d"] = eqx.field(
        default=1.0, converter=as_float, metadata=POSITIVE
    )

    def profile(self, squared_distance: Float[Array, ""]) -> Float[Array, ""]:
        """exp(−s/2)."""
        return jnp.exp(-squared_distance / 2)


class Matern12(AbstractStationary):
    """exp(−r/ℓ): continuous draws, nowhere differentiable.

    Rasmussen & Williams 2006, eq. 4.18. The derivative in x at coincident points does
    not exist and is returned as 0, the mean of the two one-sided ones.

    Args:
        lengthscale: ℓ, in units of the inputs; a vector scales each dimension.
    """

    lengthscale: Float[Array, "*d"] = eqx.field(
        default=1.0, converter=as_float, metadata=POSITIVE
    )

    def profile(self, squared_distance: Float[Array, ""]) -> Float[Array, ""]:
        """exp(−√s)."""
        return _M0(squared_distance)


class Matern32(AbstractStationary):
    """(1 + √3 r/ℓ) exp(−√3 r/ℓ): draws with one derivative.

    Rasmussen & Williams 2006, eq. 4.17.

    Args:
        lengthscale: ℓ, in units of the inputs; a vector scales each dimension.
    """

    lengthscale: Float[Array, "*d"] = eqx.field(
        default=1.0, converter=as_float, metadata=POSITIVE
    )

    def profile(self, squared_distance: Float[Array, ""]) -> Float[Array, ""]:
        """(1 + √(3s)) exp(−√(3s))."""
        return _M1(3 * squared_distance)


class Matern52(AbstractStationary):
    """(1 + √5 r/ℓ + 5r²/(3ℓ²)) exp(−√5 r/ℓ): draws with two derivatives.

    Rasmussen & Williams 2006, eq. 4.17.

    Args:
        lengthscale: ℓ, in units of the inputs; a vector scales each dimension.
    """

    lengthscale: Float[Array, "*d"] = eqx.field(
        default=1.0, converter=as_float, metadata=POSITIVE
    )

    def profile(self, squared_distance: Float[Array, ""]) -> Float[Array, ""]:
        """(1 + √(5s) + 5s/3) exp(−√(5s))."""
        return _M2(5 * squared_distance)


def _M0(t: Float[Array, ""]) -> Float[Array, ""]:
    # The derivative in t is infinite at 0, yet it is only ever multiplied by the
    # derivative of a squared distance, 0 there. Subnormal t would give inf · 0 on a
    # device that flushes them to zero.
    positive = t >= jnp.finfo(t.dtype).tiny
    q = jnp.sqrt(jnp.where(positive, t, jnp.ones_like(t)))
    return jnp.where(positive, jnp.exp(-q), jnp.ones_like(t))


@jax.custom_jvp
def _M1(t: Float[Array, ""]) -> Float[Array, ""]:
    q = jnp.sqrt(_finite(t))
    return (1 + q) * jnp.exp(-q)


@jax.custom_jvp
def _M2(t: Float[Array, ""]) -> Float[Array, ""]:
    t = _finite(t)
    q = jnp.sqrt(t)
    return (1 + q + t / 3) * jnp.exp(-q)


_M1.defjvps(lambda dt, value, t: -_M0(t) / 2 * dt)
_M2.defjvps(lambda dt, value, t: -_M1(t) / 6 * dt)


def _finite(t: Float[Array, ""]) -> Float[Array, ""]:
    # A squared distance can overflow in float32, and inf · exp(−inf) is NaN.
    return jnp.minimum(t, jnp.finfo(t.dtype).max)
