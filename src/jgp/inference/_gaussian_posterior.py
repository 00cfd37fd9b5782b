"""The posterior of independent latents: a Gaussian process conditioned on data."""

from typing import NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from jgp._process import AbstractProcess, GaussianProcess, class_diagonal
from jgp.inference._data import check_inputs
from jgp.inference._factor import AbstractFactor, CholeskyFactor, Trend
from jgp.inference._paths import Path, path_of
from jgp.inference._posterior import (
    CHUNK_SIZE,
    AbstractGaussianPosterior,
    with_valid_variance,
)
from jgp.inference._sites import AbstractSites
from jgp.kernels import AbstractKernel, Sum


class Gradient(NamedTuple):
    """Moments of the derivatives at each input: (m, d) for one latent, else with C.

    `covariance` is (m, d, d), or (m, C, d, d), between the derivatives of a latent.
    """

    mean: Float[Array, "m *C d"]
    covariance: Float[Array, "m *C d d"]


class GaussianPosterior(AbstractGaussianPosterior):
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
    """

    process: AbstractProcess
    x: Float[Array, "n d"]
    weights: Float[Array, "n C"]
    factor: AbstractFactor
    coefficients: Float[Array, "p C"] | None = None
    sites: AbstractSites | None = None

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

    def gradient(self, x_new: ArrayLike) -> Gradient:
        """The derivatives of the latent functions at each input.

        Differentiation is linear: the mean of the derivative is the derivative of the
        mean, and its covariance is ∂²k/∂x∂z − JᵀMJ, J = ∂k(X, x)/∂x (Rasmussen &
        Williams 2006, §9.4). The kernel has to be differentiable.

        Args:
            x_new: (m, d), or (m,) for d = 1.
        """
        points = check_inputs(x_new, self.x, self.process)
        mean, covariance = _gradient(self, points)
        if self.process.num_latents == 1:
            return Gradient(mean[:, 0], covariance[:, 0])
        return Gradient(mean, covariance)

    def component(self, which: int | AbstractKernel) -> "GaussianPosterior":
        """The posterior of one part of an additive process, Σ_j f_j, f_j ~ GP(0, k_j).

        It has covariance k_j(x*, X) with the data and k_j(x*, x*) a priori; the mean
        function and the trend belong to no part. Parts are dependent a posteriori:
        their means add up, their variances do not.

        Args:
            which: The number of a part of the process's `Sum`, or the part itself.

        Raises:
            ValueError: for several latents, or no such part.
        """
        if not isinstance(self.process, GaussianProcess):
            raise ValueError(
                f"posterior: got one of {type(self.process).__name__}, wanted a single "
                "GaussianProcess to take apart."
            )
        kernel = part_of(self.process.kernel, which)
        process = GaussianProcess(kernel)
        posterior = GaussianPosterior(
            process, self.x, self.weights, self.factor, self.coefficients, self.sites
        )
        if self.coefficients is None:
            return posterior
        silent = _Silent(self.coefficients.shape[0])
        return eqx.tree_at(lambda p: p.factor.trend.features, posterior, silent)

    def path(
        self,
        *,
        key: PRNGKeyArray,
        num_features: int = 2000,
        inputs: ArrayLike | None = None,
    ) -> Path:
        """A draw of the latent functions that can be evaluated anywhere, and again.

        Wilson et al. 2020: a draw of the prior, corrected by the data. The prior is
        drawn by random features (kernels with a known spectral density, sums and
        scalings of them, linear and constant ones), or exactly at given inputs and
        between them by the prior's conditional mean (any kernel).

        Args:
            key: A PRNG key.
            num_features: Random features for each stationary part; the error of
                covariances is of order num_features^{-½}.
            inputs: (m, d) inputs at which the draw is exact, in place of features.

        Raises:
            ValueError: for a kernel without features where no `inputs` are given.
        """
        there = None if inputs is None else check_inputs(inputs, self.x, self.process)
        return path_of(
            self.process,
            self.x,
            self.weights,
            self.coefficients,
            self.factor,
            self.sites,
            key=key,
            num_features=num_features,
            inputs=there,
        )


class _Silent(eqx.Module):
    """Features of a part that the trend does not belong to: none."""

    num_features: int = eqx.field(static=True)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " p"]:
        return jnp.zeros(self.num_features, x.dtype)


def part_of(kernel: AbstractKernel, which: int | AbstractKernel) -> AbstractKernel:
    """A part of a sum of kernels by its number; a kernel is taken as it is.

    Raises:
        ValueError: if there is no such part.
    """
    if isinstance(which, AbstractKernel):
        return which
    parts = kernel.kernels if isinstance(kernel, Sum) else (kernel,)
    if not 0 <= which < len(parts):
        raise ValueError(f"which: got {which}, wanted 0 to {len(parts) - 1}.")
    return parts[which]


@eqx.filter_jit
def _gradient(posterior: GaussianPosterior, x_new: Float[Array, "m d"]):
    process, x = posterior.process, posterior.x
    num_latents = process.num_latents

    def cross(point):
        k = process.covariance(x, point[None])[:, :, 0]
        return jnp.broadcast_to(k, (num_latents, x.shape[0]))

    def prior(a, b):
        k = process.covariance(a[None], b[None])[:, 0, 0]
        return jnp.broadcast_to(k, (num_latents,))

    def mean_at(point):
        value = process.mean(point[None])[0]
        value = value + jnp.einsum("ci,ic->c", cross(point), posterior.weights)
        if posterior.coefficients is not None:
            value = value + posterior._trend.features(point) @ posterior.coefficients
        return value

    def one(point):
        J = jax.jacfwd(cross)(point)
        own = jax.jacfwd(jax.jacrev(prior, 0), 1)(point, point)
        reduction = posterior.factor.joint_reduction(J)
        covariance = own - jnp.einsum("icjc->cij", reduction)
        if posterior.coefficients is not None:
            h = jax.jacfwd(posterior._trend.features)(point)
            root = posterior._trend_root(J, h)
            covariance = covariance + root.mT @ root
        return jax.jacfwd(mean_at)(point), jax.vmap(with_valid_variance)(covariance)

    held = max(1, x.shape[0] * num_latents * x.shape[1])
    return lax.map(one, x_new, batch_size=max(1, CHUNK_SIZE // held))
