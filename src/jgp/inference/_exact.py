r"""Exact Gaussian-process regression (Rasmussen & Williams 2006, Alg. 2.1).

With r = y − m₀ and S = K + σ²I, w = S⁻¹r:

    log p(y) = −½rᵀw − ½log|S| − ½n log 2π,   d log p = ½tr((wwᵀ − S⁻¹)dS) − wᵀdr.
"""

from typing import Any, cast

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jgp._linalg import (
    cholesky,
    cholesky_solve,
    diagonal_matrices,
    log_determinant,
    solve_lower,
)
from jgp._model import Model
from jgp._results import RESULTS, unless, worst
from jgp.inference._approximation import Approximation, check_approximation, finish
from jgp.inference._data import positive_integer, prepare, tolerances
from jgp.inference._posterior import AbstractFactor, GaussianPosterior
from jgp.inference._sites import DiagonalSites
from jgp.likelihoods import Gaussian


class CholeskyFactor(AbstractFactor):
    """(K + N)⁻¹ by its Cholesky factors; a leading 1 serves all latents.

    Exact regression keeps triangular factors rather than an inverse: without noise
    K is close to singular, and variances are differences of nearly equal numbers.
    """

    lower: Float[Array, "C n n"]

    def times(self, v: Float[Array, "n C"]) -> Float[Array, "n C"]:
        """(K + N)⁻¹v."""
        if self.lower.shape[0] == 1:
            return cholesky_solve(self.lower[0], v)
        columns = v.T[:, :, None]
        return cholesky_solve(self.lower, columns)[:, :, 0].T

    def _whitened(self, k: Float[Array, "C n m"]) -> Float[Array, "C n m"]:
        shape = (k.shape[0], *self.lower.shape[1:])
        return solve_lower(jnp.broadcast_to(self.lower, shape), k)

    def marginal_reduction(self, k: Float[Array, "C n m"]) -> Float[Array, "m C C"]:
        """kᵀ(K + N)⁻¹k for each of m points."""
        own = jnp.sum(self._whitened(k) ** 2, axis=1).T
        return diagonal_matrices(own)

    def joint_reduction(self, k: Float[Array, "C n m"]) -> Float[Array, "m C m C"]:
        """kᵀ(K + N)⁻¹k between all pairs of m points."""
        white = self._whitened(k)
        identity = jnp.eye(k.shape[0], dtype=k.dtype)
        return jnp.einsum("cim,cil,cd->mcld", white, white, identity)


def exact(
    model: Model,
    x: ArrayLike,
    y: Any,
    *,
    init: Approximation | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    max_steps: int = 1,
    throw: bool = True,
) -> Approximation:
    """The exact posterior and evidence under Gaussian noise.

    Args:
        model: A process with C independent latents and a `Gaussian` likelihood.
        x: (n, d) inputs; without data the posterior is the prior.
        y: (n,) targets, or (n, C) for C latents.
        init: Not used, as nothing is iterated; accepted like the rest by every verb.
        rtol: Not used.
        atol: Not used.
        max_steps: Not used.
        throw: Whether to raise `InferenceError` when K + σ²I cannot be factorised
            even with jitter; otherwise look at `result`.

    Returns:
        An `Approximation` in 0 steps; `jitter` is what was added to the diagonal. Its
        sites have infinite precision where the noise variance is zero.

    Raises:
        ValueError: for input that cannot be right, before anything is compiled.
        InferenceError: if `throw` and the factorisation failed.
    """
    model, inputs, targets = prepare(model, x, y)
    tolerances(rtol, atol, inputs.dtype)
    positive_integer("max_steps", max_steps)
    if not isinstance(model.likelihood, Gaussian):
        raise ValueError(
            f"likelihood: got {type(model.likelihood).__name__}, wanted Gaussian for "
            "exact."
        )
    check_approximation(init, "init", "exact", model, inputs)
    return finish(_exact(model, inputs, targets), throw)


@eqx.filter_jit
def _exact(model: Model, x: Array, y: Array) -> Approximation:
    noise_variance = cast(Gaussian, model.likelihood).noise_variance
    targets = y if y.ndim == 2 else y[:, None]
    r = targets - model.process.mean(x)
    S = model.process.covariance(x)
    S = S + noise_variance * jnp.eye(x.shape[0], dtype=x.dtype)[None]
    lower, jitter, ok = cholesky(S)
    factor = CholeskyFactor(lower)
    weights = factor.times(r)
    log_evidence = _log_evidence(S, r, factor)
    # A failed factor makes all else NaN: what is not finite is told of S and r alone.
    finite = jnp.all(jnp.isfinite(S)) & jnp.all(jnp.isfinite(r))
    result = unless(jnp.all(ok), RESULTS.not_positive_definite)
    result = worst(result, unless(finite, RESULTS.non_finite))
    fine = (result != RESULTS.successful) | jnp.isfinite(log_evidence)
    result = RESULTS.where(fine, result, RESULTS.non_finite)
    precision = jnp.full_like(targets, 1 / noise_variance)
    linear = jnp.where(targets == 0, 0, targets / noise_variance)
    return Approximation(
        model,
        x,
        y,
        GaussianPosterior(model.process, x, weights, factor),
        log_evidence,
        DiagonalSites(precision, linear),
        result,
        jnp.array(0, jnp.int32),
        jnp.zeros((), x.dtype),
        jnp.max(jitter, initial=0.0),
        method="exact",
        evidence_kind="exact",
    )


@eqx.filter_custom_jvp
def _log_evidence(
    S: Float[Array, "C n n"], r: Float[Array, "n C"], factor: CholeskyFactor
) -> Float[Array, ""]:
    num_latents = r.shape[1]
    logs = jnp.broadcast_to(log_determinant(factor.lower), (num_latents,))
    square = jnp.sum(r * factor.times(r))
    return -(square + jnp.sum(logs) + r.size * jnp.log(2 * jnp.pi)) / 2


@_log_evidence.def_jvp
def _log_evidence_jvp(primals, tangents):
    """The explicit rule; the factor carries its own derivative to second order."""
    S, r, factor = primals
    dS, dr, _ = tangents
    weights = factor.times(r).T
    tangent = jnp.zeros((), r.dtype)
    if dS is not None:
        identity = jnp.broadcast_to(jnp.eye(S.shape[-1], dtype=S.dtype), S.shape)
        inverse = cholesky_solve(factor.lower, identity)
        gradient = weights[:, :, None] * weights[:, None, :] - inverse
        tangent = tangent + jnp.sum(gradient * dS) / 2
    if dr is not None:
        tangent = tangent - jnp.sum(weights.T * dr)
    return _log_evidence(S, r, factor), tangent
