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

from jgp._linalg import apply_blocks, cholesky, semidefinite_root, solve_upper
from jgp._process import AbstractProcess
from jgp._types import positive_integer
from jgp.inference._data import check_inputs

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
        at = point[None]
        value = process.mean(at)[0] + process.combine(path.inputs, at, path.weights)[0]
        if path.functions:
            value = value + jnp.stack([function(point) for function in path.functions])
        if path.coefficients is not None:
            assert process.features is not None
            features = process.features(point).astype(point.dtype)
            value = value + features @ path.coefficients
        return value

    batch = max(1, CHUNK_SIZE // max(1, path.weights.size))
    return lax.map(one, x_new, batch_size=batch)


def path_of(
    process: AbstractProcess,
    x: Float[Array, "n d"],
    corrected: Callable[[Array, PRNGKeyArray], tuple[Array, Array | None]],
    *,
    rest: AbstractProcess | None,
    key: PRNGKeyArray,
    num_features: int,
    inputs: ArrayLike | None,
) -> Path:
    """A draw of a posterior.

    Args:
        process: The prior.
        x: Training inputs.
        corrected: The weights, and the coefficients of the trend, that a posterior has
            for a draw f₀(X) of the prior: of the data, less f₀(X) and less a draw of
            the noise by the key.
        rest: The terms of the prior that the path leaves out, but the data do not.
        key: A PRNG key.
        num_features: As for `GaussianPosterior.path`.
        inputs: The same.
    """
    positive_integer("num_features", num_features)
    prior_key, rest_key, noise_key = jax.random.split(key, 3)
    functions, there = (), x
    prior_weights = jnp.zeros((x.shape[0], process.num_latents), x.dtype)
    if inputs is None:
        functions = process.random_functions(prior_key, num_features, x)
        drawn = jnp.stack([jax.vmap(f)(x) for f in functions], axis=1)
    else:
        there = jnp.concatenate([x, check_inputs(inputs, x, process)])
        prior_weights, drawn = _jointly(process, there, prior_key)
        drawn = drawn[: x.shape[0]]
    if rest is not None:
        drawn = drawn + _values(rest, x, rest_key)
    weights, coefficients = corrected(drawn, noise_key)
    own = jnp.zeros_like(prior_weights).at[: x.shape[0]].set(weights)
    return Path(process, there, prior_weights + own, functions, coefficients)


def _jointly(
    process: AbstractProcess, x: Float[Array, "n d"], key: PRNGKeyArray
) -> tuple[Float[Array, "n C"], Float[Array, "n C"]]:
    """Weights v of a draw f₀ = k(·, x)v that is exact at x, and its values there."""
    shape = (x.shape[0], process.num_latents)
    normals = jax.random.normal(key, shape, x.dtype)
    if process.coupled:
        K, normals = process.joint_covariance(x), normals.reshape(-1, 1)
        root = cholesky(K.reshape(1, normals.size, normals.size)).lower
    else:
        root = cholesky(process.covariance(x)).lower
        root = jnp.broadcast_to(root, (process.num_latents, *root.shape[1:]))
    weights = solve_upper(root, normals.T[:, :, None])[:, :, 0].T
    return weights.reshape(shape), apply_blocks(root, normals).reshape(shape)


def _values(
    process: AbstractProcess, x: Float[Array, "n d"], key: PRNGKeyArray
) -> Float[Array, "n C"]:
    """A draw of the prior at x alone."""
    shape = (x.shape[0], process.num_latents)
    normals = jax.random.normal(key, shape, x.dtype)
    if process.coupled:
        K = process.joint_covariance(x).reshape(normals.size, normals.size)
        return (semidefinite_root(K) @ normals.reshape(-1)).reshape(shape)
    roots = jax.vmap(semidefinite_root)(process.covariance(x))
    roots = jnp.broadcast_to(roots, (process.num_latents, *roots.shape[1:]))
    return apply_blocks(roots, normals)
