r"""The evidence by importance sampling from a Gaussian approximation.

For q ∝ p(f) ∏ᵢ tᵢ(fᵢ) with sites tᵢ = exp(νᵢᵀfᵢ − ½fᵢᵀTᵢfᵢ) and Z_q = ∫p ∏tᵢ df,
p(f)/q(f) = Z_q/∏tᵢ(fᵢ), so that

    p(y) = E_q[p(y | f) Z_q / ∏ᵢ tᵢ(fᵢ)]:

neither p(f) nor the inverse of K, often singular, appears.
"""

import math
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PRNGKeyArray

from jgp._linalg import apply_blocks, cholesky
from jgp._results import RESULTS, unless
from jgp.inference._approximation import Approximation
from jgp.inference._estimate import Evidence
from jgp.inference._gaussian_posterior import GaussianPosterior
from jgp.inference._site_draws import tempered, whitened_deviation
from jgp.inference._site_posterior import (
    centred_normaliser,
    log_centred_sites,
    site_posterior,
)
from jgp.inference._sites import AbstractSites
from jgp.sampling import importance_ess, pareto_k

# Draws whose latents are held at once: 2²² numbers.
CHUNK_SIZE = 2**22


@eqx.filter_jit
def importance_evidence(
    approximation: Approximation,
    key: PRNGKeyArray,
    temper: Array,
    defensive: Array,
    *,
    num: int,
) -> Evidence:
    """The estimate from `num` draws in antithetic pairs; options as for `evidence`."""
    model, x, y = approximation.model, approximation.x, approximation.y
    K, prior_mean = model.process.covariance(x), model.process.mean(x)
    root, jitter, ok = cholesky(K)
    weights = cast(GaussianPosterior, approximation.posterior).weights
    mean = prior_mean + apply_blocks(K, weights)
    proposal = cast(AbstractSites, approximation.sites)
    sites = tempered(proposal, weights, mean, temper)
    posterior = site_posterior(K, prior_mean, sites, root)
    log_normaliser = centred_normaliser(prior_mean, posterior)
    shape = prior_mean.shape
    num_pairs = (num + 1) // 2
    # The share that the prior has of a whole number of pairs.
    share = jnp.ceil(defensive * num_pairs) / num_pairs

    likelihood = model.likelihood.at_data(x)

    def log_weight(deviation, from_prior):
        centre = jnp.where(from_prior, prior_mean, posterior.mean)
        f = centre + apply_blocks(root, deviation)
        log_likelihood = jnp.sum(likelihood.log_probs(f, y))
        log_sites = log_centred_sites(f, sites, posterior)
        log_ratio = log_sites - log_normaliser  # log q/p
        return log_likelihood - jnp.logaddexp(
            jnp.log1p(-share) + log_ratio, jnp.log(share)
        )

    def log_weight_pair(index):
        # f and its mirror image about the mean: the log weight is odd to leading
        # order (q misses the skewness of the posterior), and the pair cancels it.
        z_key, xi_key = jax.random.split(jax.random.fold_in(key, index))
        z = jax.random.normal(z_key, shape, x.dtype)
        xi = jax.random.normal(xi_key, shape, x.dtype)
        w = whitened_deviation(root, sites, posterior.factor, z, xi)
        # A fixed share of the pairs is the prior's: a stratified mixture.
        from_prior = index.astype(x.dtype) < share * num_pairs - 0.5
        w = jnp.where(from_prior, z, w)
        return jnp.stack([log_weight(w, from_prior), log_weight(-w, from_prior)])

    chunk = max(1, CHUNK_SIZE // max(1, math.prod(shape)))
    pairs = jnp.arange(num_pairs)
    log_weights = lax.map(log_weight_pair, pairs, batch_size=min(chunk, num_pairs))
    log_pairs = jax.nn.logsumexp(log_weights, axis=1) - math.log(2)
    log_evidence = jax.nn.logsumexp(log_pairs) - math.log(num_pairs)
    ratio = jnp.exp(log_pairs - log_evidence)
    standard_error = jnp.std(ratio) / math.sqrt(num_pairs)
    log_weights = log_weights.reshape(-1)
    eps = jnp.finfo(x.dtype).eps
    rounding = 100 * eps * jnp.max(jnp.abs(log_weights))
    equal = jnp.max(log_weights) - jnp.min(log_weights) <= rounding
    k = jnp.where(equal, -jnp.inf, pareto_k(log_weights))
    finite = unless(jnp.isfinite(log_evidence), RESULTS.non_finite)
    result = RESULTS.where(jnp.all(ok), finite, RESULTS.not_positive_definite)
    return Evidence(
        log_evidence,
        standard_error,
        importance_ess(log_weights),
        k,
        jnp.max(jitter),
        result,
        method="importance",
    )
