r"""Expectation propagation for likelihoods of one latent (Minka 2001).

q(f) ∝ p(f) ∏ᵢ exp(νᵢfᵢ − ½τᵢfᵢ²). A sweep takes the marginal N(mᵢ, Sᵢ) of each point,
removes the fraction η of its site, which leaves the cavity N(m₋, v₋) with

    1/v₋ = 1/Sᵢ − ητᵢ,   m₋/v₋ = mᵢ/Sᵢ − ηνᵢ,

and matches the mean and variance of the tilted p(yᵢ | f)^η N(f; m₋, v₋). With the slope
g and the curvature h of log Ẑ in m₋, the new site is

    τ' = h/(η(1 − v₋h)),   ν' = (g + m₋h)/(η(1 − v₋h)).

η = 1 is EP; η < 1 is power EP (Minka 2004), which tends to the variational solution as
η → 0. At convergence

    log Z = log ∫ p(f) ∏ᵢ exp(νᵢfᵢ − ½τᵢfᵢ²) df + (1/η) Σᵢ log cᵢ,

cᵢ the ratio of Ẑᵢ to the integral of the cavity times the η-th power of the site. For
sites that are precise or far from 0 the two cancel, so each site is taken as a multiple
of its value at the marginal mean, and the cavity by m₋ = m − ηv₋b with b = ν − τm:

    log Z = −½bᵀ(m − m₀) − ½log|I + KT| + Σᵢ [(log Ẑᵢ − ½log(v₋⁻¹Sᵢ))/η + ½ηv₋bᵢ²].
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from jgp._fixed_point import FixedPoint, iterate
from jgp._implicit import fixed_point
from jgp._model import Model
from jgp._parameters import is_concrete
from jgp._types import positive_integer
from jgp.inference._approximation import Approximation, check_approximation, finish
from jgp.inference._data import bounded, prepare, tolerances
from jgp.inference._double_loop import double_loop
from jgp.inference._ep_evidence import stationary_evidence
from jgp.inference._ep_sweep import (
    Cavities,
    Problem,
    Swept,
    parallel_sweep,
    sequential_sweep,
    tilted_at,
)
from jgp.inference._full_ep import check_size, full_ep
from jgp.inference._site_approximation import site_approximation
from jgp.inference._site_posterior import centred_normaliser
from jgp.inference._sites import AbstractSites, DenseSites
from jgp.likelihoods import LatentNoiseGaussian

SCHEDULES = ("parallel", "sequential")


class Diagnostics(NamedTuple):
    """How EP was brought to converge.

    Args:
        double_loop: Whether plain EP did not converge and the double loop took over.
        num_outer_steps: Steps of the double loop.
        power: η.
    """

    double_loop: Bool[Array, ""]
    num_outer_steps: Int[Array, ""]
    power: Float[Array, ""]


def expectation_propagation(
    model: Model,
    x: ArrayLike,
    y: Any,
    *,
    init: Approximation | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    max_steps: int = 200,
    throw: bool = True,
    power: float = 1.0,
    schedule: str = "parallel",
    damping: float = 1.0,
    window: int = 5,
    fallback: bool | None = None,
) -> Approximation:
    """Approximate the posterior of a likelihood of one latent, or of few, by EP.

    O(n³) time a sweep, O(n²) memory; O((2n)³) and O((2n)²) for the two latents a point
    of `LatentNoiseGaussian`, whose sites are full blocks. Site precisions may be
    negative where the likelihood is not log-concave (Student-t). Plain sweeps,
    Anderson-accelerated, are tried first; if they do not converge a double loop does,
    which descends on the free energy (Heskes & Zoeter 2002; Opper & Winther 2005);
    `diagnostics` tells.
    A likelihood that is not log-concave can have several fixed points, of different
    evidence; which one is found depends on `init`, `power` and `schedule`.
    Differentiable to any order: the first derivative of `log_evidence` is explicit,
    everything else goes through the implicit derivative of the sites.

    Args:
        model: A process and a likelihood of one latent, or `LatentNoiseGaussian` with
            two, for which power is 1, the schedule parallel, and no fallback at hand.
        x: (n, d) inputs, n >= 1.
        y: (n,) observations, as the likelihood wants them.
        init: An earlier approximation by this method on as many points.
        rtol: Relative tolerance on the change of (τ, ν) in an undamped sweep; 1e-6 in
            float64 and 1e-4 in float32 by default.
        atol: Absolute tolerance, likewise.
        max_steps: Bound on the number of sweeps, and on the outer steps of the double
            loop.
        throw: Whether to raise `InferenceError` when EP does not converge; otherwise
            look at `result`.
        power: η in (0, 1], a constant of derivatives. Below about 1e-3 cancellation
            costs digits.
        schedule: "parallel", all sites from one posterior, or "sequential", each from
            the posterior that the one before has changed. Same fixed points.
        damping: Fraction of each step taken, in (0, 1].
        window: Anderson acceleration's memory; 0 turns it off.
        fallback: Whether to go on with the double loop, of O(n³) time with a larger
            factor. None does wherever the status of the sweeps can be read, which it
            cannot be under `jit` or `vmap`; True compiles it there too.

    Returns:
        An `Approximation` with `DiagonalSites`, `SignedSites` for a likelihood that
        is not log-concave, or `DenseSites` for two latents.

    Raises:
        ValueError: for input that cannot be right, before anything is compiled.
        InferenceError: if `throw` and EP did not converge.
    """
    model, inputs, targets = prepare(model, x, y)
    few = isinstance(model.likelihood, LatentNoiseGaussian)
    if model.process.num_latents != 1 and not few:
        raise ValueError(
            f"process: got {model.process.num_latents} latent functions, wanted one "
            "for expectation_propagation (for classes see nested_ep)."
        )
    init = check_approximation(init, "init", "expectation_propagation", model, inputs)
    if schedule not in SCHEDULES:
        raise ValueError(
            f"schedule: got {schedule!r}, wanted one of {', '.join(SCHEDULES)}."
        )
    if fallback not in (None, True, False):
        raise ValueError(f"fallback: got {fallback!r}, wanted True, False or None.")
    fallback = None if fallback is None else bool(fallback)
    eta = bounded("power", power, 1e-6, 1.0, inputs.dtype)
    exact_power = is_concrete(eta) and float(eta) == 1
    options = (
        *tolerances(rtol, atol, inputs.dtype),
        positive_integer("max_steps", max_steps),
        bounded("damping", damping, 1e-3, 1.0, inputs.dtype),
        # A power of one has closed forms that others have not.
        None if exact_power else eta,
    )
    size = int(positive_integer("window", window, least=0))
    if few:
        if not exact_power or schedule != "parallel" or fallback:
            raise ValueError(
                f"power, schedule, fallback: got {power}, {schedule!r} and {fallback}, "
                "wanted 1, 'parallel' and None for a likelihood of two latents."
            )
        check_size(2 * inputs.shape[0], "x: got inputs", "or one latent a point")
        dense = cast("DenseSites | None", None if init is None else init.sites)
        method = "expectation_propagation"
        found = full_ep(
            model, inputs, targets, dense, *options[:4], window=size, method=method
        )
        return finish(found, throw)
    run = functools.partial(
        _expectation_propagation,
        sequential=schedule == "sequential",
        window=size,
    )
    start = None if init is None else init.sites
    arguments = model, inputs, targets
    approximation = run(*arguments, start, *options, fallback=fallback is True)
    if fallback is None and _failed(approximation):
        # Compiled only where it is needed.
        approximation = run(*arguments, start, *options, fallback=True)
    return finish(approximation, throw)


def _failed(approximation: Approximation) -> bool:
    """Whether the status can be read and is a failure."""
    residual = approximation.residual
    return is_concrete(residual) and residual.ndim == 0 and not float(residual) <= 1


@eqx.filter_jit
def _expectation_propagation(
    model: Model,
    x: Array,
    y: Array,
    init: AbstractSites | None,
    rtol: Any,
    atol: Any,
    max_steps: Any,
    damping: Any,
    power: Any,
    *,
    sequential: bool,
    window: int,
    fallback: bool,
) -> Approximation:
    K, prior_mean = model.process.covariance(x), model.process.mean(x)
    likelihood = model.likelihood.at_data(x)
    positive = likelihood.log_concave
    power = None if power is None else jnp.asarray(power)

    update = eqx.filter_jit(sequential_sweep if sequential else parallel_sweep)

    def run(problem: Problem, controls) -> FixedPoint:
        start, rtol, atol, max_steps, damping = controls

        def sweep(start: AbstractSites, max_steps: Array) -> FixedPoint:
            return iterate(
                update,
                start,
                problem,
                rtol=rtol,
                atol=atol,
                max_steps=max_steps,
                damping=damping,
                window=window,
                feasible=lambda s: jnp.all(s.precision >= 0) | (not positive),
            )

        found = sweep(start, max_steps)
        if not fallback:
            return found
        return _with_double_loop(found, sweep, problem, rtol, atol, max_steps)

    problem = Problem(K, prior_mean, likelihood, y, power, signed=not positive)
    zero = jnp.zeros_like(prior_mean[:, 0])
    start = problem.sites(zero, zero)
    if init is not None:
        # An earlier likelihood may have had the other kind of sites.
        precision = init.precision[:, 0]
        precision = jnp.maximum(precision, 0) if positive else precision
        start = problem.sites(precision, init.linear[:, 0])
    controls = (start, *jax.tree.map(jnp.asarray, (rtol, atol, max_steps, damping)))
    found = fixed_point(run, parallel_sweep, problem, controls)
    sites, swept = found.value, found.auxiliary
    log_evidence = _log_evidence(problem, swept)
    return site_approximation(
        (model, x, y),
        found,
        sites,
        swept.posterior,
        log_evidence,
        method="expectation_propagation",
        evidence_kind="ep",
        diagnostics=Diagnostics(
            swept.num_outer_steps > 0,
            swept.num_outer_steps,
            jnp.ones((), x.dtype) if power is None else power,
        ),
    )


def _with_double_loop(
    found: FixedPoint,
    sweep: Callable[[AbstractSites, Array], FixedPoint],
    problem: Problem,
    rtol: Array,
    atol: Array,
    max_steps: Array,
) -> FixedPoint:
    """What sweeps found, or if they did not converge, find from the double loop's end.

    Outer steps creep where a term is far more precise than its cavity; sweeps from
    where they lead do not, and no sweep moves what has converged.
    """
    needed = found.residual > 1
    signed = dataclasses.replace(problem, signed=True)
    start = signed.sites(found.value.precision[:, 0], found.value.linear[:, 0])
    steps = jnp.where(needed, max_steps, 0)
    ended, num_outer_steps = double_loop(signed, start, rtol, atol, steps)
    precision = ended.precision[:, 0]
    if not problem.signed:
        precision = jnp.maximum(precision, 0)
    again = sweep(problem.sites(precision, ended.linear[:, 0]), steps)
    better = needed & (again.residual < found.residual)
    chosen = jax.tree.map(lambda new, old: jnp.where(better, new, old), again, found)
    return eqx.tree_at(
        lambda c: (c.num_steps, c.auxiliary.num_outer_steps),
        chosen,
        (found.num_steps + num_outer_steps + again.num_steps, num_outer_steps),
    )


def _log_evidence(problem: Problem, swept: Swept) -> Float[Array, ""]:
    normaliser = centred_normaliser(problem.prior_mean, swept.posterior)
    value = normaliser + jnp.sum(swept.log_constants)
    terms = (problem.likelihood, problem.y)
    held = (swept.cavities, problem.power)
    return stationary_evidence(
        value, problem.K, problem.prior_mean, terms, swept.posterior, held, local=_local
    )


def _local(terms: Any, held: tuple[Cavities, Any]) -> Float[Array, ""]:
    """(1/η) Σ log Ẑᵢ as a function of the likelihood and the observations."""
    cavities, power = held
    likelihood, y = terms
    tilted = tilted_at(likelihood, y, power, cavities)
    return jnp.sum(tilted.log_normaliser) / (1 if power is None else power)
