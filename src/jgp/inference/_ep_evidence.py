r"""The explicit derivative that every EP evidence has at convergence.

log Z is stationary in the sites, so with b = ν − Tm and M = (K + T⁻)⁻ its derivative is

    d log Z = ½ tr((bbᵀ − M) dK) + bᵀdm₀ + (1/η) Σᵢ ∂_φ log Ẑᵢ dφ

with the cavities held (Rasmussen & Williams 2006, §5.5.2; Seeger 2005). b, M and the
cavities carry their implicit derivative, so that the rule can be differentiated again;
a first derivative does not look at it.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jgp.inference._site_posterior import SitePosterior


@eqx.filter_custom_jvp
def stationary_evidence(
    value: Float[Array, ""],
    K: Float[Array, "C n n"],
    prior_mean: Float[Array, "n C"],
    parameters: PyTree,
    posterior: SitePosterior,
    cavities: PyTree,
    *,
    local: Callable[[PyTree, PyTree], Array] | None,
) -> Float[Array, ""]:
    """`value`, differentiated as log Z of converged sites.

    Args:
        value: Log Z.
        K: Prior covariances.
        prior_mean: m₀.
        parameters: φ, what the likelihood terms depend on.
        posterior: The posterior under the sites.
        cavities: What else `local` needs.
        local: (1/η) Σ log Ẑᵢ as a function of φ and the cavities; None without φ.
    """
    del K, prior_mean, parameters, posterior, cavities, local
    return value


@stationary_evidence.def_jvp
def _stationary_evidence_jvp(primals, tangents, *, local):
    _, _, _, parameters, posterior, cavities = primals
    _, dK, dprior_mean, dparameters, _, _ = tangents
    tangent = jnp.zeros((), posterior.mean.dtype)
    if dK is not None:
        b = posterior.weights.T
        gradient = b[:, :, None] * b[:, None, :] - posterior.factor.diagonal_blocks()
        tangent = tangent + jnp.sum(gradient * dK) / 2
    if dprior_mean is not None:
        tangent = tangent + jnp.sum(posterior.weights * dprior_mean)
    moves = jax.tree.map(
        lambda d: d is not None, dparameters, is_leaf=lambda d: d is None
    )
    if local is not None and any(jax.tree.leaves(moves)):
        moving, still = eqx.partition(parameters, moves)
        change = eqx.filter(dparameters, moves)

        def term(moving):
            return local(eqx.combine(moving, still), cavities)

        tangent = tangent + jax.jvp(term, (moving,), (change,))[1]
    return stationary_evidence(*primals, local=local), tangent
