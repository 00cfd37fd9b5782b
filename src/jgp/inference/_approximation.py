"""What every inference method returns."""

import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from jgp._model import Model
from jgp._parameters import cast, is_concrete, table
from jgp._results import RESULTS, InferenceError, InferenceWarning
from jgp.inference._data import check_inputs, check_targets, is_coupled
from jgp.inference._posterior import AbstractPosterior, Joint
from jgp.inference._sites import AbstractSites
from jgp.likelihoods import (
    AbstractGaussian,
    Categorical,
    NoisePredictive,
    Normal,
    Predictive,
)


class Approximation(eqx.Module):
    """A posterior, how it was reached, and what it says.

    Args:
        model: The model, in the dtype of the data.
        x: Training inputs.
        y: Training targets.
        posterior: The posterior over the latent functions.
        log_evidence: log p(y | x) as the method approximates it, or None.
        sites: Gaussian sites, where the method has them.
        result: How the iteration ended; compare with `RESULTS.successful`.
        num_steps: Iterations.
        residual: The final residual; success when at most 1.
        jitter: The largest number added to a diagonal to factorise a covariance.
        diagnostics: What the method tells beyond this, or None.
        method: The verb's name.
        evidence_kind: "exact", "laplace", "ep", "bound" or None.
    """

    model: Model
    x: Float[Array, "n d"]
    y: Array
    posterior: AbstractPosterior
    log_evidence: Float[Array, ""] | None
    sites: AbstractSites | None
    result: RESULTS
    num_steps: Int[Array, ""]
    residual: Float[Array, ""]
    jitter: Float[Array, ""]
    diagnostics: Any = None
    method: str = eqx.field(static=True, kw_only=True)
    evidence_kind: str | None = eqx.field(static=True, kw_only=True)

    def predict(
        self,
        x_new: ArrayLike,
        *,
        key: PRNGKeyArray | None = None,
        method: str | None = None,
        noise_variance: ArrayLike | None = None,
    ) -> Categorical | Normal | NoisePredictive | Predictive:
        """The distribution of observations at new inputs.

        Deterministic unless a key is given. Class probabilities integrate the full
        covariance of the latents and sum to 1.

        Args:
            x_new: (m, d), or (m,) for d = 1; no points work too.
            key: Randomises a rule that is otherwise deterministic.
            method: An integration rule of the likelihood (see its `predict`).
            noise_variance: (m,) or (m, C), the variance of the noise there, for
                `FixedNoiseGaussian`.

        Raises:
            ValueError: for inputs of the wrong dimension, or not finite; for noise
                variances that the likelihood needs and did not get, or the reverse.
        """
        return self.posterior.predict(
            self.model.likelihood,
            x_new,
            key=key,
            method=method,
            noise_variance=noise_variance,
        )

    def predict_joint(
        self, x_new: ArrayLike, *, noise_variance: ArrayLike | None = None
    ) -> Joint:
        """Mean and covariance of observations at new inputs together.

        The covariance of the latents, as `posterior.joint` gives it, plus that of the
        noise, which is independent between inputs.

        Args:
            x_new: (m, d), or (m,) for d = 1.
            noise_variance: As for `predict`.

        Raises:
            ValueError: for observations, or a posterior, that are not Gaussian; and as
                for `predict`.
        """
        points = check_inputs(x_new, self.x, self.model.process)
        likelihood = self.model.likelihood.at(points, noise_variance)
        if not isinstance(likelihood, AbstractGaussian):
            raise ValueError(
                f"likelihood: got {type(likelihood).__name__}, whose observations have "
                "no joint Gaussian distribution, wanted one of Gaussian noise."
            )
        mean, covariance = self.posterior.joint(points)
        shape = (points.shape[0], self.model.process.num_latents)
        noise = likelihood.covariances(shape)
        identity = jnp.eye(shape[0], dtype=noise.dtype)
        noise = jnp.einsum("nm,ncd->ncmd", identity, noise)
        return Joint(mean, covariance + noise.reshape(covariance.shape))

    def log_prob(
        self,
        x_new: ArrayLike,
        y_new: Any,
        *,
        key: PRNGKeyArray | None = None,
        method: str | None = None,
        noise_variance: ArrayLike | None = None,
    ) -> Float[Array, " m"]:
        """The log predictive probability (density) of each new observation.

        Of all outputs at an input together, with their covariance where the prior or
        the noise couples them.

        Args:
            x_new: (m, d), or (m,) for d = 1.
            y_new: Targets as for training.
            key: As for `predict`.
            method: As for `predict`.
            noise_variance: As for `predict`.
        """
        predicted = self.predict(
            x_new, key=key, method=method, noise_variance=noise_variance
        )
        y_new = check_targets(self.model, y_new, "y_new")
        num_new = _length(predicted)
        if y_new.shape[:1] != (num_new,):
            raise ValueError(
                f"y_new: got shape {y_new.shape} beside {num_new} inputs, wanted as "
                "many targets as inputs."
            )
        if isinstance(predicted, Categorical):
            return predicted.log_prob(y_new)
        y_new = y_new.astype(self.x.dtype)
        if isinstance(predicted, Predictive | NoisePredictive):
            return predicted.log_prob(y_new)
        if not is_coupled(self.model):
            return predicted.log_prob(y_new)
        points = check_inputs(x_new, self.x, self.model.process)
        likelihood = self.model.likelihood.at(points, noise_variance)
        assert isinstance(likelihood, AbstractGaussian)
        mean, _, covariance = self.posterior.marginals(points)
        return likelihood.log_predictive(mean, covariance, y_new)


def _length(predicted: Categorical | Normal | NoisePredictive | Predictive) -> int:
    if isinstance(predicted, Categorical):
        return predicted.probs.shape[0]
    if isinstance(predicted, Predictive):
        return predicted.latent_mean.shape[0]
    return predicted.mean.shape[0]


def check_approximation(
    approximation: Approximation | None,
    name: str,
    method: str | None,
    model: Model,
    x: Float[Array, "n d"],
) -> Approximation | None:
    """An approximation that may serve as a start, in the dtype of the data.

    Raises:
        ValueError: unless it is one by `method` (any where None), for inputs of the
            same shape and as many latents.
    """
    if approximation is None:
        return None
    by = "" if method is None else f" by {method}"
    got = getattr(approximation, "method", type(approximation).__name__)
    if not isinstance(approximation, Approximation) or method not in (None, got):
        raise ValueError(f"{name}: got {got}, wanted an Approximation{by}.")
    if approximation.x.shape != x.shape:
        raise ValueError(
            f"{name}: got an Approximation on x of shape {approximation.x.shape}, "
            f"wanted {x.shape}."
        )
    found = approximation.model.process.num_latents
    if found != model.process.num_latents:
        raise ValueError(
            f"{name}: got an Approximation of {found} latents, wanted "
            f"{model.process.num_latents}."
        )
    return cast(approximation, x.dtype)


def finish(approximation: Approximation, throw: bool) -> Approximation:
    """The approximation itself; `InferenceError` if asked for and it failed.

    An ill-conditioned one is a warning, as it may still be what is wanted.
    Nothing is raised while the status is traced: the code is in `result`.
    """
    code = approximation.result
    told = (code, approximation.num_steps, approximation.residual, approximation.jitter)
    if not throw or not all(map(is_concrete, jax.tree.leaves(told))):
        return approximation
    failed = np.asarray(code != RESULTS.successful)
    if failed.ndim or not failed:
        return approximation
    parameters = ", ".join(
        f"{path.removeprefix('.')} = {np.array2string(np.asarray(leaf), precision=4)}"
        for path, leaf, _ in table(approximation.model)
        if is_concrete(leaf)
    )
    remedy = RESULTS[code]
    if approximation.x.dtype == np.float64:
        # No advice that is followed already.
        remedy = remedy.replace(", or work in float64", "")
    remedy = remedy.replace("A matrix", "The covariance of the data", 1)
    message = (
        f"{approximation.method} on n = {approximation.x.shape[0]} points in "
        f"{approximation.x.dtype}: {remedy} Steps: {approximation.num_steps}, "
        f"residual: {approximation.residual:.3g} (success when <= 1), jitter: "
        f"{approximation.jitter:.3g}; {parameters}."
    )
    if bool(code == RESULTS.ill_conditioned):
        warnings.warn(message, InferenceWarning, stacklevel=3)
        return approximation
    raise InferenceError(
        f"{message} Pass throw=False to look at the unconverged approximation."
    )
