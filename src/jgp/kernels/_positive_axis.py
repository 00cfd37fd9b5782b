"""Kernels on the non-negative half line: Brownian motion and its relatives."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jgp.kernels._base import AbstractKernel


class Cauchy(AbstractKernel):
    """1/(x + z) for x, z > 0 (Cabral 2021, §3.4.2)."""

    def __call__(
        self, x: Float[Array, " 1"], z: Float[Array, " 1"]
    ) -> Float[Array, ""]:
        """The covariance of the process at two points; NaN outside the domain."""
        a, b = _coordinate(x), _coordinate(z)
        return jnp.where((a > 0) & (b > 0), 1 / (a + b), jnp.nan)

    def check_inputs(self, x: Float[Array, "n 1"], name: str = "x") -> None:
        """Raise a `ValueError` unless all inputs are above 0."""
        _check(name, x, np.all(np.asarray(x) > 0), "> 0")


class Wiener(AbstractKernel):
    """min(x, z) for x, z >= 0: Brownian motion, 0 at 0."""

    @property
    def num_derivatives(self) -> float:
        """None."""
        return 0

    def __call__(
        self, x: Float[Array, " 1"], z: Float[Array, " 1"]
    ) -> Float[Array, ""]:
        """The covariance of the process at two points; NaN outside the domain."""
        a, b = _coordinate(x), _coordinate(z)
        least = jnp.minimum(a, b)
        return jnp.where(least >= 0, least, jnp.nan)

    def check_inputs(self, x: Float[Array, "n 1"], name: str = "x") -> None:
        """Raise a `ValueError` if an input is below 0."""
        _check(name, x, np.all(np.asarray(x) >= 0), ">= 0")


class IntegratedWiener(AbstractKernel):
    """m³/3 + m²|x − z|/2, m = min(x, z) >= 0: the integral of Brownian motion.

    Rasmussen & Williams 2006, §6.3.1; draws have one derivative, and with a linear
    trend they are cubic splines.
    """

    @property
    def num_derivatives(self) -> float:
        """One."""
        return 1

    def __call__(
        self, x: Float[Array, " 1"], z: Float[Array, " 1"]
    ) -> Float[Array, ""]:
        """The covariance of the process at two points; NaN outside the domain."""
        a, b = _coordinate(x), _coordinate(z)
        value = _integrated(a, b)
        return jnp.where(jnp.minimum(a, b) >= 0, value, jnp.nan)

    def check_inputs(self, x: Float[Array, "n 1"], name: str = "x") -> None:
        """Raise a `ValueError` if an input is below 0."""
        _check(name, x, np.all(np.asarray(x) >= 0), ">= 0")


# ∫₀ᵃ∫₀ᵇ min(s, t) dt ds and its derivatives, exact at a = b too, where those of min and
# max taken one by one are not.
@jax.custom_jvp
def _integrated(a: Float[Array, ""], b: Float[Array, ""]) -> Float[Array, ""]:
    least, most = jnp.minimum(a, b), jnp.maximum(a, b)
    return least**2 * (3 * most - least) / 6


@jax.custom_jvp
def _integrated_once(a: Float[Array, ""], b: Float[Array, ""]) -> Float[Array, ""]:
    """∫₀ᵇ min(a, t) dt."""
    least = jnp.minimum(a, b)
    return least**2 / 2 + a * jnp.maximum(b - a, 0)


_integrated.defjvps(
    lambda da, value, a, b: _integrated_once(a, b) * da,
    lambda db, value, a, b: _integrated_once(b, a) * db,
)
_integrated_once.defjvps(
    lambda da, value, a, b: jnp.maximum(b - a, 0) * da,
    lambda db, value, a, b: jnp.minimum(a, b) * db,
)


def _coordinate(x: Float[Array, " 1"]) -> Float[Array, ""]:
    if x.shape != (1,):
        raise ValueError(
            f"x: got inputs of dimension {x.shape[0]}, wanted 1; use `on(kernel, dim)`."
        )
    return x[0]


def _check(name: str, x: Array, holds: np.bool, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{name}: got an input of {np.min(x)}, wanted all {wanted}.")
