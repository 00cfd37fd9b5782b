r"""The evidence itself, by importance sampling from a Gaussian approximation.

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
from jaxtyping import Array, Float, PRNGKeyArray

from jgp._linalg import apply_blocks, cholesky
from jgp._results import RESULTS, unless
from jgp.inference._approximation import Approximation
from jgp.inference._data import bounded, positive_integer
from jgp.inference._gaussian_posterior import GaussianPosterior
from jgp.inference._sites import (
    AbstractSites,
    site_normaliser,
    site_posterior,
    tempered,
    whitened_deviation,
)
from jgp.sampling import importance_ess, pareto_k

# Draws whose latents are held at once: 2²² numbers.
CHUNK_SIZE = 2**22


class Evidence(eqx.Module):
    """An estimate of the log evidence, and whether to trust it.

    Args:
        log_evidence: The estimate of log p(y | x).
        standard_error: Its standard error, by the delta method.
        ess: Effective sample size (Σw)²/Σw²; distrust less than 10 % of the draws.
        pareto_k: Tail index of the weights (Vehtari et al. 2024); distrust above
            0.7. −inf where the weights are equal, as for an exact posterior.
        jitter: What was added to the diagonal of K to draw from it.
        result: `not_positive_definite` or `non_finite` where it failed.
    """

    log_evidence: Float[Array, ""]
    standard_error: Float[Array, ""]
    ess: Float[Array, ""]
    pareto_k: Float[Array, ""]
    jitter: Float[Array, ""]
    result: RESULTS


def evidence(
    approximation: Approximation,
    *,
    key: PRNGKeyArray,
    method: str = "importance",
    num: int = 4096,
    temper: float = 1.0,
    defensive: float = 0.0,
) -> Evidence:
    """Estimate the exact log evidence from an approximation's Gaussian posterior.

    Args:
        approximation: Any approximation with Gaussian sites.
        key: A PRNG key.
        method: "importance".
        num: Number of draws, in antithetic pairs (an odd number is rounded up).
        temper: Scales the precision of the sites in the proposal, in (0, 1]; its mean
            stays. Widening (0.75 to 0.8) guards against tails lighter than the
            posterior's, as Laplace's are.
        defensive: ε of the mixture (1 − ε)q + ε·prior, in [0, 1); it bounds the
            weights by the largest likelihood over ε.

    Raises:
        ValueError: for an approximation without Gaussian sites, or options out of
            range.
    """
    if not isinstance(approximation, Approximation) or approximation.sites is None:
        got = getattr(approximation, "method", type(approximation).__name__)
        raise ValueError(
            f"approximation: got {got}, wanted an Approximation with Gaussian sites."
        )
    factor = getattr(approximation.posterior, "factor", None)
    if getattr(factor, "observed", None) is not None:
        raise ValueError(
            "approximation: got one with missing targets, whose evidence is exact "
            "already, wanted one of all targets."
        )
    if method != "importance":
        raise ValueError(f"method: got {method!r}, wanted 'importance'.")
    num_draws = int(positive_integer("num", num))
    dtype = approximation.x.dtype
    scale = bounded("temper", temper, 1e-3, 1.0, dtype)
    share = bounded("defensive", defensive, 0.0, 0.999, dtype)
    return _importance(approximation, key, scale, share, num=num_draws)


@eqx.filter_jit
def _importance(
    approximation: Approximation,
    key: PRNGKeyArray,
    temper: Array,
    defensive: Array,
    *,
    num: int,
) -> Evidence:
    model, x, y = approximation.model, approximation.x, approximation.y
    K, prior_mean = model.process.covariance(x), model.process.mean(x)
    root, jitter, ok = cholesky(K)
    weights = cast(GaussianPosterior, approximation.posterior).weights
    mean = prior_mean + apply_blocks(K, weights)
    proposal = cast(AbstractSites, approximation.sites)
    sites = tempered(proposal, weights, mean, temper)
    posterior = site_posterior(K, prior_mean, sites)
    log_normaliser = site_normaliser(prior_mean, sites, posterior)
    shape = prior_mean.shape
    num_pairs = (num + 1) // 2
    # The share that the prior has of a whole number of pairs.
    share = jnp.ceil(defensive * num_pairs) / num_pairs

    likelihood = model.likelihood.at_data(x)

    def log_weight(deviation, from_prior):
        centre = jnp.where(from_prior, prior_mean, posterior.mean)
        f = centre + apply_blocks(root, deviation)
        log_likelihood = jnp.sum(likelihood.log_probs(f, y))
        log_sites = jnp.sum(sites.linear * f) - jnp.sum(f * sites.times(f)) / 2
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
    )
