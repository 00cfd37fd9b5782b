r"""Squared scaled distances ‖(x − z)/ℓ‖², from differences.

The expansion ‖x‖² + ‖z‖² − 2xᵀz is one matrix product, but it loses the digits of
small distances: those of points 1e-8 apart, and with an offset all of them. The sum of
squared differences costs about 1.2 times as much in all (`benchmarks/gram.py`) and
loses none; it is accumulated one dimension after the other, so no (n, m, d) array
exists.
Derivatives of the matrix are matrix products: with W the cotangent of s,

    Σᵢⱼ Wᵢⱼ dsᵢⱼ,   dsᵢⱼ = 2 (xᵢ − zⱼ)ᵀ(dxᵢ − dzⱼ),

expanded about the centre of the points. Its rounding error is relative to the spread of
the points, which the derivatives of profiles with finite slope at s = 0 keep harmless.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jgp import _lapack

# Dimensions up to which the sum of squares is written out; more are summed in a loop.
UNROLLED = 64


def squared_distance(
    x: Float[Array, " d"], z: Float[Array, " d"], lengthscale: Float[Array, "..."]
) -> Float[Array, ""]:
    """‖(x − z)/ℓ‖² for a scalar or a vector ℓ, ‖L⁻¹(x − z)‖² for a matrix L.

    In float32 differences must lie within 1e-18 and 1e18 for their squares to exist.

    Raises:
        ValueError: if the lengthscale does not go with d dimensions.
    """
    check_lengthscale(lengthscale, x.shape[0])
    if lengthscale.ndim == 0:
        # Scaled last: the kernels of a sum share ‖x − z‖². Not divided twice, which XLA
        # makes a division by ℓ², 0/0 for a tiny ℓ in float32.
        inverse = 1 / lengthscale
        return sum_of_squares(x - z) * inverse * inverse
    return sum_of_squares(scaled(x - z, lengthscale))


def scaled(
    x: Float[Array, " d"], lengthscale: Float[Array, "..."]
) -> Float[Array, " d"]:
    """A point or a difference in units of the lengthscale: x/ℓ, or L⁻¹x."""
    if lengthscale.ndim < 2:
        return x / lengthscale
    return _lapack.triangular_solve(jnp.tril(lengthscale), x[:, None])[:, 0]


def check_lengthscale(lengthscale: Float[Array, "..."], d: int) -> None:
    """Raise a `ValueError` unless a lengthscale goes with points of dimension d."""
    # A vector of one entry would broadcast to any dimension.
    if lengthscale.ndim == 1 and lengthscale.shape != (d,):
        raise ValueError(
            f"lengthscale: got {lengthscale.shape[0]} entries, wanted one, or {d}, the "
            "dimension of the inputs."
        )
    if lengthscale.ndim == 2 and lengthscale.shape != (d, d):
        raise ValueError(
            f"lengthscale: got a matrix of shape {lengthscale.shape}, wanted {(d, d)} "
            f"for inputs of dimension {d}."
        )


def sum_of_squares(v: Float[Array, " d"]) -> Float[Array, ""]:
    """Σ v², written out: under `vmap` no array with an axis of dimensions is made."""
    if not 0 < v.shape[0] <= UNROLLED:
        return jnp.sum(jnp.square(v))
    return functools.reduce(jnp.add, [jnp.square(v[i]) for i in range(v.shape[0])])


def squared_distances(
    x: Float[Array, "n d"], z: Float[Array, "m d"], lengthscale: Float[Array, "..."]
) -> Float[Array, "n m"]:
    """`squared_distance` of all pairs.

    Raises:
        ValueError: if the lengthscale does not go with d dimensions.
    """
    check_lengthscale(lengthscale, x.shape[1])
    if lengthscale.ndim == 0:
        inverse = 1 / lengthscale
        return _squared_distances(x, z, jnp.ones_like(inverse)) * inverse * inverse
    if lengthscale.ndim == 2:
        # About their centre, so that an offset of all costs no digits.
        origin = _centre(x, z)
        x, z = (jax.vmap(scaled, (0, None))(v - origin, lengthscale) for v in (x, z))
        lengthscale = jnp.ones((), x.dtype)
    return _squared_distances(x, z, lengthscale)


@jax.custom_jvp
def _squared_distances(x, z, lengthscale: Float[Array, "*d"]) -> Float[Array, "n m"]:
    inverse = 1 / lengthscale

    def one(a, b):
        return sum_of_squares((a - b) * inverse)

    return jax.vmap(lambda a: jax.vmap(lambda b: one(a, b))(z))(x)


@_squared_distances.defjvp
def _squared_distances_jvp(primals, tangents):
    centre = _centre(*primals[:2])

    def in_units(x, z, lengthscale):
        units = jnp.broadcast_to(lengthscale, x.shape[1:])[None]
        return (x - centre) / units, (z - centre) / units

    (a, b), (da, db) = jax.jvp(in_units, primals, tangents)
    own = jnp.sum(a * da, axis=1)[:, None] + jnp.sum(b * db, axis=1)[None]
    slope = 2 * (own - a @ db.T - da @ b.T)
    return _squared_distances(*primals), slope


def _centre(x: Float[Array, "n d"], z: Float[Array, "m d"]) -> Float[Array, "1 d"]:
    """A point among those of x, or of z where x has none; any will do."""
    points = x if x.shape[0] else z
    total = jnp.sum(points, axis=0, keepdims=True)
    return lax.stop_gradient(total / max(1, points.shape[0]))
