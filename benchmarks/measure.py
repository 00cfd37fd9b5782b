"""One row a method: what it says, how far it is from the truth, what it costs."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

import jgp
from benchmarks.data import Dataset
from benchmarks.methods import Method, start_model
from benchmarks.timing import median_seconds, peak_memory, timed
from jgp import likelihoods
from jgp.inference import DrawsPosterior
from jgp.sampling import effective_sample_size, mcse_mean, rhat

# Chains with a larger R-hat in any latent disagree. The largest of nC estimates is
# above the 1.01 asked of one.
MAX_RHAT = 1.1


class Budget(NamedTuple):
    """How long chains run, and how often a call is timed."""

    repeats: int
    num_draws: int
    reference_thinning: int
    num_warmup: int
    num_steps: int


FULL = Budget(9, 1000, 2, 500, 2000)
SMALL = Budget(1, 200, 1, 50, 200)


@dataclasses.dataclass
class Row:
    """The measurements of one method; None where one does not apply."""

    method: str
    link: str
    lengthscales: list[float]
    result: str
    test_errors: int
    test_log_probability: float
    trace: float
    first_call_seconds: float
    later_call_seconds: float
    peak_memory_mb: float
    peak_memory_growth_mb: float
    log_evidence: float | None = None
    corrected_log_evidence: float | None = None
    corrected_standard_error: float | None = None
    importance_ess: float | None = None
    pareto_k: float | None = None
    mean_distance: float | None = None
    mean_distance_noise: float | None = None
    reference_trace: float | None = None
    fit_seconds: float | None = None
    num_steps: int | None = None
    rhat: float | None = None
    ess: float | None = None
    ess_per_second: float | None = None


class Moments(NamedTuple):
    """Means and variances of the latents, and the squared Monte Carlo error."""

    mean: Array
    variance: Array
    squared_error: float


class Measured(NamedTuple):
    """A row with what it was measured on."""

    row: Row
    posterior: Any
    moments: Moments
    model: jgp.Model


def approximation(
    method: Method, data: Dataset, key: PRNGKeyArray, budget: Budget
) -> tuple[Measured, jgp.Approximation]:
    """Fit by maximum evidence, then measure inference at the optimum.

    The first call, which compiles, is that at the start of the fit.
    """
    before = peak_memory()
    start = start_model(method, data.x, len(data.classes))
    first = timed(lambda: method.infer(start, data.x, data.y))
    fit = functools.partial(jgp.fit, start, data.x, data.y, infer=method.infer)
    fitted, fit_seconds = timed(lambda: fit(throw=False, progress=False))
    model, found = fitted.model, fitted.approximation
    # The one of the fit started from its last step, this one from nothing.
    num_steps = method.infer(model, data.x, data.y).num_steps
    later = median_seconds(lambda: method.infer(model, data.x, data.y), budget.repeats)
    after = peak_memory()
    corrected = jgp.evidence(found, key=key, method="importance", temper=method.temper)
    marginals = found.posterior.marginals(data.x)
    moments = Moments(marginals.mean, marginals.variance, 0.0)
    row = Row(
        method=method.label,
        link=method.link,
        lengthscales=lengthscales(model),
        result=jgp.RESULTS[fitted.result] or "successful",
        **_test(found.posterior, model, data),
        trace=float(jnp.sum(marginals.variance)),
        first_call_seconds=first.seconds,
        later_call_seconds=later,
        peak_memory_mb=after,
        peak_memory_growth_mb=after - before,
        log_evidence=float(found.log_evidence),
        corrected_log_evidence=float(corrected.log_evidence),
        corrected_standard_error=float(corrected.standard_error),
        importance_ess=float(corrected.ess),
        pareto_k=float(corrected.pareto_k),
        fit_seconds=fit_seconds,
        num_steps=int(num_steps),
    )
    return Measured(row, found.posterior, moments, model), found


def reference(
    method: Method,
    found: jgp.Approximation,
    data: Dataset,
    key: PRNGKeyArray,
    budget: Budget,
) -> Measured:
    """Elliptical slice sampling about the approximation: the reference."""
    draw = functools.partial(chains_about, found, budget=budget)
    return _chains(f"MCMC about {method.label}", method, found, data, draw, key)


def chains_about(
    found: jgp.Approximation, key: PRNGKeyArray, budget: Budget
) -> DrawsPosterior:
    """Chains on ellipses about an approximation."""
    return _draws(
        found,
        key,
        sampler="elliptical_slice",
        proposal=found,
        num_warmup=budget.num_warmup // 5,
        max_steps=budget.num_draws // 2 * budget.reference_thinning,
        thinning=budget.reference_thinning,
    )


def sampler(
    name: str,
    method: Method,
    found: jgp.Approximation,
    data: Dataset,
    key: PRNGKeyArray,
    budget: Budget,
) -> Measured:
    """The slower samplers: ellipses about the prior, or a random walk."""
    draw = functools.partial(
        _draws,
        found,
        sampler=name,
        proposal=found if name == "metropolis" else None,
        num_warmup=budget.num_warmup,
        max_steps=budget.num_steps // 2,
    )
    label = name.replace("_", " ").capitalize()
    return _chains(label, method, found, data, draw, key)


def compare(measured: Measured, to: Measured) -> None:
    """Enter the trace to compare with, and the distance of the means.

    Chains that disagree have no Monte Carlo error to correct it by, and get none.
    """
    measured.row.reference_trace = to.row.trace
    if measured.row.rhat is not None and measured.row.rhat > MAX_RHAT:
        return
    squared = jnp.sum((measured.moments.mean - to.moments.mean) ** 2)
    noise = measured.moments.squared_error + to.moments.squared_error
    measured.row.mean_distance = float(np.sqrt(max(float(squared) - noise, 0.0)))
    measured.row.mean_distance_noise = float(np.sqrt(noise))


def class_probabilities(
    posterior: Any, model: jgp.Model, x_new: np.ndarray
) -> np.ndarray:
    """(m, C) predictive probabilities."""
    predicted = posterior.predict(model.likelihood, x_new)
    assert isinstance(predicted, likelihoods.Categorical)
    return np.asarray(predicted.probs)


def lengthscales(model: jgp.Model) -> list[float]:
    """The lengthscale of each class."""
    return [float(leaf) for _, leaf, _ in jgp.table(model)]


def _draws(
    found: jgp.Approximation, key: PRNGKeyArray, **options: Any
) -> DrawsPosterior:
    sampled = jgp.sample_posterior(
        found.model, found.x, found.y, key=key, throw=False, **options
    )
    assert isinstance(sampled.posterior, DrawsPosterior)
    return sampled.posterior


def _chains(
    label: str,
    method: Method,
    found: jgp.Approximation,
    data: Dataset,
    draw: Callable[[PRNGKeyArray], DrawsPosterior],
    key: PRNGKeyArray,
) -> Measured:
    """Two calls, the first with compilation, and their chains pooled."""
    before = peak_memory()
    first_key, later_key = jax.random.split(key)
    first = timed(lambda: draw(first_key))
    later = timed(lambda: draw(later_key))
    after = peak_memory()
    whitened = jnp.concatenate([first.value.whitened, later.value.whitened])
    like = first.value
    posterior = DrawsPosterior(like.process, like.x, like.root, whitened)
    draws = posterior.draws
    variance = jnp.var(draws, axis=(0, 1))
    error = float(jnp.sum(mcse_mean(draws) ** 2))
    ess, worst = float(jnp.min(effective_sample_size(draws))), float(rhat(draws).max())
    row = Row(
        method=label,
        link=method.link,
        lengthscales=lengthscales(found.model),
        result="successful" if worst <= MAX_RHAT else "chains disagree",
        **_test(posterior, found.model, data),
        trace=float(jnp.sum(variance)),
        first_call_seconds=first.seconds,
        later_call_seconds=later.seconds,
        peak_memory_mb=after,
        peak_memory_growth_mb=after - before,
        rhat=worst,
        ess=ess,
        ess_per_second=ess / (2 * later.seconds),
    )
    moments = Moments(jnp.mean(draws, axis=(0, 1)), variance, error)
    return Measured(row, posterior, moments, found.model)


def _test(posterior: Any, model: jgp.Model, data: Dataset) -> dict[str, Any]:
    probs = class_probabilities(posterior, model, data.x_new)
    of_label = probs[np.arange(len(data.y_new)), data.y_new]
    return {
        "test_errors": int(np.sum(np.argmax(probs, axis=1) != data.y_new)),
        "test_log_probability": float(np.mean(np.log(of_label))),
    }
