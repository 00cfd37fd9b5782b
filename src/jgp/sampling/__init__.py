"""Samplers for any log density, and diagnostics of what they return.

Each sampler is a module of two functions, `init` and `step`, with the pair of a state
and an info as their vocabulary; `run` makes a chain of a step. `smc` moves many
particles at once, from a distribution that can be drawn from to any other, and has a
`run` of its own.
"""

from jgp.sampling import _elliptical_slice as elliptical_slice
from jgp.sampling import _metropolis as metropolis
from jgp.sampling import _smc as smc
from jgp.sampling._chains import Chain, run
from jgp.sampling._diagnostics import (
    effective_sample_size,
    importance_ess,
    mcse_mean,
    pareto_k,
    rhat,
)

__all__ = [
    "Chain",
    "effective_sample_size",
    "elliptical_slice",
    "importance_ess",
    "mcse_mean",
    "metropolis",
    "pareto_k",
    "rhat",
    "run",
    "smc",
]
