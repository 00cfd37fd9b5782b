"""Sweeps of expectation propagation over likelihood terms of one latent."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jgp.inference._sites import (
    AbstractSites,
    DiagonalSites,
    SignedSites,
    SitePosterior,
    site_posterior,
)
from jgp.likelihoods import AbstractLikelihood
from jgp.likelihoods._one_latent import Tilted, tilted_moments


class Problem(NamedTuple):
    """All that a sweep depends on beside the sites.

    Args:
        K: The prior covariance.
        prior_mean: m₀.
        likelihood: p(y | f), at the data.
        y: The observations.
        power: η, or None for 1.
        root: L of K, where precisions may be negative; else None.
    """

    K: Float[Array, "1 n n"]
    prior_mean: Float[Array, "n 1"]
    likelihood: AbstractLikelihood
    y: Array
    power: Float[Array, ""] | None
    root: Float[Array, "1 n n"] | None

    @property
    def eta(self) -> Any:
        """The power as a number."""
        return 1 if self.power is None else self.power

    def sites(self, precision: Array, linear: Array) -> AbstractSites:
        """Sites of the kind that the likelihood needs, from vectors."""
        kind = DiagonalSites if self.root is None else SignedSites
        return kind(precision[:, None], linear[:, None])

    def posterior(self, sites: AbstractSites) -> SitePosterior:
        """The posterior under sites."""
        return site_posterior(self.K, self.prior_mean, sites, self.root)

    def tilted(self, cavities: "Cavities") -> Tilted:
        """The tilted moments of every point."""
        return tilted_at(self.likelihood, self.y, self.power, cavities)


class Cavities(NamedTuple):
    """N(mean, variance) of the latent at each point, a part η of its site removed."""

    mean: Float[Array, " n"]
    variance: Float[Array, " n"]


def tilted_at(
    likelihood: AbstractLikelihood,
    y: Array,
    power: Float[Array, ""] | None,
    cavities: Cavities,
) -> Tilted:
    """The tilted moments of every point, with one power for all."""
    if power is not None:
        power = jnp.broadcast_to(power, cavities.mean.shape)
    return tilted_moments(likelihood, *cavities, y, power)


class Swept(eqx.Module):
    """What a sweep computes of the sites that it starts from.

    Args:
        posterior: The Gaussian posterior under them.
        cavities: The cavities of every point.
        log_constants: log cᵢ, over η.
        num_outer_steps: Steps of the double loop that found the sites, if any.
    """

    posterior: SitePosterior
    cavities: Cavities
    log_constants: Float[Array, " n"]
    num_outer_steps: Int[Array, ""]


def flat(sites: AbstractSites) -> Float[Array, " k"]:
    """The natural parameters of all sites in one vector."""
    return jnp.concatenate([sites.precision[:, 0], sites.linear[:, 0]])


def cavities_of(
    mean: Array, variance: Array, precision: Array, linear: Array, eta: Any
) -> tuple[Cavities, Array]:
    """The cavities and c = v₋⁻¹S = 1 − ητS, which is positive where they are proper.

    Where one is not, the marginal stands in for it, so that all stays finite.
    """
    c = 1 - eta * precision * variance
    proper = c > 0
    safe = jnp.where(proper, c, 1)
    shifted = mean - eta * variance * jnp.where(proper, linear, 0)
    return Cavities(shifted / safe, variance / safe), c


def matched(
    tilted: Tilted, cavities: Cavities, eta: Any, positive: bool
) -> tuple[Array, Array]:
    """The precision and the linear term of the sites that match the tilted moments."""
    scale = 1 / (eta * tilted.remainder)
    precision = tilted.curvature * scale
    linear = (tilted.slope + cavities.mean * tilted.curvature) * scale
    # Rounding may put the precision of a term that says nothing below zero.
    return (jnp.maximum(precision, 0) if positive else precision), linear


def parallel_sweep(
    sites: AbstractSites, problem: Problem
) -> tuple[AbstractSites, Swept]:
    """New sites for all points from one posterior, and what it is."""
    eta, tau, nu = problem.eta, sites.precision[:, 0], sites.linear[:, 0]
    posterior = problem.posterior(sites)
    mean, variance = posterior.mean[:, 0], posterior.covariance[:, 0, 0]
    cavities, c = cavities_of(mean, variance, tau, nu, eta)
    tilted = problem.tilted(cavities)
    new_tau, new_nu = matched(tilted, cavities, eta, problem.root is None)
    # A site that leaves no cavity is halved: it must move, or it would seem converged.
    # NaN, of a posterior that is not proper, goes through: the iteration turns back.
    improper = c <= 0
    new_tau = jnp.where(improper, tau / 2, new_tau)
    new_nu = jnp.where(improper, nu / 2, new_nu)
    a, b = eta * tau, eta * nu
    bracket = a * mean**2 - 2 * mean * b + variance * b**2
    safe = jnp.where(improper, 1, c)
    log_constants = tilted.log_normaliser + (bracket / safe - jnp.log(safe)) / 2
    swept = Swept(posterior, cavities, log_constants / eta, jnp.zeros((), jnp.int32))
    return problem.sites(new_tau, new_nu), swept


def sequential_sweep(
    sites: AbstractSites, problem: Problem
) -> tuple[AbstractSites, Swept]:
    """New sites one point after the other, each changing the posterior of the next.

    A change of one site is a rank-one update of the covariance, O(n²) (Rasmussen &
    Williams 2006, Alg. 3.5). What is returned beside belongs to the first sites.
    """
    _, swept = parallel_sweep(sites, problem)
    eta, positive = problem.eta, problem.root is None
    K, M = problem.K[0], swept.posterior.factor.diagonal_blocks()[0]

    def visit(i, state):
        mean, S, tau, nu = state
        column = S[:, i]
        at = mean[i][None], column[i][None], tau[i][None], nu[i][None]
        cavity, c = cavities_of(*at, eta)
        one = problem._replace(likelihood=problem.likelihood.at_point(i))
        tilted = one._replace(y=problem.y[i][None]).tilted(cavity)
        new_tau, new_nu = (v[0] for v in matched(tilted, cavity, eta, positive))
        gain = 1 + (new_tau - tau[i]) * column[i]
        improper = (c[0] <= 0) | (gain <= 0)
        new_tau = jnp.where(improper, tau[i] / 2, new_tau)
        new_nu = jnp.where(improper, nu[i] / 2, new_nu)
        d_tau, d_nu = new_tau - tau[i], new_nu - nu[i]
        gain = 1 + d_tau * column[i]
        mean = mean + (d_nu - d_tau * mean[i]) / gain * column
        S = S - (d_tau / gain * column)[:, None] * column[None, :]
        return mean, S, tau.at[i].set(new_tau), nu.at[i].set(new_nu)

    start = (
        swept.posterior.mean[:, 0],
        K - K @ M @ K,
        sites.precision[:, 0],
        sites.linear[:, 0],
    )
    _, _, tau, nu = lax.fori_loop(0, K.shape[0], visit, start)
    return problem.sites(tau, nu), swept
