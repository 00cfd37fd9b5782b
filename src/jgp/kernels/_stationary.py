r"""Stationary kernels of unit variance, written in the squared scaled distance.

With s = ‖(x − z)/ℓ‖², a stationary kernel is φ(s). A profile that is written in the
distance √s instead has a derivative of the form 0/0 at coincident points; what
automatic differentiation then returns depends on how it was guarded. In s, the
Matérn profiles have finite derivatives and are closed under differentiation. With
q = √t and

    M₀(t) = e^{−q},  M₁(t) = (1 + q) e^{−q},  M₂(t) = (1 + q + q²/3) e^{−q},

dq/dt = 1/(2q) gives

    M₁′ = −q e^{−q} / (2q) = −½ M₀,    M₂′ = −⅓ q (1 + q) e^{−q} / (2q) = −⅙ M₁,

likewise M₃′ = −M₂/10, and these are the derivative rules below. Every derivative that
the kernel has is then exact, coincident points included, to any order and in any
dimension.
"""

import abc
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp._constraints import LENGTHS
from jgp._types import as_float
from jgp.kernels._base import AbstractKernel
from jgp.kernels._distance import squared_distance, squared_distances


class AbstractStationary(AbstractKernel):
    """A kernel of unit variance that depends on the scaled distance alone.

    A subclass needs a `lengthscale` and a `profile`. The lengthscale is a scalar, a
    vector with one entry a dimension, or a lower triangular matrix L, which measures
    distances in the metric Σ = LLᵀ: ‖L⁻¹(x − z)‖² = (x − z)ᵀΣ⁻¹(x − z).
    """

    # Whether the profile gives a positive semidefinite kernel for points of every
    # dimension: it does if and only if it is a mixture of squared exponentials
    # (Schoenberg 1938).
    valid_in_every_dimension: ClassVar[bool] = False
    # Whether the profile has a finite derivative at s = 0.
    finite_slope: ClassVar[bool] = False

    lengthscale: eqx.AbstractVar[Float[Array, "..."]]

    @abc.abstractmethod
    def profile(self, squared_distance: Float[Array, ""]) -> Float[Array, ""]:
        """The kernel as a function of s = ‖(x − z)/lengthscale‖²; 1 at s = 0."""

    def __check_init__(self):
        if self.lengthscale.ndim > 2:
            raise ValueError(
                f"lengthscale: got shape {self.lengthscale.shape}, wanted a scalar, "
                "a vector with one entry for each input dimension, or a lower "
                "triangular matrix."
            )

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The correlation of the process at two points."""
        return self.profile(squared_distance(x, z, self.lengthscale))

    def matrix(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"]
    ) -> Float[Array, "n m"]:
        """The correlations between all pairs."""
        if not self.finite_slope:
            return super().matrix(x, z)
        s = squared_distances(x, z, self.lengthscale)
        return jax.vmap(jax.vmap(self.profile))(s)


class SquaredExponential(AbstractStationary):
    """exp(−r²/(2ℓ²)): infinitely differentiable draws.

    Rasmussen & Williams 2006, eq. 4.9.

    Args:
        lengthscale: ℓ, in units of the inputs; a vector scales each dimension.
    """

    valid_in_every_dimension: ClassVar[bool] = True
    finite_slope: ClassVar[bool] = True

    lengthscale: Float[Array, "..."] = eqx.field(
        default=1.0, converter=as_float, metadata=LENGTHS
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

    valid_in_every_dimension: ClassVar[bool] = True

    lengthscale: Float[Array, "..."] = eqx.field(
        default=1.0, converter=as_float, metadata=LENGTHS
    )

    @property
    def num_derivatives(self) -> float:
        """None."""
        return 0

    def profile(self, squared_distance: Float[Array, ""]) -> Float[Array, ""]:
        """exp(−√s)."""
        return _M0(squared_distance)


class Matern32(AbstractStationary):
    """(1 + √3 r/ℓ) exp(−√3 r/ℓ): draws with one derivative.

    Rasmussen & Williams 2006, eq. 4.17.

    Args:
        lengthscale: ℓ, in units of the inputs; a vector scales each dimension.
    """

    valid_in_every_dimension: ClassVar[bool] = True
    finite_slope: ClassVar[bool] = True

    lengthscale: Float[Array, "..."] = eqx.field(
        default=1.0, converter=as_float, metadata=LENGTHS
    )

    @property
    def num_derivatives(self) -> float:
        """One."""
        return 1

    def profile(self, squared_distance: Float[Array, ""]) -> Float[Array, ""]:
        """(1 + √(3s)) exp(−√(3s))."""
        return _M1(3 * squared_distance)


class Matern52(AbstractStationary):
    """(1 + √5 r/ℓ + 5r²/(3ℓ²)) exp(−√5 r/ℓ): draws with two derivatives.

    Rasmussen & Williams 2006, eq. 4.17.

    Args:
        lengthscale: ℓ, in units of the inputs; a vector scales each dimension.
    """

    valid_in_every_dimension: ClassVar[bool] = True
    finite_slope: ClassVar[bool] = True

    lengthscale: Float[Array, "..."] = eqx.field(
        default=1.0, converter=as_float, metadata=LENGTHS
    )

    @property
    def num_derivatives(self) -> float:
        """Two."""
        return 2

    def profile(self, squared_distance: Float[Array, ""]) -> Float[Array, ""]:
        """(1 + √(5s) + 5s/3) exp(−√(5s))."""
        return _M2(5 * squared_distance)


class Matern72(AbstractStationary):
    """(1 + q + 2q²/5 + q³/15) exp(−q), q = √7 r/ℓ: draws with three derivatives.

    Rasmussen & Williams 2006, eq. 4.16.

    Args:
        lengthscale: ℓ, in units of the inputs; a vector scales each dimension.
    """

    valid_in_every_dimension: ClassVar[bool] = True
    finite_slope: ClassVar[bool] = True

    lengthscale: Float[Array, "..."] = eqx.field(
        default=1.0, converter=as_float, metadata=LENGTHS
    )

    @property
    def num_derivatives(self) -> float:
        """Three."""
        return 3

    def profile(self, squared_distance: Float[Array, ""]) -> Float[Array, ""]:
        """(1 + q + 2q²/5 + q³/15) exp(−q) with q = √(7s)."""
        return _M3(7 * squared_distance)


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


@jax.custom_jvp
def _M3(t: Float[Array, ""]) -> Float[Array, ""]:
    t = _finite(t)
    q = jnp.sqrt(t)
    return (1 + q + 2 * t / 5 + q * t / 15) * jnp.exp(-q)


_M1.defjvps(lambda dt, value, t: -_M0(t) / 2 * dt)
_M2.defjvps(lambda dt, value, t: -_M1(t) / 6 * dt)
_M3.defjvps(lambda dt, value, t: -_M2(t) / 10 * dt)


def _finite(t: Float[Array, ""]) -> Float[Array, ""]:
    # A squared distance, or a power of it, can overflow in float32, and inf · exp(−inf)
    # is NaN; at the root of the largest number exp(−q) is 0.
    return jnp.minimum(t, float(jnp.finfo(t.dtype).max) ** 0.5)
