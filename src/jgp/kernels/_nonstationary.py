"""Kernels whose lengthscale or metric depends on the input."""

from collections.abc import Callable

import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp.kernels._base import AbstractKernel
from jgp.kernels._stationary import AbstractStationary


class Gibbs(AbstractKernel):
    """Π_d √(2ab/(a² + b²)) exp(−(x_d − z_d)²/(a² + b²)), a = ℓ_d(x), b = ℓ_d(z).

    The squared exponential with lengthscales that vary over the inputs (Gibbs 1997;
    Rasmussen & Williams 2006, eq. 4.32).

    Args:
        lengthscale: ℓ, a function of one point to positive lengthscales, (d,) -> (d,)
            or (); the parameters of an `equinox.Module` are trained.
    """

    lengthscale: Callable[[Float[Array, " d"]], Float[Array, "*d"]]

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The correlation of the process at two points."""
        a, b = (self._at(point) for point in (x, z))
        # By ratios: the squares of tiny lengthscales vanish in float32.
        ratio = b / a
        scale = jnp.sqrt(jnp.prod(2 / (ratio + 1 / ratio)))
        squared = jnp.square((x - z) / a) / (1 + jnp.square(ratio))
        return scale * jnp.exp(-jnp.sum(squared))

    def _at(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        value = jnp.asarray(self.lengthscale(x))
        if value.shape not in ((), x.shape):
            raise ValueError(
                f"lengthscale: got a function with values of shape {value.shape}, "
                f"wanted () or {x.shape} at inputs of dimension {x.shape[0]}."
            )
        return jnp.broadcast_to(value, x.shape)


class NonStationary(AbstractKernel):
    """|Σ(x)|^¼ |Σ(z)|^¼ |S|^−½ φ((x − z)ᵀS⁻¹(x − z)), S = (Σ(x) + Σ(z))/2.

    A stationary kernel with profile φ in a metric that varies over the inputs (Paciorek
    & Schervish 2004). Valid only for profiles that are positive semidefinite in every
    dimension; with one of compact support it is not.

    Args:
        kernel: A stationary kernel whose class says `valid_in_every_dimension`. Its
            lengthscale, a scalar, multiplies the metric.
        metric: Σ, a function of one point to a positive definite matrix,
            (d,) -> (d, d); the parameters of an `equinox.Module` are trained.
    """

    kernel: AbstractStationary
    metric: Callable[[Float[Array, " d"]], Float[Array, "d d"]]

    def __check_init__(self):
        if not getattr(self.kernel, "valid_in_every_dimension", False):
            raise ValueError(
                f"kernel: got {type(self.kernel).__name__}, wanted a stationary kernel "
                "that is positive semidefinite in every dimension."
            )
        if self.kernel.lengthscale.ndim != 0:
            raise ValueError(
                f"kernel: got a lengthscale of shape {self.kernel.lengthscale.shape}, "
                "wanted a scalar; the metric has the directions."
            )

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The correlation of the process at two points."""
        at_x, at_z = self._at(x), self._at(z)
        log_x, _ = _eliminate(at_x, jnp.zeros_like(x))
        log_z, _ = _eliminate(at_z, jnp.zeros_like(z))
        log_mean, squared = _eliminate((at_x + at_z) / 2, x - z)
        scale = jnp.exp((log_x + log_z) / 4 - log_mean / 2)
        inverse = 1 / self.kernel.lengthscale
        return scale * self.kernel.profile(squared * inverse * inverse)

    def _at(self, x: Float[Array, " d"]) -> Float[Array, "d d"]:
        value = jnp.asarray(self.metric(x))
        wanted = (x.shape[0], x.shape[0])
        if value.shape != wanted:
            raise ValueError(
                f"metric: got a function with values of shape {value.shape}, wanted "
                f"{wanted} at inputs of dimension {x.shape[0]}."
            )
        return value


def _eliminate(
    S: Float[Array, "d d"], v: Float[Array, " d"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """log|S| and vᵀS⁻¹v by elimination, for the few dimensions of an input.

    Written out over rows, so that all pairs of points are eliminated at once.
    """
    log_S = squared = jnp.zeros((), S.dtype)
    for _ in range(v.shape[0]):
        pivot = S[0, 0]
        log_S = log_S + jnp.log(pivot)
        squared = squared + jnp.square(v[0]) / pivot
        ratio = S[1:, 0] / pivot
        S, v = S[1:, 1:] - ratio[:, None] * S[:1, 1:], v[1:] - ratio * v[0]
    return log_S, squared
