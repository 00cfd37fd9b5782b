r"""Kernels of compact support: covariances that vanish beyond the lengthscale.

Wendland's functions are repeated integrals of φ₀(r) = (1 − r)₊^j,

    φ_q(r) = ∫_r^1 t φ_{q−1}(t) dt,    so that dφ_q/ds = −½ φ_{q−1},  s = r²:

they are closed under differentiation in s, as the Matérn profiles are. Each is
(1 − r)^{j+q} times a polynomial of positive coefficients, found here in fractions.
"""

import functools
from fractions import Fraction

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp._constraints import LENGTHS, POSITIVE
from jgp._types import as_float
from jgp.kernels._base import AbstractKernel
from jgp.kernels._distance import squared_distance
from jgp.kernels._periodic import check_each


class Wendland(AbstractKernel):
    """Wendland's piecewise polynomial: zero for r >= ℓ, 1 at r = 0.

    Of the lowest degree that is positive semidefinite in d dimensions with q
    mean-square derivatives (Rasmussen & Williams 2006, eq. 4.21; Wendland 2005, §9).

    Args:
        smoothness: q, an integer >= 0.
        lengthscale: ℓ, the radius of the support, in units of the inputs; a vector
            scales each dimension.
    """

    smoothness: int = eqx.field(static=True, default=1)
    lengthscale: Float[Array, "..."] = eqx.field(
        default=1.0, converter=as_float, metadata=LENGTHS
    )

    def __check_init__(self):
        if not isinstance(self.smoothness, int) or self.smoothness < 0:
            raise ValueError(
                f"smoothness: got {self.smoothness!r}, wanted an integer >= 0."
            )

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The correlation of the process at two points."""
        power = x.shape[0] // 2 + self.smoothness + 1
        s = squared_distance(x, z, self.lengthscale)
        return _wendland(s, power, self.smoothness)

    @property
    def num_derivatives(self) -> float:
        """Q."""
        return self.smoothness

    def support(self) -> Float[Array, ""]:
        """ℓ."""
        return jnp.max(self.lengthscale)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _wendland(s: Float[Array, ""], power: int, q: int) -> Float[Array, ""]:
    """φ_q/φ_q(0)."""
    inside = (s >= jnp.finfo(s.dtype).tiny) & (s < 1)
    r = jnp.sqrt(jnp.where(inside, s, jnp.full_like(s, 0.5)))
    coefficients = jnp.asarray(_polynomial(power, q)[0][::-1], s.dtype)
    value = (1 - r) ** (power + q) * jnp.polyval(coefficients, r)
    return jnp.where(inside, value, jnp.where(s < 1, 1.0, 0.0).astype(s.dtype))


@_wendland.defjvp
def _wendland_jvp(power, q, primals, tangents):
    (s,), (ds,) = primals, tangents
    value = _wendland(s, power, q)
    if q == 0:
        # Infinite at s = 0, where it only ever multiplies a derivative that is 0.
        inside = (s >= jnp.finfo(s.dtype).tiny) & (s < 1)
        r = jnp.sqrt(jnp.where(inside, s, jnp.full_like(s, 0.5)))
        slope = -power * (1 - r) ** (power - 1) / (2 * r)
        slope = jnp.where(inside, slope, jnp.zeros_like(s))
    else:
        slope = -_polynomial(power, q)[1] / 2 * _wendland(s, power, q - 1)
    return value, slope * ds


@functools.cache
def _polynomial(power: int, q: int) -> tuple[list[float], float]:
    """Ascending p with φ_q/φ_q(0) = (1 − r)^{power + q} p(r), and φ_{q−1}(0)/φ_q(0)."""
    whole = [Fraction(1)]
    for _ in range(power):
        whole = _times(whole, [Fraction(1), Fraction(-1)])
    ratio = Fraction(1)
    for _ in range(q):
        integral = [Fraction(0), Fraction(0)]
        integral += [c / (k + 2) for k, c in enumerate(whole)]
        at_zero = sum(integral)
        ratio = whole[0] / at_zero
        whole = [-c for c in integral]
        whole[0] += at_zero
    for _ in range(power + q):  # divided by 1 − r
        quotient, carry = [], Fraction(0)
        for c in whole[:-1]:
            carry += c
            quotient.append(carry)
        whole = quotient
    return [float(c / whole[0]) for c in whole], float(ratio)


def _times(a: list[Fraction], b: list[Fraction]) -> list[Fraction]:
    product = [Fraction(0)] * (len(a) + len(b) - 1)
    for i, u in enumerate(a):
        for j, v in enumerate(b):
            product[i + j] += u * v
    return product


class TrigonometricCompact(AbstractKernel):
    """Π_d (2 + cos 2πr_d)/3 (1 − r_d) + sin(2πr_d)/(2π), r_d = |x_d − z_d|/ℓ_d < 1.

    Melkumyan & Ramos 2009. Zero where any r_d >= 1; draws with two derivatives. In the
    distance ‖x − z‖ itself it is positive semidefinite in one dimension only, hence the
    product over coordinates.

    Args:
        lengthscale: ℓ, the radius of the support, in units of the inputs; a scalar or
            one a dimension.
    """

    lengthscale: Float[Array, "*d"] = eqx.field(
        default=1.0, converter=as_float, metadata=POSITIVE
    )

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The correlation of the process at two points."""
        check_each("lengthscale", self.lengthscale, x)
        return jnp.prod(_trigonometric(jnp.square((x - z) / self.lengthscale)))

    @property
    def num_derivatives(self) -> float:
        """Two."""
        return 2

    def support(self) -> Float[Array, ""]:
        """ℓ."""
        return jnp.max(self.lengthscale)


@jax.custom_jvp
def _trigonometric(s: Float[Array, " d"]) -> Float[Array, " d"]:
    inside = s < 1
    r = jnp.sqrt(jnp.where(inside, s, jnp.zeros_like(s)))
    turn = 2 * jnp.pi * r
    value = (2 + jnp.cos(turn)) / 3 * (1 - r) + jnp.sin(turn) / (2 * jnp.pi)
    # Rounding may leave a value of about -1e-17 at the edge.
    return jnp.where(inside, jnp.maximum(value, 0), jnp.zeros_like(s))


@_trigonometric.defjvp
def _trigonometric_jvp(primals, tangents):
    """dk/ds = k'(r)/(2r) = −(2π²/3) ((1 − r) sinc 2r + r sinc² r), finite at 0."""
    (s,), (ds,) = primals, tangents
    inside = (s >= jnp.finfo(s.dtype).tiny) & (s < 1)
    r = jnp.sqrt(jnp.where(inside, s, jnp.full_like(s, 0.5)))
    slope = (1 - r) * jnp.sinc(2 * r) + r * jnp.square(jnp.sinc(r))
    # Near 0: 1 − (2π²/3)s, to the accuracy that a further derivative needs there.
    slope = jnp.where(inside, slope, jnp.where(s < 1, 1 - 2 * jnp.pi**2 / 3 * s, 0 * s))
    return _trigonometric(s), -2 * jnp.pi**2 / 3 * slope * ds
