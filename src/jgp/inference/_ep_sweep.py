"""Sweeps of expectation propagation over likelihood terms of one latent."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jgp.inference._site_posterior import (
    SitePosterior,
    cavity_ratio,
    signed_posterior,
    site_posterior,
)
from jgp.inference._sites import AbstractSites, DiagonalSites, SignedSites
from jgp.likelihoods import AbstractLikelihood
from jgp.likelihoods._one_latent import Tilted, tilted_moments


class Problem(eqx.Module):
    """All that a sweep depends on beside the sites.

    Args:
        K: The prior covariance.
        prior_mean: m₀.
        likelihood: p(y | f), at the data.
        y: The observations.
        power: η, or None for 1.
        signed: Whether precisions may be negative.
    """

    K: Float[Array, "1 n n"]
    prior_mean: Float[Array, "n 1"]
    likelihood: AbstractLikelihood
    y: Array
    power: Float[Array, ""] | None
    signed: bool = eqx.field(static=True)

    @property
    def eta(self) -> Any:
        """The power as a number."""
        return 1 if self.power is None else self.power

    def sites(self, precision: Array, linear: Array) -> DiagonalSites | SignedSites:
        """Sites of the kind that the likelihood needs, from vectors."""
        kind = SignedSites if self.signed else DiagonalSites
        return kind(precision[:, None], linear[:, None])

    def posterior(self, sites: AbstractSites) -> SitePosterior:
        """The posterior under sites."""
        return site_posterior(self.K, self.prior_mean, sites)

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
        log_constants: (1/η) log of Ẑᵢ over the integral of the cavity times the η-th
            power of the site, the site as a multiple of its value at the marginal mean.
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
    mean: Array, variance: Array, weights: Array, c: Array, eta: Any
) -> Cavities:
    """The cavities m₋ = m − ηv₋b, v₋ = S/c of marginals; b = ν − τm, c = 1 − ητS.

    Where c is not positive, the marginal stands in for the cavity: all stays finite.
    """
    proper = c > 0
    v = variance / jnp.where(proper, c, 1)
    return Cavities(mean - eta * v * jnp.where(proper, weights, 0), v)


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
    sites: DiagonalSites | SignedSites, problem: Problem
) -> tuple[DiagonalSites | SignedSites, Swept]:
    """New sites for all points from one posterior, and what it is."""
    eta, tau, nu = problem.eta, sites.precision[:, 0], sites.linear[:, 0]
    posterior = problem.posterior(sites)
    mean, weights = posterior.mean[:, 0], posterior.weights[:, 0]
    c = cavity_ratio(posterior, sites, eta)[:, 0]
    cavities = cavities_of(mean, posterior.covariance[:, 0, 0], weights, c, eta)
    tilted = problem.tilted(cavities)
    new_tau, new_nu = matched(tilted, cavities, eta, not problem.signed)
    # A site that leaves no cavity is halved: it must move, or it would seem converged.
    # NaN, of a posterior that is not proper, goes through: the iteration turns back.
    improper = c <= 0
    new_tau = jnp.where(improper, tau / 2, new_tau)
    new_nu = jnp.where(improper, nu / 2, new_nu)
    shift = eta * weights
    gaussian = shift**2 * cavities.variance - jnp.log(jnp.where(improper, 1, c))
    log_constants = (tilted.log_normaliser + gaussian / 2) / eta
    swept = Swept(posterior, cavities, log_constants, jnp.zeros((), jnp.int32))
    return problem.sites(new_tau, new_nu), swept


def sequential_sweep(
    sites: DiagonalSites | SignedSites, problem: Problem
) -> tuple[DiagonalSites | SignedSites, Swept]:
    """New sites one point after the other, each changing the posterior of the next.

    A change of one site is a rank-one update of the covariance, O(n²) (Rasmussen &
    Williams 2006, Alg. 3.5). What is returned beside belongs to the first sites.
    """
    _, swept = parallel_sweep(sites, problem)
    eta = problem.eta
    posterior, S = signed_posterior(problem.K, problem.prior_mean, sites)

    def visit(i, state):
        mean, S, tau, nu = state
        column = S[:, i]
        c = 1 - eta * tau[i] * column[i]
        weight = nu[i] - tau[i] * mean[i]
        cavity = cavities_of(mean[i][None], column[i][None], weight[None], c[None], eta)
        likelihood, y = problem.likelihood.at_points(i[None]), problem.y[i][None]
        tilted = tilted_at(likelihood, y, problem.power, cavity)
        new = matched(tilted, cavity, eta, not problem.signed)
        new_tau, new_nu = (v[0] for v in new)
        gain = 1 + (new_tau - tau[i]) * column[i]
        improper = (c <= 0) | (gain <= 0)
        new_tau = jnp.where(improper, tau[i] / 2, new_tau)
        new_nu = jnp.where(improper, nu[i] / 2, new_nu)
        d_tau, d_nu = new_tau - tau[i], new_nu - nu[i]
        gain = 1 + d_tau * column[i]
        mean = mean + (d_nu - d_tau * mean[i]) / gain * column
        S = S - (d_tau / gain * column)[:, None] * column[None, :]
        return mean, S, tau.at[i].set(new_tau), nu.at[i].set(new_nu)

    tau, nu = sites.precision[:, 0], sites.linear[:, 0]
    start = (posterior.mean[:, 0], S[0], tau, nu)
    _, _, tau, nu = lax.fori_loop(0, tau.shape[0], visit, start)
    return problem.sites(tau, nu), swept
