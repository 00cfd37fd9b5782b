"""Gaussian sites exp(νᵢᵀfᵢ − ½fᵢᵀTᵢfᵢ), by the structure of Tᵢ."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp._linalg import diagonal_matrices
from jgp.inference._joint_sites import block_root


class AbstractSites(eqx.Module):
    """Natural parameters of Gaussian sites, one a data point."""

    precision: eqx.AbstractVar[Float[Array, "n C *C"]]
    linear: eqx.AbstractVar[Float[Array, "n C"]]

    @abc.abstractmethod
    def blocks(self) -> Float[Array, "n C C"]:
        """Tᵢ at every point."""

    @abc.abstractmethod
    def times(self, f: Float[Array, "*batch n C"]) -> Float[Array, "*batch n C"]:
        """Tᵢfᵢ at every point."""

    @abc.abstractmethod
    def root_times(self, f: Float[Array, "*batch n C"]) -> Float[Array, "*batch n C"]:
        """Bᵢfᵢ at every point, with BᵢBᵢᵀ = Tᵢ."""


class AbstractDiagonalSites(AbstractSites):
    """Sites Tᵢ = diag(aᵢ), νᵢ."""

    def blocks(self) -> Float[Array, "n C C"]:
        """diag(aᵢ) at every point."""
        return diagonal_matrices(self.precision)

    def times(self, f: Float[Array, "*batch n C"]) -> Float[Array, "*batch n C"]:
        """Tᵢfᵢ at every point."""
        return self.precision * f

    def root_times(self, f: Float[Array, "*batch n C"]) -> Float[Array, "*batch n C"]:
        """Bᵢfᵢ with Bᵢ = diag(√aᵢ); of the positive part, if Tᵢ has another."""
        return jnp.sqrt(jnp.maximum(self.precision, 0)) * f


class DiagonalSites(AbstractDiagonalSites):
    """Sites Tᵢ = diag(aᵢ), νᵢ.

    Args:
        precision: a, non-negative.
        linear: ν.
    """

    precision: Float[Array, "n C"]
    linear: Float[Array, "n C"]


class SignedSites(AbstractDiagonalSites):
    """Sites Tᵢ = diag(aᵢ), νᵢ whose precisions may be negative.

    Args:
        precision: a.
        linear: ν.
    """

    precision: Float[Array, "n C"]
    linear: Float[Array, "n C"]


class RankOneSites(AbstractSites):
    """Sites Tᵢ = diag(aᵢ) − aᵢaᵢᵀ/1ᵀaᵢ, νᵢ; both annihilate a shift of all latents.

    Args:
        precision: a, non-negative with a positive sum at each point.
        linear: ν, summing to zero at each point.
    """

    precision: Float[Array, "n C"]
    linear: Float[Array, "n C"]

    def blocks(self) -> Float[Array, "n C C"]:
        """diag(aᵢ) − aᵢaᵢᵀ/1ᵀaᵢ at every point."""
        a = self.precision
        share = a / jnp.sum(a, axis=-1, keepdims=True)
        return diagonal_matrices(a) - a[:, :, None] * share[:, None, :]

    def times(self, f: Float[Array, "*batch n C"]) -> Float[Array, "*batch n C"]:
        """Tᵢfᵢ at every point."""
        share = self.precision / jnp.sum(self.precision, axis=-1, keepdims=True)
        return self.precision * (f - jnp.sum(share * f, axis=-1, keepdims=True))

    def root_times(self, f: Float[Array, "*batch n C"]) -> Float[Array, "*batch n C"]:
        """Bᵢfᵢ with Bᵢ = diag(√aᵢ)(I − vvᵀ), v = √(aᵢ/sᵢ)."""
        share = self.precision / jnp.sum(self.precision, axis=-1, keepdims=True)
        v = jnp.sqrt(share)
        return jnp.sqrt(self.precision) * (
            f - v * jnp.sum(v * f, axis=-1, keepdims=True)
        )


class DenseSites(AbstractSites):
    """Sites of any symmetric Tᵢ, νᵢ.

    Args:
        precision: T.
        linear: ν.
    """

    precision: Float[Array, "n C C"]
    linear: Float[Array, "n C"]

    def blocks(self) -> Float[Array, "n C C"]:
        """Tᵢ at every point."""
        return self.precision

    def times(self, f: Float[Array, "*batch n C"]) -> Float[Array, "*batch n C"]:
        """Tᵢfᵢ at every point."""
        return jnp.einsum("ncd,...nd->...nc", self.precision, f)

    def root_times(self, f: Float[Array, "*batch n C"]) -> Float[Array, "*batch n C"]:
        """Bᵢfᵢ, Bᵢ the symmetric root; of the positive part, if Tᵢ has another."""
        return jnp.einsum("ncd,...nd->...nc", block_root(self.precision), f)
