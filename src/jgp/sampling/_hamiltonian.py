r"""What Hamiltonian Monte Carlo and NUTS share: their state, and its warm-up.

The dynamics are blackjax's (the extra `mcmc`). Step size and inverse mass belong to the
state, so that a step has the signature of all samplers here.

References:
    Neal 2011, MCMC using Hamiltonian dynamics, Handbook of MCMC, ch. 5.
    Hoffman & Gelman 2014, The No-U-Turn Sampler, JMLR 15.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray, PyTree

from jgp._parameters import is_concrete
from jgp._types import as_float, check_key
from jgp.sampling._target import evaluate, evaluate_start


class State(NamedTuple):
    """A position of the chain, with what the dynamics need.

    Args:
        position: Any pytree of arrays.
        log_density: There.
        gradient: Of the log density, as the position.
        step_size: Of the integrator.
        inverse_mass: Of each coordinate, or a matrix (d, d), about their covariance.
    """

    position: PyTree[Array]
    log_density: Float[Array, ""]
    gradient: PyTree[Array]
    step_size: Float[Array, ""]
    inverse_mass: Float[Array, " d"] | Float[Array, "d d"]


class Info(NamedTuple):
    """What one step did.

    `divergent` says that the energy ran away: after warm-up more than a few of those
    mean that narrow places of the density were missed.
    """

    acceptance: Float[Array, ""]
    divergent: Bool[Array, ""]
    num_evaluations: Int[Array, ""]


def init(
    position: PyTree,
    log_density: Callable[[Any], Array],
    step_size: ArrayLike = 0.1,
    inverse_mass: ArrayLike | None = None,
) -> State:
    """The state of a chain that starts at `position`; `warm_up` finds the settings.

    Args:
        position: An array or a pytree of arrays.
        log_density: Maps a position to a scalar, differentiable; NaN counts as −inf.
        step_size: Of the integrator, positive.
        inverse_mass: Of each of the d coordinates, positive, or a matrix; 1 if None.

    Raises:
        ValueError: If the log density or its gradient is not finite at the start, or
            the inverse mass has another shape.
    """
    position = jax.tree.map(as_float, position)
    value = evaluate_start(log_density, position)
    gradient = jax.grad(lambda p: evaluate(log_density, p))(position)
    flat, _ = ravel_pytree(gradient)
    if is_concrete(flat) and not bool(jnp.all(jnp.isfinite(flat))):
        raise ValueError(
            f"position: the gradient of the log density at the start is {gradient}, "
            "expected finite numbers."
        )
    size = flat.size
    if inverse_mass is None:
        inverse_mass = jnp.ones(size, flat.dtype)
    inverse_mass = jnp.asarray(inverse_mass, flat.dtype)
    if inverse_mass.shape not in ((size,), (size, size)):
        raise ValueError(
            f"inverse_mass: expected shape ({size},) or ({size}, {size}), got "
            f"{inverse_mass.shape}."
        )
    step_size = jnp.asarray(step_size, value.dtype)
    return State(position, value, gradient, step_size, inverse_mass)


def warm_up(
    position: PyTree,
    log_density: Callable[[Any], Array],
    *,
    key: PRNGKeyArray,
    num_steps: int,
    dense: bool = False,
    target: float = 0.8,
) -> State:
    """The state after adapting step size and inverse mass in windows, as Stan does.

    Args:
        position: Where to start; under `vmap` one chain each.
        log_density: As for `init`.
        key: A typed random key.
        num_steps: Steps of NUTS, whose draws are dropped.
        dense: Whether the inverse mass is a matrix.
        target: The acceptance that the step size is adapted to, in (0, 1).

    Raises:
        ValueError: As for `init`.
        ImportError: Without blackjax.
    """
    check_key(key)
    blackjax = imported()
    state = init(position, log_density)
    with mixed():
        warmup = blackjax.window_adaptation(
            blackjax.nuts,
            lambda p: evaluate(log_density, p),
            is_mass_matrix_diagonal=not dense,
            target_acceptance_rate=target,
        )
        (ended, found), _ = warmup.run(key, state.position, num_steps=num_steps)
    return State(
        ended.position,
        ended.logdensity,
        ended.logdensity_grad,
        jnp.asarray(found["step_size"], state.step_size.dtype),
        jnp.asarray(found["inverse_mass_matrix"], state.inverse_mass.dtype),
    )


def stepped(
    kernel: Callable,
    state: State,
    log_density: Callable[[Any], Array],
    key: PRNGKeyArray,
    *settings: int,
) -> tuple[State, Info]:
    """One step of a kernel of blackjax."""
    check_key(key)
    start = imported().mcmc.hmc.HMCState(
        state.position, state.log_density, state.gradient
    )
    with mixed():
        end, info = kernel(
            key,
            start,
            lambda p: evaluate(log_density, p),
            state.step_size,
            state.inverse_mass,
            *settings,
        )
    # Standard promotion may have widened what it touched.
    new = State(end.position, end.logdensity, end.logdensity_grad, *state[3:])
    new = jax.tree.map(lambda a, b: a.astype(b.dtype), new, state)
    acceptance = jnp.asarray(info.acceptance_rate, state.step_size.dtype)
    count = jnp.asarray(info.num_integration_steps, jnp.int32)
    return new, Info(acceptance, info.is_divergent, count)


@contextlib.contextmanager
def mixed() -> Iterator[None]:
    """Where blackjax is traced: it mixes widths and ranks, as strict modes forbid."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def imported() -> Any:
    """The module `blackjax`, or what to do without it."""
    try:
        import blackjax
    except ImportError as error:
        raise ImportError(
            "Hamiltonian dynamics need blackjax: pip install 'jgp[mcmc]'."
        ) from error
    return blackjax
