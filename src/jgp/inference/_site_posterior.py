r"""The one posterior algebra: a Gaussian prior times Gaussian sites.

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

Diagonal sites of any sign are positive ones, of D, and then −N on the posterior
Σ₊ = KF, F = I − EK = ED⁻¹, of those. With Q = I − N½Σ₊N½, positive definite exactly
where the posterior is proper, and Y = Q⁻½N½Fᵀ,

    (K + T⁻)⁻ = E − YᵀY,   Σ = Σ₊ + Σ₊N½Q⁻¹N½Σ₊,   log|I + KT| = log|A| + log|Q|.

Full blocks take the joint algebra of `_joint_sites`.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from jgp._linalg import (
    apply_blocks,
    diagonal_matrices,
    inverse_and_root,
    inverse_root,
    lower_times,
)
from jgp.inference._joint_sites import (
    JointFactor,
    joint_mean,
    joint_moments,
    prior_root,
)
from jgp.inference._site_factor import SiteFactor
from jgp.inference._sites import (
    AbstractSites,
    DenseSites,
    DiagonalSites,
    RankOneSites,
    SignedSites,
)

# A smaller a is a site that says nothing; the square root of the floor is far from
# underflow in float32. Entries of E K are bounded whatever the ratios of a.
FLOOR = 1e-30


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

    In O(Cn³), for full blocks in O((nC)³). Marginal covariances need only diagonals:
    with K_c − K_cE_cK_c = K_cD½A⁻¹D⁻½ and G_c = U E_c K_c = U − U E_c D⁻¹, (Σᵢ)_cd is
    δ_cd [K_cD½A⁻¹D⁻½]ᵢᵢ + [G_cᵀG_d]ᵢᵢ.

    Args:
        K: Prior covariances; a leading 1 broadcasts over the classes.
        prior_mean: m₀.
        sites: The sites.
        root: L of K = LLᵀ, for full blocks; found if None.
    """
    if isinstance(sites, DenseSites):
        root = prior_root(K) if root is None else root
        return _joint_posterior(K, prior_mean, sites, root)
    if isinstance(sites, SignedSites):
        return signed_posterior(K, prior_mean, sites)[0]
    num_data = sites.precision.shape[0]
    coupled = isinstance(sites, RankOneSites)
    identity = jnp.eye(num_data, dtype=K.dtype)[None]
    a = jnp.maximum(sites.precision, FLOOR)
    root = jnp.sqrt(a).T
    A = identity + root[:, :, None] * K * root[:, None, :]
    A_inverse, A_root, log_A = inverse_and_root(A)
    E = root[:, :, None] * A_inverse * root[:, None, :]

    U, log_determinant = None, jnp.sum(log_A)
    if coupled:
        U, log_P = inverse_root(jnp.sum(E, axis=0))
        log_s = jnp.log(jnp.sum(a, axis=1))
        log_determinant = log_determinant + log_P - jnp.sum(log_s)
    factor = SiteFactor(E, A_root * root[:, None, :], coupling=U)

    linear = sites.linear - sites.times(prior_mean)
    strong = _strong(K, a)
    weights = _weights(K, linear, strong, a, factor)
    if coupled:
        deviation = apply_blocks(K, weights)
    else:
        deviation = _deviation(K, a, linear, weights)
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


def _strong(K: Float[Array, "C n n"], a: Float[Array, "n C"]) -> Bool[Array, "n C"]:
    """Where a site is more precise than the prior."""
    return a * jnp.diagonal(K, axis1=1, axis2=2).T > 1


def _deviation(
    K: Float[Array, "C n n"],
    a: Float[Array, "n C"],
    linear: Float[Array, "n C"],
    weights: Float[Array, "n C"],
) -> Float[Array, "n C"]:
    """The mean Kb about m₀ of diagonal sites, by (ν' − b)/a where they are strong."""
    by_prior = apply_blocks(K, weights)
    return jnp.where(_strong(K, a), (linear - weights) / a, by_prior)


def signed_posterior(
    K: Float[Array, "C n n"],
    prior_mean: Float[Array, "n C"],
    sites: SignedSites | DiagonalSites,
) -> tuple[SitePosterior, Float[Array, "C n n"]]:
    """The posterior under diagonal sites of any sign, and all of its covariance Σ.

    NaN where it is not proper.
    """
    a = jnp.maximum(sites.precision, FLOOR)
    linear = sites.linear - sites.times(prior_mean)
    positive = site_posterior(K, jnp.zeros_like(prior_mean), DiagonalSites(a, linear))
    assert isinstance(positive.factor, SiteFactor)
    E = positive.factor.blocks
    F = E / a.T[:, None, :]
    first = K @ F
    half = jnp.sqrt(jnp.maximum(-sites.precision, FLOOR)).T
    identity = jnp.eye(first.shape[1], dtype=K.dtype)[None]
    first = (first + first.mT) / 2
    Q = identity - half[:, :, None] * first * half[:, None, :]
    Q_root, log_Q = inverse_root(Q)
    Q_root = Q_root * half[:, None, :]
    Y = Q_root @ F.mT
    G = Q_root @ first
    S = first + G.mT @ G
    factor = SiteFactor(E - Y.mT @ Y, positive.factor.root, negative=Y)
    raised = apply_blocks(Q_root, positive.mean)
    weights = positive.weights + apply_blocks(Y.mT, raised)
    deviation = _deviation(K, a, linear, weights)
    variance = jnp.diagonal(positive.covariance, axis1=1, axis2=2)
    variance = variance + jnp.sum(G**2, axis=1).T
    posterior = SitePosterior(
        factor,
        weights,
        prior_mean + deviation,
        diagonal_matrices(variance),
        positive.log_determinant + jnp.sum(log_Q),
    )
    return posterior, S


def cavity_ratio(
    posterior: SitePosterior, sites: DiagonalSites | SignedSites, power: Any = 1
) -> Float[Array, "n C"]:
    """v₋⁻¹S = 1 − ητS of every latent, v₋ its variance without a share η of its site.

    1 − τS is Mᵢᵢ/τ for M = (K + T⁻)⁻, in which nothing cancels where τS is close to 1.
    """
    tau = sites.precision
    S = jnp.diagonal(posterior.covariance, axis1=1, axis2=2)
    assert isinstance(posterior.factor, SiteFactor)
    M = jnp.diagonal(posterior.factor.diagonal_blocks(), axis1=1, axis2=2).T
    precise = tau * S > 0.5
    whole = M / jnp.where(precise, tau, 1)
    return jnp.where(precise, 1 - power + power * whole, 1 - power * tau * S)


def _weights(
    K: Float[Array, "C n n"],
    linear: Float[Array, "n C"],
    strong: Bool[Array, "n C"],
    a: Float[Array, "n C"],
    factor: SiteFactor,
) -> Float[Array, "n C"]:
    """B = (I − MK)ν without cancellation, M the factor.

    For diagonal sites b = ED⁻¹ν where a site is strong beside the prior and ν − EKν
    where it is weak, and 1/a would raise rounding; it is linear in ν. For rank-one
    sites, with w that of the diagonal ones and Σ_c ν_c = 0, MKν = ν − b gives
    b = w − E R P⁻¹ Σ_c w_c.
    """
    weak = jnp.where(strong, 0, linear)
    scaled = jnp.where(strong, linear / a, 0) - apply_blocks(K, weak)
    w = weak + factor.own_times(scaled)
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


def centred_normaliser(
    prior_mean: Float[Array, "n C"], posterior: SitePosterior
) -> Float[Array, ""]:
    """Log ∫ p(f) ∏ᵢ tᵢ(fᵢ)/tᵢ(mᵢ) df, t the sites: −½bᵀ(m − m₀) − ½log|I + KT|.

    Its terms are of the size of log p(y | f), however precise or far from 0 sites are.
    """
    quadratic = jnp.sum(posterior.weights * (posterior.mean - prior_mean))
    return -(quadratic + posterior.log_determinant) / 2


def log_centred_sites(
    f: Float[Array, "n C"], sites: AbstractSites, posterior: SitePosterior
) -> Float[Array, ""]:
    """Σᵢ log tᵢ(fᵢ)/tᵢ(mᵢ): bᵀδ − ½δᵀTδ with δ = f − m."""
    change = f - posterior.mean
    return jnp.sum(change * (posterior.weights - sites.times(change) / 2))


def site_normaliser(
    prior_mean: Float[Array, "n C"], sites: AbstractSites, posterior: SitePosterior
) -> Float[Array, ""]:
    """Log ∫ p(f) ∏ᵢ exp(νᵢᵀfᵢ − ½fᵢᵀTᵢfᵢ) df."""
    m = posterior.mean
    at_mean = jnp.sum(m * (sites.linear - sites.times(m) / 2))
    return centred_normaliser(prior_mean, posterior) + at_mean
