r"""The evidence by particles that go from a Gaussian approximation, or the prior.

By sequential Monte Carlo, or by annealed importance sampling, which resamples nothing.

Between q, the approximation, and p(y, f) stand the targets

    π_β(f) ∝ q(f)^(1−β) p(y, f)^β = q(f) r(f)^β,   r = p(y | f) Z_q / ∏ᵢ tᵢ(fᵢ)

with r as in importance sampling, so that ∫ q r df = p(y) and no density of f appears.
From the prior q = p(f) and r = p(y | f).

Elliptical slices about any Gaussian g leave π_β invariant, with π_β/g for a likelihood
(Nishihara, Murray & Adams 2014), and mix where that is nearly flat: about q itself, and
on the way from the prior about p(f) exp β(a bᵀf − ½g (f − m)ᵀT(f − m)), with the
likelihood replaced by the sites, which are that at a = g = 1. There m is the mean of q
and b = K⁻¹(m − m₀); a and g are the regression of log p(y | f) on the two functions
over the particles, as far from the posterior the likelihood curves more than the sites
do. Positions are the latents f, as ellipses are linear in them: one product with K½ a
slice, none for the points tried on it, and no inverse of K.
"""

import math
from collections.abc import Callable
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jgp import _lapack
from jgp._linalg import apply_blocks, cholesky
from jgp._results import RESULTS, unless
from jgp.inference._approximation import Approximation
from jgp.inference._estimate import Evidence
from jgp.inference._gaussian_posterior import GaussianPosterior
from jgp.inference._site_draws import tempered, whitened_deviation
from jgp.inference._site_posterior import (
    SitePosterior,
    centred_normaliser,
    log_centred_sites,
    site_posterior,
)
from jgp.inference._sites import AbstractSites, DiagonalSites, RankOneSites
from jgp.sampling import annealed_importance, elliptical_slice, smc

# Latents of the particles that move at once. A batch waits for its slowest particle:
# on a CPU wide ones gain less than that costs.
CPU_CHUNK_SIZE, CHUNK_SIZE = 2**10, 2**20
MAX_STEPS = 200
# Of the sites', so that ellipses stay bounded where a regression goes wrong.
LEAST_CURVATURE = 0.1
# Of the schedule of annealing: most of the way from the prior is near it, from an
# approximation it is alike everywhere.
POWERS = {"prior": 4.0, "approximation": 1.0}


class ParticleDiagnostics(eqx.Module):
    """What the independent runs tell.

    Args:
        log_evidences: The estimate of each run.
        num_temperatures: Temperatures of each run, the last of them 1.
        num_evaluations: Mean likelihood evaluations of one elliptical slice, by run;
            0 where one temperature was enough and nothing moved.
    """

    log_evidences: Float[Array, " runs"]
    num_temperatures: Int[Array, " runs"]
    num_evaluations: Float[Array, " runs"]


class Gaussian(eqx.Module):
    """Prior × sites over the latents: what is drawn from and moved about.

    Args:
        mean: Its mean.
        root: K½.
        sites: The sites, None for the prior.
        posterior: The prior conditioned on them.
    """

    mean: Float[Array, "n C"]
    root: Float[Array, "C n n"]
    sites: AbstractSites | None = None
    posterior: SitePosterior | None = None

    def draw(self, key: PRNGKeyArray) -> Float[Array, "n C"]:
        """A deviation from the mean."""
        z_key, xi_key = jax.random.split(key)
        shape, dtype = self.mean.shape, self.mean.dtype
        w = jax.random.normal(z_key, shape, dtype)
        if self.sites is not None and self.posterior is not None:
            xi = jax.random.normal(xi_key, shape, dtype)
            factor = self.posterior.factor
            w = whitened_deviation(self.root, self.sites, factor, w, xi)
        return apply_blocks(self.root, w)

    def log_sites(self, f: Float[Array, "n C"]) -> Float[Array, ""]:
        """Σᵢ log tᵢ(fᵢ)/tᵢ(mᵢ)."""
        if self.sites is None or self.posterior is None:
            return jnp.zeros((), f.dtype)
        return log_centred_sites(f, self.sites, self.posterior)


@eqx.filter_jit
def particle_evidence(
    approximation: Approximation,
    key: PRNGKeyArray,
    temper: Array,
    ess_fraction: Array,
    *,
    method: str,
    start: str,
    num_particles: int,
    num_moves: int,
    num_runs: int,
    num_temperatures: int,
) -> Evidence:
    """The mean of independent runs; options as for `evidence`."""
    model, x, y = approximation.model, approximation.x, approximation.y
    K, prior_mean = model.process.covariance(x), model.process.mean(x)
    root, jitter, ok = cholesky(K)
    K = K + jitter[:, None, None] * jnp.eye(x.shape[0], dtype=K.dtype)[None]
    likelihood = model.likelihood.at_data(x)
    prior = Gaussian(prior_mean, root)

    def conditioned(sites: AbstractSites) -> Gaussian:
        posterior = site_posterior(K, prior_mean, sites, root)
        return Gaussian(posterior.mean, root, sites, posterior)

    def unchanged(beta: Array, particles: smc.Particle) -> Gaussian:
        return q

    q, log_normaliser, about = prior, jnp.zeros((), x.dtype), unchanged
    if approximation.sites is not None:
        weights = cast(GaussianPosterior, approximation.posterior).weights
        mean = prior_mean + apply_blocks(K, weights)
        sites = tempered(approximation.sites, weights, mean, temper)
        if start == "prior":

            def about(beta: Array, particles: smc.Particle) -> Gaussian:
                return conditioned(_regressed(beta, particles, sites, weights, mean))

        else:
            q = conditioned(sites)
            assert q.posterior is not None
            log_normaliser = centred_normaliser(prior_mean, q.posterior)

    def log_ratio(f):
        log_likelihood = jnp.sum(likelihood.log_probs(f, y))
        return log_likelihood - q.log_sites(f) + log_normaliser

    move = _slices(q, log_ratio, about, num_moves)
    betas = annealed_importance.schedule(num_temperatures, POWERS[start])

    def run(positions, key, batch_size):
        if method == "ais":
            return _annealed(positions, log_ratio, move, key, betas, batch_size)
        return _resampled(positions, log_ratio, move, key, ess_fraction, batch_size)

    estimates = _runs(q, run, key, num_particles, num_runs)
    log_evidences, num_steps, evaluations, results = estimates
    log_evidence = jax.nn.logsumexp(log_evidences) - math.log(num_runs)
    ratios = jnp.exp(log_evidences - log_evidence)
    standard_error = jnp.std(ratios, ddof=1) / math.sqrt(num_runs)
    reached = jnp.all(results == RESULTS.successful)
    result = unless(reached, RESULTS.max_steps_reached)
    finite = jnp.all(jnp.isfinite(log_evidences))
    result = RESULTS.where(finite, result, RESULTS.non_finite)
    result = RESULTS.where(jnp.all(ok), result, RESULTS.not_positive_definite)
    missing = jnp.full((), jnp.nan, x.dtype)
    return Evidence(
        log_evidence,
        standard_error,
        missing,
        missing,
        jnp.max(jitter),
        result,
        ParticleDiagnostics(log_evidences, num_steps, evaluations),
        method=method,
    )


def _regressed(
    beta: Array,
    particles: smc.Particle,
    sites: AbstractSites,
    weights: Float[Array, "n C"],
    mean: Float[Array, "n C"],
) -> AbstractSites:
    """Sites that stand for the likelihood's power β where the particles are.

    A prior on a − 1 and g − 1 that weighs as much as two particles keeps the regression
    on few of them from running away.
    """

    def features(f):
        deviation = f - mean
        curved = -jnp.sum(deviation * sites.times(deviation)) / 2
        return jnp.stack([jnp.sum(weights * f), curved])

    Z = jax.vmap(features)(particles.position)
    Z = Z - jnp.mean(Z, axis=0, keepdims=True)
    rest = particles.log_ratio - jnp.mean(particles.log_ratio) - jnp.sum(Z, axis=1)
    scales = jnp.maximum(jnp.std(Z, axis=0), jnp.finfo(Z.dtype).tiny)
    Z = Z / scales[None]
    gram = Z.T @ Z + 2 * jnp.eye(2, dtype=Z.dtype)
    a, g = 1 + _lapack.solve(gram, Z.T @ rest) / scales
    if not isinstance(sites, DiagonalSites | RankOneSites):
        # K⁻¹ + cT is positive definite for c ≤ 1 whatever the signs in T.
        g = jnp.minimum(g, 1 / beta)
    g = jnp.maximum(g, LEAST_CURVATURE)
    linear = beta * (a * weights + g * sites.times(mean))
    replaced = (beta * g * sites.precision, linear)
    return eqx.tree_at(lambda s: (s.precision, s.linear), sites, replaced)


# The log normaliser, temperatures, evaluations a slice and status of a run.
Estimate = tuple[Array, Array, Array, RESULTS]


def _runs(
    q: Gaussian,
    run: Callable[[Array, PRNGKeyArray, int], Estimate],
    key: PRNGKeyArray,
    num_particles: int,
    num_runs: int,
) -> Estimate:
    """Independent runs, each from draws of q."""
    num_pairs = (num_particles + 1) // 2
    on_cpu = jax.default_backend() == "cpu"
    chunk_size = CPU_CHUNK_SIZE if on_cpu else CHUNK_SIZE
    batch_size = max(1, chunk_size // q.mean.size)

    def one(key):
        draw_key, run_key = jax.random.split(key)
        draw_keys = jax.random.split(draw_key, num_pairs)
        pairs = lax.map(q.draw, draw_keys, batch_size=min(batch_size, num_pairs))
        # Mirror images cancel what is odd in the first log weights.
        positions = q.mean[None] + jnp.concatenate([pairs, -pairs])
        return run(positions, run_key, batch_size)

    return lax.map(one, jax.random.split(key, num_runs))


def _resampled(
    positions: Float[Array, "num n C"],
    log_ratio: Callable[[Array], Array],
    move: smc.Move,
    key: PRNGKeyArray,
    ess_fraction: Array,
    batch_size: int,
) -> Estimate:
    ended = smc.run(
        smc.init(positions, log_ratio, batch_size=batch_size),
        move,
        key=key,
        ess_fraction=ess_fraction,
        max_steps=MAX_STEPS,
        batch_size=batch_size,
    )
    moved = jnp.isfinite(ended.infos.moves)
    evaluations = jnp.sum(jnp.where(moved, ended.infos.moves, 0))
    evaluations = evaluations / jnp.maximum(jnp.sum(moved), 1).astype(positions.dtype)
    return ended.state.log_normaliser, ended.num_steps, evaluations, ended.result


def _annealed(
    positions: Float[Array, "num n C"],
    log_ratio: Callable[[Array], Array],
    move: smc.Move,
    key: PRNGKeyArray,
    betas: Float[Array, " temperatures"],
    batch_size: int,
) -> Estimate:
    ended = annealed_importance.run(
        positions, log_ratio, move, key=key, betas=betas, batch_size=batch_size
    )
    log_normaliser, _ = ended.sample.log_normaliser
    num_temperatures = jnp.asarray(betas.size, jnp.int32)
    evaluations = jnp.mean(ended.infos)
    return log_normaliser, num_temperatures, evaluations, ended.sample.result


def _slices(
    q: Gaussian,
    log_ratio: Callable[[Array], Array],
    about: Callable[[Array, smc.Particle], Gaussian],
    num_moves: int,
) -> smc.Move:
    """Elliptical slices about the Gaussian of each temperature."""

    def move(beta, particles):
        gaussian = about(beta, particles)

        def excess(f):
            # What the Gaussian has beyond q is no part of the likelihood of slices.
            return gaussian.log_sites(f) - q.log_sites(f)

        def log_likelihood(f):
            return beta * log_ratio(f) - excess(f)

        def slice_step(state, key):
            return elliptical_slice.step(
                state, log_likelihood, gaussian.draw, gaussian.mean, key=key
            )

        def kernel(particle, *, key):
            level = beta * particle.log_ratio - excess(particle.position)
            state = elliptical_slice.State(particle.position, level)
            state, infos = lax.scan(slice_step, state, jax.random.split(key, num_moves))
            value = (state.log_likelihood + excess(state.position)) / beta
            evaluations = jnp.mean(infos.num_evaluations.astype(value.dtype))
            return smc.Particle(state.position, value), evaluations

        return kernel

    return move
