"""The bivariate normal distribution function."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jgp._normal import ndtr, normal_density

# Gauss-Legendre on [0, 1].
NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)
NODES, WEIGHTS = (NODES + 1) / 2, WEIGHTS / 2
# The correlation above which Genz's expansion about |rho| = 1 takes over.
STRONG = 0.925


@jax.custom_jvp
def bivariate_normal_cdf(
    h: Float[Array, "*n"], k: Float[Array, "*n"], rho: Float[Array, "*n"]
) -> Float[Array, "*n"]:
    """P(X < h, Y < k) of standard normals X, Y with correlation rho.

    Gauss-Legendre quadrature of Plackett's integral, with its expansion about
    |rho| = 1 for strong correlations (Genz 2004, BVND).

    Args:
        h: Upper limits of X, finite.
        k: Upper limits of Y, finite.
        rho: Correlations in [-1, 1], the ends included.

    Returns:
        Probabilities in [0, 1] with absolute errors of a few rounding units.
        Derivatives of every order are finite; at rho = ±1, where the derivative in
        rho does not exist, they are those of a correlation one rounding unit off.
    """
    h, k, rho = jnp.broadcast_arrays(h, k, rho)
    weak = jnp.abs(rho) < STRONG
    probability = jnp.where(
        weak,
        _weak(h, k, jnp.where(weak, rho, 0)),
        _strong(h, k, jnp.where(weak, 1, rho)),
    )
    # Fréchet's bounds, which also keep tiny negative rounding errors out.
    lower = jnp.maximum(ndtr(h) - ndtr(-k), 0)
    return jnp.clip(probability, lower, ndtr(jnp.minimum(h, k)))


def _weak(h: Array, k: Array, rho: Array) -> Array:
    """Φ(h)Φ(k) + (2π)⁻¹ ∫ exp(−(h² − 2hk sin θ + k²)/(2cos²θ)) dθ, 0 to asin rho."""
    angle = jnp.arcsin(rho)

    def integrand(node):
        sine = jnp.sin(angle * node)
        # As a sum of squares the exponent cannot be positive, whatever the rounding.
        conditional = (k - sine * h) ** 2 / ((1 - sine) * (1 + sine))
        return jnp.exp(-0.5 * (h * h + conditional))

    integral = _quadrature(integrand, h)
    return ndtr(h) * ndtr(k) + angle * integral / (2 * math.pi)


def _strong(h: Array, k: Array, rho: Array) -> Array:
    """The value at rho = ±1, less the integral from |rho| to 1 (Genz 2004, §2.4).

    With x = √(1 − r²) as the variable, the first terms of the integrand's series
    at x = 0 are integrated in closed form; quadrature does the smooth rest.
    """
    positive = rho > 0
    k = jnp.where(positive, k, -k)
    hk, difference = h * k, jnp.abs(h - k)
    square = difference * difference
    c, d = (4 - hk) / 8, (12 - hk) / 16
    variance = (1 - jnp.abs(rho)) * (1 + jnp.abs(rho))
    a = jnp.sqrt(variance)
    a_safe = jnp.where(a > 0, a, 1)

    closed = a * _exp(-(square / (a_safe * a_safe) + hk) / 2)
    closed = closed * (
        1 - c * (square - variance) * (1 - d * square / 5) / 3 + c * d * variance**2 / 5
    )
    tail = difference * (1 - c * square * (1 - d * square / 5) / 3)
    tail = tail * math.sqrt(2 * math.pi) * ndtr(-difference / a_safe)
    tail = jnp.where(hk > -100, tail * _exp(-jnp.maximum(hk, -100) / 2), 0)

    def remainder(node):
        x2 = (a * node) ** 2
        root = jnp.sqrt(1 - x2)
        exponent = -(square / jnp.where(a > 0, x2, 1) + hk) / 2
        series = _exp(exponent) * (1 + c * x2 * (1 + d * x2))
        return _exp(exponent - hk * (1 - root) / (2 * (1 + root))) / root - series

    rest = a * _quadrature(remainder, h)

    missing = jnp.where(a > 0, (closed - tail + rest) / (2 * math.pi), 0)
    interval = jnp.where(h < 0, ndtr(h) - ndtr(jnp.minimum(k, h)), ndtr(-k) - ndtr(-h))
    return jnp.where(
        positive, ndtr(jnp.minimum(h, k)) - missing, jnp.maximum(interval, 0) + missing
    )


def _exp(exponent: Array) -> Array:
    return jnp.where(exponent > -100, jnp.exp(jnp.clip(exponent, -100, 60)), 0)


def _quadrature(integrand: Callable[[Array], Array], like: Array) -> Array:
    """∫ integrand from 0 to 1; nodes in turn, so that arrays of limits vectorise."""

    def add(total, rule):
        node, weight = rule
        return total + weight * integrand(node), None

    rule = jnp.asarray(NODES, like.dtype), jnp.asarray(WEIGHTS, like.dtype)
    # Unrolling in full would take ten seconds to compile.
    return lax.scan(add, jnp.zeros_like(like), rule, unroll=4)[0]


@bivariate_normal_cdf.defjvp
def _bivariate_jvp(primals, tangents):
    """∂h: φ(h)Φ((k − ρh)/σ), likewise ∂k; ∂ρ: the density; σ² = 1 − ρ²."""
    (h, k, rho), (dh, dk, drho) = primals, tangents
    sign = jnp.where(rho > 0, 1, -1).astype(rho.dtype)
    gap = 1 - jnp.abs(rho)
    eps = float(jnp.finfo(rho.dtype).eps)
    sigma = jnp.sqrt(jnp.maximum(gap * (1 + jnp.abs(rho)), eps**2))
    # k − ρh without the rounding of ρh when ρ is near ±1.
    k_given_h = ((k - sign * h) + sign * gap * h) / sigma
    h_given_k = ((h - sign * k) + sign * gap * k) / sigma
    slope_h = normal_density(h) * ndtr(k_given_h)
    slope_k = normal_density(k) * ndtr(h_given_k)
    density = normal_density(h) * normal_density(k_given_h) / sigma
    tangent = slope_h * dh + slope_k * dk + density * drho
    return bivariate_normal_cdf(h, k, rho), tangent
