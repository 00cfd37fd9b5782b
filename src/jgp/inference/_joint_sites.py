r"""Sites of any sign or of full blocks: the posterior algebra over all latents.

A precision that may be negative has no square root, and full blocks Tᵢ couple the
latents, so with K = LLᵀ all is taken from one matrix of the size nC of the latents,

    B = I + LᵀTL,  Σ = L B⁻¹ Lᵀ,  (K + T⁻)⁻ = T − TΣT,  log|I + KT| = log|B|,

which is positive definite exactly where the posterior is proper (its Cholesky factor
fails elsewhere, and NaN follows). O((nC)³) time and O((nC)²) memory.

Derivatives are taken in K and T, never through L: with M = (K + T⁻)⁻,

    dM = (I − MK) dT (I − KM) − M dK M,
    dΣ = (I − KM) dK (I − MK) − Σ dT Σ,
    d log|I + KT| = tr(M dK) + tr(Σ dT).
"""

import functools
from typing import TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jgp._linalg import cholesky, inverse_root, semidefinite_root
from jgp._parameters import is_concrete
from jgp.inference._factor import AbstractFactor

if TYPE_CHECKING:
    from jgp.inference._sites import AbstractSites


class JointFactor(AbstractFactor):
    """M = (K + T⁻)⁻ between all latents at all points.

    Args:
        matrix: M, latents before points.
        root: U with B⁻¹ = UᵀU, so that LUᵀz is a draw of N(0, Σ) for unit normals z.
    """

    matrix: Float[Array, "C n C n"]
    root: Float[Array, "nC nC"]

    def times(self, v: Float[Array, "n C"]) -> Float[Array, "n C"]:
        """M v."""
        return jnp.einsum("cidj,jd->ic", self.matrix, v)

    def marginal_reduction(self, k: Float[Array, "C n m"]) -> Float[Array, "m C C"]:
        """kᵀMk for each of m points."""
        Mk = jnp.einsum("cidj,djm->cidm", self.matrix, k)
        return jnp.einsum("cim,cidm->mcd", k, Mk)

    def joint_reduction(self, k: Float[Array, "C n m"]) -> Float[Array, "m C m C"]:
        """kᵀMk between all pairs of m points."""
        Mk = jnp.einsum("cidj,djl->cidl", self.matrix, k)
        return jnp.einsum("cim,cidl->mcld", k, Mk)

    def diagonal_blocks(self) -> Float[Array, "C n n"]:
        """The class-diagonal blocks of M."""
        return jnp.einsum("cicj->cij", self.matrix)

    def deviation(self, normals: Float[Array, "n C"]) -> Float[Array, "n C"]:
        """Uᵀz, a draw of the whitened latents about their mean."""
        return (self.root.T @ normals.T.reshape(-1)).reshape(normals.T.shape).T


def prior_root(K: Float[Array, "C n n"]) -> Float[Array, "C n n"]:
    """L with LLᵀ = K, once for many sites; NaN where K is not positive semidefinite."""
    return cholesky(K).lower


def joint_moments(
    K: Float[Array, "C n n"],
    root: Float[Array, "C n n"],
    precision: Float[Array, "n C C"],
) -> tuple[JointFactor, Float[Array, "C n C n"], Float[Array, ""]]:
    """M, Σ and log|I + KT| for K block-diagonal over latents, T over points.

    Args:
        K: Prior covariances, one a latent or a single one that they share.
        root: L of each; a constant.
        precision: T.
    """
    num_latents = precision.shape[1]
    K = jnp.broadcast_to(K, (num_latents, *K.shape[1:]))
    root = jnp.broadcast_to(root, K.shape)
    M, S, U, log_B = _moments(K, precision, root)
    return JointFactor(M, U), S, log_B


@eqx.filter_custom_jvp
def _moments(K: Array, T: Array, root: Array) -> tuple[Array, Array, Array, Array]:
    num_latents, n, _ = K.shape
    size = num_latents * n
    half = jnp.einsum("cia,icd->ciad", root, T)
    B = jnp.einsum("ciad,dib->cadb", half, root).reshape(size, size)
    U, log_B = inverse_root(jnp.eye(size, dtype=K.dtype) + (B + B.T) / 2)
    V = jnp.einsum("kdb,dib->kdi", U.reshape(size, num_latents, n), root)
    V = V.reshape(size, size)
    S = (V.T @ V).reshape(num_latents, n, num_latents, n)
    TS = jnp.einsum("icd,diej->ciej", T, S)
    identity = jnp.eye(n, dtype=K.dtype)
    M = jnp.einsum("icd,ij->cidj", T, identity) - jnp.einsum("ciej,jed->cidj", TS, T)
    return M, S, U, log_B


@_moments.def_jvp
def _moments_jvp(primals, tangents):
    (K, T, root), (dK, dT, _) = primals, tangents
    M, S, U, log_B = _moments(K, T, root)
    shape, size = M.shape, U.shape[0]
    identity = jnp.eye(size, dtype=K.dtype)
    flat_M, flat_S = M.reshape(size, size), S.reshape(size, size)
    MK = jnp.einsum("cidj,djk->cidk", M, K).reshape(size, size)
    left = identity - MK
    dM, dS = jnp.zeros_like(flat_M), jnp.zeros_like(flat_S)
    dlog = jnp.zeros((), K.dtype)
    if dK is not None:
        dense = jnp.einsum("cij,cd->cidj", dK, jnp.eye(K.shape[0], dtype=K.dtype))
        dense = dense.reshape(size, size)
        dM = dM - flat_M @ dense @ flat_M
        dS = dS + left.T @ dense @ left
        dlog = dlog + jnp.sum(flat_M * dense)
    if dT is not None:
        dense = jnp.einsum("icd,ij->cidj", dT, jnp.eye(K.shape[1], dtype=K.dtype))
        dense = dense.reshape(size, size)
        dM = dM + left @ dense @ left.T
        dS = dS - flat_S @ dense @ flat_S
        dlog = dlog + jnp.sum(flat_S * dense)
    tangent = (dM.reshape(shape), dS.reshape(shape), _root_tangent(U), dlog)
    return (M, S, U, log_B), tangent


def _root_tangent(U: Array) -> Array:
    """Draws are not differentiated: only M, Σ and the determinant are."""
    return jnp.zeros_like(U)


@functools.partial(jnp.vectorize, signature="(c,c)->(c,c)")
def block_root(T: Float[Array, "C C"]) -> Float[Array, "C C"]:
    """A symmetric root of a positive semidefinite block."""
    return semidefinite_root(T)


def check_semidefinite(sites: "AbstractSites", purpose: str) -> None:
    """Raise a `ValueError` where a precision that can be read is not semidefinite."""
    blocks = sites.blocks()
    if not is_concrete(blocks):
        return
    eigenvalues = np.linalg.eigvalsh(np.asarray(blocks))
    floor = -100 * np.finfo(eigenvalues.dtype).eps * np.max(np.abs(eigenvalues))
    if np.any(eigenvalues < floor):
        raise ValueError(
            f"posterior: got one with {np.sum(eigenvalues[:, 0] < floor)} sites of "
            f"negative precision, wanted none for {purpose}."
        )


def joint_mean(
    S: Float[Array, "C n C n"],
    precision: Float[Array, "n C C"],
    linear: Float[Array, "n C"],
) -> tuple[Float[Array, "n C"], Float[Array, "n C"]]:
    """The deviation Σν' of the mean from m₀ and the weights b = ν' − TΣν'.

    Nothing is multiplied by K, whose large eigenvalues would cost digits.
    """
    deviation = jnp.einsum("cidj,jd->ic", S, linear)
    return deviation, linear - jnp.einsum("icd,id->ic", precision, deviation)
