"""The posterior of latents that depend on each other, by the prior or the noise."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp._process import AbstractProcess
from jgp.inference._factor import CholeskyFactor
from jgp.inference._posterior import AbstractGaussianPosterior


class CoupledPosterior(AbstractGaussianPosterior):
    """Latents conditioned together, where the prior or the noise couples them.

    Args:
        process: The prior.
        x: Training inputs.
        weights: b, so that the mean is m₀(x*) + Σ k(x*, xᵢ)bᵢ, k a (C, C) block.
        factor: The factor of the (nC, nC) covariance of the observations.
    """

    process: AbstractProcess
    x: Float[Array, "n d"]
    weights: Float[Array, "n C"]
    factor: CholeskyFactor

    @property
    def held(self) -> int:
        """The numbers that a new point holds in memory while it is predicted."""
        return self.weights.size * self.process.num_latents

    def moments_at(self, point: Float[Array, " d"]) -> tuple[Array, Array]:
        """Mean (C,) and covariance (C, C) of the latents at a point."""
        mean, covariance = self.moments_over(point[None])
        return mean[0], covariance[0, :, 0, :]

    def moments_over(self, x_new: Float[Array, "m d"]) -> tuple[Array, Array]:
        """Mean (m, C) and covariance (m, C, m, C) of the latents at points."""
        k = self.process.joint_covariance(self.x, x_new)
        mean = self.process.mean(x_new) + jnp.einsum("icmd,ic->md", k, self.weights)
        white = self.factor.whiten(k.reshape(1, self.weights.size, mean.size))[0]
        prior = self.process.joint_covariance(x_new)
        return mean, prior - (white.T @ white).reshape(prior.shape)
