r"""Log densities for hyperparameters, on their natural scale.

`jgp.with_prior(model, where, density)` attaches one, or any function of an array that
gives the log density of each entry, to leaves of a model. Densities are compared by
value, so that models with equal priors share what is compiled.
"""

import dataclasses
import math
import numbers

import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp._normal import LOG_SQRT_2PI

KINDS = ("deviation", "variance", "lengthscale")


def _check(name: str, value: float) -> None:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (number and 0 < value < math.inf):
        raise ValueError(f"{name}: got {value!r}, wanted a finite number > 0.")


@dataclasses.dataclass(frozen=True)
class Normal:
    """A normal distribution, for parameters of any sign such as those of a mean.

    Args:
        mean: In units of the parameter.
        deviation: The standard deviation, in the same units.
    """

    mean: float
    deviation: float

    def __post_init__(self):
        _check("deviation", self.deviation)
        if isinstance(self.mean, bool) or not (
            isinstance(self.mean, numbers.Real) and math.isfinite(self.mean)
        ):
            raise ValueError(f"mean: got {self.mean!r}, wanted a finite number.")

    def __call__(self, value: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The log density of each entry."""
        z = (value - self.mean) / self.deviation
        return -(z**2) / 2 - math.log(self.deviation) - LOG_SQRT_2PI


@dataclasses.dataclass(frozen=True)
class LogNormal:
    """A normal distribution of the logarithm.

    Args:
        median: The median, in the units of the parameter.
        spread: The standard deviation of the logarithm.
    """

    median: float
    spread: float

    def __post_init__(self):
        _check("median", self.median)
        _check("spread", self.spread)

    def __call__(self, value: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The log density of each entry."""
        z = (jnp.log(value) - math.log(self.median)) / self.spread
        return -(z**2) / 2 - jnp.log(value) - math.log(self.spread) - LOG_SQRT_2PI


@dataclasses.dataclass(frozen=True)
class Gamma:
    """The density ∝ θ^(shape − 1) exp(−rate·θ), of mean shape/rate.

    Args:
        shape: Of the power.
        rate: In units of 1/θ.
    """

    shape: float
    rate: float

    def __post_init__(self):
        _check("shape", self.shape)
        _check("rate", self.rate)

    def __call__(self, value: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The log density of each entry."""
        constant = self.shape * math.log(self.rate) - math.lgamma(self.shape)
        return constant + (self.shape - 1) * jnp.log(value) - self.rate * value


@dataclasses.dataclass(frozen=True)
class InverseGamma:
    """The density ∝ θ^(−shape − 1) exp(−scale/θ), of mode scale/(shape + 1).

    It vanishes fast towards zero: a lengthscale does not fall below the spacing of the
    data.

    Args:
        shape: Of the power.
        scale: In units of θ.
    """

    shape: float
    scale: float

    def __post_init__(self):
        _check("shape", self.shape)
        _check("scale", self.scale)

    def __call__(self, value: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The log density of each entry."""
        constant = self.shape * math.log(self.scale) - math.lgamma(self.shape)
        return constant - (self.shape + 1) * jnp.log(value) - self.scale / value


@dataclasses.dataclass(frozen=True)
class HalfNormal:
    """The positive half of N(0, scale²).

    Args:
        scale: In units of the parameter.
    """

    scale: float

    def __post_init__(self):
        _check("scale", self.scale)

    def __call__(self, value: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The log density of each entry."""
        constant = math.log(2) - math.log(self.scale) - LOG_SQRT_2PI
        density = constant - (value / self.scale) ** 2 / 2
        return jnp.where(value >= 0, density, -jnp.inf)


@dataclasses.dataclass(frozen=True)
class PenalisedComplexity:
    r"""Shrinks a process towards a constant, at a constant rate of distance from it.

    A standard deviation σ is exponential with P(σ > bound) = probability (Simpson et
    al. 2017); of a variance that is the density of σ². A lengthscale ℓ of a process in
    d dimensions has ℓ^(−d/2) exponential with P(ℓ < bound) = probability (Fuglstad et
    al. 2019, theorem 2.6).

    Args:
        bound: In the units of the standard deviation (also for "variance") or of the
            lengthscale.
        probability: In (0, 1).
        kind: What the parameter is: "deviation", "variance" or "lengthscale".
        dimension: d, for a lengthscale.
    """

    bound: float
    probability: float
    kind: str = "deviation"
    dimension: int = 1

    def __post_init__(self):
        _check("bound", self.bound)
        _check("dimension", self.dimension)
        if not 0 < self.probability < 1:
            raise ValueError(
                f"probability: got {self.probability!r}, wanted a number in (0, 1)."
            )
        if self.kind not in KINDS:
            raise ValueError(
                f"kind: got {self.kind!r}, wanted one of {', '.join(KINDS)}."
            )

    def __call__(self, value: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The log density of each entry."""
        # A power of the parameter is exponential; p its exponent.
        power = {"deviation": 1.0, "variance": 0.5}.get(self.kind, -self.dimension / 2)
        bound = self.bound ** (2 * power if self.kind == "variance" else power)
        rate = -math.log(self.probability) / bound
        log_slope = math.log(abs(power)) + (power - 1) * jnp.log(value)
        return math.log(rate) - rate * value**power + log_slope


@dataclasses.dataclass(frozen=True)
class Beta:
    """The beta distribution, for parameters in (0, 1).

    Args:
        a: The power of θ, plus 1.
        b: The power of 1 − θ, plus 1.
    """

    a: float
    b: float

    def __post_init__(self):
        _check("a", self.a)
        _check("b", self.b)

    def __call__(self, value: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """The log density of each entry."""
        constant = math.lgamma(self.a + self.b)
        constant = constant - math.lgamma(self.a) - math.lgamma(self.b)
        logs = (self.a - 1) * jnp.log(value) + (self.b - 1) * jnp.log1p(-value)
        return constant + logs
