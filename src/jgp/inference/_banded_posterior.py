r"""The posterior of one latent on a line, by the blocks about a new point.

A new point meets at most b points on either side, where the blocks hold b: those of
three blocks in a row. Its moments need the weights and the factor of those three, and
the tail of the last, which stands for all blocks beyond (see `_block_tridiagonal`).
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jgp._block_tridiagonal import BlockCholesky, whiten
from jgp._linalg import solve_lower
from jgp._process import AbstractProcess
from jgp.inference._posterior import AbstractGaussianPosterior


class Blocks(eqx.Module):
    """Points in ascending order, in blocks; the last is filled up.

    Args:
        x: The inputs; the last of them is repeated.
        real: Which points there are.
        weights: Their weights, zero for the others.
    """

    x: Float[Array, "*N b"]
    real: Bool[Array, "*N b"]
    weights: Float[Array, "*N b"]

    def cross(
        self, process: AbstractProcess, x_new: Float[Array, "m 1"]
    ) -> Float[Array, "*N b m"]:
        """The covariances with other points."""
        k = process.covariance(self.x.reshape(-1, 1), x_new)[0]
        k = k.reshape(*self.x.shape, x_new.shape[0])
        return jnp.where(self.real[..., None], k, 0)


class BandedPosterior(AbstractGaussianPosterior):
    """The posterior of one latent on a line, from the three blocks about a point.

    Args:
        process: The prior.
        x: Training inputs.
        weights: S⁻¹(y − m₀), so that the mean is m₀(x*) + k*ᵀb.
        blocks: The same in ascending order.
        factor: The factor of S in that order.
    """

    process: AbstractProcess
    x: Float[Array, "n 1"]
    weights: Float[Array, "n 1"]
    blocks: Blocks
    factor: BlockCholesky

    @property
    def held(self) -> int:
        """The numbers that a new point holds in memory while it is predicted."""
        return 7 * self.factor.lower[0].size

    def moments_at(self, point: Float[Array, " 1"]) -> tuple[Array, Array]:
        """Mean (1,) and covariance (1, 1) of the latent at a point."""
        num_blocks, size, _ = self.factor.lower.shape
        num = min(3, num_blocks)
        # Up to b points before the place of the new one and up to b from it on.
        place = jnp.searchsorted(self.blocks.x.reshape(-1), point[0])
        first = jnp.clip(place // size - 1, 0, num_blocks - num)
        window, lower, left = jax.tree.map(
            lambda a: lax.dynamic_slice_in_dim(a, first, num),
            (self.blocks, self.factor.lower, self.factor.left),
        )
        k = window.cross(self.process, point[None])[:, :, 0]
        mean = self.process.mean(point[None])[0] + jnp.sum(k * window.weights)
        white = whiten(lower, left, k)
        tail = self.factor.tails[first + num - 1]
        reduction = jnp.sum(white[:-1] ** 2) + white[-1] @ tail @ white[-1]
        variance = self.process.variance(point[None]) - reduction
        return mean, jnp.maximum(variance, 0)

    def moments_over(self, x_new: Float[Array, "m 1"]) -> tuple[Array, Array]:
        """Mean (m, 1) and covariance (m, 1, m, 1) of the latent at points.

        O(n m (b + m)) time, and memory without a term in n m.
        """

        def step(carry, block):
            before, square, mean = carry
            here, lower, left = block
            k = here.cross(self.process, x_new)
            white = solve_lower(lower, k - left @ before)
            square, mean = square + white.T @ white, mean + k.T @ here.weights
            return (white, square, mean), None

        m = x_new.shape[0]
        prior = self.process.joint_covariance(x_new)
        start = (
            jnp.zeros((self.factor.lower.shape[1], m), x_new.dtype),
            jnp.zeros((m, m), x_new.dtype),
            self.process.mean(x_new)[:, 0],
        )
        blocks = (self.blocks, self.factor.lower, self.factor.left)
        (_, square, mean), _ = lax.scan(step, start, blocks)
        return mean[:, None], prior - square.reshape(prior.shape)
