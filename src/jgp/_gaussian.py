"""The multivariate normal distribution, in moment and in natural form."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jgp._linalg import cholesky, cholesky_solve, log_determinant, solve_lower
from jgp._types import as_float


class Gaussian(eqx.Module):
    """N(mean, covariance); leading axes are a batch of independent distributions.

    A singular covariance is factorised with the jitter of `_linalg.cholesky`; if
    that fails too the results are NaN.

    Args:
        mean: The mean.
        covariance: Symmetric positive (semi)definite.
    """

    mean: Float[Array, "*batch d"] = eqx.field(converter=as_float)
    covariance: Float[Array, "*batch d d"] = eqx.field(converter=as_float)

    def __check_init__(self):
        wanted = (*self.mean.shape, *self.mean.shape[-1:])
        if self.covariance.shape != wanted:
            raise ValueError(
                f"covariance: got shape {self.covariance.shape}, wanted {wanted} to "
                f"go with a mean of shape {self.mean.shape}."
            )

    def log_prob(self, x: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
        """The log density at `x`."""
        lower = cholesky(self.covariance).lower
        whitened = solve_lower(lower, (x - self.mean)[..., None])[..., 0]
        dimension = self.mean.shape[-1]
        return -0.5 * (
            jnp.sum(whitened**2, axis=-1)
            + log_determinant(lower)
            + dimension * math.log(2 * math.pi)
        )

    def sample(self, *, key: PRNGKeyArray, num: int) -> Float[Array, "num *batch d"]:
        """`num` independent draws."""
        lower = cholesky(self.covariance).lower
        shape = (num, *self.mean.shape)
        noise = jax.random.normal(key, shape, self.mean.dtype)
        return self.mean[None] + (lower[None] @ noise[..., None])[..., 0]


def kl_divergence(p: Gaussian, q: Gaussian) -> Float[Array, "*batch"]:
    """KL(p ‖ q) = E_p[log p − log q], in nats."""
    lower_p, lower_q = cholesky(p.covariance).lower, cholesky(q.covariance).lower
    ratio = solve_lower(lower_q, lower_p)
    shift = solve_lower(lower_q, (p.mean - q.mean)[..., None])
    return 0.5 * (
        jnp.sum(ratio**2, axis=(-2, -1))
        + jnp.sum(shift**2, axis=(-2, -1))
        - p.mean.shape[-1]
        + log_determinant(lower_q)
        - log_determinant(lower_p)
    )


def to_natural(
    gaussian: Gaussian,
) -> tuple[Float[Array, "*batch d"], Float[Array, "*batch d d"]]:
    """(ν, T) with density ∝ exp(νᵀx − ½xᵀTx): T = covariance⁻¹, ν = T mean."""
    return _invert(gaussian.covariance, gaussian.mean)


def from_natural(
    nu: Float[Array, "*batch d"], precision: Float[Array, "*batch d d"]
) -> Gaussian:
    """The Gaussian with density ∝ exp(νᵀx − ½xᵀTx), T positive definite."""
    return Gaussian(*_invert(precision, nu))


def _invert(matrix: Array, vector: Array) -> tuple[Array, Array]:
    """matrix⁻¹vector and matrix⁻¹."""
    lower = cholesky(matrix).lower
    identity = jnp.broadcast_to(
        jnp.eye(matrix.shape[-1], dtype=matrix.dtype), matrix.shape
    )
    root = solve_lower(lower, identity)
    solved = cholesky_solve(lower, vector[..., None])[..., 0]
    return solved, root.mT @ root
