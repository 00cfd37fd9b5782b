"""An approximation from what an iteration over sites found."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp._fixed_point import FixedPoint
from jgp._model import Model
from jgp._results import RESULTS, unless, worst
from jgp.inference._approximation import Approximation
from jgp.inference._gaussian_posterior import GaussianPosterior
from jgp.inference._site_posterior import SitePosterior
from jgp.inference._sites import AbstractSites


def site_approximation(
    data: tuple[Model, Float[Array, "n d"], Array],
    found: FixedPoint,
    sites: AbstractSites,
    posterior: SitePosterior,
    log_evidence: Float[Array, ""],
    *,
    method: str,
    evidence_kind: str,
    failures: tuple[RESULTS, ...] = (),
    jitter: Array | None = None,
    diagnostics: Any = None,
) -> Approximation:
    """The approximation whose posterior is the prior times the sites found.

    Args:
        data: Model, inputs and targets.
        found: Where the iteration ended.
        sites: The sites on f there.
        posterior: The posterior under them.
        log_evidence: Log Z; `non_finite` is reported unless it is a number.
        method: The verb's name.
        evidence_kind: What `log_evidence` is.
        failures: Further statuses, of which the worst is reported.
        jitter: What was added to the diagonal of K, if anything.
        diagnostics: What the method tells beyond this.
    """
    model, x, y = data
    finite = unless(jnp.isfinite(log_evidence), RESULTS.non_finite)
    return Approximation(
        model,
        x,
        y,
        GaussianPosterior(
            model.process, x, posterior.weights, posterior.factor, sites=sites
        ),
        log_evidence,
        sites,
        worst(found.result, finite, *failures),
        found.num_steps,
        found.residual,
        jnp.zeros((), x.dtype) if jitter is None else jnp.max(jitter),
        diagnostics,
        method=method,
        evidence_kind=evidence_kind,
    )
