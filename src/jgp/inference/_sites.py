r"""Gaussian sites and the one posterior algebra.

Every Gaussian approximation is prior × sites, q(f) ∝ p(f) ∏ᵢ exp(νᵢᵀfᵢ − ½fᵢᵀTᵢfᵢ).
Two structures of Tᵢ (C, C) keep C independent latents at O(Cn³) time and O(Cn²)
memory:

    diagonal     Tᵢ = diag(aᵢ)
    rank-one     Tᵢ = diag(aᵢ) − aᵢaᵢᵀ/sᵢ,  sᵢ = 1ᵀaᵢ

With D_c = diag(a_·c), A_c = I + D_c½ K_c D_c½, E_c = D_c½ A_c⁻¹ D_c½ and, for rank-one
sites, P = Σ_c E_c (Rasmussen & Williams 2006, Alg. 3.3; Riihimäki et al. 2013, §3.1):

    (K + T⁻)⁻ = blockdiag(E) − E R P⁻¹ Rᵀ E        R stacks C identity matrices
    log|I + KT| = Σ_c log|A_c| + log|P| − Σᵢ log sᵢ

and without the terms in P for diagonal ones. T is singular; it is never inverted.
Sites of any sign and full blocks take the joint algebra of `_joint_sites`.
"""

import abc

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jgp._linalg import (
    apply_blocks,
    diagonal_matrices,
    inverse,
    inverse_root,
    lower_times,
)
from jgp.inference._joint_sites import (
    JointFactor,
    block_root,
    joint_mean,
    joint_moments,
    prior_root,
)
from jgp.inference._site_factor import SiteFactor

# A smaller a is a site that says nothing; the square root of the floor is far from
# underflow in float32. Entries of E K are bounded whatever the ratios of a.
FLOOR = 1e-30


class AbstractSites(eqx.Module):
    """Natural parameters of Gaussian sites, one a data point."""

    precision: eqx.AbstractVar[Float[Array, "n C *C"]]
    linear: eqx.AbstractVar[Float[Array, "n C"]]

    @abc.abstractmethod
    def blocks(self) -> Float[Array, "n C C"]:
        """Tᵢ at every point."""

    @abc.abstractmethod
    def times(self, f: Float[Array, "*batch n C"]) -> Float[Array, "*batch n C"]:
        """Tᵢfᵢ at every point."""

    @abc.abstractmethod
    def root_times(self, f: Float[Array, "*batch n C"]) -> Float[Array, "*batch n C"]:
        """Bᵢfᵢ at every point, with BᵢBᵢᵀ = Tᵢ."""


class AbstractDiagonalSites(AbstractSites):
    """Sites Tᵢ = diag(aᵢ), νᵢ."""

    def blocks(self) -> Float[Array, "n C C"]:
        """diag(aᵢ) at every point."""
        return diagonal_matrices(self.precision)

    def times(self, f: Float[Array, "*batch n C"]) -> Float[Array, "*batch n C"]:
        """Tᵢfᵢ at every point."""
        return self.precision * f

    def root_times(self, f: Float[Array, "*batch n C"]) -> Float[Array, "*batch n C"]:
        """Bᵢfᵢ with Bᵢ = diag(√aᵢ); NaN where a precision is negative."""
        return jnp.sqrt(self.precision) * f


class DiagonalSites(AbstractDiagonalSites):
    """Sites Tᵢ = diag(aᵢ), νᵢ.

    Args:
        precision: a, non-negative.
        linear: ν.
    """

    precision: Float[Array, "n C"]
    linear: Float[Array, "n C"]


class SignedSites(AbstractDiagonalSites):
    """Sites Tᵢ = diag(aᵢ), νᵢ whose precisions may be negative.

    Args:
        precision: a.
        linear: ν.
    """

    precision: Float[Array, "n C"]
    linear: Float[Array, "n C"]


class RankOneSites(AbstractSites):
    """Sites Tᵢ = diag(aᵢ) − aᵢaᵢᵀ/1ᵀaᵢ, νᵢ; both annihilate a shift of all latents.

    Args:
        precision: a, non-negative with a positive sum at each point.
        linear: ν, summing to zero at each point.
    """

    precision: Float[Array, "n C"]
    linear: Float[Array, "n C"]

    def blocks(self) -> Float[Array, "n C C"]:
        """diag(aᵢ) − aᵢaᵢᵀ/1ᵀaᵢ at every point."""
        a = self.precision
        share = a / jnp.sum(a, axis=-1, keepdims=True)
        return diagonal_matrices(a) - a[:, :, None] * share[:, None, :]

    def times(self, f: Float[Array, "*batch n C"]) -> Float[Array, "*batch n C"]:
        """Tᵢfᵢ at every point."""
        share = self.precision / jnp.sum(self.precision, axis=-1, keepdims=True)
        return self.precision * (f - jnp.sum(share * f, axis=-1, keepdims=True))

    def root_times(self, f: Float[Array, "*batch n C"]) -> Float[Array, "*batch n C"]:
        """Bᵢfᵢ with Bᵢ = diag(√aᵢ)(I − vvᵀ), v = √(aᵢ/sᵢ)."""
        share = self.precision / jnp.sum(self.precision, axis=-1, keepdims=True)
        v = jnp.sqrt(share)
        return jnp.sqrt(self.precision) * (
            f - v * jnp.sum(v * f, axis=-1, keepdims=True)
        )


class DenseSites(AbstractSites):
    """Sites of any symmetric Tᵢ, νᵢ.

    Args:
        precision: T.
        linear: ν.
    """

    precision: Float[Array, "n C C"]
    linear: Float[Array, "n C"]

    def blocks(self) -> Float[Array, "n C C"]:
        """Tᵢ at every point."""
        return self.precision

    def times(self, f: Float[Array, "*batch n C"]) -> Float[Array, "*batch n C"]:
        """Tᵢfᵢ at every point."""
        return jnp.einsum("ncd,...nd->...nc", self.precision, f)

    def root_times(self, f: Float[Array, "*batch n C"]) -> Float[Array, "*batch n C"]:
        """Bᵢfᵢ, Bᵢ the symmetric root; of the positive part, if Tᵢ has another."""
        return jnp.einsum("ncd,...nd->...nc", block_root(self.precision), f)


class SitePosterior(eqx.Module):
    """The Gaussian q(f) at the data, and what predictions need of it.

    Args:
        factor: (K + T⁻)⁻.
        weights: b = ν − Tm, so that m − m₀ = K b and predictions are k*ᵀ b.
        mean: m.
        covariance: The marginal covariance Σᵢ of each point.
        log_determinant: log|I + KT|.
    """

    factor: "SiteFactor | JointFactor"
    weights: Float[Array, "n C"]
    mean: Float[Array, "n C"]
    covariance: Float[Array, "n C C"]
    log_determinant: Float[Array, ""]


def site_posterior(
    K: Float[Array, "C n n"],
    prior_mean: Float[Array, "n C"],
    sites: AbstractSites,
    root: Float[Array, "C n n"] | None = None,
) -> SitePosterior:
    """Condition N(m₀, blockdiag(K)) on sites.

    In O(Cn³) for diagonal and rank-one sites, in O((nC)³) for others. Marginal
    covariances need only diagonals: with K_c − K_cE_cK_c = K_cD½A⁻¹D⁻½ and
    G_c = U E_c K_c = U − U E_c D⁻¹, (Σᵢ)_cd is δ_cd [K_cD½A⁻¹D⁻½]ᵢᵢ + [G_cᵀG_d]ᵢᵢ.

    Args:
        K: Prior covariances; a leading 1 broadcasts over the classes.
        prior_mean: m₀.
        sites: The sites.
        root: L of K = LLᵀ, for sites of any sign or full blocks; found if None.
    """
    if isinstance(sites, SignedSites | DenseSites):
        root = prior_root(K) if root is None else root
        return _joint_posterior(K, prior_mean, sites, root)
    num_data = sites.precision.shape[0]
    coupled = isinstance(sites, RankOneSites)
    identity = jnp.eye(num_data, dtype=K.dtype)[None]
    a = jnp.maximum(sites.precision, FLOOR)
    root = jnp.sqrt(a).T
    A_inverse, log_A = inverse(identity + root[:, :, None] * K * root[:, None, :])
    E = root[:, :, None] * A_inverse * root[:, None, :]

    U, log_determinant = None, jnp.sum(log_A)
    if coupled:
        U, log_P = inverse_root(jnp.sum(E, axis=0))
        log_s = jnp.log(jnp.sum(a, axis=1))
        log_determinant = log_determinant + log_P - jnp.sum(log_s)
    factor = SiteFactor(E, U)

    linear = sites.linear - sites.times(prior_mean)
    strong = a * jnp.diagonal(K, axis1=1, axis2=2).T > 1
    weights = _weights(K, linear, strong, root.T, A_inverse, factor)
    deviation = apply_blocks(K, weights)
    if not coupled:
        deviation = jnp.where(strong, (linear - weights) / a, deviation)
    mean = prior_mean + deviation

    variance = jnp.sum(K * (root[:, :, None] * A_inverse), axis=1) / root
    covariance = diagonal_matrices(variance.T)
    if U is not None:
        G = U[None] - lower_times(U, E) / (root**2)[:, None, :]
        # A pass over G a pair of classes: a batched product moves its operands first.
        G = lax.optimization_barrier(G)
        common = jnp.sum(G[:, None] * G[None], axis=2)
        covariance = covariance + jnp.transpose(common, (2, 0, 1))
    return SitePosterior(factor, weights, mean, covariance, log_determinant)


def _weights(
    K: Float[Array, "C n n"],
    linear: Float[Array, "n C"],
    strong: Bool[Array, "n C"],
    root: Float[Array, "n C"],
    A_inverse: Float[Array, "C n n"],
    factor: SiteFactor,
) -> Float[Array, "n C"]:
    """B = (I − MK)ν without cancellation, M the factor.

    For diagonal sites b = D½A⁻¹D⁻½ν where a site is strong beside the prior and
    ν − EKν where it is weak, and 1/√a would raise rounding; it is linear in ν. For
    rank-one sites, with w that of the diagonal ones and Σ_c ν_c = 0, MKν = ν − b gives
    b = w − E R P⁻¹ Σ_c w_c.
    """
    scaled = jnp.where(strong, linear / root, 0)
    weak = jnp.where(strong, 0, linear)
    w = root * apply_blocks(A_inverse, scaled)
    w = w + weak - apply_blocks(factor.blocks, apply_blocks(K, weak))
    if factor.coupling is None:
        return w
    common = factor.coupling.T @ (factor.coupling @ jnp.sum(w, axis=1))
    return w - jnp.einsum("cij,j->ic", factor.blocks, common)


def _joint_posterior(
    K: Array, prior_mean: Array, sites: AbstractSites, root: Array
) -> SitePosterior:
    factor, S, log_determinant = joint_moments(K, root, sites.blocks())
    linear = sites.linear - sites.times(prior_mean)
    deviation, weights = joint_mean(S, sites.blocks(), linear)
    covariance = jnp.einsum("cidi->icd", S)
    mean = prior_mean + deviation
    return SitePosterior(factor, weights, mean, covariance, log_determinant)


def site_normaliser(
    prior_mean: Float[Array, "n C"], sites: AbstractSites, posterior: SitePosterior
) -> Float[Array, ""]:
    """Log ∫ p(f) ∏ᵢ exp(νᵢᵀfᵢ − ½fᵢᵀTᵢfᵢ) df.

    With ν' = ν − Tm₀: ½ν'ᵀ(m − m₀) + νᵀm₀ − ½m₀ᵀTm₀ − ½log|I + KT|.
    """
    T_prior_mean = sites.times(prior_mean)
    centred = sites.linear - T_prior_mean
    quadratic = jnp.sum(centred * (posterior.mean - prior_mean)) / 2
    offset = jnp.sum(sites.linear * prior_mean) - jnp.sum(prior_mean * T_prior_mean) / 2
    return quadratic + offset - posterior.log_determinant / 2
