"""Samplers for any log density, and diagnostics of what they return.

Samplers of chains (`elliptical_slice`, `metropolis`, `slice`, `gibbs`, `hmc`, `nuts`)
are modules of two functions, `init` and `step`, with the pair of a state and an info as
their vocabulary: `run` makes chains of a step, with a progress bar and checkpoints, and
`scan` one chain inside `jit`. `rejection` and `importance` draw independently; `smc`
and `annealed_importance` move many particles at once, from a distribution that can be
drawn from to any other, and have a `run` of their own.
"""

from jgp.sampling import _annealed_importance as annealed_importance
from jgp.sampling import _elliptical_slice as elliptical_slice
from jgp.sampling import _gibbs as gibbs
from jgp.sampling import _hmc as hmc
from jgp.sampling import _importance as importance
from jgp.sampling import _metropolis as metropolis
from jgp.sampling import _nuts as nuts
from jgp.sampling import _rejection as rejection
from jgp.sampling import _slice as slice
from jgp.sampling import _smc as smc
from jgp.sampling._arviz import to_arviz
from jgp.sampling._chains import Chain, scan
from jgp.sampling._diagnostics import (
    autocorrelation,
    effective_sample_size,
    mcse_mean,
    mcse_quantile,
    rhat,
)
from jgp.sampling._monte_carlo import monte_carlo
from jgp.sampling._run import Run, run
from jgp.sampling._weights import importance_ess, pareto_k

__all__ = [
    "Chain",
    "Run",
    "annealed_importance",
    "autocorrelation",
    "effective_sample_size",
    "elliptical_slice",
    "gibbs",
    "hmc",
    "importance",
    "importance_ess",
    "mcse_mean",
    "mcse_quantile",
    "metropolis",
    "monte_carlo",
    "nuts",
    "pareto_k",
    "rejection",
    "rhat",
    "run",
    "scan",
    "slice",
    "smc",
    "to_arviz",
]
