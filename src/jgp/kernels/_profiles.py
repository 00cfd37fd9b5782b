"""Stationary kernels whose shape has a parameter of its own."""

import math
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp._bessel import MAX_NU, matern
from jgp._constraints import LENGTHS, POSITIVE, Interval
from jgp._parameters import is_concrete
from jgp._types import as_float
from jgp.kernels._base import by_rows, check_scalar
from jgp.kernels._stationary import AbstractStationary

EXPONENTS = {"constraint": Interval(0.0, 2.0)}
SMOOTHNESS = {"constraint": Interval(0.0, MAX_NU)}


# Entries computed at once: some 300 numbers an entry in the reverse pass.
MATERN_SIZE = 2**17


class Matern(AbstractStationary):
    """2^{1−ν}/Γ(ν) q^ν K_ν(q), q = √(2ν) r/ℓ: draws with k < ν derivatives.

    Rasmussen & Williams 2006, eq. 4.14. For ν = 1/2, 3/2, 5/2 or 7/2 the classes
    `Matern12` to `Matern72` are the same and hundreds of times faster. As ν grows it
    tends to the squared exponential of the same lengthscale.

    Args:
        nu: ν, in (0, 200], trainable; its derivative is a difference, good to 1e-9
            (float64) or 1e-3 (float32).
        lengthscale: ℓ, in units of the inputs; a vector scales each dimension.
    """

    valid_in_every_dimension: ClassVar[bool] = True

    nu: Float[Array, ""] = eqx.field(converter=as_float, metadata=SMOOTHNESS)
    lengthscale: Float[Array, "..."] = eqx.field(
        default=1.0, converter=as_float, metadata=LENGTHS
    )

    def __check_init__(self):
        check_scalar("nu", self.nu)

    @property
    def num_derivatives(self) -> float:
        """The integers below ν."""
        return math.ceil(float(self.nu)) - 1 if is_concrete(self.nu) else math.inf

    def profile(self, squared_distance: Float[Array, ""]) -> Float[Array, ""]:
        """The correlation at s."""
        return matern(self.nu, squared_distance)

    def matrix(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"]
    ) -> Float[Array, "n m"]:
        """The correlations between all pairs, in small blocks."""
        return by_rows(self, x, z, MATERN_SIZE)


class RationalQuadratic(AbstractStationary):
    """(1 + r²/(2αℓ²))^{−α}: a mixture of squared exponentials of many lengths.

    Rasmussen & Williams 2006, eq. 4.19; infinitely differentiable draws. As α grows it
    tends to the squared exponential of the same lengthscale.

    Args:
        alpha: α; small for a wide mixture.
        lengthscale: ℓ, in units of the inputs; a vector scales each dimension.
    """

    valid_in_every_dimension: ClassVar[bool] = True
    finite_slope: ClassVar[bool] = True

    alpha: Float[Array, ""] = eqx.field(
        default=1.0, converter=as_float, metadata=POSITIVE
    )
    lengthscale: Float[Array, "..."] = eqx.field(
        default=1.0, converter=as_float, metadata=LENGTHS
    )

    def __check_init__(self):
        check_scalar("alpha", self.alpha)

    def profile(self, squared_distance: Float[Array, ""]) -> Float[Array, ""]:
        """(1 + s/(2α))^{−α}."""
        return jnp.exp(-self.alpha * jnp.log1p(squared_distance / (2 * self.alpha)))


class GammaExponential(AbstractStationary):
    """exp(−(r/ℓ)^γ): draws that are not differentiable, unless γ = 2.

    Rasmussen & Williams 2006, eq. 4.18. At γ = 1 it is `Matern12`, at γ = 2 a squared
    exponential of lengthscale ℓ/√2.

    Args:
        gamma: γ, in (0, 2]; 2 itself can be held but not trained.
        lengthscale: ℓ, in units of the inputs; a vector scales each dimension.
    """

    valid_in_every_dimension: ClassVar[bool] = True

    gamma: Float[Array, ""] = eqx.field(
        default=1.0, converter=as_float, metadata=EXPONENTS
    )
    lengthscale: Float[Array, "..."] = eqx.field(
        default=1.0, converter=as_float, metadata=LENGTHS
    )

    def __check_init__(self):
        check_scalar("gamma", self.gamma)

    @property
    def num_derivatives(self) -> float:
        """None, unless γ = 2."""
        rough = is_concrete(self.gamma) and bool(self.gamma != 2)
        return 0 if rough else math.inf

    def profile(self, squared_distance: Float[Array, ""]) -> Float[Array, ""]:
        """exp(−s^{γ/2})."""
        s = squared_distance
        # For γ < 2 the slope at 0 is infinite and only ever multiplies a derivative
        # that is 0 there; for γ = 2 there is a slope, and a curvature.
        positive = s >= jnp.finfo(s.dtype).tiny
        power = jnp.where(positive, s, jnp.ones_like(s)) ** (self.gamma / 2)
        at_zero = jnp.where(self.gamma == 2, jnp.exp(-s), jnp.ones_like(s))
        return jnp.where(positive, jnp.exp(-power), at_zero)
