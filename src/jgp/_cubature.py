r"""Rules for expectations: Gauss rules in few dimensions, rank-1 lattices in many.

Nodes and weights are computed once in NumPy, in double precision, and cached; they
are constants of a compiled function.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray


def gauss_hermite(
    num_nodes: int, dtype: DTypeLike = float
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Nodes and weights with Σ wᵢ f(xᵢ) = E[f(x)], x ~ N(0, 1).

    Exact for polynomials of degree 2·num_nodes − 1; the weights sum to 1.
    """
    nodes, weights = _gauss_hermite(num_nodes)
    return jnp.asarray(nodes, dtype), jnp.asarray(weights, dtype)


@functools.cache
def _gauss_hermite(num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    return nodes, weights / np.sum(weights)


def gauss_legendre(
    num_nodes: int, dtype: DTypeLike = float
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Nodes and weights with Σ wᵢ f(xᵢ) = ∫₀¹ f(x) dx.

    Exact for polynomials of degree 2·num_nodes − 1; the weights sum to 1.
    """
    nodes, weights = _gauss_legendre(num_nodes)
    return jnp.asarray(nodes, dtype), jnp.asarray(weights, dtype)


@functools.cache
def _gauss_legendre(num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    return (nodes + 1) / 2, weights / 2


def box_rule(
    lower: Float[Array, " d"], upper: Float[Array, " d"], num_nodes: int
) -> tuple[Float[Array, "q d"], Float[Array, " q"]]:
    """The product rule for means over a box: num_nodes**d points and weights.

    Exact too where the box has no width in some or all dimensions.
    """
    dimension = lower.shape[0]
    nodes, weights = _gauss_legendre(num_nodes)
    index = np.indices((num_nodes,) * dimension).reshape(dimension, -1).T
    unit = jnp.asarray(nodes[index], lower.dtype)
    points = lower[None] + (upper - lower)[None] * unit
    return points, jnp.asarray(np.prod(weights[index], axis=1), lower.dtype)


def gauss_hermite_product(
    num_nodes: int, dimension: int, dtype: DTypeLike = float
) -> tuple[Float[Array, "n d"], Float[Array, " n"]]:
    """The product rule for N(0, I): num_nodes**dimension nodes and weights."""
    nodes, weights = _gauss_hermite(num_nodes)
    index = np.indices((num_nodes,) * dimension).reshape(dimension, -1).T
    product = np.prod(weights[index], axis=1)
    return jnp.asarray(nodes[index], dtype), jnp.asarray(product, dtype)


def expectation(
    f: Callable[[Array], Array],
    mean: Float[Array, "*n"],
    variance: Float[Array, "*n"],
    num_nodes: int = 20,
) -> Float[Array, "*n"]:
    """E[f(x)], x ~ N(mean, variance), element by element, by Gauss-Hermite.

    Args:
        f: A function that acts elementwise on arrays of any shape.
        mean: The means.
        variance: The variances, >= 0 (> 0 where derivatives are taken).
        num_nodes: Exact for polynomials of degree 2·num_nodes − 1. A function with
            a feature narrower than about a third of the standard deviation needs
            more nodes than the default.
    """
    nodes, weights = gauss_hermite(num_nodes, mean.dtype)
    # `vmap`, not a node axis: `f` may close over arrays of the mean's shape.
    values = jax.vmap(lambda node: f(mean + jnp.sqrt(variance) * node))(nodes)
    return jnp.tensordot(weights, values, axes=1)


def lattice(
    num_points: int,
    dimension: int,
    dtype: DTypeLike = float,
    *,
    key: PRNGKeyArray | None = None,
    tent: bool = False,
) -> Float[Array, "n d"]:
    """A rank-1 lattice in the open unit cube, equal weights 1/num_points.

    The generating vector is found component by component (Nuyens & Cools 2006) for
    periodic integrands of smoothness 2, whose error falls like num_points⁻². The
    tent map makes a smooth integrand continuous and periodic (Hickernell 2002).

    Args:
        num_points: A prime number.
        dimension: The number of coordinates; the first are the best covered.
        dtype: The dtype of the points.
        key: Adds one uniform shift modulo 1: the mean of the rule is then unbiased.
            Without it the points are the same at each call.
        tent: Fold each coordinate by the tent map 1 − |2x − 1|.

    Raises:
        ValueError: if `num_points` is not prime.
    """
    points = jnp.asarray(_lattice(num_points, dimension), dtype)
    if key is not None:
        shift = jax.random.uniform(key, (1, dimension), points.dtype)
        points = (points + shift) % 1
    if tent:
        points = 1 - jnp.abs(2 * points - 1)
    margin = float(jnp.finfo(points.dtype).epsneg)
    return jnp.clip(points, margin, 1 - margin)


def normal_lattice(
    num_points: int,
    dimension: int,
    dtype: DTypeLike = float,
    *,
    key: PRNGKeyArray | None = None,
) -> Float[Array, "n d"]:
    """A tent-folded lattice mapped to N(0, I) by the quantile function."""
    return ndtri(lattice(num_points, dimension, dtype, key=key, tent=True))


@functools.cache
def _lattice(num_points: int, dimension: int) -> np.ndarray:
    generator = generating_vector(num_points, dimension)
    index = np.arange(num_points)[:, None]
    # A quarter of a step off the origin: inside the open cube, and no two points
    # coincide after the tent map.
    return (index * generator % num_points + 0.25) / num_points


@functools.cache
def generating_vector(num_points: int, dimension: int) -> np.ndarray:
    r"""A good generating vector of a rank-1 lattice with a prime number of points.

    Minimises, one component after the other, the worst-case error
    $\sum_k \prod_j (1 + \frac12 ω(\{k z_j/n\}))$ over periodic functions of smoothness
    2, ω(x) = Σ |h|⁻⁴ exp(2πihx) over h ≠ 0. Ordered by powers of a primitive root the
    errors of all candidates are one circular convolution (Nuyens & Cools 2006).

    Raises:
        ValueError: if `num_points` is not a prime of at least 5.
    """
    root = _primitive_root(num_points)
    half = (num_points - 1) // 2
    powers = np.empty(half, dtype=np.int64)
    powers[0] = 1
    for i in range(1, half):
        powers[i] = powers[i - 1] * root % num_points
    # ω is even: z and n − z are the same candidate.
    candidates = np.minimum(powers, num_points - powers)
    x = candidates / num_points
    kernel = -((2 * np.pi) ** 4) / 24 * (x**4 - 2 * x**3 + x**2 - 1 / 30)
    transform = np.fft.rfft(kernel)
    product = np.ones(half)
    chosen = []
    for _ in range(dimension):
        error = np.fft.irfft(transform * np.fft.rfft(product), half)
        # All candidates are equal for the first component, up to rounding.
        best = int(np.argmin(error)) if chosen else 0
        chosen.append(candidates[best])
        # Entry k of `product` stands for the point root⁻ᵏ, so that the sum over
        # points is a convolution.
        product = product * (1 + 0.5 * np.roll(kernel[::-1], best + 1))
    return np.array(chosen, dtype=np.int64)


def _primitive_root(prime: int) -> int:
    if prime < 5 or any(prime % p == 0 for p in range(2, int(prime**0.5) + 1)):
        raise ValueError(
            f"num_points: got {prime}, wanted a prime of at least 5, such as "
            "251, 1021, 4093, 16381 or 65521."
        )
    remaining, factors = prime - 1, set()
    for p in range(2, int((prime - 1) ** 0.5) + 1):
        while remaining % p == 0:
            factors.add(p)
            remaining //= p
    factors |= {remaining} - {1}
    root = 2
    while any(pow(root, (prime - 1) // p, prime) == 1 for p in factors):
        root += 1
    return root
