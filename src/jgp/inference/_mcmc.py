r"""Markov chain Monte Carlo over the latents: the baseline for all approximations.

Chains move in whitened coordinates w ~ N(0, I), f = m₀ + K½w: neither the prior
density nor an inverse of K is needed.
"""

import functools
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from jgp._linalg import apply_blocks, cholesky
from jgp._model import Model
from jgp._results import RESULTS, worst
from jgp._types import check_key, positive_integer
from jgp.inference._approximation import Approximation, check_approximation, finish
from jgp.inference._data import bounded, prepare
from jgp.inference._draws import DrawsPosterior
from jgp.inference._laplace import laplace
from jgp.inference._moves import (
    Ellipse,
    ellipse_about,
    elliptical_slice_chain,
    metropolis_chain,
    nuts_chain,
)
from jgp.inference._nested_ep import nested_ep
from jgp.likelihoods import MultinomialProbit
from jgp.sampling import effective_sample_size, rhat, scan

SAMPLERS = ("elliptical_slice", "metropolis", "nuts")
# The default bound on R-hat − 1.
RHAT_TOLERANCE = 0.05


class SamplingDiagnostics(eqx.Module):
    """Whether to trust the draws, per latent.

    Args:
        rhat: Rank-normalised split R-hat (Vehtari et al. 2021).
        ess: Bulk effective sample size over all chains.
        acceptance: Mean acceptance of each chain (of proposals for Metropolis; 1 over
            the likelihood evaluations a step for elliptical slice).
        divergent: The share of steps of each chain whose energy ran away, 0 but for
            NUTS: more than a few say that the draws miss narrow places.
    """

    rhat: Float[Array, "n C"]
    ess: Float[Array, "n C"]
    acceptance: Float[Array, " chains"]
    divergent: Float[Array, " chains"]


def sample_posterior(
    model: Model,
    x: ArrayLike,
    y: Any,
    *,
    key: PRNGKeyArray,
    init: Approximation | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    max_steps: int = 1000,
    throw: bool = True,
    sampler: str = "elliptical_slice",
    num_chains: int = 4,
    num_warmup: int = 500,
    thinning: int = 1,
    proposal: Approximation | None = None,
) -> Approximation:
    """Draw from the exact posterior of the latents by Markov chain Monte Carlo.

    Args:
        model: A process with independent latents and any likelihood.
        x: (n, d) inputs.
        y: Targets, as the likelihood wants them.
        key: A PRNG key.
        init: An earlier result of `sample_posterior` with as many chains, whose last
            draws are the starting points; draws of `proposal`, or of the prior
            without one, by default.
        rtol: Success needs R-hat − 1 <= rtol for every latent; 0.05 by default.
        atol: Not used.
        max_steps: Steps of each chain after warm-up.
        throw: Whether to raise `InferenceError` when R-hat is too large; otherwise
            look at `result` and `diagnostics`.
        sampler: "elliptical_slice" (Murray, Adams & MacKay 2010), about the prior or
            about `proposal` (Nishihara, Murray & Adams 2014), or "metropolis", a
            random walk whose proposal covariance is a multiple of the proposal's
            (Cabral 2021, Alg. 7), the multiple adapted in warm-up, or "nuts" (Hoffman
            & Gelman 2014; the extra `mcmc`), in the coordinates in which the prior is
            white, step size and inverse mass adapted in warm-up.
        num_chains: Independent chains, run as one batch.
        num_warmup: Steps of each chain that are thrown away.
        thinning: Steps between draws that are kept.
        proposal: A Gaussian approximation. Ellipses about it leave the same
            posterior invariant as those about the prior, and mix hundreds of times
            faster once the data say much; chains start from its draws, all that
            "nuts" takes of it. By default
            none for "elliptical_slice"; for "metropolis" nested EP's under the
            multinomial probit and Laplace's otherwise.

    Returns:
        An `Approximation` whose posterior is a mixture over draws, with R-hat and
        effective sample sizes in `diagnostics`; `log_evidence` and `sites` are None.

    Raises:
        ValueError: for input that cannot be right, before anything is compiled.
        InferenceError: if `throw` and the chains disagree, or K has no factor.
    """
    del atol
    check_key(key)
    tolerance = RHAT_TOLERANCE if rtol is None else rtol
    model, inputs, targets = prepare(model, x, y)
    init = check_approximation(init, "init", "sample_posterior", model, inputs)
    if sampler not in SAMPLERS:
        raise ValueError(
            f"sampler: got {sampler!r}, wanted one of {', '.join(SAMPLERS)}."
        )
    counts = {
        "max_steps": max_steps,
        "num_chains": num_chains,
        "num_warmup": num_warmup,
        "thinning": thinning,
    }
    counts = {name: int(positive_integer(name, v)) for name, v in counts.items()}
    if counts["max_steps"] // thinning < 4:
        raise ValueError(
            f"max_steps: got {max_steps} with thinning={thinning}, wanted at least "
            "four draws a chain."
        )
    if sampler == "metropolis" and proposal is None:
        probit = isinstance(model.likelihood, MultinomialProbit)
        verb = nested_ep if probit else laplace
        proposal = verb(model, inputs, targets, throw=throw)
    proposal = check_approximation(proposal, "proposal", None, model, inputs)
    sites = None
    if proposal is not None:
        sites = proposal.sites
        if sites is None:
            raise ValueError(
                f"proposal: got {proposal.method}, wanted an Approximation with sites."
            )
    start = None
    if init is not None:
        start = cast(DrawsPosterior, init.posterior).whitened[:, -1]
    if start is not None and start.shape[0] != num_chains:
        raise ValueError(
            f"init: got {start.shape[0]} chains, wanted num_chains = {num_chains}."
        )
    approximation = _sample_posterior(
        model,
        inputs,
        targets,
        key,
        start,
        sites,
        bounded("rtol", tolerance, 1e-6, 1e6, inputs.dtype),
        sampler=sampler,
        **counts,
    )
    return finish(approximation, throw)


@eqx.filter_jit
def _sample_posterior(
    model: Model,
    x: Array,
    y: Array,
    key: PRNGKeyArray,
    start: Float[Array, "chains n C"] | None,
    sites: Any,
    rtol: Array,
    *,
    sampler: str,
    max_steps: int,
    num_chains: int,
    num_warmup: int,
    thinning: int,
) -> Approximation:
    K, prior_mean = model.process.covariance(x), model.process.mean(x)
    root, jitter, ok = cholesky(K)
    start_key, run_key = jax.random.split(key)
    if sites is None:
        about = Ellipse(None, None, None, jnp.zeros_like(prior_mean))
    else:
        identity = jnp.eye(x.shape[0], dtype=x.dtype)[None]
        about = ellipse_about(
            K + jitter[:, None, None] * identity, root, prior_mean, sites
        )
    if start is None:
        start_keys = jax.random.split(start_key, num_chains)
        start = jax.vmap(lambda k: about.centre + about.draw(k))(start_keys)

    likelihood = model.likelihood.at_data(x)

    def log_likelihood(w):
        f = prior_mean + apply_blocks(root, w)
        return jnp.sum(likelihood.log_probs(f, y))

    run = functools.partial(
        scan,
        num_samples=max_steps // thinning,
        num_warmup=num_warmup,
        thinning=thinning,
    )

    def log_sites(w):
        if about.sites is None:
            return jnp.zeros((), w.dtype)
        f = prior_mean + apply_blocks(root, w)
        return jnp.sum(about.sites.linear * f - f * about.sites.times(f) / 2)

    if sampler == "elliptical_slice":
        # Posterior ∝ prior × likelihood ∝ q × likelihood/sites.
        def log_ratio(w):
            return log_likelihood(w) - log_sites(w)

        one = functools.partial(elliptical_slice_chain, log_ratio, run, about)
    elif sampler == "nuts":
        one = functools.partial(nuts_chain, log_likelihood, run, num_warmup)
    else:
        one = functools.partial(metropolis_chain, log_likelihood, run, about)
    keys = jax.random.split(run_key, num_chains)
    moved = jax.vmap(one)(start, keys)

    posterior = DrawsPosterior(model.process, x, root, moved.draws)
    f = posterior.draws
    diagnostics = SamplingDiagnostics(
        rhat(f), effective_sample_size(f), moved.acceptance, moved.divergent
    )
    # R-hat does not exist for a latent that never moves; then the chains agree.
    excess = jnp.max(jnp.where(jnp.isnan(diagnostics.rhat), 1, diagnostics.rhat)) - 1
    residual = jnp.maximum(excess, 0) / rtol
    result = RESULTS.where(residual <= 1, RESULTS.successful, RESULTS.max_steps_reached)
    finite = jnp.all(jnp.isfinite(f))
    result = RESULTS.where(finite, result, worst(result, RESULTS.non_finite))
    result = RESULTS.where(jnp.all(ok), result, RESULTS.not_positive_definite)
    return Approximation(
        model,
        x,
        y,
        posterior,
        None,
        None,
        result,
        jnp.array(num_warmup + max_steps // thinning * thinning, jnp.int32),
        residual,
        jnp.max(jitter),
        diagnostics,
        method="sample_posterior",
        evidence_kind=None,
    )
