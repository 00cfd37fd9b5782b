"""The evidence itself, to check any approximation against."""

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from jgp._parameters import is_concrete
from jgp._results import RESULTS
from jgp._types import positive_integer
from jgp.inference._approximation import Approximation
from jgp.inference._data import bounded
from jgp.inference._estimate import Evidence
from jgp.inference._importance import importance_evidence
from jgp.inference._particle_evidence import particle_evidence

METHODS = ("auto", "importance", "smc", "ais")
STARTS = ("approximation", "prior")
# Where importance sampling is no longer to be trusted (Vehtari et al. 2024), and what
# share of the draws their effective number should be.
LARGEST_PARETO_K = 0.7
LEAST_ESS = 0.1


def evidence(
    approximation: Approximation,
    *,
    key: PRNGKeyArray,
    method: str = "auto",
    num: int = 4096,
    temper: float = 1.0,
    defensive: float = 0.0,
    start: str = "approximation",
    num_runs: int = 4,
    num_particles: int = 1024,
    num_moves: int = 2,
    ess_fraction: float = 0.8,
    num_temperatures: int = 50,
) -> Evidence:
    """Estimate the exact log evidence from an approximation's Gaussian posterior.

    Args:
        approximation: Any approximation with Gaussian sites of independent latents;
            any at all of independent latents for start="prior".
        key: A PRNG key.
        method: "importance" sampling; "smc", sequential Monte Carlo, which goes to the
            posterior by temperatures; "ais", annealed importance sampling, which goes
            the same way and resamples nothing (Neal 2001); or "auto", the first and
            then, should its Pareto k̂ exceed 0.7 or its effective sample size be less
            than 10 % of the draws, the second. Where that cannot be decided, under
            `jit` or `vmap`, "auto" is importance sampling.
        num: Draws of importance sampling, in antithetic pairs (an odd number is rounded
            up).
        temper: Scales the precision of the sites in the Gaussian that is drawn from, in
            (0, 1]; its mean stays. Widening (0.75 to 0.8) guards against tails lighter
            than the posterior's, as Laplace's are.
        defensive: ε of importance sampling's mixture (1 − ε)q + ε·prior, in [0, 1); it
            bounds the weights by the largest likelihood over ε.
        start: Whence "smc" and "ais" start: "approximation", or "prior", which is
            slower and owes nothing to the approximation.
        num_runs: Independent runs of both, at least 4, whose spread is the standard
            error: Student's t with num_runs − 1 degrees of freedom.
        num_particles: Particles of each run, in antithetic pairs at the start.
        num_moves: Elliptical slices of each particle at each temperature.
        ess_fraction: Share of the particles that their effective number may fall to
            from one temperature to the next, in (0, 1). Of particles that mix the
            variance is (1/ess_fraction − 1) × temperatures/particles. At equal work
            0.5 costs 1.4 times as much of it as the limit of close temperatures, 0.8
            1.1 times, and leaves each move less to make up for; closer ones give away
            what antithetic pairs gain on the way from a good approximation.
        num_temperatures: Temperatures of "ais", which are fixed: (k/num)⁴ from the
            prior and evenly spaced from an approximation.

    Raises:
        ValueError: for an approximation that has no such sites, or options out of
            range.
    """
    for name, value, wanted in (("method", method, METHODS), ("start", start, STARTS)):
        if value not in wanted:
            raise ValueError(f"{name}: got {value!r}, wanted one of {wanted}.")
    if start == "prior" and method not in ("smc", "ais"):
        raise ValueError(
            f"start: got 'prior' with method={method!r}, wanted 'smc' or 'ais'."
        )
    _check_approximation(approximation, start)
    num_draws = int(positive_integer("num", num))
    counts = {
        "num_runs": int(positive_integer("num_runs", num_runs, least=4)),
        "num_particles": int(positive_integer("num_particles", num_particles, least=2)),
        "num_moves": int(positive_integer("num_moves", num_moves)),
        "num_temperatures": int(positive_integer("num_temperatures", num_temperatures)),
    }
    dtype = approximation.x.dtype
    scale = bounded("temper", temper, 1e-3, 1.0, dtype)
    share = bounded("defensive", defensive, 0.0, 0.999, dtype)
    fraction = bounded("ess_fraction", ess_fraction, 0.01, 0.99, dtype)
    if method in ("auto", "importance"):
        estimate = importance_evidence(approximation, key, scale, share, num=num_draws)
        if method == "importance" or _to_be_trusted(estimate, num_draws):
            return estimate
        key, method = jax.random.fold_in(key, 1), "smc"
    return particle_evidence(
        approximation, key, scale, fraction, method=method, start=start, **counts
    )


def _to_be_trusted(estimate: Evidence, num_draws: int) -> bool:
    """Whether more than importance sampling is pointless, or cannot be decided on."""
    told = (estimate.pareto_k, estimate.ess, estimate.result)
    if not all(map(is_concrete, jax.tree.leaves(told))):
        return True
    if bool(estimate.result == RESULTS.not_positive_definite):
        return True
    k, ess = np.asarray(estimate.pareto_k), np.asarray(estimate.ess)
    return bool((k <= LARGEST_PARETO_K) & (ess >= LEAST_ESS * num_draws))


def _check_approximation(approximation: Approximation, start: str) -> None:
    got = getattr(approximation, "method", type(approximation).__name__)
    if not isinstance(approximation, Approximation):
        raise ValueError(f"approximation: got {got}, wanted an Approximation.")
    process = approximation.model.process
    if start == "prior" and process.coupled:
        raise ValueError(
            f"approximation: got one under a {type(process).__name__}, whose latents "
            "depend on each other, wanted independent latents."
        )
    if start != "prior" and approximation.sites is None:
        raise ValueError(
            f"approximation: got {got}, wanted an Approximation with Gaussian sites."
        )
    factor = getattr(approximation.posterior, "factor", None)
    if getattr(factor, "observed", None) is not None:
        raise ValueError(
            "approximation: got one with missing targets, whose evidence is exact "
            "already, wanted one of all targets."
        )
