"""What an estimate of the log evidence is made of."""

from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from jgp._results import RESULTS


class Evidence(eqx.Module):
    """An estimate of the log evidence, and whether to trust it.

    Args:
        log_evidence: The estimate of log p(y | x).
        standard_error: Its standard error, by the delta method.
        ess: Effective sample size (Σw)²/Σw² of importance sampling; distrust less than
            10 % of the draws. NaN for "smc" and "ais".
        pareto_k: Tail index of the weights of importance sampling (Vehtari et al.
            2024); distrust above 0.7. −inf where the weights are equal, as for an exact
            posterior. NaN for "smc" and "ais".
        jitter: What was added to the diagonal of K to draw from it.
        result: `not_positive_definite`, `non_finite`, or for "smc" `max_steps_reached`
            where it failed.
        diagnostics: `ParticleDiagnostics` for "smc" and "ais", None for "importance".
        method: What gave the estimate, "importance", "smc" or "ais".
    """

    log_evidence: Float[Array, ""]
    standard_error: Float[Array, ""]
    ess: Float[Array, ""]
    pareto_k: Float[Array, ""]
    jitter: Float[Array, ""]
    result: RESULTS
    diagnostics: Any = None
    method: str = eqx.field(static=True, kw_only=True)
