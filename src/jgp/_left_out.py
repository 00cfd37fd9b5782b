r"""Leave-one-out where the posterior is a prior times Gaussian sites.

Without the whole site exp(νᵢᵀfᵢ − ½fᵢᵀTᵢfᵢ) of a point its latents, of marginal
N(mᵢ, Σᵢ), are N(μ₋, Σ₋) with

    Σ₋ = (Σᵢ⁻¹ − Tᵢ)⁻¹,   μ₋ = Σ₋(Σᵢ⁻¹mᵢ − νᵢ) = mᵢ − Σ₋bᵢ,   bᵢ = νᵢ − Tᵢmᵢ,

and p(yᵢ | y₋ᵢ) ≈ ∫ p(yᵢ | f) N(f; μ₋, Σ₋) df, the sites of the others held where they
are (Vehtari, Mononen, Tolvanen, Sivula & Winther 2016, JMLR 17, §3). With EP of power 1
this is its cavity and log Ẑᵢ; power EP's cavity keeps a part of the site.
"""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from jgp._linalg import cholesky, diagonal_matrices, inverse
from jgp._parameters import is_concrete
from jgp._results import InferenceWarning
from jgp.inference import Approximation
from jgp.inference._site_posterior import SitePosterior, cavity_ratio, site_posterior
from jgp.inference._sites import (
    AbstractSites,
    DenseSites,
    DiagonalSites,
    RankOneSites,
    SignedSites,
)
from jgp.likelihoods import (
    Categorical,
    MultinomialProbit,
    NoisePredictive,
    Normal,
    Predictive,
)

# Classes up to which orthant probabilities have a closed form.
CLOSED_FORM = 3


class LeftOut(eqx.Module):
    """Each observation as all the others predict it, approximately.

    Args:
        predicted: The predictive distribution at each point without its own site.
        y: What was observed.
        log_prob: The log probability (density) of each observation.
        proper: Where the posterior without the site of a point has a positive definite
            covariance; elsewhere `predicted` and `log_prob` are NaN. Only sites of
            negative precision can make it fail.
    """

    predicted: Categorical | Normal | NoisePredictive | Predictive
    y: Array
    log_prob: Float[Array, " n"]
    proper: Bool[Array, " n"]

    @property
    def score(self) -> Float[Array, ""]:
        """Σᵢ log p(yᵢ | y₋ᵢ), the pseudo-likelihood; NaN where one is."""
        return jnp.sum(self.log_prob)


def left_out(
    approximation: Approximation,
    *,
    method: str | None = None,
    key: PRNGKeyArray | None = None,
) -> LeftOut:
    """Leave out the site of each point of an approximation that has sites.

    Args:
        approximation: One with sites.
        method: An integration rule of the likelihood; by default its own, but for
            `MultinomialProbit` of at most 3 classes "orthant", which is exact.
        key: As for `Approximation.predict`.

    Warns:
        InferenceWarning: for points without which the posterior is improper.
    """
    likelihood = approximation.model.likelihood
    if method is None and isinstance(likelihood, MultinomialProbit):
        few = approximation.model.process.num_latents <= CLOSED_FORM
        method = "orthant" if few else None
    found = _left_out(approximation, method, key)
    if is_concrete(found.proper) and not np.all(found.proper):
        which = np.flatnonzero(~np.asarray(found.proper).ravel())
        warnings.warn(
            f"leave_one_out: the posterior is improper without the site of "
            f"{which.size} of {np.size(found.proper)} points (the first is "
            f"{which[0]}), whose log_prob is NaN; the others can be used. Refit "
            "without these points, or with expectation_propagation of power 1.",
            InferenceWarning,
            stacklevel=3,
        )
    return found


@eqx.filter_jit
def _left_out(
    approximation: Approximation, method: str | None, key: PRNGKeyArray | None
) -> LeftOut:
    model, x, y = approximation.model, approximation.x, approximation.y
    sites = approximation.sites
    assert sites is not None
    K, prior_mean = model.process.covariance(x), model.process.mean(x)
    posterior = site_posterior(K, prior_mean, sites)
    covariance, proper = without_site(posterior, sites)
    shift = jnp.einsum("ncd,nd->nc", covariance, posterior.weights)
    likelihood = model.likelihood.at_data(x)
    predicted = likelihood.predict(
        posterior.mean - shift, covariance, method=method, key=key
    )
    log_prob = jnp.where(proper, predicted.log_prob(y), jnp.nan)
    return LeftOut(_where(proper, predicted), y, log_prob, proper)


def without_site(
    posterior: SitePosterior, sites: AbstractSites
) -> tuple[Float[Array, "n C C"], Bool[Array, " n"]]:
    """Σ₋ of every point and whether it is positive definite; I where it is not.

    What stands in is finite, so that no derivative of the others becomes NaN.
    """
    if isinstance(sites, RankOneSites | DenseSites):
        return jax.vmap(_without_block)(posterior.covariance, sites.blocks())
    assert isinstance(sites, DiagonalSites | SignedSites)
    # Diagonal sites leave the latents independent.
    variance = jnp.diagonal(posterior.covariance, axis1=1, axis2=2)
    ratio = cavity_ratio(posterior, sites)
    proper = (ratio > 0) & (variance > 0)
    cavity = jnp.where(proper, variance, 1) / jnp.where(proper, ratio, 1)
    return diagonal_matrices(cavity), jnp.all(proper, axis=1)


def _without_block(
    S: Float[Array, "C C"], T: Float[Array, "C C"]
) -> tuple[Float[Array, "C C"], Bool[Array, ""]]:
    """(S⁻¹ − T)⁻¹ = R(I − RᵀTR)⁻¹Rᵀ with S = RRᵀ, positive definite as I − RᵀTR is."""
    identity = jnp.eye(S.shape[0], dtype=S.dtype)
    R = cholesky(S).lower
    Q = identity - R.T @ T @ R
    proper = jnp.isfinite(inverse(lax.stop_gradient(Q))[1])
    V = R @ inverse(jnp.where(proper, Q, identity))[0] @ R.T
    return jnp.where(proper, V, identity), proper


def _where(
    proper: Bool[Array, " n"],
    predicted: Categorical | Normal | NoisePredictive | Predictive,
) -> Categorical | Normal | NoisePredictive | Predictive:
    """The predictive distributions, NaN where they are of no proper cavity."""

    def kept(values):
        shape = (-1,) + (1,) * (values.ndim - 1)
        return jnp.where(proper.reshape(shape), values, jnp.nan)

    if not isinstance(predicted, Predictive):
        return jax.tree.map(kept, predicted)
    latents = kept(predicted.latent_mean), kept(predicted.latent_variance)
    return Predictive(predicted.likelihood, *latents)
