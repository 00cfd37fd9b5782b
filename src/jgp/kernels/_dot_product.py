"""Kernels of the inner product xᵀΣz: linear, polynomial and neural."""

import functools
from numbers import Integral

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp._constraints import COVARIANCES, NON_NEGATIVE, POSITIVE
from jgp._types import as_float
from jgp.kernels._base import AbstractKernel, check_scalar
from jgp.kernels._periodic import check_each


class Linear(AbstractKernel):
    """xᵀΣz: linear functions with slopes of covariance Σ.

    Rasmussen & Williams 2006, §4.2.2. Add a number for an intercept.

    Args:
        variance: Σ: a variance for all slopes, one a dimension, or a matrix.
    """

    variance: Float[Array, "..."] = eqx.field(
        default=1.0, converter=as_float, metadata=COVARIANCES
    )

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The covariance of the process at two points."""
        return _inner(x, self.variance, z)


class Polynomial(AbstractKernel):
    """(xᵀΣz + σ₀²)^p: polynomials of degree p.

    Rasmussen & Williams 2006, §4.2.2.

    Args:
        degree: p, an integer >= 1.
        variance: Σ: a number, one a dimension, or a positive definite matrix.
        offset: σ₀² >= 0.
    """

    degree: int = eqx.field(static=True, default=2)
    variance: Float[Array, "..."] = eqx.field(
        default=1.0, converter=as_float, metadata=COVARIANCES
    )
    offset: Float[Array, ""] = eqx.field(
        default=1.0, converter=as_float, metadata=NON_NEGATIVE
    )

    def __check_init__(self):
        check_scalar("offset", self.offset)
        if not isinstance(self.degree, Integral) or self.degree < 1:
            raise ValueError(f"degree: got {self.degree!r}, wanted an integer >= 1.")

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The covariance of the process at two points."""
        return (_inner(x, self.variance, z) + self.offset) ** self.degree


class NeuralNetwork(AbstractKernel):
    """(2/π) asin(2x̃ᵀΣz̃/√((1 + 2x̃ᵀΣx̃)(1 + 2z̃ᵀΣz̃))), x̃ = (1, x).

    The limit of a network of infinitely many error functions whose weights have
    covariance Σ (Williams 1998; Rasmussen & Williams 2006, eq. 4.29).

    Args:
        variance: Σ: a number, one for each of the 1 + d weights, the bias first, or a
            positive definite (1 + d, 1 + d) matrix.
    """

    variance: Float[Array, "..."] = eqx.field(
        default=1.0, converter=as_float, metadata=COVARIANCES
    )

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The covariance of the process at two points."""
        one = jnp.ones(1, x.dtype)
        x, z = jnp.concatenate([one, x]), jnp.concatenate([one, z])
        own = (1 + 2 * _inner(x, self.variance, x)) * (
            1 + 2 * _inner(z, self.variance, z)
        )
        cross = 2 * _inner(x, self.variance, z) / jnp.sqrt(own)
        return 2 / jnp.pi * jnp.arcsin(cross)


class ArcCosine(AbstractKernel):
    """(1/π) (‖x̃‖ ‖z̃‖)^n J_n(θ), θ the angle between x̃ = (√b, √w x) and z̃.

    The limit of a network of infinitely many units max(0, u)^n (Cho & Saul 2009):
    steps for n = 0, rectified linear units for n = 1. Draws have n derivatives.

    Args:
        order: n, 0, 1 or 2.
        variance: w, the variance of the weights: a number or one a dimension.
        bias_variance: b > 0.
    """

    order: int = eqx.field(static=True, default=1)
    variance: Float[Array, "*d"] = eqx.field(
        default=1.0, converter=as_float, metadata=POSITIVE
    )
    bias_variance: Float[Array, ""] = eqx.field(
        default=1.0, converter=as_float, metadata=POSITIVE
    )

    def __check_init__(self):
        check_scalar("bias_variance", self.bias_variance)
        if self.order not in (0, 1, 2):
            raise ValueError(f"order: got {self.order!r}, wanted 0, 1 or 2.")

    @property
    def num_derivatives(self) -> float:
        """N."""
        return self.order

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The covariance of the process at two points."""
        check_each("variance", self.variance, x)
        x, norm_x = self._unit(x)
        z, norm_z = self._unit(z)
        # 1 − cos θ, which keeps the digits of small angles.
        versine = jnp.sum(jnp.square(x - z)) / 2
        scale = (norm_x * norm_z) ** self.order / jnp.pi
        return scale * _angular(versine, self.order)

    def _unit(self, x: Array) -> tuple[Array, Array]:
        bias = jnp.sqrt(self.bias_variance)[None]
        weighted = jnp.concatenate([bias, jnp.sqrt(self.variance) * x])
        norm = jnp.sqrt(jnp.sum(jnp.square(weighted)))
        return weighted / norm, norm


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _angular(versine: Float[Array, ""], order: int) -> Float[Array, ""]:
    """J_n as a function of v = 1 − cos θ (Cho & Saul 2009, eq. 6 to 8)."""
    theta = 2 * jnp.arcsin(jnp.sqrt(jnp.clip(versine / 2, 0, 1)))
    cos, sin = 1 - versine, jnp.sin(theta)
    match order:
        case 0:
            return jnp.pi - theta
        case 1:
            return sin + (jnp.pi - theta) * cos
        case _:
            return 3 * sin * cos + (jnp.pi - theta) * (1 + 2 * cos**2)


@_angular.defjvp
def _angular_jvp(order, primals, tangents):
    """dJ₂/dv = −4 J₁, dJ₁/dv = −J₀ and dJ₀/dv = −1/sin θ."""
    (versine,), (dversine,) = primals, tangents
    if order == 0:
        squared_sine = versine * (2 - versine)
        # Infinite at θ = 0, where it only ever multiplies a derivative that is 0.
        positive = squared_sine >= jnp.finfo(versine.dtype).tiny
        safe = jnp.where(positive, squared_sine, jnp.ones_like(versine))
        slope = jnp.where(positive, -1 / jnp.sqrt(safe), jnp.zeros_like(versine))
    else:
        slope = -(order**2) * _angular(versine, order - 1)
    return _angular(versine, order), slope * dversine


def _inner(
    x: Float[Array, " d"], variance: Float[Array, "..."], z: Float[Array, " d"]
) -> Float[Array, ""]:
    """XᵀΣz for a number, a diagonal or a matrix Σ."""
    if variance.ndim == 0:
        return variance * jnp.sum(x * z)
    wanted = (x.shape[0],) * variance.ndim
    if variance.shape != wanted or variance.ndim > 2:
        raise ValueError(
            f"variance: got shape {variance.shape}, wanted a scalar, "
            f"{(x.shape[0],)} or {(x.shape[0],) * 2} for these inputs."
        )
    if variance.ndim == 1:
        return jnp.sum(variance * x * z)
    return jnp.sum(x[:, None] * variance * z[None])
