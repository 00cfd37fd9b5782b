"""Several outputs that depend on each other a priori: models of coregionalisation."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from jgp._linalg import semidefinite_root
from jgp._mean_functions import mean_functions, means_of
from jgp._process import (
    AbstractProcess,
    GaussianProcess,
    independent,
    kernels_of,
)
from jgp.kernels import (
    AbstractKernel,
    Combined,
    Constant,
    Coregionalization,
    Scaled,
    Sum,
    check_domain,
    check_numbers,
    diagonal,
    gram,
    random_function,
)
from jgp.means import Basis, Zero


class CoregionalisedProcess(AbstractProcess):
    """C outputs with cov(f_c(x), f_d(z)) = Σ_q B_q[c, d] k_q(x, z).

    One term is the intrinsic model, several are the linear model of coregionalisation
    (Álvarez, Rosasco & Lawrence 2012, §4). Built by `coregionalised`.

    Args:
        kernels: k_q.
        coregionalizations: B_q = W_qW_qᵀ + diag(κ_q).
        mean_functions: One mean an output, or a single one that all share.
        num_latents: C.
    """

    kernels: tuple[AbstractKernel, ...]
    coregionalizations: tuple[Coregionalization, ...]
    mean_functions: tuple[Callable, ...]
    num_latents: int = eqx.field(static=True)

    @property
    def coupled(self) -> bool:
        """The outputs depend on each other."""
        return True

    def random_functions(
        self, key: PRNGKeyArray, num_features: int, x: Float[Array, "n d"]
    ) -> tuple[Callable, ...]:
        """A draw of each output less its mean: of Σ_q B_q½ g_q, g_q ~ GP(0, k_q)."""
        keys = jax.random.split(key, (len(self.kernels), self.num_latents))
        example = jnp.zeros(x.shape[1], x.dtype)
        draws = tuple(
            random_function(kernel, one, num_features, example)
            for kernel, own in zip(self.kernels, keys, strict=True)
            for one in own
        )
        roots = [semidefinite_root(B.covariance) for B in self.coregionalizations]
        weights = jnp.concatenate(roots, axis=1)
        return tuple(Combined(draws, row) for row in weights)

    def split(self, which: Sequence[int]) -> tuple[AbstractProcess, AbstractProcess]:
        """Some of the terms B_q k_q, and the others."""
        numbers = range(len(self.kernels))
        check_numbers(which, len(numbers))
        chosen, rest = (
            CoregionalisedProcess(
                kernels=tuple(self.kernels[q] for q in numbers),
                coregionalizations=tuple(self.coregionalizations[q] for q in numbers),
                mean_functions=(Zero(),),
                num_latents=self.num_latents,
            )
            for numbers in (which, [q for q in numbers if q not in which])
        )
        if rest.kernels:
            return chosen, rest
        return chosen, independent(Constant(0.0), num_latents=self.num_latents)

    def latent(self, number: int) -> AbstractProcess:
        """The process of one of the outputs alone."""
        B = (each.covariance for each in self.coregionalizations)
        variances = [each[number, number] for each in B]
        terms = map(Scaled, self.kernels, variances)
        means = self.mean_functions
        mean = means[number if len(means) > 1 else 0]
        return GaussianProcess(Sum(tuple(terms)), mean)

    def combine(
        self,
        x: Float[Array, "n d"],
        x_new: Float[Array, "m d"],
        weights: Float[Array, "n C"],
    ) -> Float[Array, "m C"]:
        """Σᵢ k(x*, xᵢ) wᵢ, k a (C, C) block."""
        parts = [
            gram(kernel, x_new, x) @ weights @ B.covariance
            for kernel, B in zip(self.kernels, self.coregionalizations, strict=True)
        ]
        return jnp.asarray(sum(parts))

    def mean(self, x: Float[Array, "n d"]) -> Float[Array, "n C"]:
        """The prior mean of each output at each input."""
        return means_of(self.mean_functions, x, self.num_latents)

    def covariance(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"] | None = None
    ) -> Float[Array, "C n m"]:
        """The prior covariance within each output between two sets of inputs."""
        parts = [
            jnp.diagonal(B.covariance)[:, None, None] * gram(kernel, x, z)[None]
            for kernel, B in zip(self.kernels, self.coregionalizations, strict=True)
        ]
        return jnp.asarray(sum(parts))

    def joint_covariance(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"] | None = None
    ) -> Float[Array, "n C m C"]:
        """The prior covariance between all outputs at two sets of inputs."""
        parts = [
            jnp.einsum("nm,cd->ncmd", gram(kernel, x, z), B.covariance)
            for kernel, B in zip(self.kernels, self.coregionalizations, strict=True)
        ]
        return jnp.asarray(sum(parts))

    def variance(self, x: Float[Array, "n d"]) -> Float[Array, "C n"]:
        """The prior variance of each output at each input."""
        parts = [
            jnp.diagonal(B.covariance)[:, None] * diagonal(kernel, x)[None]
            for kernel, B in zip(self.kernels, self.coregionalizations, strict=True)
        ]
        return jnp.asarray(sum(parts))

    def check_inputs(self, x: Float[Array, "n d"], name: str = "x") -> None:
        """Raise a `ValueError` if a kernel does not take the inputs."""
        for kernel in self.kernels:
            check_domain(kernel, x, name)


def coregionalised(
    kernels: AbstractKernel | Sequence[AbstractKernel],
    mixing: ArrayLike | Sequence[ArrayLike],
    variance: ArrayLike | Sequence[ArrayLike] | None = None,
    *,
    mean: Callable | Sequence[Callable] | None = None,
) -> CoregionalisedProcess:
    """Several outputs that share latent functions, B_q = W_qW_qᵀ + diag(κ_q).

    Args:
        kernels: A kernel, or one for each term.
        mixing: W, (C, R) for R latent functions a term; a sequence for several terms.
        variance: κ, (C,), what each output has of its own; a sequence for several
            terms; nothing of its own, and nothing to train, if left out.
        mean: A mean function that all share, or a sequence with one an output.

    Raises:
        ValueError: if the numbers of terms or of outputs disagree, or for a `Basis`.
    """
    single = isinstance(kernels, AbstractKernel)

    def terms_of(value: Any) -> tuple:
        return (value,) if single else tuple(value)

    several = isinstance(kernels, list | tuple)
    parts, mixings = kernels_of(kernels if several else (kernels,)), terms_of(mixing)
    if variance is None:
        variances = (None,) * len(mixings)
    else:
        variances = terms_of(variance)
    if not len(parts) == len(mixings) == len(variances) >= 1:
        raise ValueError(
            f"kernels, mixing, variance: got {len(parts)}, {len(mixings)} and "
            f"{len(variances)} terms, wanted as many of each."
        )
    terms = tuple(map(Coregionalization, mixings, variances))
    sizes = {term.mixing.shape[0] for term in terms}
    if len(sizes) > 1:
        raise ValueError(f"mixing: got terms of {sorted(sizes)} outputs, wanted one C.")
    (num_latents,) = sizes
    means = mean_functions(mean, num_latents, parts)
    if any(isinstance(function, Basis) for function in means):
        raise ValueError(
            "mean: got a Basis, wanted a function (a Basis is for independent outputs)."
        )
    return CoregionalisedProcess(
        kernels=parts,
        coregionalizations=terms,
        mean_functions=means,
        num_latents=num_latents,
    )
