r"""Criticism of a regression: leave-one-out and scores of predictions.

With P of exact regression (S⁻¹, or its projection where a mean is integrated out) and
w = P(y − m₀), leaving out observation i predicts it by

    μᵢ = yᵢ − wᵢ/Pᵢᵢ,   σᵢ² = 1/Pᵢᵢ

(Rasmussen & Williams 2006, eq. 5.12; Sundararajan & Keerthi 2001): one inverse for all.
Approximations with sites leave out the site of a point: `_left_out`.
"""

from typing import Any, cast

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, PRNGKeyArray

from jgp._left_out import LeftOut, left_out
from jgp._parameters import is_concrete
from jgp.inference import Approximation, GaussianPosterior
from jgp.inference._coupled_posterior import CoupledPosterior
from jgp.inference._data import check_targets, is_coupled
from jgp.inference._factor import CholeskyFactor
from jgp.likelihoods import AbstractGaussian, Normal
from jgp.likelihoods._predictive import check_level


class Criticism(eqx.Module):
    """How predictions and observations go together, observation by observation.

    Args:
        predicted: The predictive distributions.
        y: What was observed.
        log_prob: The log density of each observation; their sum after leaving out
            one at a time is the pseudo-likelihood of cross-validation.
        residuals: (y − mean)/stddev, draws of N(0, 1) under the model.
        pit: Φ(residuals), draws of the uniform distribution under the model.
        crps: Continuous ranked probability scores, in units of y.
        observed: Which targets there are, all where None; the scores of the others mean
            nothing and count nowhere.
    """

    predicted: Normal
    y: Float[Array, "n *C"]
    log_prob: Float[Array, "n *C"]
    residuals: Float[Array, "n *C"]
    pit: Float[Array, "n *C"]
    crps: Float[Array, "n *C"]
    observed: Bool[Array, "n *C"] | None = None

    def coverage(self, level: float = 0.95) -> Float[Array, ""]:
        """The share of observations within their central intervals of a level."""
        check_level(level)
        return self._covered(jnp.asarray([level], self.pit.dtype))[0]

    def calibration_error(self, num_levels: int = 19) -> Float[Array, ""]:
        """The mean distance of coverages from their levels, 1/(n + 1) to n/(n + 1).

        0 is calibrated and ½ the most that can be wrong (Kuleshov et al. 2018).
        """
        if not isinstance(num_levels, int) or num_levels < 1:
            raise ValueError(f"num_levels: got {num_levels!r}, wanted an integer >= 1.")
        levels = jnp.arange(1, num_levels + 1, dtype=self.pit.dtype) / (num_levels + 1)
        return jnp.mean(jnp.abs(self._covered(levels) - levels))

    def _covered(self, levels: Float[Array, " k"]) -> Float[Array, " k"]:
        """The share within the central intervals of each level."""
        distance = jnp.abs(self.pit.ravel() - 0.5)
        inside = distance[None] <= levels[:, None] / 2
        there = None if self.observed is None else self.observed.ravel()[None]
        return jnp.mean(inside, axis=1, dtype=levels.dtype, where=there)


def criticise(
    approximation: Approximation,
    x_new: ArrayLike,
    y_new: Any,
    *,
    noise_variance: ArrayLike | None = None,
) -> Criticism:
    """Score the predictions of any approximation of a regression at new data.

    Args:
        approximation: By any method, of a model with real observations.
        x_new: (m, d) inputs.
        y_new: (m,) targets, or (m, C).
        noise_variance: As for `Approximation.predict`.

    Raises:
        ValueError: for a model of classes, or wrong data.
    """
    predicted = approximation.predict(x_new, noise_variance=noise_variance)
    if not isinstance(predicted, Normal):
        raise ValueError(
            f"approximation: got one of {type(approximation.model.likelihood).__name__}"
            ", wanted one of real observations."
        )
    targets = check_targets(approximation.model, y_new, "y_new")
    if targets.shape != predicted.mean.shape:
        raise ValueError(
            f"y_new: got shape {targets.shape}, wanted {predicted.mean.shape}, as many "
            "targets as inputs."
        )
    return _criticism(predicted, targets.astype(predicted.mean.dtype))


def leave_one_out(
    approximation: Approximation,
    *,
    method: str | None = None,
    key: PRNGKeyArray | None = None,
) -> Criticism | LeftOut:
    """Predict each training target from all the others, without refitting.

    Of exact regression in closed form, O(n³) for all of them: a `Criticism`. One target
    at a time is left out, also where several outputs are observed at a point. Targets
    that are missing are predicted from all that are there, and have no scores.

    Of `laplace`, `expectation_propagation` and `nested_ep` by taking the whole site of
    a point from its marginal, in about the time of a sweep: a `LeftOut`, of all
    outputs at a point together. Differentiable in both cases.

    Args:
        approximation: By exact, or by a method with sites.
        method: An integration rule of the likelihood (see its `predict`), where the
            approximation has sites; by default its own, but "orthant" (exact) for
            `MultinomialProbit` of at most 3 classes.
        key: Randomises a rule that is otherwise deterministic.

    Raises:
        ValueError: for an approximation by another method (samples have no sites), or a
            `Basis` with a coefficient that a single target alone determines.

    Warns:
        InferenceWarning: where sites of negative precision leave no posterior without
            a point; its `log_prob` is NaN.
    """
    posterior = getattr(approximation, "posterior", None)
    if not isinstance(getattr(posterior, "factor", None), CholeskyFactor):
        # The sites of samples, or of a band, are not those of such a posterior.
        if isinstance(posterior, GaussianPosterior) and posterior.sites is not None:
            return left_out(approximation, method=method, key=key)
        got = getattr(approximation, "method", type(approximation).__name__)
        raise ValueError(
            f"approximation: got {got}, wanted one by exact, laplace, "
            "expectation_propagation or nested_ep."
        )
    if method is not None:
        raise ValueError(f"method: got {method!r}, wanted None for exact regression.")
    criticism, alone = _leave_one_out(approximation)
    if is_concrete(alone) and np.any(alone):
        raise ValueError(
            f"approximation: got {np.sum(alone)} targets without which the others do "
            "not determine the coefficients of the mean's Basis, wanted none."
        )
    return criticism


@eqx.filter_jit
def _leave_one_out(
    approximation: Approximation,
) -> tuple[Criticism, Bool[Array, "C n"]]:
    posterior, y = cast(GaussianPosterior, approximation.posterior), approximation.y
    factor = cast(CholeskyFactor, posterior.factor)
    # The inverse is differentiated through the matrix that the factor multiplies to.
    P = factor.inverse(factor.lower @ factor.lower.mT)
    diagonal = jnp.diagonal(P, axis1=1, axis2=2)
    alone = jnp.zeros(diagonal.shape, bool)
    if factor.trend is not None:
        # What the trend leaves of a target is then nothing but rounding errors.
        taken = jnp.sum(factor.trend_half() ** 2, axis=1)
        eps = jnp.finfo(diagonal.dtype).eps
        alone = diagonal <= 100 * diagonal.shape[1] * eps * taken
        if factor.observed is not None:
            alone = alone & factor.observed
    if diagonal.size == y.size:
        # Latents first where they are independent, points first where coupled.
        single = diagonal.shape[0] == 1
        diagonal = (diagonal if single else diagonal.T).reshape(y.shape)
    else:
        diagonal = jnp.broadcast_to(diagonal.T, y.shape)
    variance = 1 / diagonal
    seen = None
    mean = y - posterior.weights.reshape(y.shape) * variance
    if factor.observed is not None:
        order = factor.observed if factor.observed.shape[0] == 1 else factor.observed.T
        seen = order.reshape(y.shape)
        filled = _missing(approximation, factor)
        mean = jnp.where(seen, mean, filled.mean.reshape(y.shape))
        variance = jnp.where(seen, variance, filled.variance.reshape(y.shape))
    return _criticism(Normal(mean, variance), y, seen), alone


def _missing(approximation: Approximation, factor: CholeskyFactor) -> Normal:
    """Each target from those that are observed, with the noise at its own input."""
    model, x = approximation.model, approximation.x
    likelihood = cast(AbstractGaussian, model.likelihood.at_data(x))
    shape = (x.shape[0], model.process.num_latents)
    if not is_coupled(model):
        mean, variance, _ = approximation.posterior.marginals(x)
        noise = likelihood.variances(shape)
        return Normal(mean, variance + noise.reshape(variance.shape))
    # The noise of a missing output is that of the observed ones beside it, in part.
    identity = jnp.eye(shape[0], dtype=x.dtype)
    noise = jnp.einsum("nm,ncd->ncmd", identity, likelihood.covariances(shape))
    S = (model.process.joint_covariance(x) + noise).reshape(1, shape[0] * shape[1], -1)
    weights = cast(CoupledPosterior, approximation.posterior).weights.reshape(-1)
    mean = model.process.mean(x).reshape(-1) + S[0] @ weights
    variance = jnp.diagonal(S[0]) - jnp.sum(factor.whiten(S)[0] ** 2, axis=0)
    return Normal(mean, jnp.maximum(variance, 0))


@eqx.filter_jit
def _criticism(
    predicted: Normal,
    y: Float[Array, "n *C"],
    observed: Bool[Array, "n *C"] | None = None,
) -> Criticism:
    each = Normal(predicted.mean.ravel(), predicted.variance.ravel())
    log_prob = each.log_prob(y.ravel()).reshape(y.shape)
    return Criticism(
        predicted,
        y,
        log_prob,
        predicted.standardised(y),
        predicted.cdf(y),
        predicted.crps(y),
        observed,
    )
