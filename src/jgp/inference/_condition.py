"""Conditioning an exact posterior on more data: its Cholesky factor grows."""

import dataclasses
from typing import Any, cast

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool

from jgp.inference._approximation import Approximation, finish
from jgp.inference._data import check_inputs, check_targets
from jgp.inference._exact import exact_core, masked
from jgp.inference._factor import CholeskyFactor
from jgp.likelihoods import FixedNoiseGaussian


def condition(
    approximation: Approximation,
    x_new: ArrayLike,
    y_new: Any,
    *,
    mask: ArrayLike | None = None,
    noise_variance: ArrayLike | None = None,
    throw: bool = True,
) -> Approximation:
    """Exact regression on more data; equal to `exact` on all of it at once.

    m more points take O(n²m + m³) time in place of O((n + m)³).

    Args:
        approximation: By `exact`.
        x_new: (m, d) inputs.
        y_new: (m,) targets, or (m, C).
        mask: Which of the new targets are observed; all of them if left out.
        noise_variance: (m,) or (m, C), for `FixedNoiseGaussian`.
        throw: As for `exact`.

    Raises:
        ValueError: for an approximation by another method, or wrong data.
        InferenceError: if `throw` and the factorisation failed.
    """
    factor = getattr(getattr(approximation, "posterior", None), "factor", None)
    if not isinstance(factor, CholeskyFactor):
        got = getattr(approximation, "method", type(approximation).__name__)
        raise ValueError(f"approximation: got {got}, wanted one by exact.")
    model, x = approximation.model, approximation.x
    inputs = check_inputs(x_new, x, model.process)
    y_new, observed = masked(y_new, mask)
    targets = check_targets(model, y_new, "y_new").astype(inputs.dtype)
    if targets.shape[0] != inputs.shape[0]:
        raise ValueError(
            f"y_new: got shape {targets.shape} beside x_new of shape {inputs.shape}, "
            "wanted as many targets as inputs."
        )
    likelihood = model.likelihood
    there = likelihood.at(inputs, noise_variance)
    if isinstance(likelihood, FixedNoiseGaussian):
        new = cast(FixedNoiseGaussian, there)
        shapes = [(len(points), model.process.num_latents) for points in (x, inputs)]
        pair = zip((likelihood, new), shapes, strict=True)
        likelihood = FixedNoiseGaussian(
            jnp.concatenate([noise.variances(shape) for noise, shape in pair])
        )
    found = exact_core(
        dataclasses.replace(model, likelihood=likelihood),
        jnp.concatenate([x, inputs]),
        jnp.concatenate([approximation.y, targets]),
        _both(approximation, factor, observed, targets),
        (factor.lower, approximation.jitter, approximation.result),
    )
    return finish(found, throw)


def _both(
    approximation: Approximation,
    factor: CholeskyFactor,
    observed: Bool[Array, "m *C"] | None,
    targets: Array,
) -> Bool[Array, "n *C"] | None:
    """Which of the old and the new targets are observed, None for all."""
    if observed is None and factor.observed is None:
        return None
    old = jnp.ones(approximation.y.shape, bool)
    if factor.observed is not None:
        # Latents first where they are independent, points first where coupled.
        single = factor.observed.shape[0] == 1
        order = factor.observed if single else factor.observed.T
        old = order.reshape(approximation.y.shape)
    new = jnp.ones(targets.shape, bool) if observed is None else observed
    return jnp.concatenate([old, new])
