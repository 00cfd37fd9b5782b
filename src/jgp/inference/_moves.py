"""Moves of chains over whitened latents w ~ N(0, I): ellipses, random walks, NUTS."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jgp._linalg import apply_blocks
from jgp.inference._joint_sites import JointFactor
from jgp.inference._site_draws import tempered, whitened_deviation
from jgp.inference._site_factor import SiteFactor
from jgp.inference._site_posterior import site_posterior
from jgp.inference._sites import AbstractSites
from jgp.sampling import elliptical_slice, metropolis, nuts

# Precision of the sites that ellipses are drawn about, relative to the approximation's.
TEMPER = 0.75


class Moved(NamedTuple):
    """What a chain came to.

    Args:
        draws: Its positions.
        acceptance: Its mean acceptance.
        divergent: The share of its steps whose energy ran away.
    """

    draws: Float[Array, "draws n C"]
    acceptance: Float[Array, ""]
    divergent: Float[Array, ""]


class Ellipse(eqx.Module):
    """The Gaussian that chains move about, in whitened coordinates.

    The prior N(0, I) without sites; with them the approximation's, its sites tempered
    so that it is wider than the posterior.
    """

    root: Float[Array, "C n n"] | None
    sites: AbstractSites | None
    factor: SiteFactor | JointFactor | None
    centre: Float[Array, "n C"]

    def draw(self, key: PRNGKeyArray) -> Float[Array, "n C"]:
        """A deviation from the centre."""
        z_key, xi_key = jax.random.split(key)
        shape, dtype = self.centre.shape, self.centre.dtype
        z = jax.random.normal(z_key, shape, dtype)
        if self.root is None or self.sites is None or self.factor is None:
            return z
        xi = jax.random.normal(xi_key, shape, dtype)
        return whitened_deviation(self.root, self.sites, self.factor, z, xi)


def ellipse_about(K, root, prior_mean, sites: AbstractSites) -> Ellipse:
    """The approximation with these sites: mean K½ᵀb, as its latents are m₀ + Kb."""
    posterior = site_posterior(K, prior_mean, sites)
    temper = jnp.asarray(TEMPER, K.dtype)
    wider = tempered(sites, posterior.weights, posterior.mean, temper)
    factor = site_posterior(K, prior_mean, wider).factor
    return Ellipse(root, wider, factor, apply_blocks(root.mT, posterior.weights))


def elliptical_slice_chain(
    log_ratio: Callable, run: Callable, about: Ellipse, start: Array, key: PRNGKeyArray
) -> Moved:
    """One chain, with the mean of 1 over the evaluations a step.

    Args:
        log_ratio: The log density of the target over the ellipse's Gaussian.
        run: `jgp.sampling.scan` with its counts.
        about: The Gaussian.
        start: The first position.
        key: A PRNG key.
    """
    step = functools.partial(
        elliptical_slice.step,
        log_likelihood=log_ratio,
        draw=about.draw,
        mean=about.centre,
    )
    state = elliptical_slice.init(start, log_ratio)
    chain = run(step, state, key=key)
    evaluations = chain.infos.num_evaluations.astype(start.dtype)
    acceptance = jnp.mean(1 / evaluations)
    return Moved(chain.draws, acceptance, jnp.zeros_like(acceptance))


def metropolis_chain(
    log_likelihood: Callable,
    run: Callable,
    about: Ellipse,
    start: Array,
    key: PRNGKeyArray,
) -> Moved:
    """A random walk with steps of the approximation's shape, sized in warm-up.

    The start is 2.38/√(nC), optimal for a Gaussian target of that covariance (Roberts,
    Gelman & Gilks 1997).
    """

    def log_density(w):
        return log_likelihood(w) - jnp.sum(w**2) / 2

    def step(state, *, key):
        chain, log_scale = state
        chain, info = metropolis.step(
            chain, log_density, about.draw, jnp.exp(log_scale), key=key
        )
        return (chain, log_scale), info

    def warmup_step(state, iteration: Int[Array, ""], *, key):
        (chain, log_scale), info = step(state, key=key)
        log_scale = metropolis.adapt_scale(log_scale, info.acceptance, iteration)
        return (chain, log_scale), info

    log_scale = jnp.log(jnp.asarray(2.38, start.dtype) / jnp.sqrt(start.size))
    state = (metropolis.init(start, log_density), log_scale.astype(start.dtype))
    chain = run(
        step,
        state,
        key=key,
        warmup_step=warmup_step,
        collect=lambda state: state[0].position,
    )
    acceptance = jnp.mean(chain.infos.acceptance)
    return Moved(chain.draws, acceptance, jnp.zeros_like(acceptance))


def nuts_chain(
    log_likelihood: Callable,
    run: Callable,
    num_warmup: int,
    start: Array,
    key: PRNGKeyArray,
) -> Moved:
    """The No-U-Turn sampler, its step size and inverse mass adapted in warm-up."""

    def log_density(w):
        return log_likelihood(w) - jnp.sum(w**2) / 2

    warmup_key, run_key = jax.random.split(key)
    state = nuts.warm_up(start, log_density, key=warmup_key, num_steps=num_warmup)
    step = functools.partial(nuts.step, log_density=log_density)
    chain = run(step, state, key=run_key, num_warmup=0)
    divergent = jnp.mean(chain.infos.divergent.astype(start.dtype))
    return Moved(chain.draws, jnp.mean(chain.infos.acceptance), divergent)
