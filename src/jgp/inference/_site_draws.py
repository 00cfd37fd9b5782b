"""Draws from Gaussian sites and a prior, without the inverse of K."""

import equinox as eqx
from jaxtyping import Array, Float

from jgp._linalg import apply_blocks
from jgp.inference._joint_sites import JointFactor
from jgp.inference._site_factor import SiteFactor
from jgp.inference._sites import AbstractSites


def tempered(
    sites: AbstractSites,
    weights: Float[Array, "n C"],
    mean: Float[Array, "n C"],
    temper: Float[Array, ""],
) -> AbstractSites:
    """Sites with precision sT and the same posterior mean.

    The mean is m₀ + Kb with b = ν − Tm; keeping b keeps it, with ν' = b + sTm.
    """
    scaled = eqx.tree_at(lambda s: s.precision, sites, temper * sites.precision)
    return eqx.tree_at(lambda s: s.linear, scaled, weights + scaled.times(mean))


def whitened_deviation(
    root: Float[Array, "C n n"],
    sites: AbstractSites,
    factor: SiteFactor | JointFactor,
    z: Float[Array, "n C"],
    xi: Float[Array, "n C"],
) -> Float[Array, "n C"]:
    r"""W with K½w a draw of N(0, Σ), for unit normals z and ξ and K = K½K½ᵀ.

    With M = (K + T⁻)⁻ and BᵢBᵢᵀ = Tᵢ, (I − KM)(K½z + KBξ) has covariance
    (I + KT)⁻¹(K + KTK)(I + TK)⁻¹ = Σ, and K½ can be taken out on the left:
    w = (I − K½ᵀMK½)(z + K½ᵀBξ). No inverse of K, which repeated inputs make singular.
    Sites of any sign raise the covariance of w by K½ᵀYᵀYK½; ξ serves there too, as Y
    has rows only where B has none. A joint factor has a root of the covariance of w.
    """
    if isinstance(factor, JointFactor):
        return factor.deviation(z)
    v = z + apply_blocks(root.mT, sites.root_times(xi))
    Kv = apply_blocks(root, v)
    if factor.negative is None:
        return v - apply_blocks(root.mT, factor.times(Kv))
    E_times = factor.times(Kv) + apply_blocks(
        factor.negative.mT, apply_blocks(factor.negative, Kv)
    )
    raised = apply_blocks(factor.negative.mT, xi)
    return v - apply_blocks(root.mT, E_times - raised)
