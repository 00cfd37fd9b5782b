"""A model of standardised data as one of the data themselves."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp._constraints import Real
from jgp._model import Model
from jgp._process import GaussianProcess, IndependentProcess
from jgp.kernels import (
    AbstractKernel,
    Derivative,
    Scaled,
    Warped,
    WithDerivatives,
    WithIntegrals,
)
from jgp.kernels._base import kernels_in
from jgp.likelihoods import AbstractGaussian
from jgp.likelihoods._robust import AbstractNoise
from jgp.means import AbstractMean, Basis

FIXED = {"constraint": Real(), "fixed": True}
# Their points are more than places.
MARKED = (Derivative, WithDerivatives, WithIntegrals)


class Standardize(eqx.Module):
    """The map of a point to (x − shift)/scale, which nothing trains."""

    shift: Float[Array, " d"] = eqx.field(metadata=FIXED)
    scale: Float[Array, " d"] = eqx.field(metadata=FIXED)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " d"]:
        """The point in standard units."""
        return (x - self.shift) / self.scale


class Rescaled(AbstractMean):
    """The mean offset + scale · mean(map(x)) of a mean in standard units."""

    mean: Any
    map: Standardize
    offset: Float[Array, ""] = eqx.field(metadata=FIXED)
    scale: Float[Array, ""] = eqx.field(metadata=FIXED)

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """The mean at a point, in the units of the data."""
        return self.offset + self.scale * self.mean(self.map(x))


def standardized(model: Model, x: Float[Array, "n d"], y: Any) -> Model:
    """The model of standardised data, folded into one of the data.

    Kernel and mean act on (x − mean)/stddev, input by input, and in a regression on
    (y − mean)/stddev; their parameters keep the values, the priors, bounds and ties
    that they have. The likelihood, its noise included, stays in the units of the data.
    A column, or targets, without variation are only centred.

    Raises:
        ValueError: for a process, or kernels, that cannot be mapped so.
    """
    process = model.process
    if not isinstance(process, GaussianProcess | IndependentProcess):
        raise ValueError(
            f"standardize: got {type(process).__name__}, wanted GaussianProcess or "
            "independent kernels."
        )
    single = isinstance(process, GaussianProcess)
    kernels = (process.kernel,) if single else process.kernels
    means = (process.mean_function,) if single else process.mean_functions
    if any(isinstance(m, Rescaled) for m in means):
        raise ValueError(
            "standardize: got a model that is standardised already, as `fit` returns "
            "it; fit that one without."
        )
    if any(map(_marked, kernels)):
        raise ValueError(
            "standardize: got a kernel of derivatives or integrals, whose points are "
            "more than places; scale the data instead."
        )
    to_standard = Standardize(jnp.mean(x, axis=0), _deviation(x))
    offset, scale = jnp.zeros((), x.dtype), jnp.ones((), x.dtype)
    if isinstance(model.likelihood, AbstractGaussian | AbstractNoise):
        observed = jnp.where(jnp.isfinite(y), y, jnp.nan).astype(x.dtype)
        if observed.ndim > 1 and observed.shape[1] > 1:
            raise ValueError(
                f"standardize: got targets of shape {observed.shape}, wanted one a "
                "point: outputs have units of their own; scale them instead."
            )
        offset, scale = jnp.nanmean(observed), _deviation(observed.ravel())
    new_kernels = tuple(Scaled(Warped(k, to_standard), scale**2) for k in kernels)
    new_means = tuple(
        m if isinstance(m, Basis) else Rescaled(m, to_standard, offset, scale)
        for m in means
    )
    names = ("kernel", "mean_function") if single else ("kernels", "mean_functions")
    values = (new_kernels[0], new_means[0]) if single else (new_kernels, new_means)
    for name, value in zip(names, values, strict=True):
        process = eqx.tree_at(lambda p, name=name: getattr(p, name), process, value)

    places = [""] if single else [f"[{i}]" for i in range(len(kernels))]
    moves = {f".process.{names[0]}{i}": ".kernel.kernel" for i in places}
    for i, mean in zip(places[: len(means)] or [""], means, strict=False):
        moves[f".process.{names[1]}{i}"] = "" if isinstance(mean, Basis) else ".mean"

    def moved(path: str) -> str:
        for prefix, more in moves.items():
            if path.startswith((f"{prefix}.", f"{prefix}[")):
                return prefix + more + path.removeprefix(prefix)
        return path

    held = tuple(f".process.{names[0]}{i}.variance" for i in places)
    return dataclasses.replace(
        model,
        process=process,
        frozen=(*map(moved, model.frozen), *held),
        priors=tuple((moved(path), density) for path, density in model.priors),
        bounds=tuple((moved(path), *ends) for path, *ends in model.bounds),
        tied=tuple(tuple(map(moved, group)) for group in model.tied),
    )


def _deviation(values: Float[Array, "n *d"]) -> Float[Array, "*d"]:
    """Standard deviations of what is no NaN; 1 where they are but rounding."""
    deviation = jnp.nanstd(values, axis=0)
    largest = jnp.nanmax(jnp.abs(values), axis=0)
    rounding = 10 * jnp.finfo(values.dtype).eps * largest
    return jnp.where(deviation > rounding, deviation, 1)


def _marked(kernel: AbstractKernel) -> bool:
    return isinstance(kernel, MARKED) or any(map(_marked, kernels_in(kernel)))
