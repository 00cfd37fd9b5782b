r"""The sites that a Gaussian q asks for: a natural-gradient step of length 1.

    Tᵢ = −2 ∂E_q[log p(yᵢ | fᵢ)]/∂Sᵢ = −E_q[∇²log p],   νᵢ = E_q[∇log p] + Tᵢmᵢ

(Opper & Archambeau 2009; Khan & Lin 2017).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp.inference._sites import AbstractSites, DenseSites, DiagonalSites, SignedSites
from jgp.likelihoods import (
    AbstractGaussian,
    AbstractLikelihood,
    AbstractOneLatent,
    Weighted,
    expected_log_prob,
    tilted_moments,
)

# A prior variance of latents above which inference starts elsewhere.
BROAD = 4.0

Moments = tuple[Float[Array, "n C"], Float[Array, "n C *C"]]


def matching_sites(
    kind: type[AbstractSites],
    likelihood: AbstractLikelihood,
    y: Array,
    moments: Moments,
) -> tuple[AbstractSites, Float[Array, ""]]:
    """The sites that moments of q ask for, and the expected log likelihood."""
    terms = likelihood, y
    expected, (slope, by_covariance) = jax.value_and_grad(
        expected_log_likelihood, argnums=1
    )(terms, moments)
    precision = -2 * by_covariance
    if kind is DiagonalSites:
        # The rule may miss zero by its error where the likelihood says nothing.
        precision = jnp.maximum(precision, 0)
    if kind is DenseSites:
        precision = (precision + precision.mT) / 2
    centred = kind(precision, slope)
    return kind(precision, slope + centred.times(moments[0])), expected


def expected_log_likelihood(terms: tuple, moments: Moments) -> Float[Array, ""]:
    """Σ E_q[log p] as a function of the likelihood and the observations."""
    likelihood, y = terms
    return jnp.sum(expected_log_prob(likelihood, *moments, y))


def first_sites(
    likelihood: AbstractLikelihood,
    y: Array,
    prior_mean: Float[Array, "n C"],
    prior_variance: Float[Array, "n C"],
) -> DiagonalSites | SignedSites:
    """Diagonal sites to start from, near and with a proper posterior.

    Those of a point's own posterior for likelihoods of one latent: under a broad prior
    E[log p] may be so low (counts of rate exp f) that the way from there is long. For
    several latents the prior, or one less broad.
    """
    kind = DiagonalSites if likelihood.log_concave else SignedSites
    inner = likelihood
    while isinstance(inner, Weighted):
        inner = inner.likelihood
    if prior_mean.shape[1] == 1 and isinstance(
        inner, AbstractOneLatent | AbstractGaussian
    ):
        m, v = prior_mean[:, 0], prior_variance[:, 0]
        tilted = tilted_moments(likelihood, m, v, y)
        own = m + v * tilted.slope, v * tilted.remainder
        moments = own[0][:, None], own[1][:, None]
        near, _ = matching_sites(kind, likelihood, y, moments)
        usable = jnp.isfinite(near.linear) & (near.precision > 0)
        return jax.tree.map(lambda a: jnp.where(usable, a, 0), near)
    broad = jnp.any(prior_variance > BROAD)
    moments = prior_mean, jnp.minimum(prior_variance, BROAD)
    near, _ = matching_sites(kind, likelihood, y, moments)
    return jax.tree.map(lambda a: jnp.where(broad & (near.precision > 0), a, 0), near)
