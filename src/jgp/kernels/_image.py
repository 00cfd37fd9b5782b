r"""Structural similarity of images as a kernel.

The structural similarity index (Wang et al. 2004) of two images with pixel weights w,
μ = wᵀx and σ_xz = Σᵢ wᵢ(xᵢ − μ_x)(zᵢ − μ_z),

    SSIM(x, z) = (2μ_xμ_z + C₁)/(μ_x² + μ_z² + C₁) · (2σ_xz + C₂)/(σ_x² + σ_z² + C₂),

is the product of two `HarmonicNormalized` linear kernels, of μ_xμ_z + C₁/2 and of
σ_xz + C₂/2, and so positive semidefinite (Cabral 2021, §3.4.4).
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jgp._constraints import POSITIVE
from jgp._types import as_float
from jgp.kernels._base import AbstractKernel, check_scalar


class SSIM(AbstractKernel):
    """The structural similarity of whole images, flattened; 1 at x = z.

    α·SSIM + β is `alpha * SSIM() + beta`.

    Args:
        c1: C₁, of the order of (0.01 × the range of pixel values)².
        c2: C₂, of the order of (0.03 × the range of pixel values)².
        weights: w, one a pixel, >= 0; scaled to sum to 1. Equal by default.
    """

    c1: Float[Array, ""] = eqx.field(
        default=1e-4, converter=as_float, metadata=POSITIVE
    )
    c2: Float[Array, ""] = eqx.field(
        default=9e-4, converter=as_float, metadata=POSITIVE
    )
    weights: tuple[float, ...] | None = eqx.field(
        static=True, default=None, converter=lambda w: _normalised(w)
    )

    def __check_init__(self):
        check_scalar("c1", self.c1)
        check_scalar("c2", self.c2)

    def __call__(
        self, x: Float[Array, " pixels"], z: Float[Array, " pixels"]
    ) -> Float[Array, ""]:
        """The similarity of two images."""
        w = _weights(self.weights, x.shape[0], x.dtype)
        (mean_x, x), (mean_z, z) = (_split(image[None], w) for image in (x, z))
        cross = jnp.sum(x * z, axis=1)
        return _similarity(self, mean_x, x, mean_z, z, cross)[0]

    def matrix(
        self, x: Float[Array, "n pixels"], z: Float[Array, "m pixels"]
    ) -> Float[Array, "n m"]:
        """The similarities of all pairs."""
        w = _weights(self.weights, x.shape[1], x.dtype)
        return _similarities(self, _split(x, w), _split(z, w))


class MeanSSIM(AbstractKernel):
    """Σ_j α_j SSIM(x⁽ʲ⁾, z⁽ʲ⁾) over the windows of two images.

    Args:
        image_shape: (height, width); inputs are images flattened row by row.
        window: Side of the square windows, or (height, width).
        stride: Pixels from one window to the next.
        window_variance: α, one a window, row by row, >= 0; equal with sum 1 by default.
        c1: C₁, as for `SSIM`.
        c2: C₂, as for `SSIM`.
        weights: The weights of a window's pixels, row by row; equal by default.
    """

    window_variance: Float[Array, " windows"] = eqx.field(metadata=POSITIVE)
    c1: Float[Array, ""] = eqx.field(metadata=POSITIVE)
    c2: Float[Array, ""] = eqx.field(metadata=POSITIVE)
    weights: tuple[float, ...] | None = eqx.field(static=True)
    image_shape: tuple[int, int] = eqx.field(static=True)
    window: tuple[int, int] = eqx.field(static=True)
    stride: int = eqx.field(static=True)

    def __init__(
        self, image_shape, window=3, stride=1, *, window_variance=None, c1=1e-4,
        c2=9e-4, weights=None,
    ):  # fmt: skip
        height, width = (int(side) for side in image_shape)
        self.image_shape = (height, width)
        sides = (window, window) if isinstance(window, int) else window
        self.window = (int(sides[0]), int(sides[1]))
        self.stride = int(stride)
        fits = 1 <= self.window[0] <= height and 1 <= self.window[1] <= width
        if not fits or self.stride < 1:
            raise ValueError(
                f"window, stride: got {self.window} and {stride}, wanted a window that "
                f"fits an image of shape {(height, width)} and a stride >= 1."
            )
        num = self.pixels.shape[0]
        equal = np.full(num, 1 / num)
        self.window_variance = as_float(
            equal if window_variance is None else window_variance
        )
        if self.window_variance.shape != (num,):
            raise ValueError(
                f"window_variance: got shape {self.window_variance.shape}, wanted "
                f"{(num,)}, one for each window."
            )
        self.c1, self.c2 = as_float(c1), as_float(c2)
        self.weights = _normalised(weights)

    @property
    def pixels(self) -> np.ndarray:
        """The flat indices of each window's pixels, (windows, pixels)."""
        flat = np.arange(math.prod(self.image_shape)).reshape(self.image_shape)
        views = np.lib.stride_tricks.sliding_window_view(flat, self.window)
        views = views[:: self.stride, :: self.stride]
        return views.reshape(-1, math.prod(self.window))

    def __call__(
        self, x: Float[Array, " pixels"], z: Float[Array, " pixels"]
    ) -> Float[Array, ""]:
        """The weighted similarity of the windows of two images."""
        self._check(x.shape[0])
        pixels = self.pixels
        w = _weights(self.weights, pixels.shape[1], x.dtype)
        (mean_x, x), (mean_z, z) = (_split(image[pixels], w) for image in (x, z))
        cross = jnp.sum(x * z, axis=1)
        similarity = _similarity(self, mean_x, x, mean_z, z, cross)
        return jnp.sum(self.window_variance * similarity)

    def matrix(
        self, x: Float[Array, "n pixels"], z: Float[Array, "m pixels"]
    ) -> Float[Array, "n m"]:
        """The similarities of all pairs, window by window in the memory of one."""
        self._check(x.shape[1])
        pixels = jnp.asarray(self.pixels, jnp.int32)
        w = _weights(self.weights, pixels.shape[1], x.dtype)

        # Recomputed in the reverse pass, which would keep (n, m) arrays per window.
        @jax.checkpoint
        def add(K, window):
            variance, index = window
            parts = (_split(images[:, index], w) for images in (x, z))
            return K + variance * _similarities(self, *parts), None

        start = jnp.zeros((x.shape[0], z.shape[0]), x.dtype)
        return lax.scan(add, start, (self.window_variance, pixels))[0]

    def _check(self, num_pixels: int) -> None:
        if num_pixels != math.prod(self.image_shape):
            raise ValueError(
                f"image_shape: got {self.image_shape}, wanted a shape of {num_pixels} "
                "pixels, the dimension of the inputs."
            )


def _split(
    images: Float[Array, "n pixels"], w: Float[Array, " pixels"]
) -> tuple[Float[Array, " n"], Float[Array, "n pixels"]]:
    """The weighted mean of each image, and √w times what is left."""
    mean = images @ w
    return mean, (images - mean[:, None]) * jnp.sqrt(w)[None]


def _similarities(
    kernel: SSIM | MeanSSIM, x: tuple[Array, Array], z: tuple[Array, Array]
) -> Float[Array, "n m"]:
    (mean_x, x_rest), (mean_z, z_rest) = x, z
    n, m = mean_x.shape[0], mean_z.shape[0]
    own = [jnp.sum(jnp.square(rest), axis=1) for rest in (x_rest, z_rest)]
    light = _harmonic(
        mean_x[:, None] * mean_z[None],
        jnp.broadcast_to(jnp.square(mean_x)[:, None], (n, m)),
        jnp.broadcast_to(jnp.square(mean_z)[None], (n, m)),
        kernel.c1,
    )
    structure = _harmonic(
        x_rest @ z_rest.T,
        jnp.broadcast_to(own[0][:, None], (n, m)),
        jnp.broadcast_to(own[1][None], (n, m)),
        kernel.c2,
    )
    return light * structure


def _similarity(kernel: SSIM | MeanSSIM, mean_x, x, mean_z, z, cross) -> Array:
    """The similarity of corresponding rows."""
    own = [jnp.sum(jnp.square(rest), axis=1) for rest in (x, z)]
    light = _harmonic(
        mean_x * mean_z, jnp.square(mean_x), jnp.square(mean_z), kernel.c1
    )
    return light * _harmonic(cross, own[0], own[1], kernel.c2)


def _harmonic(cross: Array, own_x: Array, own_z: Array, c: Array) -> Array:
    return (2 * cross + c) / (own_x + own_z + c)


def _normalised(weights) -> tuple[float, ...] | None:
    if weights is None:
        return None
    values = np.asarray(weights, float).ravel()
    if not (np.all(values >= 0) and 0 < np.sum(values) < np.inf):
        raise ValueError(
            f"weights: got {values}, wanted numbers >= 0 with a positive sum."
        )
    return tuple((values / np.sum(values)).tolist())


def _weights(weights: tuple[float, ...] | None, num: int, dtype) -> Array:
    if weights is None:
        return jnp.full(num, 1 / num, dtype)
    if len(weights) != num:
        raise ValueError(f"weights: got {len(weights)}, wanted one for {num} pixels.")
    return jnp.asarray(weights, dtype)
