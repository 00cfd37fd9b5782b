r"""Data seen through inducing variables u = f(Z), whitened (Titsias 2009).

With K_ZZ = LLᵀ, u = m_Z + Lv and v ~ N(0, I) a priori, a latent is

    f(x) = m(x) + a(x)ᵀv + a residual of variance k(x, x) − a(x)ᵀa(x),
    a(x) = L⁻¹k(Z, x),

the residuals of different points being taken as independent of the data. Gaussian sites
of the data, of precision λ and linear term ν, make q(v) = N(μ, S) with

    S⁻¹ = Λ = I + A diag(λ) Aᵀ,   Λμ = A(ν − λm),

A the columns a(xᵢ), and f(x) of mean m + aᵀμ and variance k − aᵀa + aᵀSa. The
divergence KL(q(u) ‖ p(u)) = ½(tr S + μᵀμ − M − log|S|) does not depend on the kernel.

K_ZZ has a relative jitter of 4M rounding units on its diagonal, of the size of the
errors of its factorisation. It is the covariance of inducing variables seen in that
much noise, so that the bound stays a bound, and variances stay positive where Z
repeats.
"""

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jgp._linalg import cholesky, inverse_root, solve_lower
from jgp._sparse_process import SparseProcess
from jgp.inference._sites import AbstractDiagonalSites

# Rounding units, times M, that are added to the diagonal of K_ZZ.
UNITS = 4


class InducingRoot(eqx.Module):
    """L, with what its factorisation took.

    Args:
        lower: L of K_ZZ, a leading 1 where one serves all latents.
        jitter: The largest number added to a diagonal.
        ok: Whether it was found.
    """

    lower: Float[Array, "C M M"]
    jitter: Float[Array, ""]
    ok: Bool[Array, ""]


class Projection(eqx.Module):
    """Points as the inducing variables see them.

    Args:
        rows: A.
        mean: m, the prior mean at the points.
        residual: k − aᵀa, not negative.
    """

    rows: Float[Array, "C M n"]
    mean: Float[Array, "n C"]
    residual: Float[Array, "C n"]


class InducingGaussian(eqx.Module):
    """q(v) of the whitened inducing variables of each latent.

    Args:
        mean: μ.
        root: U with S = UᵀU.
        log_determinant: Σ log|Λ| over latents.
    """

    mean: Float[Array, "C M"]
    root: Float[Array, "C M M"]
    log_determinant: Float[Array, ""]

    def moments(
        self, points: Projection
    ) -> tuple[Float[Array, "n C"], Float[Array, "n C"]]:
        """Mean and variance of each latent at points."""
        A = points.rows
        mean = points.mean + jnp.sum(A * self.mean[:, :, None], axis=1).T
        return mean, (points.residual + jnp.sum((self.root @ A) ** 2, axis=1)).T

    def kl(self) -> Float[Array, ""]:
        """KL(q ‖ p), summed over latents."""
        trace = jnp.sum(self.root**2) + jnp.sum(self.mean**2)
        return (trace - self.mean.size + self.log_determinant) / 2


def inducing_root(process: SparseProcess) -> InducingRoot:
    """Factorise K_ZZ."""
    K = process.inducing_covariance()
    M = K.shape[-1]
    scale = jnp.mean(jnp.diagonal(K, axis1=1, axis2=2), axis=1)
    added = lax.stop_gradient(UNITS * M * jnp.finfo(K.dtype).eps * scale)
    identity = jnp.eye(M, dtype=K.dtype)[None]
    lower, jitter, ok = cholesky(K + added[:, None, None] * identity)
    return InducingRoot(lower, jnp.max(added + jitter), jnp.all(ok))


def project(
    process: SparseProcess, root: InducingRoot, x: Float[Array, "n d"]
) -> Projection:
    """What the inducing variables say of points."""
    A = solve_lower(root.lower, process.inducing_covariance(x))
    residual = jnp.maximum(process.variance(x) - jnp.sum(A**2, axis=1), 0)
    return Projection(A, process.mean(x), residual)


def accumulated(
    points: Projection, sites: AbstractDiagonalSites
) -> tuple[Float[Array, "C M"], Float[Array, "C M M"]]:
    """A(ν − λm) and A diag(λ) Aᵀ: what the sites of points say of v."""
    A, linear = points.rows, (sites.linear - sites.times(points.mean)).T
    weighted = A * sites.precision.T[:, None, :]
    return jnp.sum(A * linear[:, None, :], axis=2), weighted @ A.mT


def inducing_gaussian(
    linear: Float[Array, "C M"], precision: Float[Array, "C M M"]
) -> InducingGaussian:
    """Q(v) of natural parameters Λμ and Λ; NaN where Λ is not positive definite."""
    root, log_determinant = inverse_root(precision)
    mean = root.mT @ (root @ linear[:, :, None])
    return InducingGaussian(mean[:, :, 0], root, jnp.sum(log_determinant))


def conditioned(points: Projection, sites: AbstractDiagonalSites) -> InducingGaussian:
    """Q(v) under the sites of points."""
    linear, precision = accumulated(points, sites)
    identity = jnp.eye(precision.shape[-1], dtype=precision.dtype)[None]
    return inducing_gaussian(linear, identity + precision)
