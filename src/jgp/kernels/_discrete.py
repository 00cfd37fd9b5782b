"""Kernels over categories and outputs, numbered 0, 1, ... in one coordinate."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jgp._constraints import NON_NEGATIVE, Interval
from jgp._types import as_float
from jgp.kernels._base import AbstractKernel, check_scalar

CORRELATIONS = {"constraint": Interval(0.0, 1.0)}


class White(AbstractKernel):
    """The variance where x = z in every digit, 0 elsewhere: independent noise.

    Repeated inputs share their value; noise that differs between repeats belongs in the
    likelihood.

    Args:
        variance: The variance.
    """

    variance: Float[Array, ""] = eqx.field(
        default=1.0, converter=as_float, metadata=NON_NEGATIVE
    )

    def __check_init__(self):
        check_scalar("variance", self.variance)

    @property
    def num_derivatives(self) -> float:
        """None."""
        return 0

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The variance if the points are one."""
        return jnp.where(jnp.all(x == z), self.variance, jnp.zeros_like(self.variance))


class Categorical(AbstractKernel):
    """1 within a category, ρ between any two: exchangeable categories.

    Inputs are one coordinate with integers 0 to num_categories − 1.

    Args:
        num_categories: How many there are.
        correlation: ρ, in (0, 1].
    """

    num_categories: int = eqx.field(static=True)
    correlation: Float[Array, ""] = eqx.field(
        default=0.5, converter=as_float, metadata=CORRELATIONS
    )

    def __check_init__(self):
        check_scalar("correlation", self.correlation)
        if self.num_categories < 1:
            raise ValueError(
                f"num_categories: got {self.num_categories}, wanted at least 1."
            )

    def __call__(
        self, x: Float[Array, " 1"], z: Float[Array, " 1"]
    ) -> Float[Array, ""]:
        """The correlation of two categories."""
        same = _index(x) == _index(z)
        return jnp.where(same, jnp.ones_like(self.correlation), self.correlation)

    def check_inputs(self, x: Float[Array, "n 1"], name: str = "x") -> None:
        """Raise a `ValueError` unless inputs are 0 to num_categories − 1."""
        _check(name, x, self.num_categories)


class Coregionalization(AbstractKernel):
    """B[x, z], B = WWᵀ + diag(κ): covariances between outputs or categories.

    Álvarez, Rosasco & Lawrence 2012, §4. Inputs are one coordinate with integers 0 to
    C − 1. The product with a kernel on the other coordinates is the intrinsic model of
    coregionalisation, a sum of such products the linear one.

    Args:
        mixing: W, (C, R), any numbers; R is the rank.
        variance: κ, (C,), >= 0; none if left out.
    """

    mixing: Float[Array, "C R"] = eqx.field(converter=as_float)
    variance: Float[Array, " C"] | None = eqx.field(
        default=None,
        converter=lambda v: None if v is None else as_float(v),
        metadata=NON_NEGATIVE,
    )

    def __check_init__(self):
        own = None if self.variance is None else self.variance.shape
        if self.mixing.ndim != 2 or own not in (None, self.mixing.shape[:1]):
            raise ValueError(
                f"mixing, variance: got shapes {self.mixing.shape} and {own}, wanted "
                "(C, R) and (C,)."
            )

    def __call__(
        self, x: Float[Array, " 1"], z: Float[Array, " 1"]
    ) -> Float[Array, ""]:
        """The covariance of two outputs."""
        return self.covariance[_index(x), _index(z)]

    @property
    def covariance(self) -> Float[Array, "C C"]:
        """B itself."""
        shared = self.mixing @ self.mixing.T
        return shared if self.variance is None else shared + jnp.diag(self.variance)

    def check_inputs(self, x: Float[Array, "n 1"], name: str = "x") -> None:
        """Raise a `ValueError` unless inputs are 0 to C − 1."""
        _check(name, x, self.mixing.shape[0])


def _index(x: Float[Array, " 1"]) -> Array:
    if x.shape != (1,):
        raise ValueError(
            f"x: got inputs of dimension {x.shape[0]}, wanted 1; use `on(kernel, dim)`."
        )
    return jnp.round(x[0]).astype(jnp.int32)


def _check(name: str, x: Array, num: int) -> None:
    got = np.unique(np.asarray(x))
    if not np.all(np.isin(got, np.arange(num))):
        raise ValueError(f"{name}: got {got}, wanted integers from 0 to {num - 1}.")
