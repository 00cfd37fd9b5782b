"""Derivatives of the latent functions of a posterior (Rasmussen & Williams, §9.4)."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
from jax import lax
from jaxtyping import Array, ArrayLike, Float

from jgp._mean_functions import observed_kinds
from jgp._process import AbstractProcess
from jgp.inference._data import check_inputs
from jgp.inference._posterior import (
    CHUNK_SIZE,
    AbstractGaussianPosterior,
    with_valid_variance,
)
from jgp.kernels import AbstractKernel, WithDerivatives, WithIntegrals, check_smooth


class Gradient(NamedTuple):
    """Moments of the derivatives at each input: (m, d) for one latent, else with C.

    `covariance` is (m, d, d), or (m, C, d, d), between the derivatives of a latent.
    """

    mean: Float[Array, "m *C d"]
    covariance: Float[Array, "m *C d d"]


def gradient_of(
    posterior: AbstractGaussianPosterior, slopes: Callable, x_new: ArrayLike
) -> Gradient:
    """The derivatives of the latent functions at each input.

    Args:
        posterior: The posterior.
        slopes: A function of the posterior and a point, to the mean (C, d) and the
            covariance (C, d, d) of the derivatives there.
        x_new: (m, d), or (m,) for d = 1.
    """
    check_differentiable(posterior.process)
    points = check_inputs(x_new, posterior.x, posterior.process)
    mean, covariance = _gradient(posterior, slopes, points)
    if posterior.process.num_latents == 1:
        return Gradient(mean[:, 0], covariance[:, 0])
    return Gradient(mean, covariance)


def check_differentiable(process: AbstractProcess) -> None:
    """Raise a `ValueError` for a process whose draws have no gradient."""
    found = jax.tree.leaves(
        process, is_leaf=lambda node: isinstance(node, AbstractKernel)
    )
    for kernel in found:
        if not isinstance(kernel, AbstractKernel):
            continue
        kinds = observed_kinds(kernel, mapped=True)
        if WithDerivatives in kinds:
            raise ValueError(
                "kernel: got WithDerivatives, whose last coordinate asks for "
                "derivatives; predict them with `marginals` or `joint` at points with "
                "1, ..., d there."
            )
        if WithIntegrals in kinds:
            raise ValueError(
                "kernel: got WithIntegrals, whose points are boxes and not points "
                "where the function has a gradient."
            )
        check_smooth(kernel)


@eqx.filter_jit
def _gradient(
    posterior: AbstractGaussianPosterior, slopes: Callable, x_new: Float[Array, "m d"]
) -> tuple[Array, Array]:
    def one(point):
        mean, covariance = slopes(posterior, point)
        return mean, jax.vmap(with_valid_variance)(covariance)

    held = max(1, posterior.held * x_new.shape[1])
    return lax.map(one, x_new, batch_size=max(1, CHUNK_SIZE // held))
