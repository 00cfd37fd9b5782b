"""(K + T⁻)⁻ of diagonal or rank-one sites, as `_sites` derives it."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from jgp._linalg import apply_blocks, diagonal_matrices, lower_times
from jgp.inference._factor import AbstractFactor


class SiteFactor(AbstractFactor):
    """(K + T⁻)⁻ of diagonal or rank-one sites.

    Args:
        blocks: E, for sites of any sign E − YᵀY.
        root: Z with E = ZᵀZ, a constant of derivatives.
        coupling: U with P⁻¹ = UᵀU for rank-one sites, None for diagonal ones.
        negative: Y for sites of any sign, else None.
    """

    blocks: Float[Array, "C n n"]
    root: Float[Array, "C n n"]
    coupling: Float[Array, "n n"] | None = None
    negative: Float[Array, "C n n"] | None = None

    def own_times(self, v: Float[Array, "n C"]) -> Float[Array, "n C"]:
        """Ev, or (E − YᵀY)v, within each latent, by the roots.

        Errors of E are relative to its condition number, which K(Ev) would show; those
        of Z to the root of that. The derivative is that of E.
        """
        plain = apply_blocks(self.blocks, v)
        rooted = apply_blocks(self.root.mT, apply_blocks(self.root, v))
        if self.negative is not None:
            raised = apply_blocks(self.negative, v)
            rooted = rooted - apply_blocks(self.negative.mT, raised)
        return plain + lax.stop_gradient(rooted - plain)

    def times(self, v: Float[Array, "n C"]) -> Float[Array, "n C"]:
        """(K + T⁻)⁻ v."""
        Ev = self.own_times(v)
        if self.coupling is None:
            return Ev
        common = self.coupling.T @ (self.coupling @ jnp.sum(Ev, axis=1))
        return Ev - jnp.einsum("cij,j->ic", self.blocks, common)

    def coupled(self, k: Float[Array, "C n m"]) -> Float[Array, "n C m"]:
        """U E_c k_c, stacked over classes in the middle."""
        assert self.coupling is not None
        return jnp.einsum("ij,cjm->icm", self.coupling, self.blocks @ k)

    def marginal_reduction(self, k: Float[Array, "C n m"]) -> Float[Array, "m C C"]:
        """kᵀ(K + T⁻)⁻k for each of m points: what the data take off the prior."""
        own = self._own(k, lambda a, b: jnp.sum(a * b, axis=1))
        reduction = diagonal_matrices(own.T)
        if self.coupling is None:
            return reduction
        G = self.coupled(k)
        return reduction - jnp.einsum("icm,idm->mcd", G, G)

    def joint_reduction(self, k: Float[Array, "C n m"]) -> Float[Array, "m C m C"]:
        """kᵀ(K + T⁻)⁻k between all pairs of m points."""
        own = self._own(k, lambda a, b: jnp.einsum("cim,cil->mlc", a, b))
        reduction = jnp.transpose(diagonal_matrices(own), (0, 2, 1, 3))
        if self.coupling is None:
            return reduction
        G = self.coupled(k)
        return reduction - jnp.einsum("icm,idl->mcld", G, G)

    def _own(self, k: Float[Array, "C n m"], product: Callable) -> Array:
        """kᵀEk, or kᵀ(E − YᵀY)k, as sums of squares, as k** − kᵀEk cancels."""
        plain = product(k, self.blocks @ k)
        half = self.root @ k
        squares = product(half, half)
        if self.negative is not None:
            half = self.negative @ k
            squares = squares - product(half, half)
        return plain + lax.stop_gradient(squares - plain)

    def diagonal_blocks(self) -> Float[Array, "C n n"]:
        """The class-diagonal blocks of (K + T⁻)⁻."""
        if self.coupling is None:
            return self.blocks
        UE = lower_times(self.coupling, self.blocks)
        return self.blocks - UE.mT @ UE
