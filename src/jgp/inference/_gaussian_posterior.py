"""The posterior of independent latents: a Gaussian process conditioned on data."""

from collections.abc import Sequence
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jgp._linalg import apply_blocks
from jgp._process import AbstractProcess, class_diagonal
from jgp.inference._factor import AbstractFactor, CholeskyFactor, Trend
from jgp.inference._function_posterior import AbstractFunctionPosterior
from jgp.inference._sites import AbstractSites


class GaussianPosterior(AbstractFunctionPosterior):
    """A Gaussian process of independent latents, conditioned on sites or data.

    Its mean is m₀(x*) + k*ᵀb and its covariance k** − k*ᵀMk*, and with a trend what
    its unknown coefficients add.

    Args:
        process: The prior.
        x: Training inputs.
        weights: b.
        factor: M; (K + T⁻)⁻ for sites, (K + N)⁻¹ for exact regression.
        coefficients: β̂ of the trend, or None.
        sites: The sites, where the factor is of sites.
        rest: Of a component, the terms of the prior that it leaves out.
    """

    process: AbstractProcess
    x: Float[Array, "n d"]
    weights: Float[Array, "n C"]
    factor: AbstractFactor
    coefficients: Float[Array, "p C"] | None = None
    sites: AbstractSites | None = None
    rest: AbstractProcess | None = None

    @property
    def left_out(self) -> AbstractProcess | None:
        """Of a component, the terms of the prior that are not its own."""
        return self.rest

    def moments_at(self, point: Float[Array, " d"]) -> tuple[Array, Array]:
        """Mean (C,) and covariance (C, C) of the latents at a point."""
        at = point[None]
        k, mean = self._cross(at)
        num_latents = self.process.num_latents
        prior = jnp.broadcast_to(self.process.variance(at)[:, 0], (num_latents,))
        covariance = jnp.diag(prior) - self.factor.marginal_reduction(k)[0]
        if self.coefficients is not None:
            root = self._trend_root(k, self._trend.at(at).T)
            covariance = covariance + jnp.diag(jnp.sum(root**2, axis=1)[:, 0])
        return mean[0], covariance

    def moments_over(self, x_new: Float[Array, "m d"]) -> tuple[Array, Array]:
        """Mean (m, C) and covariance (m, C, m, C) of the latents at points."""
        k, mean = self._cross(x_new)
        prior = self.process.joint_covariance(x_new)
        covariance = prior - self.factor.joint_reduction(k)
        if self.coefficients is not None:
            root = self._trend_root(k, self._trend.at(x_new).T)
            covariance = covariance + class_diagonal(root.mT @ root)
        return mean, covariance

    def _cross(self, x_new: Float[Array, "m d"]) -> tuple[Array, Array]:
        """k* for each latent, and the mean."""
        process, num_latents = self.process, self.process.num_latents
        k = process.covariance(self.x, x_new)
        k = jnp.broadcast_to(k, (num_latents, *k.shape[1:]))
        mean = process.mean(x_new) + jnp.einsum("cim,ic->mc", k, self.weights)
        if self.coefficients is not None:
            mean = mean + self._trend.at(x_new) @ self.coefficients
        return k, mean

    @property
    def _trend(self) -> Trend:
        trend = cast(CholeskyFactor, self.factor).trend
        assert trend is not None
        return trend

    def _trend_root(
        self, k: Float[Array, "C n m"], h: Float[Array, "p m"]
    ) -> Float[Array, "C p m"]:
        return cast(CholeskyFactor, self.factor).trend_root(k, h)

    def slopes_at(self, point: Float[Array, " d"]) -> tuple[Array, Array]:
        """Mean (C, d) and covariance (C, d, d) of the derivatives at a point."""
        process, num_latents = self.process, self.process.num_latents

        def cross(point):
            k = process.covariance(self.x, point[None])[:, :, 0]
            return jnp.broadcast_to(k, (num_latents, self.x.shape[0]))

        def prior(a, b):
            k = process.covariance(a[None], b[None])[:, 0, 0]
            return jnp.broadcast_to(k, (num_latents,))

        J = jax.jacfwd(cross)(point)
        mean = jax.jacfwd(lambda point: process.mean(point[None])[0])(point)
        mean = mean + jnp.einsum("cid,ic->cd", J, self.weights)
        own = jax.jacfwd(jax.jacrev(prior, 0), 1)(point, point)
        covariance = own - jnp.einsum("icjc->cij", self.factor.joint_reduction(J))
        if self.coefficients is None:
            return mean, covariance
        h = jax.jacfwd(self._trend.features)(point)
        root = self._trend_root(J, h)
        return mean + (h.T @ self.coefficients).T, covariance + root.mT @ root

    def component(self, which: int | Sequence[int]) -> "GaussianPosterior":
        """The posterior of some terms of an additive process, Σⱼfⱼ, fⱼ ~ GP(0, kⱼ).

        They have covariance kⱼ(x*, X) with the data and kⱼ(x*, x*) a priori; the mean
        function and the trend belong to no term. Terms are dependent a posteriori:
        their means add up, their variances do not.

        Args:
            which: The number of a term of the kernel, a sum (also one that is scaled,
                or on mapped inputs), or several numbers. `kernels.terms` lists them.

        Raises:
            ValueError: if there are no such terms.
        """
        found = super().component(which)
        if self.coefficients is None:
            return found
        silent = _Silent(self.coefficients.shape[0])
        return eqx.tree_at(lambda p: p.factor.trend.features, found, silent)

    def corrected(
        self, drawn: Float[Array, "n C"], key: PRNGKeyArray
    ) -> tuple[Array, Array | None]:
        """Weights and coefficients for a draw of the prior at X."""
        normals = jax.random.normal(key, self.weights.shape, drawn.dtype)
        if self.sites is not None:
            rooted = self.sites.root_times(normals)
            K = self.process.covariance(self.x)
            K = K if self.rest is None else K + self.rest.covariance(self.x)
            shift = apply_blocks(K, rooted)
            change = rooted - self.factor.times(drawn + shift)
            return self.weights + change, None
        factor = cast(CholeskyFactor, self.factor)
        assert factor.noise is not None
        observed = drawn + jnp.sqrt(factor.noise) * normals
        weights, coefficients = self.weights - factor.times(observed), self.coefficients
        if coefficients is None or self.rest is not None:
            return weights, None
        return weights, coefficients - factor.coefficients(observed)


class _Silent(eqx.Module):
    """Features of a part that the trend does not belong to: none."""

    num_features: int = eqx.field(static=True)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " p"]:
        return jnp.zeros(self.num_features, x.dtype)
