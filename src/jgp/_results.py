"""How a computation ended: one enumeration, each member with its remedy."""

import functools

import equinox as eqx


class RESULTS(eqx.Enumeration):
    """The status that every iterative result of jgp carries as `result`.

    The members are in order of severity: when several meet, the later one is
    reported (see `worst`). Compare with `==`; `RESULTS[result]` is the message.
    """

    successful = ""
    at_bound = (
        "A parameter ran to the bound of its domain. Freeze it, give it a prior, or "
        "check that the data carry information about it."
    )
    ill_conditioned = (
        "A matrix needed jitter that exceeds the noise variance to be factorised: the "
        "evidence is that of a noisier model. Raise the noise variance, lower a huge "
        "kernel variance, rescale the data, or work in float64."
    )
    max_steps_reached = (
        "The iteration ended at max_steps before it was done. Raise max_steps, or "
        "loosen the tolerances, where it has any."
    )
    stagnated = (
        "The iteration stopped improving before its tolerance was met. Loosen rtol "
        "and atol, or work in float64."
    )
    oscillating = (
        "The iteration neither converged nor diverged. Lower damping (0.5 usually "
        "suffices) and raise max_steps."
    )
    linear_solve_failed = (
        "The linear solve of an implicit derivative did not reach its tolerance. "
        "Tighten rtol and atol of the fixed point, or work in float64."
    )
    diverged = (
        "The iteration diverged. Lower damping, start from a converged "
        "approximation (init), or check the scale of the data and the variances."
    )
    undetermined = (
        "The observed data do not determine the coefficients of the mean's Basis. "
        "Leave out features that are combinations of others, centre or rescale the "
        "inputs, or work in float64."
    )
    not_positive_definite = (
        "A matrix that must be positive definite was not, even with the largest "
        "jitter. Raise the noise variance, remove repeated inputs, or work in "
        "float64."
    )
    bandwidth_too_small = (
        "More points lie within one support radius than `bandwidth` holds. Raise it."
    )
    never_moved = (
        "A chain stayed where it started. Start from where the density is finite, and "
        "take smaller steps."
    )
    bound_exceeded = (
        "The density exceeded its bound at a draw, so that no draw is from it. Raise "
        "log_bound above the largest log ratio met, or take a proposal with heavier "
        "tails."
    )
    non_finite = (
        "A value became infinite or NaN. Check the scale of the data and of the "
        "hyperparameters, or work in float64."
    )


# eqx.Enumeration offers no iteration, and its order is the contract of `worst`.
SEVERITY = (
    RESULTS.successful,
    RESULTS.at_bound,
    RESULTS.ill_conditioned,
    RESULTS.max_steps_reached,
    RESULTS.stagnated,
    RESULTS.oscillating,
    RESULTS.linear_solve_failed,
    RESULTS.diverged,
    RESULTS.undetermined,
    RESULTS.not_positive_definite,
    RESULTS.bandwidth_too_small,
    RESULTS.never_moved,
    RESULTS.bound_exceeded,
    RESULTS.non_finite,
)


class InferenceError(RuntimeError):
    """A computation ended with a status other than `RESULTS.successful`."""


class InferenceWarning(UserWarning):
    """A computation ended with a result that should not be taken as it is."""


def worst(first: RESULTS, *others: RESULTS) -> RESULTS:
    """The most severe of several statuses, elementwise under `vmap`."""

    def pair(a: RESULTS, b: RESULTS) -> RESULTS:
        result = a
        for member in SEVERITY:
            result = RESULTS.where((a == member) | (b == member), member, result)
        return result

    return functools.reduce(pair, others, first)


def unless(ok, failure: RESULTS) -> RESULTS:
    """`successful` where `ok` holds, else `failure`."""
    return RESULTS.where(ok, RESULTS.successful, failure)
