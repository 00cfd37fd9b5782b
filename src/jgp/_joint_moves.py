r"""One move of hyperparameters and latents together, which leaves their posterior.

The target is p(y | f, θ) p(f | θ) p(θ), with f = m + Lw, LLᵀ = K, w ~ N(0, I). Latents
move by elliptical slices about their prior. Hyperparameters move along random lines by
slice sampling, with latents that follow them: given surrogate observations g of f with
variances S, drawn anew each time, the posterior of w is N(M⁻¹b, M⁻¹) with

    M = I + LᵀS⁻¹L = CCᵀ,   b = LᵀS⁻¹(g − m),

and η in w = C⁻ᵀ(C⁻¹b + η) is held, so that f keeps near g while θ changes. The target
over θ is then p(y | f, θ) N(g; m, K + S) p(θ). Without surrogates (S = ∞) w is held,
which mixes well only where the data say little (Murray & Adams 2010, algorithms 2, 4).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from jgp._linalg import (
    apply_blocks,
    cholesky,
    log_determinant,
    solve_lower,
    solve_upper,
)
from jgp._model import Model, log_prior
from jgp._objective import LogDensity
from jgp.sampling import elliptical_slice, slice


class State(NamedTuple):
    """Where a chain is."""

    raw: Float[Array, " p"]
    whitened: Float[Array, "n C"]


def _log_joint(density: LogDensity, model: Model, f: Array, raw: Array):
    """Log p(y | f, θ) p(θ), in raw parameters."""
    likelihood = model.likelihood.at_data(density.x)
    value = jnp.sum(likelihood.log_probs(f, density.y)) + log_prior(model)
    return value + density.parameters.log_jacobian(raw)


def roots(density: LogDensity, model: Model) -> tuple[Array, Array]:
    """The mean and L of every latent."""
    x, process = density.x, model.process
    K = process.covariance(x)
    K = jnp.broadcast_to(K, (process.num_latents, *K.shape[1:]))
    found = cholesky(K)
    return process.mean(x), jnp.where(found.ok[:, None, None], found.lower, jnp.nan)


def _conditioned(
    mean: Array, root: Array, g: Array, variances: Array
) -> tuple[Array, Array, Array]:
    """C, C⁻¹b and log N(g; m, K + S) but for log|S|."""
    deviation = jnp.sqrt(variances)
    scaled = root / deviation.T[:, :, None]
    identity = jnp.eye(root.shape[-1], dtype=root.dtype)[None]
    factor = cholesky(identity + scaled.mT @ scaled).lower
    rest = (g - mean) / deviation
    h = solve_lower(factor, apply_blocks(scaled.mT, rest).T[:, :, None])[:, :, 0].T
    value = (jnp.sum(h**2) - jnp.sum(rest**2) - jnp.sum(log_determinant(factor))) / 2
    return factor, h, value


def joint_step(
    state: State,
    density: LogDensity,
    variances: Float[Array, "n C"] | None,
    directions: Float[Array, "p p"],
    slices: int,
    *,
    key: PRNGKeyArray,
) -> tuple[State, slice.Info]:
    """One move of the hyperparameters and some of the latents; leaves the target."""
    surrogate_key, line_key, latent_key = jax.random.split(key, 3)
    raw, w = state
    g = eta = w
    if variances is not None:
        mean, root = roots(density, density.model(raw))
        noise = jax.random.normal(surrogate_key, w.shape, w.dtype)
        g = mean + apply_blocks(root, w) + jnp.sqrt(variances) * noise
        factor, h, _ = _conditioned(mean, root, g, variances)
        eta = apply_blocks(factor.mT, w) - h

    def following(raw):
        """W at other parameters, and the log target there."""
        model = density.model(raw)
        mean, root = roots(density, model)
        w, value = eta, jnp.zeros((), eta.dtype)
        if variances is not None:
            factor, h, value = _conditioned(mean, root, g, variances)
            w = solve_upper(factor, (h + eta).T[:, :, None])[:, :, 0].T
        f = mean + apply_blocks(root, w)
        return w, value + _log_joint(density, model, f, raw)

    def log_target(raw):
        return following(raw)[1]

    def draw(key):
        return 2 * directions @ jax.random.normal(key, raw.shape, raw.dtype)

    line, info = slice.step_along(
        slice.init(raw, log_target), log_target, draw, key=line_key
    )
    raw, (w, _) = line.position, following(line.position)
    model = density.model(raw)
    mean, root = roots(density, model)
    likelihood = model.likelihood.at_data(density.x)

    def log_likelihood(w):
        return jnp.sum(likelihood.log_probs(mean + apply_blocks(root, w), density.y))

    def latents(state, key):
        return elliptical_slice.step(
            state,
            log_likelihood,
            lambda k: jax.random.normal(k, w.shape, w.dtype),
            key=key,
        )

    ellipse = elliptical_slice.init(w, log_likelihood)
    ellipse, _ = lax.scan(latents, ellipse, jax.random.split(latent_key, slices))
    return State(raw, ellipse.position), info
