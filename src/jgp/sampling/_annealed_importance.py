r"""Annealed importance sampling: an evidence by particles that never meet.

Particles drawn from $q$ go through $\pi_\beta \propto q\,r^\beta$ by kernels that leave
each invariant, and gather the weight $\prod_k r(f_{k-1})^{\beta_k - \beta_{k-1}}$, each
factor at the position *before* the move at $\beta_k$. The mean weight estimates
$\int q\,r$ without bias however badly the kernels mix, and weighted particles
expectations under the target. `smc` resamples on the way, which is better wherever
weights spread; these particles are independent, and their temperatures fixed.

References:
    Neal 2001, Annealed importance sampling, Statistics and Computing 11.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree

from jgp._parameters import is_concrete
from jgp._results import RESULTS
from jgp._types import as_float, check_key
from jgp.sampling._importance import Sample
from jgp.sampling._smc import init
from jgp.sampling._steps import moved
from jgp.sampling._tempering import Move, in_batches, log_power
from jgp.sampling._weights import importance_ess, pareto_k


class Run(NamedTuple):
    """Weighted particles, and what the moves told.

    Args:
        sample: The particles with their log weights: `sample.log_normaliser` is the
            estimate with its standard error, `sample.expectation` serves for the rest.
        infos: Means over particles of what the moves told, by temperature.
    """

    sample: Sample
    infos: PyTree[Array]


def run(
    positions: PyTree,
    log_ratio: Callable[[Any], Array],
    move: Move,
    *,
    key: PRNGKeyArray,
    betas: ArrayLike,
    batch_size: int | None = None,
) -> Run:
    """Anneal particles from q to q·r; compiles under `jit`, batches under `vmap`.

    Args:
        positions: Independent draws of q, stacked along a leading axis.
        log_ratio: Maps a position to log r, a scalar; NaN counts as −inf.
        move: As for `smc`; one that learns from the particles leaves a bias of order
            one over their number.
        key: A typed random key. Temperature k uses `fold_in(key, k)`.
        betas: The temperatures after 0, increasing, the last of them 1, as `schedule`
            makes them or as a run of `smc` found them.
        batch_size: Particles that move at once; all by default.

    Raises:
        ValueError: If `betas` is no vector or known not to increase from above 0 to 1,
            `key` is no key, or a kernel returns no particle.
    """
    check_key(key)
    betas = as_float(betas)
    if betas.ndim != 1 or betas.size < 1:
        raise ValueError(f"betas: expected a vector, got shape {betas.shape}.")
    if is_concrete(betas):
        known = np.asarray(betas)
        if not (np.all(np.diff(known, prepend=0) > 0) and known[-1] == 1):
            raise ValueError(
                f"betas: expected numbers that increase from above 0 to 1, got {known}."
            )
    state = init(positions, log_ratio, batch_size=batch_size)
    num = state.particles.log_ratio.shape[0]
    dtype = state.particles.log_ratio.dtype

    def advance(carry, step):
        particles, log_weights, old = carry
        beta, number = step
        log_weights = log_weights + log_power(particles.log_ratio, beta - old)
        keys = jax.random.split(jax.random.fold_in(key, number), num)
        kernel = move(beta, particles)

        def one(particle_and_key):
            particle, key = particle_and_key
            return moved(kernel(particle, key=key), particle, "move(beta, particles)")

        particles, infos = in_batches(one, (particles, keys), batch_size)
        means = jax.tree.map(lambda a: jnp.mean(a.astype(dtype), axis=0), infos)
        return (particles, log_weights, beta), means

    zero = jnp.zeros((), dtype)
    start = (state.particles, jnp.zeros(num, dtype), zero)
    steps = (betas.astype(dtype), jnp.arange(betas.size))
    (particles, log_weights, _), infos = lax.scan(advance, start, steps)
    usable = jnp.isfinite(jnp.max(log_weights))
    sample = Sample(
        particles.position,
        log_weights,
        importance_ess(log_weights),
        pareto_k(log_weights),
        RESULTS.where(usable, RESULTS.successful, RESULTS.non_finite),
    )
    return Run(sample, infos)


def schedule(num: int, power: float = 4.0) -> Float[Array, " num"]:
    """Temperatures (k/num)^power, k = 1..num: closest together near 0.

    The default suits log ratios that vary most under q itself, as those of a likelihood
    under its prior do (Friel & Pettitt 2008).

    Raises:
        ValueError: If there is no temperature, or the power is not positive.
    """
    if num < 1 or not power > 0:
        raise ValueError(f"num, power: expected both above 0, got {num}, {power}.")
    return (jnp.arange(1, num + 1) / num) ** power
