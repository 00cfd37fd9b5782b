"""Kernels that oscillate."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp._constraints import POSITIVE
from jgp._types import as_float
from jgp.kernels._base import AbstractKernel
from jgp.kernels._distance import sum_of_squares


class Periodic(AbstractKernel):
    """exp(−2 Σ_d sin²(π(x_d − z_d)/p_d)/ℓ_d²): smooth, periodic draws.

    MacKay 1998, §5; Rasmussen & Williams 2006, eq. 4.31. The squared exponential on a
    circle a dimension: positive semidefinite in any dimension, where sin²(π‖x − z‖/p)
    is not.

    Args:
        lengthscale: ℓ, relative to the unit circle; a scalar or one a dimension.
        period: p, in units of the inputs; a scalar or one a dimension.
    """

    lengthscale: Float[Array, "*d"] = eqx.field(
        default=1.0, converter=as_float, metadata=POSITIVE
    )
    period: Float[Array, "*d"] = eqx.field(
        default=1.0, converter=as_float, metadata=POSITIVE
    )

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The correlation of the process at two points."""
        check_each("lengthscale", self.lengthscale, x)
        check_each("period", self.period, x)
        sines = jnp.sin(jnp.pi * ((x - z) / self.period)) / self.lengthscale
        return jnp.exp(-2 * sum_of_squares(sines))


class Cosine(AbstractKernel):
    """cos(2π Σ_d (x_d − z_d)/p_d): a random sine wave, of rank two.

    Args:
        period: p, in units of the inputs; a scalar or one a dimension.
    """

    period: Float[Array, "*d"] = eqx.field(
        default=1.0, converter=as_float, metadata=POSITIVE
    )

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The correlation of the process at two points."""
        check_each("period", self.period, x)
        return jnp.cos(2 * jnp.pi * jnp.sum((x - z) / self.period))


class SpectralMixture(AbstractKernel):
    """Σ_q w_q Π_d exp(−2π² τ_d² v_qd²) cos(2π τ_d μ_qd), τ = x − z.

    Wilson & Adams 2013, eq. 12: a mixture of Q Gaussians over frequencies; with enough
    of them, any stationary kernel.

    Args:
        weights: w, (Q,): the variance of each component.
        frequencies: μ, (Q, d), >= 0, in cycles a unit of the inputs.
        bandwidths: v, (Q, d): standard deviations of the frequencies.
    """

    weights: Float[Array, " Q"] = eqx.field(converter=as_float, metadata=POSITIVE)
    frequencies: Float[Array, "Q d"] = eqx.field(converter=as_float)
    bandwidths: Float[Array, "Q d"] = eqx.field(converter=as_float, metadata=POSITIVE)

    def __check_init__(self):
        shape = self.frequencies.shape
        shapes = (self.weights.shape, shape, self.bandwidths.shape)
        if len(shape) != 2 or shapes != (shape[:1], shape, shape):
            raise ValueError(
                f"weights, frequencies, bandwidths: got shapes {shapes}, wanted (Q,), "
                "(Q, d) and (Q, d)."
            )

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The covariance of the process at two points."""
        if self.frequencies.shape[1] != x.shape[0]:
            raise ValueError(
                f"frequencies: got {self.frequencies.shape[1]} dimensions, wanted "
                f"{x.shape[0]}, the dimension of the inputs."
            )
        tau = (x - z)[None]
        decay = -2 * jnp.sum(jnp.square(jnp.pi * tau * self.bandwidths), axis=1)
        waves = jnp.prod(jnp.cos(2 * jnp.pi * tau * self.frequencies), axis=1)
        return jnp.sum(self.weights * jnp.exp(decay) * waves)


def check_each(name: str, value: Array, x: Float[Array, " d"]) -> None:
    """Raise a `ValueError` unless a parameter is a scalar or has d entries."""
    if value.ndim > 0 and value.shape != x.shape:
        raise ValueError(
            f"{name}: got shape {value.shape}, wanted a scalar or {x.shape}, one entry "
            "for each dimension of the inputs."
        )
