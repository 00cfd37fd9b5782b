"""Convolved kernels: the covariance of a smoothed process.

For g(x) = ∫ h(x, u) f(u) du, cov(g(x), g(z)) = ∫∫ h(x, u) k(u, v) h(z, v) du dv
(Cabral 2021, §3.4.3).
"""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jgp._constraints import POSITIVE
from jgp._types import as_float
from jgp.kernels._base import AbstractKernel
from jgp.kernels._distance import check_lengthscale
from jgp.kernels._periodic import check_each
from jgp.kernels._stationary import SquaredExponential


class Convolved(AbstractKernel):
    """Σ_qr w_q w_r h(x, u_q) k(u_q, u_r) h(z, u_r): the integrals by a quadrature rule.

    Positive semidefinite whatever the rule; as accurate as the rule is for u ↦
    h(x, u) k(u, v).

    Args:
        kernel: k.
        smoother: h, a function of two points to a scalar; the parameters of an
            `equinox.Module` are trained.
        nodes: u, (Q, d); not trained.
        weights: w, (Q,); not trained.
    """

    kernel: AbstractKernel
    smoother: Callable[[Float[Array, " d"], Float[Array, " d"]], Float[Array, ""]]
    nodes: tuple[tuple[float, ...], ...] = eqx.field(
        static=True, converter=lambda u: tuple(map(tuple, np.asarray(u).tolist()))
    )
    weights: tuple[float, ...] = eqx.field(
        static=True, converter=lambda w: tuple(np.asarray(w).tolist())
    )

    def __check_init__(self):
        shape = np.shape(self.nodes)
        if len(shape) != 2 or (len(self.weights),) != shape[:1]:
            raise ValueError(
                f"nodes, weights: got shapes {shape} and {np.shape(self.weights)}, "
                "wanted (Q, d) and (Q,)."
            )

    @property
    def num_derivatives(self) -> float:
        """Those of h in x, taken to be all."""
        return math.inf

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The covariance of the smoothed process at two points."""
        return self.matrix(x[None], z[None])[0, 0]

    def matrix(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"]
    ) -> Float[Array, "n m"]:
        """The covariances between all pairs, with one matrix at the nodes."""
        nodes = jnp.asarray(self.nodes, x.dtype)
        if nodes.shape[1] != x.shape[1]:
            raise ValueError(
                f"nodes: got {nodes.shape[1]} dimensions, wanted {x.shape[1]}, the "
                "dimension of the inputs."
            )
        weights = jnp.asarray(self.weights, x.dtype)

        def smooth(points):
            at = jax.vmap(lambda a: jax.vmap(lambda u: self.smoother(a, u))(nodes))
            values = at(points)
            if values.ndim != 2:
                raise ValueError(
                    f"smoother: got a function with values of shape "
                    f"{values.shape[2:]}, wanted a scalar for each pair of points."
                )
            return values * weights[None]

        return smooth(x) @ self.kernel.matrix(nodes, nodes) @ smooth(z).T


class GaussianSmoothed(AbstractKernel):
    """A squared exponential convolved with N(u; x, diag(w²)) on both sides.

    Π_d ℓ_d/√(ℓ_d² + 2w_d²) exp(−(x_d − z_d)²/(2(ℓ_d² + 2w_d²))): `Convolved` in closed
    form.

    Args:
        kernel: A `SquaredExponential` whose lengthscale is a scalar or a vector.
        width: w, in units of the inputs; a scalar or one a dimension.
    """

    kernel: SquaredExponential
    width: Float[Array, "*d"] = eqx.field(
        default=1.0, converter=as_float, metadata=POSITIVE
    )

    def __check_init__(self):
        if not isinstance(self.kernel, SquaredExponential):
            raise ValueError(
                f"kernel: got {type(self.kernel).__name__}, wanted SquaredExponential."
            )
        if self.kernel.lengthscale.ndim > 1:
            raise ValueError(
                f"kernel: got a lengthscale of shape {self.kernel.lengthscale.shape}, "
                "wanted a scalar or a vector."
            )

    def __call__(
        self, x: Float[Array, " d"], z: Float[Array, " d"]
    ) -> Float[Array, ""]:
        """The covariance of the smoothed process at two points."""
        check_lengthscale(self.kernel.lengthscale, x.shape[0])
        check_each("width", self.width, x)
        ratio = jnp.broadcast_to(self.width / self.kernel.lengthscale, x.shape)
        wider = 1 + 2 * jnp.square(ratio)
        squared = jnp.square((x - z) / self.kernel.lengthscale) / wider
        return jnp.exp(-jnp.sum(squared) / 2) / jnp.sqrt(jnp.prod(wider))
