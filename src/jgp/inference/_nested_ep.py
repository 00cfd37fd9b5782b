r"""Nested expectation propagation for the multinomial probit (Riihimäki et al. 2013).

Each data point has C − 1 probit factors Φ(u + f_y − f_k) and as many scalar sites
(α_k, β_k). A sweep takes the Gaussian posterior of all points under the current sites,
and at every point in parallel passes once over its factors (the inner EP, warm
started, which has the same fixed points as an inner EP run to convergence). The sites
of a point act on f through Tᵢ = diag(a) − aaᵀ/1ᵀa alone, so a sweep costs O(Cn³).

At convergence the evidence of the equivalent EP on (f, u) with scalar sites is

    log Z = log ∫∫ N(f; m₀, K) ∏ᵢ N(uᵢ; 0, 1) ∏_k exp(β_ik g_ik − ½α_ik g_ik²) df du
            + Σ_ik log c_ik,

c_ik the constants for which site and factor have equal mass. It is stationary in the
sites, so its derivative is the explicit one: ½(b_cb_cᵀ − [(K + T⁻)⁻]_cc) in K_c and b
in m₀ (§3.4 there; Rasmussen & Williams 2006, §5.5.2).
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from jgp._fixed_point import FixedPoint, fixed_point, iterate
from jgp._linalg import diagonal_matrices
from jgp._model import Model
from jgp._results import RESULTS, worst
from jgp.inference._approximation import Approximation, check_init, finish
from jgp.inference._data import bounded, positive_integer, prepare, tolerances
from jgp.inference._posterior import GaussianPosterior
from jgp.inference._sites import (
    RankOneSites,
    SitePosterior,
    site_normaliser,
    site_posterior,
)
from jgp.likelihoods import MultinomialProbit
from jgp.likelihoods._inner_ep import (
    ProbitSites,
    latent_contrasts,
    log_site_constants,
    other_classes,
    sweep,
    with_auxiliary,
)


def nested_ep(
    model: Model,
    x: ArrayLike,
    y: Any,
    *,
    init: Approximation | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    max_steps: int = 200,
    throw: bool = True,
    damping: float = 1.0,
    inner_sweeps: int = 1,
    window: int = 5,
) -> Approximation:
    """Approximate the posterior of a multinomial probit classifier by nested EP.

    O(Cn³) time a sweep, O(Cn²) memory. Differentiable to any order with respect to
    the model: the first derivative of `log_evidence` is explicit, everything else
    goes through the implicit derivative of the sites.

    Args:
        model: A process with C independent latents and `MultinomialProbit(C)`.
        x: (n, d) inputs, n >= 1.
        y: (n,) labels 0..C−1.
        init: An earlier approximation by `nested_ep` on as many points, whose sites
            are the starting point.
        rtol: Relative tolerance on the change of (α, β) in an undamped sweep; 1e-6 in
            float64 and 1e-4 in float32 by default.
        atol: Absolute tolerance, likewise.
        max_steps: Bound on the number of sweeps.
        throw: Whether to raise `InferenceError` when the sweeps do not converge;
            otherwise look at `result`.
        damping: Fraction of each step taken, in (0, 1].
        inner_sweeps: Passes over the factors of each point within a sweep.
        window: Anderson acceleration's memory; 0 turns it off.

    Returns:
        An `Approximation` with `RankOneSites`, whose `precision` is α (1 at the
        label) and whose `linear` is ν.

    Raises:
        ValueError: for input that cannot be right, before anything is compiled.
        InferenceError: if `throw` and the sweeps did not converge.
    """
    model, inputs, labels = prepare(model, x, y)
    if not isinstance(model.likelihood, MultinomialProbit):
        raise ValueError(
            f"likelihood: got {type(model.likelihood).__name__}, wanted "
            "MultinomialProbit for nested_ep."
        )
    check_init(init, "nested_ep", inputs)
    rtol, atol = tolerances(rtol, atol, inputs.dtype)
    approximation = _nested_ep(
        model,
        inputs,
        labels,
        None if init is None else init.sites,
        rtol,
        atol,
        positive_integer("max_steps", max_steps),
        bounded("damping", damping, 1e-3, 1.0, inputs.dtype),
        inner_sweeps=int(positive_integer("inner_sweeps", inner_sweeps)),
        window=window,
    )
    return finish(approximation, throw)


@eqx.filter_jit
def _nested_ep(
    model: Model,
    x: Array,
    y: Array,
    init: RankOneSites | None,
    rtol: Array,
    atol: Array,
    max_steps: Array,
    damping: Array,
    *,
    inner_sweeps: int,
    window: int,
) -> Approximation:
    K, prior_mean = model.process.covariance(x), model.process.mean(x)
    update = functools.partial(_update, num_sweeps=inner_sweeps)

    def run(params, controls) -> FixedPoint:
        K, prior_mean, y = params
        init, rtol, atol, max_steps, damping = controls
        if init is None:
            start, spent = _from_prior(K, prior_mean, y, inner_sweeps), 1
        else:
            start, spent = probit_sites(init, y), 0
        found = iterate(
            update,
            start,
            params,
            rtol=jnp.asarray(rtol),
            atol=jnp.asarray(atol),
            max_steps=jnp.maximum(max_steps - spent, 1),
            damping=jnp.asarray(damping),
            window=window,
            feasible=lambda sites: jnp.all(sites.alpha > 0),
        )
        return eqx.tree_at(lambda f: f.num_steps, found, found.num_steps + spent)

    params = (K, prior_mean, y)
    controls = (init, rtol, atol, max_steps, damping)
    found = fixed_point(run, update, params, controls)
    sites, posterior = found.value, found.auxiliary
    log_evidence = _log_evidence(K, prior_mean, sites, posterior, y)
    finite = jnp.isfinite(log_evidence)
    result = RESULTS.where(
        finite, found.result, worst(found.result, RESULTS.non_finite)
    )
    return Approximation(
        model,
        x,
        y,
        GaussianPosterior(model.process, x, posterior.weights, posterior.factor),
        log_evidence,
        rank_one_sites(sites, y, model.likelihood.num_latents),
        result,
        found.num_steps,
        found.residual,
        jnp.zeros((), x.dtype),
        method="nested_ep",
        evidence_kind="ep",
    )


def rank_one_sites(
    sites: ProbitSites, y: Int[Array, " n"], num_classes: int
) -> RankOneSites:
    """The sites on f: a is α with 1 at the label, ν = (Σβ/s) a − β."""

    def one(alpha, beta, label):
        others = other_classes(label, num_classes)
        a = jnp.ones(num_classes, alpha.dtype).at[others].set(alpha)
        beta = jnp.zeros(num_classes, alpha.dtype).at[others].set(beta)
        return a, jnp.sum(beta) / jnp.sum(a) * a - beta

    return RankOneSites(*jax.vmap(one)(sites.alpha, sites.beta, y))


def probit_sites(sites: RankOneSites, y: Int[Array, " n"]) -> ProbitSites:
    """The inverse of `rank_one_sites`: β_k = ν_y a_k − ν_k, as a_y = 1 and β_y = 0."""

    def one(a, linear, label):
        others = other_classes(label, a.shape[0])
        return ProbitSites(a[others], linear[label] * a[others] - linear[others])

    return jax.vmap(one)(sites.precision, sites.linear, y)


def _pass(mean, covariance, y, sites: ProbitSites, num_sweeps: int) -> ProbitSites:
    """The inner EP of every point, from the latent moments under all sites."""

    def one(m, S, label, site):
        contrasts = with_auxiliary(latent_contrasts(m, S, label), site)
        return sweep(contrasts, site, num_sweeps)[1]

    return jax.vmap(one)(mean, covariance, y, sites)


def _update(
    sites: ProbitSites, params: tuple, *, num_sweeps: int
) -> tuple[ProbitSites, SitePosterior]:
    """One sweep: the posterior under the sites, then the inner EP of every point."""
    K, prior_mean, y = params
    posterior = site_posterior(
        K, prior_mean, rank_one_sites(sites, y, prior_mean.shape[1])
    )
    new = _pass(posterior.mean, posterior.covariance, y, sites, num_sweeps)
    return new, posterior


def _from_prior(K, prior_mean, y, num_sweeps: int) -> ProbitSites:
    """The first sweep: without sites the posterior is the prior, free of charge."""
    num_data, num_classes = prior_mean.shape
    variance = jnp.diagonal(K, axis1=1, axis2=2).T
    variance = jnp.broadcast_to(variance, prior_mean.shape)
    covariance = diagonal_matrices(variance)
    zero = jnp.zeros((num_data, num_classes - 1), K.dtype)
    return _pass(prior_mean, covariance, y, ProbitSites(zero, zero), num_sweeps)


@eqx.filter_custom_jvp
def _log_evidence(
    K: Float[Array, "C n n"],
    prior_mean: Float[Array, "n C"],
    sites: ProbitSites,
    posterior: SitePosterior,
    y: Int[Array, " n"],
) -> Float[Array, ""]:
    """Log Z; integrating uᵢ out leaves ½(Σβ)²/s − ½log s beside the sites on f."""
    s = 1 + jnp.sum(sites.alpha, axis=1)
    auxiliary = jnp.sum(sites.beta, axis=1) ** 2 / s - jnp.log(s)
    on_f = rank_one_sites(sites, y, prior_mean.shape[1])

    def constants(m, S, label, site):
        contrasts = with_auxiliary(latent_contrasts(m, S, label), site)
        return log_site_constants(contrasts, site)

    logs = jax.vmap(constants)(posterior.mean, posterior.covariance, y, sites)
    normaliser = site_normaliser(prior_mean, on_f, posterior)
    return normaliser + jnp.sum(auxiliary) / 2 + jnp.sum(logs)


@_log_evidence.def_jvp
def _log_evidence_jvp(primals, tangents):
    """Explicit in K and m₀ alone: log Z is stationary in the sites.

    The sites and the factor in the rule carry their implicit derivative, so that the
    rule can be differentiated again; a first derivative does not look at it.
    """
    posterior = primals[3]
    dK, dprior_mean = tangents[:2]
    tangent = jnp.zeros((), posterior.mean.dtype)
    if dK is not None:
        b = posterior.weights.T
        gradient = b[:, :, None] * b[:, None, :] - posterior.factor.diagonal_blocks()
        tangent = tangent + jnp.sum(gradient * dK) / 2
    if dprior_mean is not None:
        tangent = tangent + jnp.sum(posterior.weights * dprior_mean)
    return _log_evidence(*primals), tangent
