"""Comparing two models of the same data by their evidences."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp._results import RESULTS, worst
from jgp.inference import Approximation, Evidence


class BayesFactor(NamedTuple):
    """The log of a ratio of two evidences, its standard error, the worse status."""

    log_bayes_factor: Float[Array, ""]
    standard_error: Float[Array, ""]
    result: RESULTS


def log_bayes_factor(
    first: Evidence | Approximation, second: Evidence | Approximation
) -> BayesFactor:
    """Log p(y | first) − log p(y | second), positive where the data favour the first.

    The standard errors add in squares, as those of estimates from different keys; an
    exact evidence has none. Beyond 3 the data favour one model strongly, beyond 5 very
    strongly (Kass & Raftery 1995, Bayes factors, JASA 90, on their scale of 2 log B).

    Args:
        first: What `evidence` estimated, or an approximation whose evidence is exact.
        second: The same for the other model.

    Raises:
        ValueError: for an approximation whose evidence is not exact, as its error is
            unknown.
    """
    value, error = _log_evidence("first", first)
    other_value, other_error = _log_evidence("second", second)
    result = worst(first.result, second.result)
    return BayesFactor(value - other_value, jnp.hypot(error, other_error), result)


def _log_evidence(name: str, given: Evidence | Approximation) -> tuple[Array, Array]:
    if isinstance(given, Evidence):
        return given.log_evidence, given.standard_error
    if not isinstance(given, Approximation):
        raise ValueError(
            f"{name}: got {type(given).__name__}, wanted an Evidence or an "
            "Approximation."
        )
    if given.evidence_kind != "exact" or given.log_evidence is None:
        raise ValueError(
            f"{name}: got {given.method}, whose log evidence (of kind "
            f"{given.evidence_kind!r}) has an unknown error, wanted an exact one or an "
            "estimate: call `evidence` first."
        )
    return given.log_evidence, jnp.zeros_like(given.log_evidence)
