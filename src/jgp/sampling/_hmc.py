"""Hamiltonian Monte Carlo with trajectories of one length.

Reference:
    Neal 2011, MCMC using Hamiltonian dynamics, Handbook of MCMC, ch. 5; by blackjax.
"""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, PRNGKeyArray

from jgp.sampling._hamiltonian import Info, State, imported, init, stepped, warm_up

__all__ = ["Info", "State", "init", "step", "warm_up"]


def step(
    state: State,
    log_density: Callable[[Any], Array],
    *,
    key: PRNGKeyArray,
    num_leaps: int = 10,
) -> tuple[State, Info]:
    """One step, which leaves the target invariant.

    Args:
        state: The state of the chain, from `warm_up`, `init` or the step before.
        log_density: Maps a position to a scalar, differentiable; NaN counts as −inf.
        key: A typed random key.
        num_leaps: Steps of the integrator.

    Raises:
        ImportError: Without blackjax (the extra `mcmc`).
    """
    kernel = imported().hmc.build_kernel()
    return stepped(kernel, state, log_density, key, num_leaps)
