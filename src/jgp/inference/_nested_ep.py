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
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int

from jgp._fixed_point import FixedPoint, iterate
from jgp._implicit import fixed_point
from jgp._lapack import one_by_one
from jgp._model import Model
from jgp._types import positive_integer
from jgp.inference._approximation import Approximation, check_approximation, finish
from jgp.inference._data import bounded, prepare, tolerances
from jgp.inference._ep_evidence import stationary_evidence
from jgp.inference._full_ep import check_size, full_ep
from jgp.inference._site_approximation import site_approximation
from jgp.inference._site_posterior import SitePosterior, site_normaliser, site_posterior
from jgp.inference._sites import DenseSites, RankOneSites
from jgp.likelihoods import MultinomialProbit
from jgp.likelihoods._inner_ep import (
    ProbitSites,
    latent_contrasts,
    log_site_constants,
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
    inner: str = "nested",
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
        inner: "nested", or "quadrature": exact tilted moments, to measure the error
            of nesting by ("full EP"). Its sites are full blocks, and it takes
            O((nC)³) time and O((nC)²) memory, up to nC = 4000.
        inner_sweeps: Passes over the factors of each point within a sweep.
        window: Anderson acceleration's memory; 0 turns it off.

    Returns:
        An `Approximation` with `RankOneSites`, whose `precision` is α (1 at the
        label) and whose `linear` is ν; with `DenseSites` for "quadrature".

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
    init = check_approximation(init, "init", "nested_ep", model, inputs)
    sites = None if init is None else init.sites
    options = (
        *tolerances(rtol, atol, inputs.dtype),
        positive_integer("max_steps", max_steps),
        bounded("damping", damping, 1e-3, 1.0, inputs.dtype),
    )
    num_sweeps = int(positive_integer("inner_sweeps", inner_sweeps))
    size = int(positive_integer("window", window, least=0))
    if inner == "quadrature":
        size_of_all = inputs.shape[0] * model.process.num_latents
        check_size(size_of_all, "inner: got 'quadrature'", "or inner='nested'")
        if isinstance(sites, RankOneSites):
            sites = DenseSites(sites.blocks(), sites.linear)
        dense = cast("DenseSites | None", sites)
        found = full_ep(
            model, inputs, labels, dense, *options, window=size, method="nested_ep"
        )
        return finish(found, throw)
    if inner != "nested":
        raise ValueError(f"inner: got {inner!r}, wanted 'nested' or 'quadrature'.")
    if isinstance(sites, DenseSites):
        raise ValueError(
            "init: got an Approximation with inner='quadrature', wanted one with "
            "inner='nested'."
        )
    approximation = _nested_ep(
        model,
        inputs,
        labels,
        cast("RankOneSites | None", sites),
        *options,
        inner_sweeps=num_sweeps,
        window=size,
    )
    return finish(approximation, throw)


@eqx.filter_jit
def _nested_ep(
    model: Model,
    x: Array,
    y: Array,
    init: RankOneSites | None,
    rtol: Any,
    atol: Any,
    max_steps: Any,
    damping: Any,
    *,
    inner_sweeps: int,
    window: int,
) -> Approximation:
    K, prior_mean = model.process.covariance(x), model.process.mean(x)
    update = eqx.filter_jit(functools.partial(_update, num_sweeps=inner_sweeps))

    def search(params, controls) -> FixedPoint:
        _, prior_mean, y = params
        init, rtol, atol, max_steps, damping = controls
        return iterate(
            update,
            no_sites(y, prior_mean) if init is None else probit_sites(init, y),
            params,
            rtol=rtol,
            atol=atol,
            max_steps=max_steps,
            damping=damping,
            window=window,
            feasible=lambda sites: jnp.all(sites.alpha > 0),
        )

    def run(params, controls) -> FixedPoint:
        leaves, structure = jax.tree.flatten((params, controls))

        # In lockstep all members of a batch would wait for the slowest, and on CPU a
        # product of many matrices takes longer than as many products.
        @one_by_one
        def alone(*leaves):
            return search(*jax.tree.unflatten(structure, leaves))

        return alone(*leaves)

    params = (K, prior_mean, y)
    controls = jax.tree.map(jnp.asarray, (init, rtol, atol, max_steps, damping))
    found = fixed_point(run, update, params, controls)
    swept = found.auxiliary
    log_evidence = _log_evidence(K, prior_mean, found.value, swept)
    return site_approximation(
        (model, x, y),
        found,
        swept.sites,
        swept.posterior,
        log_evidence,
        method="nested_ep",
        evidence_kind="ep",
    )


class _Swept(eqx.Module):
    """What a sweep computes of the sites that it starts from.

    Args:
        sites: The sites on f, u integrated out.
        posterior: The Gaussian posterior under them.
        log_constants: Σ_k log c_ik of each point.
    """

    sites: RankOneSites
    posterior: SitePosterior
    log_constants: Float[Array, " n"]


def _update(
    sites: ProbitSites, params: tuple, *, num_sweeps: int
) -> tuple[ProbitSites, _Swept]:
    """One sweep: the posterior under the sites, then the inner EP of every point."""
    K, prior_mean, y = params
    on_f = rank_one_sites(sites)
    posterior = site_posterior(K, prior_mean, on_f)

    def one(m, S, label, site):
        contrasts = with_auxiliary(latent_contrasts(m, S, label), site)
        log_constants = log_site_constants(contrasts, site, label)
        return sweep(contrasts, site, label, num_sweeps)[1], log_constants

    new, log_constants = jax.vmap(one)(posterior.mean, posterior.covariance, y, sites)
    return new, _Swept(on_f, posterior, log_constants)


def rank_one_sites(sites: ProbitSites) -> RankOneSites:
    """The sites on f: a = α, ν = (Σβ/s) α − β."""
    s = jnp.sum(sites.alpha, axis=1, keepdims=True)
    common = jnp.sum(sites.beta, axis=1, keepdims=True) / s
    return RankOneSites(sites.alpha, common * sites.alpha - sites.beta)


def probit_sites(sites: RankOneSites, y: Int[Array, " n"]) -> ProbitSites:
    """The inverse of `rank_one_sites`: β_k = ν_y α_k − ν_k, as α_y = 1 and β_y = 0."""
    at_label = jnp.take_along_axis(sites.linear, y[:, None], axis=1)
    return ProbitSites(sites.precision, at_label * sites.precision - sites.linear)


def no_sites(y: Int[Array, " n"], like: Float[Array, "n C"]) -> ProbitSites:
    """Empty sites, (1, 0) at the label."""
    return ProbitSites(
        jax.nn.one_hot(y, like.shape[1], dtype=like.dtype), jnp.zeros_like(like)
    )


def _log_evidence(
    K: Float[Array, "C n n"],
    prior_mean: Float[Array, "n C"],
    sites: ProbitSites,
    swept: _Swept,
) -> Float[Array, ""]:
    """Log Z; integrating uᵢ out leaves ½(Σβ)²/s − ½log s beside the sites on f."""
    s = jnp.sum(sites.alpha, axis=1)
    auxiliary = jnp.sum(sites.beta, axis=1) ** 2 / s - jnp.log(s)
    value = site_normaliser(prior_mean, swept.sites, swept.posterior)
    value = value + jnp.sum(auxiliary) / 2 + jnp.sum(swept.log_constants)
    return stationary_evidence(
        value, K, prior_mean, None, swept.posterior, None, local=None
    )
