r"""Exact Gaussian-process regression (Rasmussen & Williams 2006, Alg. 2.1, §2.7).

The mathematics is that of `_factor`. Outputs that are independent, a priori and in
their noise, take O(Cn³) time and O(Cn²) memory; those that are not are one problem of
nC observations.
"""

from typing import Any, cast

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from jgp._linalg import cholesky, diagonal_matrices
from jgp._model import Model
from jgp._parameters import is_concrete
from jgp._results import RESULTS, unless, worst
from jgp._types import positive_integer
from jgp.inference._approximation import Approximation, check_approximation, finish
from jgp.inference._coupled_posterior import CoupledPosterior
from jgp.inference._data import (
    check_unmasked,
    is_coupled,
    prepare,
    tolerances,
)
from jgp.inference._factor import factorise, log_marginal
from jgp.inference._gaussian_posterior import GaussianPosterior
from jgp.inference._sites import DiagonalSites
from jgp.likelihoods import AbstractGaussian

# Observations that are factorised together where outputs are coupled: 3 GB.
MAX_COUPLED = 20_000


def exact(
    model: Model,
    x: ArrayLike,
    y: Any,
    *,
    mask: ArrayLike | None = None,
    init: Approximation | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    max_steps: int = 1,
    throw: bool = True,
) -> Approximation:
    """The exact posterior and evidence under Gaussian noise.

    Args:
        model: Any process, and a likelihood of Gaussian noise. Outputs that a
            `coregionalised` prior or a `CorrelatedGaussian` couples cost O((nC)³).
        x: (n, d) inputs; without data the posterior is the prior.
        y: (n,) targets, or (n, C) for C latents.
        mask: Which targets are observed, booleans of the shape of `y`; the others may
            be anything, NaN too, and the evidence is that of the observed ones. All
            of them if left out.
        init: Not used, as nothing is iterated; accepted like the rest by every verb.
        rtol: Not used.
        atol: Not used.
        max_steps: Not used.
        throw: Whether to raise `InferenceError` when K + σ²I cannot be factorised
            even with jitter; otherwise look at `result`.

    Returns:
        An `Approximation` in 0 steps; `jitter` is what was added to the diagonal. Its
        sites have infinite precision where the noise variance is zero, none where a
        target is missing, and are None where outputs are coupled.

    Raises:
        ValueError: for input that cannot be right, before anything is compiled.
        InferenceError: if `throw` and the factorisation failed.
    """
    y, observed = masked(y, mask)
    model, inputs, targets = prepare(model, x, y, regression=True)
    tolerances(rtol, atol, inputs.dtype)
    positive_integer("max_steps", max_steps)
    check_approximation(init, "init", "exact", model, inputs)
    if is_coupled(model) and targets.size > MAX_COUPLED:
        raise ValueError(
            f"y: got {targets.size} observations of coupled outputs, wanted at most "
            f"{MAX_COUPLED}, which are factorised together."
        )
    return finish(exact_core(model, inputs, targets, observed), throw)


def masked(y: Any, mask: ArrayLike | None) -> tuple[Any, Array | None]:
    """The targets with zeros where they are missing, and which are there.

    Raises:
        ValueError: for a mask of another shape, or not of booleans.
    """
    if mask is None:
        return y, None
    check_unmasked(y, "y")
    observed = jnp.asarray(mask)
    if observed.dtype != bool or observed.shape != np.shape(y):
        raise ValueError(
            f"mask: got shape {observed.shape} of {observed.dtype}, wanted booleans of "
            f"shape {np.shape(y)}, that of y."
        )
    if is_concrete(y) and is_concrete(observed):
        return np.where(np.asarray(observed), np.asarray(y), 0), observed
    y = jnp.asarray(y)
    return jnp.where(observed, y, jnp.zeros_like(y)), observed


@eqx.filter_jit
def exact_core(
    model: Model,
    x: Array,
    y: Array,
    mask: Bool[Array, "n *C"] | None,
    known: tuple[Array, Array, RESULTS] | None = None,
) -> Approximation:
    """Exact regression on checked data.

    Args:
        model: A model, in the dtype of the inputs.
        x: Inputs.
        y: Targets.
        mask: Which are observed, or None.
        known: The Cholesky factor of the first observations, the jitter in it and how
            finding it ended; see `condition`.
    """
    targets = y if y.ndim == 2 else y[:, None]
    observed = None if mask is None else mask.reshape(targets.shape)
    r = targets - model.process.mean(x)
    likelihood = cast(AbstractGaussian, model.likelihood.at_data(x))
    if is_coupled(model):
        return _coupled(model, likelihood, x, y, r, observed, known)
    noise = likelihood.variances(targets.shape)
    S = model.process.covariance(x)
    S = S + diagonal_matrices(noise.T[:1] if likelihood.same_for_all else noise.T)
    features = model.process.features
    there = None if observed is None else observed.T
    S, H, factor, jitter, status = factorise(S, there, features, x, noise, known)
    if observed is not None:
        r = jnp.where(observed, r, 0)
    weights = factor.times(r)
    coefficients = None if H is None else factor.coefficients(r)
    posterior = GaussianPosterior(model.process, x, weights, factor, coefficients)
    log_evidence = log_marginal(S, r, H, factor)
    sites = sites_of(targets, noise, observed) if H is None else None
    status = worst(status, conditioning(noise, observed, jitter))
    result = _status(S, r, status, log_evidence)
    return _approximation(model, x, y, posterior, log_evidence, sites, result, jitter)


def _coupled(model, likelihood, x, y, r, observed, known) -> Approximation:
    """The joint path: all outputs at all points are one vector of observations."""
    num_points, num_latents = r.shape
    K = model.process.joint_covariance(x)
    if likelihood.covariance is None:
        root = diagonal_matrices(jnp.sqrt(likelihood.variances(r.shape)))
    else:
        root = cholesky(likelihood.covariance).lower
        root = jnp.broadcast_to(root, (num_points, num_latents, num_latents))
    identity = jnp.eye(num_points, dtype=x.dtype)
    noise = jnp.einsum("nm,ncd->ncmd", identity, likelihood.covariances(r.shape))
    S = K.reshape(1, r.size, r.size) + noise.reshape(1, r.size, r.size)
    there = None if observed is None else observed.reshape(1, r.size)
    S, _, factor, jitter, status = factorise(S, there, None, x, known=known)
    if observed is not None:
        r = jnp.where(observed, r, 0)
    flat = r.reshape(r.size, 1)
    weights = factor.times(flat).reshape(num_points, num_latents)
    log_evidence = log_marginal(S, flat, None, factor)
    posterior = CoupledPosterior(model.process, x, weights, factor, root)
    variances = likelihood.variances(r.shape)
    status = worst(status, conditioning(variances, observed, jitter))
    result = _status(S, r, status, log_evidence)
    return _approximation(model, x, y, posterior, log_evidence, None, result, jitter)


def sites_of(
    targets: Float[Array, "n C"],
    noise: Float[Array, "n C"],
    observed: Bool[Array, "n C"] | None,
) -> DiagonalSites:
    """What each observation says of its latent; nothing where there is none."""
    precision, linear = 1 / noise, jnp.where(targets == 0, 0, targets / noise)
    if observed is not None:
        precision, linear = (jnp.where(observed, a, 0) for a in (precision, linear))
    return DiagonalSites(precision, linear)


def conditioning(
    noise: Float[Array, "n C"],
    observed: Bool[Array, "n C"] | None,
    jitter: Float[Array, ""],
) -> RESULTS:
    """`ill_conditioned` where jitter exceeds a noise variance, zero among them."""
    if observed is not None:
        noise = jnp.where(observed, noise, jnp.inf)
    return unless(jitter <= jnp.min(noise, initial=jnp.inf), RESULTS.ill_conditioned)


def _status(
    S: Array, r: Array, factorised: RESULTS, log_evidence: Float[Array, ""]
) -> RESULTS:
    # A failed factor makes all else NaN: what is not finite is told of S and r alone.
    finite = jnp.all(jnp.isfinite(S)) & jnp.all(jnp.isfinite(r))
    result = worst(factorised, unless(finite, RESULTS.non_finite))
    failed = (result == RESULTS.not_positive_definite) | (
        result == RESULTS.undetermined
    )
    fine = failed | jnp.isfinite(log_evidence)
    return RESULTS.where(fine, result, RESULTS.non_finite)


def _approximation(
    model, x, y, posterior, log_evidence, sites, result, jitter
) -> Approximation:
    return Approximation(
        model,
        x,
        y,
        posterior,
        log_evidence,
        sites,
        result,
        jnp.array(0, jnp.int32),
        jnp.zeros((), x.dtype),
        jitter,
        method="exact",
        evidence_kind="exact",
    )
