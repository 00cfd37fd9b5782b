r"""The evidence lower bound E_q[log p(y | f)] − KL(q ‖ p) of a prior times sites.

With q = p ∏ᵢ tᵢ / Z, tᵢ of natural parameters Tᵢ and νᵢ, b = ν − Tm and marginal
covariances Sᵢ, nothing of K is inverted:

    KL(q ‖ p) = E_q[Σ log tᵢ] − log Z = ½bᵀ(m − m₀) + ½log|I + KT| − ½Σᵢ tr(TᵢSᵢ).
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp.inference._approximation import Approximation
from jgp.inference._site_posterior import (
    SitePosterior,
    centred_normaliser,
    site_posterior,
)
from jgp.inference._sites import AbstractDiagonalSites, AbstractSites
from jgp.likelihoods import expected_log_prob


def elbo(approximation: Approximation) -> Float[Array, ""]:
    """The evidence lower bound at the Gaussian q(f) of any method.

    Its maximum over q is the `log_evidence` of `variational`; that of `exact` is its
    own; at the q(f) of `laplace`, `expectation_propagation` or `nested_ep` it is a
    bound beside their estimate. Differentiable in the model.

    Args:
        approximation: One with sites, or exact, or by a variational method.

    Raises:
        ValueError: for an approximation that is no prior times Gaussian sites.
    """
    if not isinstance(approximation, Approximation):
        got = type(approximation).__name__
        raise ValueError(f"approximation: got {got}, wanted an Approximation.")
    if approximation.evidence_kind in ("exact", "bound"):
        assert approximation.log_evidence is not None
        return approximation.log_evidence
    if approximation.sites is None:
        raise ValueError(
            f"approximation: got one by {approximation.method}, which has no Gaussian "
            "sites, wanted one that has."
        )
    return _elbo(approximation)


@eqx.filter_jit
def _elbo(approximation: Approximation) -> Float[Array, ""]:
    model, x, sites = approximation.model, approximation.x, approximation.sites
    assert sites is not None
    K, prior_mean = model.process.covariance(x), model.process.mean(x)
    posterior = site_posterior(K, prior_mean, sites)
    likelihood = model.likelihood.at_data(x)
    moments = marginal_moments(posterior, sites)
    expected = jnp.sum(expected_log_prob(likelihood, *moments, approximation.y))
    return expected - kl_to_prior(prior_mean, sites, posterior)


def marginal_moments(
    posterior: SitePosterior, sites: AbstractSites
) -> tuple[Float[Array, "n C"], Float[Array, "n C *C"]]:
    """The mean of the latents at each point, and their variances or covariances."""
    covariance = posterior.covariance
    if isinstance(sites, AbstractDiagonalSites):
        covariance = jnp.diagonal(covariance, axis1=1, axis2=2)
    return posterior.mean, covariance


def kl_to_prior(
    prior_mean: Float[Array, "n C"], sites: AbstractSites, posterior: SitePosterior
) -> Float[Array, ""]:
    """KL(q ‖ p) of the latents at all points."""
    trace = jnp.sum(sites.blocks() * posterior.covariance)
    return -centred_normaliser(prior_mean, posterior) - trace / 2
