"""The No-U-Turn sampler: Hamiltonian dynamics as long as they lead away.

Reference:
    Hoffman & Gelman 2014, The No-U-Turn Sampler, JMLR 15; by blackjax.
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
    max_doublings: int = 10,
) -> tuple[State, Info]:
    """One step, which leaves the target invariant.

    Args:
        state: The state of the chain, from `warm_up`, `init` or the step before.
        log_density: Maps a position to a scalar, differentiable; NaN counts as −inf.
        key: A typed random key.
        max_doublings: Bound on the doublings of the trajectory.

    Raises:
        ImportError: Without blackjax (the extra `mcmc`).
    """
    kernel = imported().nuts.build_kernel()
    return stepped(kernel, state, log_density, key, max_doublings)
