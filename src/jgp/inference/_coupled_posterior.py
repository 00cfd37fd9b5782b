"""The posterior of latents that depend on each other, by the prior or the noise."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jgp._process import AbstractProcess
from jgp.inference._factor import CholeskyFactor
from jgp.inference._function_posterior import AbstractFunctionPosterior


class CoupledPosterior(AbstractFunctionPosterior):
    """Latents conditioned together, where the prior or the noise couples them.

    Args:
        process: The prior.
        x: Training inputs.
        weights: b, so that the mean is m₀(x*) + Σ k(x*, xᵢ)bᵢ, k a (C, C) block.
        factor: The factor of the (nC, nC) covariance of the observations.
        noise_root: R with RRᵀ the covariance of the noise of each point.
        rest: Of a component, the terms of the prior that it leaves out.
    """

    process: AbstractProcess
    x: Float[Array, "n d"]
    weights: Float[Array, "n C"]
    factor: CholeskyFactor
    noise_root: Float[Array, "n C C"]
    rest: AbstractProcess | None = None

    @property
    def left_out(self) -> AbstractProcess | None:
        """Of a component, the terms of the prior that are not its own."""
        return self.rest

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

    def slopes_at(self, point: Float[Array, " d"]) -> tuple[Array, Array]:
        """Mean (C, d) and covariance (C, d, d) of the derivatives at a point."""
        process, num_latents = self.process, self.process.num_latents

        def cross(point):
            k = process.joint_covariance(self.x, point[None])
            return k.reshape(self.weights.size, num_latents)

        def prior(a, b):
            return process.covariance(a[None], b[None])[:, 0, 0]

        J = jax.jacfwd(cross)(point)
        mean = jax.jacfwd(lambda point: process.mean(point[None])[0])(point)
        mean = mean + jnp.einsum("kcd,k->cd", J, self.weights.reshape(-1))
        own = jax.jacfwd(jax.jacrev(prior, 0), 1)(point, point)
        own = jnp.broadcast_to(own, (num_latents, *own.shape[1:]))
        white = self.factor.whiten(J.reshape(1, J.shape[0], -1))[0].reshape(J.shape)
        return mean, own - jnp.einsum("kci,kcj->cij", white, white)

    def corrected(
        self, drawn: Float[Array, "n C"], key: PRNGKeyArray
    ) -> tuple[Array, None]:
        """Weights for a draw of the prior at X."""
        normals = jax.random.normal(key, drawn.shape, drawn.dtype)
        observed = drawn + jnp.einsum("ncd,nd->nc", self.noise_root, normals)
        change = self.factor.times(observed.reshape(-1, 1)).reshape(drawn.shape)
        return self.weights - change, None
