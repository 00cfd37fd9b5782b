"""Mean functions of single points; any callable module of one point will do."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp._types import as_float

__all__ = ["Constant", "Linear", "Zero"]


class Zero(eqx.Module):
    """The mean 0."""

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """Zero, in the dtype of x."""
        return jnp.zeros((), x.dtype)


class Constant(eqx.Module):
    """The same mean everywhere.

    Args:
        value: The mean, in units of the latent function.
    """

    value: Float[Array, ""] = eqx.field(default=0.0, converter=as_float)

    def __check_init__(self):
        if self.value.ndim != 0:
            raise ValueError(
                f"value: got shape {self.value.shape}, wanted a scalar (one mean for "
                "each latent function)."
            )

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The value."""
        return self.value


class Linear(eqx.Module):
    """The mean weights · x + bias.

    Args:
        weights: One slope for each input dimension.
        bias: The mean at the origin.
    """

    weights: Float[Array, " d"] = eqx.field(converter=as_float)
    bias: Float[Array, ""] = eqx.field(default=0.0, converter=as_float)

    def __check_init__(self):
        if self.weights.ndim != 1:
            raise ValueError(
                f"weights: got shape {self.weights.shape}, wanted a vector with one "
                "entry for each input dimension."
            )
        if self.bias.ndim != 0:
            raise ValueError(f"bias: got shape {self.bias.shape}, wanted a scalar.")

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The linear function at a point.

        Raises:
            ValueError: if there is not one weight for each dimension of x.
        """
        if self.weights.shape != x.shape:
            raise ValueError(
                f"weights: got {self.weights.shape[0]} entries, wanted {x.shape[0]}, "
                "the dimension of the inputs."
            )
        return jnp.dot(self.weights, x) + self.bias
