"""Gaussian process priors over one or several latent functions."""

import abc
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jgp._mean_functions import (
    features_of,
    mean_functions,
    means_of,
    stacked,
)
from jgp.kernels import (
    AbstractKernel,
    check_domain,
    diagonal,
    gram,
    random_function,
    split_terms,
)
from jgp.means import Zero


class AbstractProcess(eqx.Module):
    """A prior over C latent functions on R^d.

    Means are (n, C). Covariances are class-major, (C, n, m); a leading 1 instead of
    C says that all latents share one kernel, and broadcasts.
    """

    num_latents: eqx.AbstractVar[int]

    @property
    def coupled(self) -> bool:
        """Whether the latents depend on each other a priori."""
        return False

    @property
    def features(self) -> Callable | None:
        """Functions of a point whose coefficients have a flat prior, if any."""
        return None

    @abc.abstractmethod
    def random_functions(
        self, key: PRNGKeyArray, num_features: int, x: Float[Array, "n d"]
    ) -> tuple[Callable, ...]:
        """A draw of each latent less its mean, by random features.

        Raises:
            ValueError: for a kernel without such features.
        """

    @abc.abstractmethod
    def split(
        self, which: Sequence[int]
    ) -> tuple["AbstractProcess", "AbstractProcess"]:
        """The processes of some terms of its kernel and of the others, without a mean.

        Raises:
            ValueError: if there are no such terms.
        """

    @abc.abstractmethod
    def latent(self, number: int) -> "AbstractProcess":
        """The process of one of the latents alone."""

    def combine(
        self,
        x: Float[Array, "n d"],
        x_new: Float[Array, "m d"],
        weights: Float[Array, "n C"],
    ) -> Float[Array, "m C"]:
        """Σᵢ k(x*, xᵢ) wᵢ: what weights of the data say at other points."""
        k = self.covariance(x, x_new)
        k = jnp.broadcast_to(k, (self.num_latents, *k.shape[1:]))
        return jnp.einsum("cim,ic->mc", k, weights)

    @abc.abstractmethod
    def mean(self, x: Float[Array, "n d"]) -> Float[Array, "n C"]:
        """The prior mean of each latent at each input."""

    @abc.abstractmethod
    def covariance(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"] | None = None
    ) -> Float[Array, "C n m"]:
        """The prior covariance of each latent between two sets of inputs."""

    def joint_covariance(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"] | None = None
    ) -> Float[Array, "n C m C"]:
        """The prior covariance between all latents at two sets of inputs."""
        K = self.covariance(x, z)
        return class_diagonal(jnp.broadcast_to(K, (self.num_latents, *K.shape[1:])))

    @abc.abstractmethod
    def variance(self, x: Float[Array, "n d"]) -> Float[Array, "C n"]:
        """The prior variance of each latent at each input."""

    @abc.abstractmethod
    def check_inputs(self, x: Float[Array, "n d"], name: str = "x") -> None:
        """Raise a `ValueError` if a kernel does not take the inputs.

        For their dimension, and where their values can be read for those too.
        """


class GaussianProcess(AbstractProcess):
    """One latent function, f ~ GP(mean, kernel).

    Args:
        kernel: A covariance function on single points.
        mean: A function of a single point (d,) to a scalar; zero by default.
    """

    kernel: AbstractKernel
    mean_function: Callable
    num_latents: int = eqx.field(static=True)

    def __init__(self, kernel: AbstractKernel, mean: Callable | None = None):
        (self.kernel,) = kernels_of((kernel,))
        (self.mean_function,) = mean_functions(mean, 1, (kernel,))
        self.num_latents = 1

    @property
    def features(self) -> Callable | None:
        """The basis of a mean whose coefficients are integrated out."""
        return features_of((self.mean_function,))

    def random_functions(
        self, key: PRNGKeyArray, num_features: int, x: Float[Array, "n d"]
    ) -> tuple[Callable, ...]:
        """A draw of the latent less its mean, by random features."""
        return (random_function(self.kernel, key, num_features, _example(x)),)

    def split(self, which: Sequence[int]) -> tuple[AbstractProcess, AbstractProcess]:
        """The processes of some terms of a sum of kernels, and of the others."""
        chosen, rest = split_terms(self.kernel, which)
        return GaussianProcess(chosen), GaussianProcess(rest)

    def latent(self, number: int) -> AbstractProcess:
        """The process itself, of its only latent."""
        del number
        return self

    def mean(self, x: Float[Array, "n d"]) -> Float[Array, "n 1"]:
        """The prior mean at each input."""
        return means_of((self.mean_function,), x, 1)

    def covariance(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"] | None = None
    ) -> Float[Array, "1 n m"]:
        """The prior covariance between two sets of inputs."""
        return gram(self.kernel, x, z)[None]

    def variance(self, x: Float[Array, "n d"]) -> Float[Array, "1 n"]:
        """The prior variance at each input."""
        return diagonal(self.kernel, x)[None]

    def check_inputs(self, x: Float[Array, "n d"], name: str = "x") -> None:
        """Raise a `ValueError` if the kernel does not take the inputs."""
        check_domain(self.kernel, x, name)


class IndependentProcess(AbstractProcess):
    """C latent functions, independent a priori. Built by `independent`.

    Args:
        kernels: One kernel a latent, or a single one that all share.
        mean_functions: One mean a latent, or a single one that all share.
        num_latents: C.
    """

    kernels: tuple[AbstractKernel, ...]
    mean_functions: tuple[Callable, ...]
    num_latents: int = eqx.field(static=True)

    @property
    def features(self) -> Callable | None:
        """The basis of the mean, one that all latents share."""
        return features_of(self.mean_functions)

    def random_functions(
        self, key: PRNGKeyArray, num_features: int, x: Float[Array, "n d"]
    ) -> tuple[Callable, ...]:
        """A draw of each latent less its mean, by random features."""
        keys = jax.random.split(key, self.num_latents)
        kernels = self.kernels * (self.num_latents // len(self.kernels))
        pairs = zip(kernels, keys, strict=True)
        example = _example(x)
        return tuple(random_function(k, key, num_features, example) for k, key in pairs)

    def split(self, which: Sequence[int]) -> tuple[AbstractProcess, AbstractProcess]:
        """The same terms of the kernel of each latent, and the others."""
        pairs = [split_terms(kernel, which) for kernel in self.kernels]
        chosen, rest = (
            IndependentProcess(
                kernels=kernels, mean_functions=(Zero(),), num_latents=self.num_latents
            )
            for kernels in zip(*pairs, strict=True)
        )
        return chosen, rest

    def latent(self, number: int) -> AbstractProcess:
        """The process of one of the latents alone."""
        kernels, means = self.kernels, self.mean_functions
        kernel = kernels[number if len(kernels) > 1 else 0]
        return GaussianProcess(kernel, means[number if len(means) > 1 else 0])

    def mean(self, x: Float[Array, "n d"]) -> Float[Array, "n C"]:
        """The prior mean of each latent at each input."""
        return means_of(self.mean_functions, x, self.num_latents)

    def covariance(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"] | None = None
    ) -> Float[Array, "C n m"]:
        """The prior covariance of each latent between two sets of inputs."""
        return stacked(self.kernels, lambda kernel: gram(kernel, x, z))

    def variance(self, x: Float[Array, "n d"]) -> Float[Array, "C n"]:
        """The prior variance of each latent at each input."""
        return stacked(self.kernels, lambda kernel: diagonal(kernel, x))

    def check_inputs(self, x: Float[Array, "n d"], name: str = "x") -> None:
        """Raise a `ValueError` if a kernel does not take the inputs."""
        for kernel in self.kernels:
            check_domain(kernel, x, name)


def independent(
    kernels: AbstractKernel | Sequence[AbstractKernel],
    *,
    num_latents: int | None = None,
    mean: Callable | Sequence[Callable] | None = None,
) -> IndependentProcess:
    """Several latent functions, independent a priori.

    Args:
        kernels: A sequence with a kernel for each latent, or one kernel that all
            share (then `num_latents` is required and one Gram matrix serves all).
        num_latents: The number of latents C, where one kernel is shared.
        mean: A mean function that all share, or a sequence with one for each.

    Raises:
        ValueError: if the numbers of kernels, means and latents disagree.
    """
    if isinstance(kernels, AbstractKernel):
        if type(num_latents) is not int or num_latents < 1:
            raise ValueError(
                f"num_latents: got {num_latents!r}, wanted a positive integer beside a "
                "single kernel."
            )
        kernels = (kernels,)
    elif num_latents not in (None, len(kernels)) or len(kernels) == 0:
        raise ValueError(
            f"kernels: got a sequence of {len(kernels)} with num_latents="
            f"{num_latents}, wanted one kernel for each latent."
        )
    kernels = kernels_of(kernels)
    num_latents = num_latents or len(kernels)
    means = mean_functions(mean, num_latents, kernels)
    return IndependentProcess(
        kernels=kernels, mean_functions=means, num_latents=num_latents
    )


def kernels_of(values: Sequence[Any]) -> tuple[AbstractKernel, ...]:
    """Kernels as a tuple.

    Raises:
        ValueError: if one of them is no kernel.
    """
    for value in values:
        if not isinstance(value, AbstractKernel):
            raise ValueError(
                f"kernel: got {type(value).__name__}, wanted a kernel, such as "
                "kernels.Matern52()."
            )
    return tuple(values)


def class_diagonal(K: Float[Array, "C n m"]) -> Float[Array, "n C m C"]:
    """Covariances between all latents, of those within each."""
    identity = jnp.eye(K.shape[0], dtype=K.dtype)
    return jnp.einsum("cnm,cd->ncmd", K, identity)


def _example(x: Float[Array, "n d"]) -> Float[Array, " d"]:
    return jnp.zeros(x.shape[1], x.dtype)
