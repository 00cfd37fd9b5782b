r"""Likelihoods of one latent function, and integrals against them.

Integrals of p(y | f)^η N(f; m, v) over f take composite Gauss-Legendre panels whose
ends are laid about three places: the mean m in units of √v, the mode of the integrand
in units of its own width there, and the features that a likelihood names (a threshold,
an observation) at distances that grow geometrically from their scale. No panel is then
much wider than the integrand is smooth, whatever the ratio of the scales, also with two
modes; sums are taken of logarithms.
"""

import abc
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PRNGKeyArray

from jgp._cubature import gauss_legendre
from jgp._normal import LOG_SQRT_2PI
from jgp.likelihoods._base import AbstractLikelihood

NUM_NODES = 10
# Ends of panels about the mean and about the mode, in their units.
OFFSETS = np.array([0, 0.75, 1.5, 2.25, 3, 4, 5, 6.5, 8, 11.0])
# Panels on each side of a feature, from a quarter of its scale to 3√v or 4 scales.
NUM_RINGS = 10
MODE_STEPS = 36


class Tilted(NamedTuple):
    """What EP needs of p(y | f)^η N(f; m, v), at every point.

    Args:
        log_normaliser: Log of its integral Ẑ.
        slope: g = ∂ log Ẑ/∂m; the tilted mean is m + vg.
        curvature: h = −∂² log Ẑ/∂m²; the tilted variance is v − v²h.
        remainder: 1 − vh, the tilted variance over v, without cancellation.
    """

    log_normaliser: Float[Array, " n"]
    slope: Float[Array, " n"]
    curvature: Float[Array, " n"]
    remainder: Float[Array, " n"]


class AbstractOneLatent(AbstractLikelihood):
    """p(y | f) of one latent a point.

    `log_density` acts elementwise on arrays that broadcast against each other. A
    likelihood with structure narrower than the prior, or that is not log-concave,
    should name it in `features`.
    """

    @property
    def num_latents(  # pyright: ignore[reportIncompatibleVariableOverride]
        self,
    ) -> int | None:
        """One."""
        return 1

    @property
    @abc.abstractmethod
    def log_concave(self) -> bool:
        """Whether log p(y | f) is concave in f for every y and every parameter."""

    @abc.abstractmethod
    def log_density(self, f: Float[Array, "*n"], y: Array) -> Float[Array, "*n"]:
        """Log p(y | f), elementwise."""

    def features(
        self, y: Float[Array, " n"]
    ) -> tuple[Float[Array, "n k"], Float[Array, "n k"]]:
        """Where p(y | f) changes as a function of f, and over which distance; none."""
        nothing = jnp.zeros((y.shape[0], 0), jnp.result_type(float))
        return nothing, nothing

    @abc.abstractmethod
    def conditional_mean(self, f: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """E[y | f], elementwise."""

    @abc.abstractmethod
    def conditional_variance(self, f: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Var[y | f], elementwise."""

    @abc.abstractmethod
    def sample(self, f: Float[Array, "*n"], *, key: PRNGKeyArray) -> Array:
        """A draw of y for each f."""

    def log_prob(self, f: Float[Array, " 1"], y: Array) -> Float[Array, ""]:
        """Log p(y | f) at one point."""
        return self.log_density(f[0], y)

    def log_probs(self, f: Float[Array, "n 1"], y: Array) -> Float[Array, " n"]:
        """Log p(yᵢ | fᵢ) at every point."""
        return self.log_density(f[:, 0], y)

    def check_shape(self, shape: tuple[int, ...], num_latents: int) -> None:
        """(n,)."""
        del num_latents
        if len(shape) != 1:
            raise ValueError(f"y: got shape {shape}, wanted (n,).")


@functools.singledispatch
def tilted_moments(
    likelihood: AbstractLikelihood,
    mean: Float[Array, " n"],
    variance: Float[Array, " n"],
    y: Array,
    power: Float[Array, " n"] | None = None,
) -> Tilted:
    """Normaliser and moments of p(yᵢ | fᵢ)^ηᵢ N(fᵢ; mᵢ, vᵢ) at every point.

    By panels (see the module) for any `AbstractOneLatent`; register a case where they
    have a closed form. Differentiable to any order in everything but y.

    Args:
        likelihood: The likelihood of all points.
        mean: m.
        variance: v, positive.
        y: The observations.
        power: η, positive; None is 1, for which some have a closed form.

    Raises:
        ValueError: for a likelihood without a case.
    """
    if not isinstance(likelihood, AbstractOneLatent):
        raise ValueError(
            f"likelihood: got {type(likelihood).__name__}, wanted one of a single "
            "latent a point."
        )
    power = jnp.ones_like(mean) if power is None else power
    nodes, log_widths = _tilted_panels(likelihood, mean, variance, y, power)
    z = (nodes - mean[:, None]) / jnp.sqrt(variance)[:, None]
    log_prior = -(z**2) / 2 - LOG_SQRT_2PI - jnp.log(variance)[:, None] / 2
    log_likelihood = likelihood.log_density(nodes, y[:, None])
    log_weights = log_widths + log_prior + power[:, None] * log_likelihood
    log_normaliser = jax.nn.logsumexp(log_weights, axis=1)
    p = jax.nn.softmax(log_weights, axis=1)
    centre = jnp.sum(p * z, axis=1)
    remainder = jnp.sum(p * (z - centre[:, None]) ** 2, axis=1)
    return Tilted(
        log_normaliser,
        centre / jnp.sqrt(variance),
        (1 - remainder) / variance,
        remainder,
    )


def gaussian_panels(
    mean: Float[Array, " n"],
    variance: Float[Array, " n"],
    features: tuple[Float[Array, "n k"], Float[Array, "n k"]],
) -> tuple[Float[Array, "n q"], Float[Array, "n q"]]:
    """Nodes and weights for expectations over N(mᵢ, vᵢ), the weights with the density.

    Args:
        mean: m.
        variance: v, positive.
        features: Where the function changes fast, and over which distance.
    """
    nodes, log_weights = log_gaussian_panels(mean, variance, features)
    return nodes, jnp.exp(log_weights)


def log_gaussian_panels(
    mean: Float[Array, " n"],
    variance: Float[Array, " n"],
    features: tuple[Float[Array, "n k"], Float[Array, "n k"]],
) -> tuple[Float[Array, "n q"], Float[Array, "n q"]]:
    """As `gaussian_panels`, with the logarithms of the weights."""
    nodes, log_widths = _panels([(mean, jnp.sqrt(variance))], variance, features)
    z = (nodes - mean[:, None]) / jnp.sqrt(variance)[:, None]
    log_weights = log_widths - z**2 / 2
    total = jax.nn.logsumexp(log_weights, axis=1, keepdims=True)
    return nodes, log_weights - total


def _tilted_panels(likelihood, mean, variance, y, power) -> tuple[Array, Array]:
    # The places are constants: a derivative is that of the sum over fixed nodes.
    likelihood, mean, variance, y, power = lax.stop_gradient(
        (likelihood, mean, variance, y, power)
    )
    locations, scales = likelihood.features(y)
    features = locations.astype(mean.dtype), scales.astype(mean.dtype)
    about = [(mean, jnp.sqrt(variance))]
    about.append(_mode(likelihood, mean, variance, y, power, features[0]))
    return _panels(about, variance, features)


def _panels(about: list, variance: Array, features: tuple) -> tuple[Array, Array]:
    """Nodes of all panels, and the logarithms of their Legendre weights."""
    dtype = variance.dtype
    signed = jnp.asarray(np.concatenate([-OFFSETS[:0:-1], OFFSETS]), dtype)
    ends = [centre[:, None] + width[:, None] * signed[None] for centre, width in about]
    locations, scales = features
    if locations.shape[1]:
        near = scales / 4
        far = jnp.maximum(4 * scales, 3 * jnp.sqrt(variance)[:, None])
        steps = jnp.arange(NUM_RINGS, dtype=dtype) / (NUM_RINGS - 1)
        rings = near[..., None] * (far / near)[..., None] ** steps[None, None]
        rings = jnp.concatenate([-rings, jnp.zeros_like(rings[..., :1]), rings], -1)
        at = locations[..., None] + rings
        ends.append(at.reshape(at.shape[0], -1))
    ends = jnp.sort(jnp.concatenate(ends, axis=1), axis=1)
    width = jnp.diff(ends, axis=1)
    unit, weights = gauss_legendre(NUM_NODES, dtype)
    nodes = ends[:, :-1, None] + width[..., None] * unit[None, None]
    floor = jnp.finfo(dtype).tiny
    log_widths = jnp.log(jnp.maximum(width, floor))[..., None]
    log_widths = log_widths + jnp.log(weights)[None, None]
    shape = (nodes.shape[0], -1)
    return nodes.reshape(shape), log_widths.reshape(shape)


def _mode(
    likelihood: AbstractOneLatent,
    mean: Float[Array, " n"],
    variance: Float[Array, " n"],
    y: Array,
    power: Float[Array, " n"],
    locations: Float[Array, "n k"],
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """A stationary point of the log integrand, and the width of the integrand there.

    Newton's method within a bracket that bisection shrinks. If log p is concave the
    mode lies between m and m + vη ∂log p(m), where the slope has changed its sign;
    else a stationary point lies between m and a mode of p, if that is a feature.
    """

    def slope(f):
        def total(f):
            return jnp.sum(power * likelihood.log_density(f, y))

        return jax.grad(total)(f) - (f - mean) / variance

    def both(f):
        return jax.jvp(slope, (f,), (jnp.ones_like(f),))

    other = mean + variance * slope(mean)
    if not likelihood.log_concave and locations.shape[1]:
        other = locations[:, 0]
    reach = 1e3 * (jnp.sqrt(variance) + jnp.abs(mean)) + 1e3
    other = jnp.clip(other, mean - reach, mean + reach)

    def shrink(step, state):
        low, high, f = state
        first, second = both(f)
        rising = first > 0
        low, high = jnp.where(rising, f, low), jnp.where(rising, high, f)
        newton = f - first / second
        inside = (newton > low) & (newton < high) & (step % 3 != 2)
        return low, high, jnp.where(inside, newton, (low + high) / 2)

    start = (jnp.minimum(mean, other), jnp.maximum(mean, other), (mean + other) / 2)
    _, _, f = lax.fori_loop(0, MODE_STEPS, shrink, start)
    curvature = -both(f)[1]
    width = 1 / jnp.sqrt(jnp.maximum(curvature, 1 / variance))
    usable = jnp.isfinite(f) & jnp.isfinite(width)
    return (
        jnp.where(usable, f, mean),
        jnp.where(usable, width, jnp.sqrt(variance)),
    )


def real_targets(y: Any, wanted: str, right: Any = None) -> np.ndarray:
    """Targets (n,) as an array of numbers; `ValueError` unless all are right.

    Args:
        y: What was given.
        wanted: The kind of numbers in words, for the message.
        right: Whether each of an array is of that kind, beside being finite.
    """
    y = np.asarray(y)
    if y.ndim != 1:
        raise ValueError(f"y: got shape {y.shape}, wanted (n,).")
    if not np.issubdtype(y.dtype, np.number) and y.dtype != bool:
        raise ValueError(f"y: got dtype {y.dtype}, wanted {wanted}.")
    good = np.isfinite(y) & (True if right is None else right(y))
    if not np.all(good):
        raise ValueError(f"y: got {y[~good][0]}, wanted {wanted}.")
    return y
