r"""The double loop of EP, which descends where sweeps oscillate.

Fixed points of EP are the stationary points of the free energy over the moments μ of
the marginals (Opper & Winther 2005; Heskes & Zoeter 2002),

    −log Z = min_μ { G_r(μ) + (1/η)[G_q(μ) − G_s(μ)] },

the convex duals of the log normalisers of prior × sites (r), of the tilted terms (q)
and of their Gaussian marginals (s). The outer loop replaces the concave −G_s by its
tangent at the last marginals N(m_s, V_s), an upper bound; what remains is convex, and
its dual is a minimum over the sites (ν, τ) that couple r and q,

    J(ν, τ) = log Z_r(ν, τ) + (1/η) Σᵢ log Z_q,i(m_s/V_s − ην, 1/V_s − ητ),

found by Newton's method with a line search: its gradient is the difference of the
moments of r and q, its Hessian the sum of their covariances. Each outer step lowers the
free energy, so it converges where that is bounded.

J may be finite where a cavity loses its precision (a probit term and an exponential
have a finite integral), and an early minimum may lie there, so a logarithmic barrier
keeps the cavities proper; its weight falls with each outer step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from jgp._fixed_point import scaled_change
from jgp._linalg import cholesky, cholesky_solve
from jgp.inference._ep_sweep import Cavities, Problem, flat, parallel_sweep
from jgp.inference._site_posterior import centred_normaliser, signed_posterior
from jgp.inference._sites import DiagonalSites, SignedSites

NEWTON_STEPS = 100
HALVINGS = 40
BARRIER = 1e-2
BARRIER_DECAY = 0.75
ARMIJO = 1e-4


class _Outer(NamedTuple):
    step: Int[Array, ""]
    sites: DiagonalSites | SignedSites
    marginals: Cavities
    residual: Float[Array, ""]


def double_loop(
    problem: Problem,
    init: DiagonalSites | SignedSites,
    rtol: Array,
    atol: Array,
    max_steps: Int[Array, ""],
) -> tuple[DiagonalSites | SignedSites, Int[Array, ""]]:
    """Sites of a fixed point of EP, and the outer steps that they took.

    Args:
        problem: The problem, with signed sites.
        init: Where to start; without a proper posterior there, at no sites.
        rtol: Relative tolerance on the change of the sites in a plain sweep.
        atol: Absolute tolerance.
        max_steps: Bound on outer steps; 0 computes nothing.
    """

    def at(sites: DiagonalSites | SignedSites) -> tuple[Cavities, Array]:
        """The marginals, and the residual of a plain sweep."""
        new, swept = parallel_sweep(sites, problem)
        mean, S = swept.posterior.mean[:, 0], swept.posterior.covariance[:, 0, 0]
        residual = scaled_change(flat(new), flat(sites), rtol, atol)
        return Cavities(mean, S), jnp.where(jnp.isfinite(residual), residual, jnp.inf)

    def advance(s: _Outer) -> _Outer:
        barrier = BARRIER * BARRIER_DECAY ** s.step.astype(rtol.dtype)
        sites = _inner(problem, s.marginals, s.sites, rtol, atol, barrier)
        return _Outer(s.step + 1, sites, *at(sites))

    def unfinished(s: _Outer):
        going = jnp.all(jnp.isfinite(s.marginals.mean) & (s.marginals.variance > 0))
        return going & (s.residual > 1) & (s.step < max_steps)

    nothing = jax.tree.map(jnp.zeros_like, init)
    given, _ = at(init)
    usable = jnp.all(jnp.isfinite(given.mean) & (given.variance > 0))
    sites = jax.tree.map(lambda a, b: jnp.where(usable, a, b), init, nothing)
    prior = Cavities(problem.prior_mean[:, 0], jnp.diagonal(problem.K[0]))
    marginals = jax.tree.map(lambda a, b: jnp.where(usable, a, b), given, prior)
    infinity = jnp.array(jnp.inf, rtol.dtype)
    first = _Outer(jnp.array(0, jnp.int32), sites, marginals, infinity)
    last = lax.while_loop(unfinished, advance, first)
    return last.sites, last.step


class _Inner(NamedTuple):
    step: Int[Array, ""]
    z: Float[Array, "2 n"]
    change: Float[Array, ""]


def _inner(
    problem: Problem,
    marginals: Cavities,
    start: DiagonalSites | SignedSites,
    rtol: Array,
    atol: Array,
    barrier: Array,
) -> DiagonalSites | SignedSites:
    """Minimise J by Newton's method, in latents centred at the marginal means.

    The statistics of f − m_s, (g, −½g²), go with (a, τ), a = ν − τm_s.
    """
    eta, (mean, variance) = problem.eta, marginals

    def sites_at(z):
        return problem.sites(z[1], z[0] + z[1] * mean)

    def log_tilted(a, tau):
        """Log Z_q of each point and η, so that its derivatives are those of J."""
        precision = 1 / variance - eta * tau
        v = 1 / jnp.where(precision > 0, precision, jnp.nan)
        shift = -eta * a * v
        tilted = problem.tilted(Cavities(mean + shift, v))
        gaussian = shift**2 / v + jnp.log(v)
        value = (tilted.log_normaliser + gaussian / 2) / eta
        return value + barrier * jnp.log(v / variance)

    def objective(z):
        posterior, S = signed_posterior(problem.K, problem.prior_mean, sites_at(z))
        shift = posterior.mean[:, 0] - mean
        log_prior = centred_normaliser(problem.prior_mean, posterior)
        log_prior = log_prior + jnp.sum(shift * (z[0] - z[1] * shift / 2))
        value = log_prior + jnp.sum(log_tilted(z[0], z[1]))
        return jnp.where(jnp.isfinite(value), value, jnp.inf), (shift, S[0])

    def local_derivatives(z):
        """First and second derivatives of log Z_q, point by point."""
        slopes = jax.grad(lambda z: jnp.sum(log_tilted(z[0], z[1])))
        ones, zeros = jnp.ones_like(z[0]), jnp.zeros_like(z[0])
        by_a = jax.jvp(slopes, (z,), (jnp.stack([ones, zeros]),))
        by_tau = jax.jvp(slopes, (z,), (jnp.stack([zeros, ones]),))[1]
        return by_a[0], jnp.stack([by_a[1], by_tau])

    def direction(z, shift, S):
        own = jnp.diagonal(S)
        slopes, curvatures = local_derivatives(z)
        gradient = slopes + jnp.stack([shift, -(own + shift**2) / 2])
        mixed = -S * shift[None, :]
        square = S**2 / 2 + shift[:, None] * shift[None, :] * S
        H = jnp.block([[S, mixed], [mixed.T, square]])
        local = jnp.block(
            [
                [jnp.diag(curvatures[0, 0]), jnp.diag(curvatures[0, 1])],
                [jnp.diag(curvatures[1, 0]), jnp.diag(curvatures[1, 1])],
            ]
        )
        H = H + (local + local.T) / 2
        # Scaled to a unit diagonal: a and τ have different units.
        scale = 1 / jnp.sqrt(jnp.maximum(jnp.diagonal(H), jnp.finfo(H.dtype).tiny))
        H = scale[:, None] * H * scale[None, :]
        flat = scale * gradient.ravel()
        solved = cholesky_solve(cholesky(H).lower, flat[:, None])[:, 0]
        step = -(scale * solved).reshape(z.shape)
        usable = jnp.all(jnp.isfinite(step))
        step = jnp.where(usable, step, -(scale**2 * gradient.ravel()).reshape(z.shape))
        return step, jnp.sum(gradient * step)

    def advance(s: _Inner) -> _Inner:
        value, moments = objective(s.z)
        step, slope = direction(s.z, *moments)
        # Where J no longer resolves a step, its full length is Newton's to choose.
        slack = 1e4 * jnp.finfo(value.dtype).eps * (1 + jnp.abs(value))

        def worse(trial):
            halvings, size = trial
            reached, _ = objective(s.z + size * step)
            enough = reached <= value + ARMIJO * size * slope + slack
            return ~enough & (halvings < HALVINGS)

        # Far from the minimum Newton's full step is hopeless: damped by its decrement.
        decrement = jnp.sqrt(jnp.maximum(-slope, 0))
        size = jnp.minimum(1, 4 / (1 + decrement)).astype(value.dtype)
        first = (jnp.array(0, jnp.int32), size)
        halvings, size = lax.while_loop(worse, lambda t: (t[0] + 1, t[1] / 2), first)
        size = jnp.where(halvings < HALVINGS, size, 0)
        z = s.z + size * step
        change = scaled_change(z.ravel(), s.z.ravel(), rtol, atol)
        return _Inner(s.step + 1, z, change)

    def unfinished(s: _Inner):
        return (s.change > 0.1) & (s.step < NEWTON_STEPS)

    tau, nu = start.precision[:, 0], start.linear[:, 0]
    z = jnp.stack([nu - tau * mean, tau])
    value, _ = objective(z)
    # Without sites the cavities are the marginals: that is always feasible.
    z = jnp.where(jnp.isfinite(value), z, 0)
    infinity = jnp.array(jnp.inf, mean.dtype)
    first = _Inner(jnp.array(0, jnp.int32), z, infinity)
    return sites_at(lax.while_loop(unfinished, advance, first).z)
