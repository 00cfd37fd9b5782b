"""(K + T⁻)⁻ of diagonal or rank-one sites, as `_sites` derives it."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp._linalg import apply_blocks, diagonal_matrices, lower_times
from jgp.inference._factor import AbstractFactor


class SiteFactor(AbstractFactor):
    """(K + T⁻)⁻ of diagonal or rank-one sites.

    Args:
        blocks: E.
        coupling: U with P⁻¹ = UᵀU for rank-one sites, None for diagonal ones.
    """

    blocks: Float[Array, "C n n"]
    coupling: Float[Array, "n n"] | None

    def times(self, v: Float[Array, "n C"]) -> Float[Array, "n C"]:
        """(K + T⁻)⁻ v."""
        Ev = apply_blocks(self.blocks, v)
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
        reduction = diagonal_matrices(jnp.sum(k * (self.blocks @ k), axis=1).T)
        if self.coupling is None:
            return reduction
        G = self.coupled(k)
        return reduction - jnp.einsum("icm,idm->mcd", G, G)

    def joint_reduction(self, k: Float[Array, "C n m"]) -> Float[Array, "m C m C"]:
        """kᵀ(K + T⁻)⁻k between all pairs of m points."""
        own = jnp.einsum("cim,cil->mlc", k, self.blocks @ k)
        reduction = jnp.transpose(diagonal_matrices(own), (0, 2, 1, 3))
        if self.coupling is None:
            return reduction
        G = self.coupled(k)
        return reduction - jnp.einsum("icm,idl->mcld", G, G)

    def diagonal_blocks(self) -> Float[Array, "C n n"]:
        """The class-diagonal blocks of (K + T⁻)⁻."""
        if self.coupling is None:
            return self.blocks
        UE = lower_times(self.coupling, self.blocks)
        return self.blocks - UE.mT @ UE
