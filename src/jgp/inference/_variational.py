r"""Variational inference in site form (Opper & Archambeau 2009; Khan & Lin 2017).

The Gaussian q(f) that maximises the bound E_q[log p(y | f)] − KL(q ‖ p) is a prior
times sites, as its stationarity in mean and covariance says: S⁻¹ = K⁻¹ + T and
K⁻¹(m − m₀) = E_q[∇log p], with

    Tᵢ = −2 ∂E_q[log p(yᵢ | fᵢ)]/∂Sᵢ = −E_q[∇²log p],   νᵢ = E_q[∇log p] + Tᵢmᵢ.

Sites computed so from q are a natural-gradient step of length 1, which a Gaussian
likelihood needs one of; shorter steps z + γ(F(z) − z) raise the bound. With latents
that are independent given the data Tᵢ is diagonal: 2nC parameters.

The bound is stationary in q, so its derivative in the model is that with q held,

    d bound = ½ tr((bbᵀ − M) dK) + bᵀdm₀ + ∂_φ E_q[log p] dφ,   M = (K + T⁻)⁻,

the rule that EP's evidence has.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jgp._ascent import ascend
from jgp._fixed_point import FixedPoint
from jgp._implicit import fixed_point
from jgp._linalg import cholesky
from jgp._model import Model
from jgp._results import RESULTS, unless
from jgp._types import positive_integer
from jgp.inference._approximation import Approximation, check_approximation, finish
from jgp.inference._bound import kl_to_prior, marginal_moments
from jgp.inference._data import prepare, tolerances
from jgp.inference._ep_evidence import stationary_evidence
from jgp.inference._full_ep import check_size
from jgp.inference._natural_gradient import (
    expected_log_likelihood,
    first_sites,
    matching_sites,
)
from jgp.inference._site_approximation import site_approximation
from jgp.inference._site_posterior import SitePosterior, site_posterior
from jgp.inference._sites import (
    AbstractSites,
    DenseSites,
    DiagonalSites,
    SignedSites,
)
from jgp.likelihoods import AbstractLikelihood


class _Problem(eqx.Module):
    K: Float[Array, "C n n"]
    prior_mean: Float[Array, "n C"]
    likelihood: AbstractLikelihood
    y: Array
    root: Float[Array, "C n n"] | None


class _Conditional(eqx.Module):
    posterior: SitePosterior
    moments: tuple[Float[Array, "n C"], Float[Array, "n C *C"]]
    bound: Float[Array, ""]


def variational(
    model: Model,
    x: ArrayLike,
    y: Any,
    *,
    init: Approximation | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    max_steps: int = 500,
    throw: bool = True,
    coupled: bool = False,
    window: int = 10,
) -> Approximation:
    """Approximate the posterior by the Gaussian of the largest evidence lower bound.

    Any likelihood, by `jgp.likelihoods.expected_log_prob`: in closed form for Gaussian
    noise, Laplace noise, `Poisson` and `LatentNoiseGaussian`; by quadrature to rounding
    for others of one latent; for `Softmax` of independent latents to 1e-6 a point up to
    standard deviations of 2 and 1e-4 at 3, as for three classes of any kind; elsewhere
    on a fixed lattice, which leaves about 1e-3 a point and is dear for
    `MultinomialProbit`, whose log p is an integral itself.
    Natural-gradient steps, Anderson-accelerated, shortened where the bound would fall.
    A likelihood that is not log-concave can have several optima; `init` decides between
    them. Differentiable to any order; the first derivative of `log_evidence` is
    explicit.

    Args:
        model: A process with independent latents and a likelihood.
        x: (n, d) inputs, n >= 1.
        y: Targets, as the likelihood wants them.
        init: An earlier approximation by `variational` on as many points.
        rtol: Relative tolerance on the change of the sites in a step of length 1; 1e-6
            in float64 and 1e-4 in float32 by default.
        atol: Absolute tolerance, likewise.
        max_steps: Bound on evaluations of the bound, O(Cn³) each.
        throw: Whether to raise `InferenceError` when it does not converge; otherwise
            look at `result`.
        coupled: Whether q couples the latents of a point beyond the prior, by full
            sites: a higher bound for several latents, at O((nC)³).
        window: Anderson acceleration's memory; 0 turns it off.

    Returns:
        An `Approximation` with the bound as its `log_evidence`, and `DiagonalSites`,
        `SignedSites` for a likelihood that is not log-concave, or `DenseSites`.

    Raises:
        ValueError: for input that cannot be right, before anything is compiled.
        InferenceError: if `throw` and it did not converge.
    """
    model, inputs, targets = prepare(model, x, y)
    init = check_approximation(init, "init", "variational", model, inputs)
    if not isinstance(coupled, bool | np.bool_):
        raise ValueError(f"coupled: got {coupled!r}, wanted True or False.")
    num_latents = model.process.num_latents
    coupled = bool(coupled) and num_latents > 1
    if coupled:
        size = inputs.shape[0] * num_latents
        check_size(size, "coupled: got True", "or coupled=False")
    start = None if init is None else init.sites
    if start is not None and coupled != isinstance(start, DenseSites):
        raise ValueError(
            f"init: got an Approximation with {type(start).__name__}, wanted one with "
            f"coupled={coupled}."
        )
    approximation = _variational(
        model,
        inputs,
        targets,
        start,
        *tolerances(rtol, atol, inputs.dtype),
        positive_integer("max_steps", max_steps),
        coupled=coupled,
        # No more differences than there are unknowns.
        window=min(
            int(positive_integer("window", window, least=0)),
            2 * inputs.shape[0] * num_latents,
        ),
    )
    return finish(approximation, throw)


@eqx.filter_jit
def _variational(
    model: Model,
    x: Array,
    y: Array,
    init: AbstractSites | None,
    rtol: Any,
    atol: Any,
    max_steps: Any,
    *,
    coupled: bool,
    window: int,
) -> Approximation:
    K, prior_mean = model.process.covariance(x), model.process.mean(x)
    likelihood = model.likelihood.at_data(x)
    concave = likelihood.log_concave
    root, jitter, proper = None, None, RESULTS.successful
    if coupled:
        root, jitter, ok = jax.lax.stop_gradient(cholesky(K))
        proper = unless(jnp.all(ok), RESULTS.not_positive_definite)
    update = eqx.filter_jit(_update)

    def run(problem: _Problem, controls) -> FixedPoint:
        start, rtol, atol, max_steps = controls
        return ascend(
            update,
            start,
            problem,
            merit=lambda found: found.bound,
            rtol=rtol,
            atol=atol,
            max_steps=max_steps,
            window=window,
            feasible=lambda s: coupled | (not concave) | jnp.all(s.precision >= 0),
        )

    problem = _Problem(K, prior_mean, likelihood, y, root)
    start = _first_sites(problem) if init is None else init
    if isinstance(start, SignedSites) and concave:
        start = DiagonalSites(jnp.maximum(start.precision, 0), start.linear)
    if isinstance(start, DiagonalSites) and not concave:
        start = SignedSites(start.precision, start.linear)
    controls = (start, *jax.tree.map(jnp.asarray, (rtol, atol, max_steps)))
    found = fixed_point(run, _update, problem, controls)
    sites, conditional = found.value, found.auxiliary
    bound = stationary_evidence(
        conditional.bound,
        K,
        prior_mean,
        (likelihood, y),
        conditional.posterior,
        conditional.moments,
        local=expected_log_likelihood,
    )
    return site_approximation(
        (model, x, y),
        found,
        sites,
        conditional.posterior,
        bound,
        method="variational",
        evidence_kind="bound",
        failures=(proper,),
        jitter=jitter,
    )


def _first_sites(problem: _Problem) -> AbstractSites:
    """Sites to start from; full ones from the prior."""
    prior_mean, (n, num_latents) = problem.prior_mean, problem.prior_mean.shape
    if problem.root is not None:
        blocks = jnp.zeros((n, num_latents, num_latents), prior_mean.dtype)
        return DenseSites(blocks, jnp.zeros_like(prior_mean))
    variance = jnp.diagonal(problem.K, axis1=1, axis2=2).T
    variance = jnp.broadcast_to(variance, prior_mean.shape)
    return first_sites(problem.likelihood, problem.y, prior_mean, variance)


def _update(
    sites: AbstractSites, problem: _Problem
) -> tuple[AbstractSites, _Conditional]:
    """The sites of a natural-gradient step of length 1, and the bound before it."""
    posterior = site_posterior(problem.K, problem.prior_mean, sites, problem.root)
    moments = marginal_moments(posterior, sites)
    likelihood, y = problem.likelihood, problem.y
    following, expected = matching_sites(type(sites), likelihood, y, moments)
    bound = expected - kl_to_prior(problem.prior_mean, sites, posterior)
    return following, _Conditional(posterior, moments, bound)
