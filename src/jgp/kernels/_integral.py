r"""Integrals of a process over boxes: their covariances by Gauss-Legendre rules.

Integration is linear, so a process and its means over boxes A, B are jointly Gaussian
with cov = |A|⁻¹|B|⁻¹ ∫_A ∫_B k(x, z) dx dz (O'Hagan 1991). In one dimension a kernel
may have a kink at x = z: the inner integral is split there, and the outer one at the
ends of the inner, so that every piece is as smooth as the kernel is on either side.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jgp._cubature import box_rule, gauss_legendre
from jgp.kernels._base import ROWS_SIZE, AbstractKernel, by_rows, kernels_in
from jgp.kernels._discrete import White


class WithIntegrals(AbstractKernel):
    """A process observed together with its means over boxes, or its integrals.

    The 2d coordinates of a point are the lower and the upper corner of a box. What is
    observed there is the mean of f over the box; where both corners are the same, the
    value of f. Both mix freely in one x, for training and for prediction.

    Args:
        kernel: The kernel of f, on points of d coordinates.
        num_nodes: Nodes a dimension and smooth piece. 8 are good to 1e-9 for boxes of
            up to 3 lengthscales in one dimension; wider boxes, and kernels with a kink
            in several dimensions, want more. In d dimensions a covariance of two boxes
            takes num_nodes^{2d} evaluations of the kernel, in one 6 num_nodes².
        integrals: Whether to observe the integral, of the box's volume times the mean,
            and so 0 over a box without volume.
    """

    kernel: AbstractKernel
    num_nodes: int = eqx.field(static=True, default=8)
    integrals: bool = eqx.field(static=True, default=False)

    def __check_init__(self):
        if not isinstance(self.num_nodes, int) or self.num_nodes < 1:
            raise ValueError(
                f"num_nodes: got {self.num_nodes!r}, wanted an integer >= 1."
            )

    def __call__(
        self, x: Float[Array, " e"], z: Float[Array, " e"]
    ) -> Float[Array, ""]:
        """The covariance of what is observed over two boxes.

        Raises:
            ValueError: for a point that cannot be two corners.
        """
        (lower, upper), (low, high) = corners(x), corners(z)
        if lower.shape[0] == 1:
            mean = _split_mean(self.kernel, lower, upper, low, high, self.num_nodes)
        elif contains(self.kernel, White):
            raise ValueError(
                "kernel: got White over boxes of several dimensions, whose mean no "
                "rule finds, wanted one without (or the noise in the likelihood)."
            )
        else:
            points, weights = box_rule(lower, upper, self.num_nodes)
            others, other_weights = box_rule(low, high, self.num_nodes)
            mean = weights @ self.kernel.matrix(points, others) @ other_weights
        if not self.integrals:
            return mean
        return mean * (jnp.prod(upper - lower) * jnp.prod(high - low))

    def matrix(
        self, x: Float[Array, "n e"], z: Float[Array, "m e"]
    ) -> Float[Array, "n m"]:
        """The covariances between all pairs, in blocks of bounded memory."""
        d = x.shape[1] // 2
        each = 6 * self.num_nodes**2 if d == 1 else self.num_nodes ** (2 * d)
        return by_rows(self, x, z, max(1, ROWS_SIZE // each))

    def check_inputs(self, x: Float[Array, "n e"], name: str = "x") -> None:
        """Raise a `ValueError` unless upper corners are nowhere below lower ones."""
        lower, upper = np.split(np.asarray(x), 2, axis=1)
        wrong = np.any(upper < lower, axis=1)
        if np.any(wrong):
            raise ValueError(
                f"{name}: got {np.asarray(x)[wrong][0]} among the boxes, wanted lower "
                "corners followed by upper corners that are nowhere below them."
            )
        self.kernel.check_inputs(x[:, : lower.shape[1]], name)
        self.kernel.check_inputs(x[:, lower.shape[1] :], name)


def contains(kernel: AbstractKernel, kind: type) -> bool:
    """Whether a kernel of a kind is among those that a kernel is made of."""
    inside = kernels_in(kernel)
    return isinstance(kernel, kind) or any(contains(each, kind) for each in inside)


def corners(x: Float[Array, " e"]) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """The lower and the upper corner that a point stands for.

    Raises:
        ValueError: for an odd number of coordinates.
    """
    if x.shape[0] % 2 or x.shape[0] == 0:
        raise ValueError(
            f"x: got points of {x.shape[0]} coordinates, wanted 2d of them, the lower "
            "and the upper corners of boxes."
        )
    d = x.shape[0] // 2
    return x[:d], x[d:]


def _split_mean(kernel, lower, upper, low, high, num_nodes) -> Float[Array, ""]:
    """The mean of k over [lower, upper] × [low, high]; all of shape (1,)."""
    # In one order, so that swapping the boxes changes no digit.
    swap = (low[0] < lower[0]) | ((low[0] == lower[0]) & (high[0] < upper[0]))
    a, c = jnp.where(swap, low, lower)[0], jnp.where(swap, lower, low)[0]
    b, d = jnp.where(swap, high, upper)[0], jnp.where(swap, upper, high)[0]
    # Ascending, as c <= d.
    cuts = jnp.stack([a, jnp.clip(c, a, b), jnp.clip(d, a, b), b])
    points, weights = _pieces(cuts, num_nodes)

    def inner(s: Float[Array, ""]) -> Float[Array, ""]:
        others, own = _pieces(jnp.stack([c, jnp.clip(s, c, d), d]), num_nodes)
        return own @ jax.vmap(lambda t: kernel(s[None], t[None]))(others)

    return weights @ jax.vmap(inner)(points)


def _pieces(
    cuts: Float[Array, " k"], num_nodes: int
) -> tuple[Float[Array, " q"], Float[Array, " q"]]:
    """A rule for the mean over an interval from those of its pieces."""
    nodes, weights = gauss_legendre(num_nodes, cuts.dtype)
    widths, whole = cuts[1:] - cuts[:-1], cuts[-1] - cuts[0]
    # Without any width all points are one; as a single piece, from end to end, they
    # have the derivatives that they have in the limit.
    wide = whole > 0
    single = jnp.zeros_like(widths).at[0].set(1)
    shares = jnp.where(wide, widths / jnp.where(wide, whole, 1), single)
    widths = jnp.where(wide, widths, whole)
    points = cuts[:-1, None] + widths[:, None] * nodes[None]
    return points.reshape(-1), (shares[:, None] * weights[None]).reshape(-1)
