"""The mean functions of a process's latents: how many, of what, and their values."""

from collections.abc import Callable, Sequence
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp import means as mean_types
from jgp.kernels import (
    AbstractKernel,
    Warped,
    WithDerivatives,
    WithIntegrals,
    kernels_in,
)
from jgp.means import Basis, Zero

# What means have to be where the points of a kernel stand for more than values.
OBSERVED = {
    WithDerivatives: mean_types.WithDerivatives,
    WithIntegrals: mean_types.WithIntegrals,
}


def mean_functions(
    mean: Callable | Sequence[Callable] | None,
    num_latents: int,
    kernels: Sequence[AbstractKernel] = (),
) -> tuple[Callable, ...]:
    """One mean function that all latents share, or one for each.

    Raises:
        ValueError: for another number of them, a `Basis` beside other means, or one
            that does not go with the kernels.
    """
    means = (Zero(),) if mean is None else mean
    means = (
        tuple(means) if isinstance(means, list | tuple) else (cast(Callable, means),)
    )
    for function in means:
        if not callable(function):
            raise ValueError(
                f"mean: got {type(function).__name__}, wanted a function of one point, "
                "such as means.Constant(0.5)."
            )
    if len(means) not in (1, num_latents):
        raise ValueError(
            f"mean: got {len(means)} mean functions, wanted 1 or {num_latents}."
        )
    if len(means) > 1 and any(isinstance(m, Basis) for m in means):
        raise ValueError("mean: got a Basis for one latent, wanted one that all share.")
    for function in means:
        for kernel in kernels:
            check_mean(kernel, function)
    return means


def check_mean(kernel: AbstractKernel, mean: Callable) -> None:
    """Check that a mean knows what the points of a kernel stand for.

    Raises:
        ValueError: for a mean of values where slopes or integrals are observed too.
    """
    for kind in observed_kinds(kernel):
        basis = isinstance(mean, Basis)
        parts = (mean.features, mean.mean) if basis else (mean,)
        if not all(isinstance(part, Zero | OBSERVED[kind]) for part in parts):
            inside = f"Basis({kind.__name__}(features))" if basis else kind.__name__
            raise ValueError(
                f"mean: got {type(mean).__name__} beside kernels.{kind.__name__}, "
                f"wanted means.{inside}, which knows what is observed at a point."
            )


def observed_kinds(kernel: AbstractKernel, mapped: bool = False) -> list[type]:
    """What a kernel's points stand for beside values, on mapped inputs if wanted."""
    if type(kernel) in OBSERVED:
        return [type(kernel)]
    if isinstance(kernel, Warped) and not mapped:
        return []
    inside = kernels_in(kernel)
    return [kind for each in inside for kind in observed_kinds(each, mapped)]


def means_of(
    functions: tuple[Callable, ...], x: Float[Array, "n d"], num_latents: int
) -> Float[Array, "n C"]:
    """The mean of each latent at each input."""
    means = stacked(functions, lambda function: _means(function, x)).T
    return jnp.broadcast_to(means.astype(x.dtype), (x.shape[0], num_latents))


def features_of(functions: tuple[Callable, ...]) -> Callable | None:
    """The basis of means whose coefficients are integrated out, if any."""
    first = functions[0]
    return first.features if isinstance(first, Basis) else None


def _means(function: Callable, x: Float[Array, "n d"]) -> Float[Array, " n"]:
    """The mean at each input; one of another shape would broadcast to nonsense."""
    means = jax.vmap(function)(x)
    if means.ndim != 1:
        raise ValueError(
            f"mean: got a function with values of shape {means.shape[1:]}, wanted a "
            "scalar at each input."
        )
    return means


def stacked(modules: tuple, function: Callable) -> Array:
    """Stack `function(module)`, in one `vmap` where the modules are alike.

    Modules of equal structure become one module with stacked leaves, so that C
    kernels compile as one.
    """
    arrays, rest = zip(*(eqx.partition(m, eqx.is_array) for m in modules), strict=True)
    shapes = [jax.tree.map(lambda a: (a.shape, a.dtype), a) for a in arrays]
    if all(eqx.tree_equal(rest[0], r) for r in rest) and all(
        s == shapes[0] for s in shapes
    ):
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *arrays)
        if jax.tree.leaves(stacked):
            return jax.vmap(lambda a: function(eqx.combine(a, rest[0])))(stacked)
        return jnp.stack([function(modules[0])] * len(modules))
    return jnp.stack([function(module) for module in modules])
