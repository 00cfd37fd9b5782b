r"""Draws of the posterior as functions, by Matheron's rule (Wilson et al. 2020).

For a draw f₀ of the prior and ε of the noise, with S = K + N,

    f(·) = f₀(·) + k(·, X) S⁻¹(y − f₀(X) − ε)

is a draw of the posterior, exactly: its mean is that of the posterior, and so is its
covariance, term by term. With sites in place of noise, ε ~ N(0, T⁻) does not exist for
singular T; with ξ ~ N(0, I) and M = (K + T⁻)⁻ the weights are

    b − M(f₀(X) + K T½ξ) + T½ξ,

whose covariance is the same (NOTES: (I − KM)(f₀ + KT½ξ) has that of the posterior).
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from jgp._linalg import apply_blocks, cholesky, solve_upper
from jgp._process import AbstractProcess
from jgp.inference._data import check_inputs
from jgp.inference._factor import AbstractFactor, CholeskyFactor
from jgp.inference._sites import AbstractSites

# Cross-covariances held at once while a path is evaluated.
CHUNK_SIZE = 2**22


class Path(eqx.Module):
    """A function drawn from a posterior: m₀(x) + f₀(x) + k(x, W)v + h(x)ᵀβ.

    Args:
        process: The prior.
        inputs: W.
        weights: v.
        functions: f₀, one random function a latent; none where v carries the draw.
        coefficients: β of the trend, or None.
    """

    process: AbstractProcess
    inputs: Float[Array, "n d"]
    weights: Float[Array, "n C"]
    functions: tuple[Callable, ...]
    coefficients: Float[Array, "p C"] | None

    def __call__(self, x_new: ArrayLike) -> Float[Array, "m *C"]:
        """The values of the function: (m,) for one latent, (m, C) for several.

        Args:
            x_new: (m, d), or (m,) for d = 1.
        """
        values = _evaluate(self, check_inputs(x_new, self.inputs, self.process))
        return values[:, 0] if values.shape[1] == 1 else values


@eqx.filter_jit
def _evaluate(path: Path, x_new: Float[Array, "m d"]) -> Float[Array, "m C"]:
    process = path.process

    def one(point):
        k = process.covariance(path.inputs, point[None])
        value = process.mean(point[None])[0]
        k = jnp.broadcast_to(k, (process.num_latents, *k.shape[1:]))
        value = value + jnp.einsum("ci,ic->c", k[:, :, 0], path.weights)
        if path.functions:
            value = value + jnp.stack([function(point) for function in path.functions])
        if path.coefficients is not None:
            assert process.features is not None
            value = value + process.features(point) @ path.coefficients
        return value

    batch = max(1, CHUNK_SIZE // max(1, path.weights.size))
    return lax.map(one, x_new, batch_size=batch)


def path_of(
    process: AbstractProcess,
    x: Float[Array, "n d"],
    weights: Float[Array, "n C"],
    coefficients: Float[Array, "p C"] | None,
    factor: AbstractFactor,
    sites: AbstractSites | None,
    *,
    key: PRNGKeyArray,
    num_features: int,
    inputs: Float[Array, "m d"] | None,
) -> Path:
    """A draw of the posterior that the arguments describe; see `GaussianPosterior`."""
    prior_key, noise_key = jax.random.split(key)
    functions, there = (), x
    drawn_weights = jnp.zeros_like(weights)
    if inputs is None:
        functions = process.random_functions(prior_key, num_features, x)
        drawn = jnp.stack([jax.vmap(f)(x) for f in functions], axis=1)
    else:
        there = jnp.concatenate([x, inputs])
        drawn_weights, drawn = _jointly(process, there, prior_key)
        drawn = drawn[: x.shape[0]]
    if sites is None:
        assert isinstance(factor, CholeskyFactor)
        assert factor.noise is not None
        normals = jax.random.normal(noise_key, weights.shape, x.dtype)
        observed = drawn + jnp.sqrt(factor.noise) * normals
        change = -factor.times(observed)
        if coefficients is not None:
            coefficients = coefficients - factor.coefficients(observed)
    else:
        normals = jax.random.normal(noise_key, weights.shape, x.dtype)
        rooted = sites.root_times(normals)
        shift = apply_blocks(process.covariance(x), rooted)
        change = rooted - factor.times(drawn + shift)
    own = jnp.zeros_like(drawn_weights).at[: x.shape[0]].set(weights + change)
    return Path(process, there, drawn_weights + own, functions, coefficients)


def _jointly(
    process: AbstractProcess, x: Float[Array, "n d"], key: PRNGKeyArray
) -> tuple[Float[Array, "n C"], Float[Array, "n C"]]:
    """Weights v of a draw f₀ = k(·, x)v that is exact at x, and its values there."""
    root = cholesky(process.covariance(x)).lower
    root = jnp.broadcast_to(root, (process.num_latents, *root.shape[1:]))
    normals = jax.random.normal(key, (x.shape[0], process.num_latents), x.dtype)
    weights = solve_upper(root, normals.T[:, :, None])[:, :, 0].T
    return weights, apply_blocks(root, normals)
