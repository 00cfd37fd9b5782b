"""The posterior of latents that saw the data through inducing variables."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jgp._linalg import solve_lower, solve_upper
from jgp._process import AbstractProcess, class_diagonal
from jgp._sparse_process import SparseProcess
from jgp.inference._function_posterior import AbstractFunctionPosterior
from jgp.inference._inducing import InducingGaussian
from jgp.inference._posterior import Joint


class SparsePosterior(AbstractFunctionPosterior):
    """A Gaussian process given by q(v) of its whitened inducing variables.

    Its mean is m₀(x) + aᵀμ and its covariance k(x, z) − a(x)ᵀ(I − S)a(z), where
    a = L⁻¹k(Z, ·).

    Args:
        process: The prior, with its inducing inputs.
        lower: L of K_ZZ, a leading 1 where one serves all latents.
        inducing: q(v).
        rest: Of a component, the terms of the prior that it leaves out.
    """

    process: SparseProcess  # pyright: ignore[reportIncompatibleVariableOverride]
    lower: Float[Array, "C M M"]
    inducing: InducingGaussian
    rest: AbstractProcess | None = None

    @property
    def x(self) -> Float[Array, "N d"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The inducing inputs, what a prediction is made from."""
        return self.process.all_inducing_inputs

    @property
    def held(self) -> int:
        """The numbers that a new point holds in memory while it is predicted."""
        return self.inducing.mean.size

    @property
    def left_out(self) -> AbstractProcess | None:
        """Of a component, the terms of the prior that are not its own."""
        return self.rest

    def inducing_variables(self, *, whitened: bool = False) -> Joint:
        """The Gaussian of u = f(Z), or of the whitened v = L⁻¹(u − m₀(Z)).

        Means (M,) and covariances (M, M) for one latent, (C, M) and (C, M, M) for
        several, each by itself.
        """
        mean, root = self.inducing.mean, self.inducing.root
        if not whitened:
            lower = self._lower
            root = root @ lower.mT
            mean = (lower @ mean[:, :, None])[:, :, 0] + self.process.inducing_mean().T
        covariance = root.mT @ root
        if mean.shape[0] == 1:
            return Joint(mean[0], covariance[0])
        return Joint(mean, covariance)

    def moments_at(self, point: Float[Array, " d"]) -> tuple[Array, Array]:
        """Mean (C,) and covariance (C, C) of the latents at a point."""
        white, mean = self._cross(point[None])
        seen = self.inducing.root @ white
        change = jnp.sum(seen**2 - white**2, axis=1)[:, 0]
        return mean[0], jnp.diag(self.process.variance(point[None])[:, 0] + change)

    def moments_over(self, x_new: Float[Array, "m d"]) -> tuple[Array, Array]:
        """Mean (m, C) and covariance (m, C, m, C) of the latents at points."""
        white, mean = self._cross(x_new)
        seen = self.inducing.root @ white
        own = self.process.covariance(x_new) + seen.mT @ seen - white.mT @ white
        return mean, class_diagonal(own)

    def slopes_at(self, point: Float[Array, " d"]) -> tuple[Array, Array]:
        """Mean (C, d) and covariance (C, d, d) of the derivatives at a point."""
        process, num_latents = self.process, self.process.num_latents

        def cross(point):
            return process.inducing_covariance(point[None])[:, :, 0]

        def prior(a, b):
            k = process.covariance(a[None], b[None])[:, 0, 0]
            return jnp.broadcast_to(k, (num_latents,))

        white = self._whiten(jax.jacfwd(cross)(point))
        seen = self.inducing.root @ white
        mean = jax.jacfwd(lambda point: process.mean(point[None])[0])(point)
        mean = mean + jnp.einsum("cid,ci->cd", white, self.inducing.mean)
        own = jax.jacfwd(jax.jacrev(prior, 0), 1)(point, point)
        return mean, own + seen.mT @ seen - white.mT @ white

    def corrected(
        self, drawn: Float[Array, "N C"], key: PRNGKeyArray
    ) -> tuple[Array, None]:
        """Weights for a draw of the prior at the inducing inputs.

        K_ZZ⁻¹(u − m₀(Z) − drawn), u a draw of q(u); those of a latent stand at its own
        inducing inputs.
        """
        q, lower = self.inducing, self._lower
        normals = jax.random.normal(key, q.mean.shape, drawn.dtype)
        v = q.mean + jnp.einsum("cji,cj->ci", q.root, normals)
        shared = self.process.inducing_inputs.ndim == 2
        if not shared:
            blocks = drawn.reshape(*q.mean.shape, -1)
            drawn = jnp.einsum("cmc->mc", blocks)
        change = v[:, :, None] - self._whiten(drawn.T[:, :, None])
        weights = solve_upper(lower, change)[:, :, 0]
        if shared:
            return weights.T, None
        identity = jnp.eye(weights.shape[0], dtype=weights.dtype)
        apart = weights[:, :, None] * identity[:, None, :]
        return apart.reshape(weights.size, -1), None

    @property
    def _lower(self) -> Float[Array, "C M M"]:
        shape = self.inducing.root.shape
        return jnp.broadcast_to(self.lower, shape)

    def _whiten(self, k: Float[Array, "C M m"]) -> Float[Array, "C M m"]:
        """L⁻¹k; a leading 1 of both stays."""
        lower = self.lower
        if lower.shape[0] != k.shape[0]:
            lower = jnp.broadcast_to(lower, (k.shape[0], *lower.shape[1:]))
        return solve_lower(lower, k)

    def _cross(self, x_new: Float[Array, "m d"]) -> tuple[Array, Array]:
        """L⁻¹k(Z, x*) for each latent, and the mean."""
        process = self.process
        white = self._whiten(process.inducing_covariance(x_new))
        change = jnp.sum(white * self.inducing.mean[:, :, None], axis=1)
        white = jnp.broadcast_to(white, (process.num_latents, *white.shape[1:]))
        return white, process.mean(x_new) + change.T
