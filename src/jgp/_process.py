"""Gaussian process priors over one or several latent functions."""

import abc
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jgp.kernels import (
    AbstractKernel,
    check_domain,
    diagonal,
    gram,
    random_function,
)
from jgp.means import Basis, Zero


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

    def random_functions(
        self, key: PRNGKeyArray, num_features: int, x: Float[Array, "n d"]
    ) -> tuple[Callable, ...]:
        """A draw of each latent less its mean, by random features.

        Raises:
            ValueError: for a kernel, or a process, without such features.
        """
        raise ValueError(
            f"process: got {type(self).__name__}, which has no random features, wanted "
            "`inputs` at which to draw."
        )

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
        self.kernel = kernel
        self.mean_function = Zero() if mean is None else mean
        self.num_latents = 1

    @property
    def features(self) -> Callable | None:
        """The basis of a mean whose coefficients are integrated out."""
        return _features((self.mean_function,))

    def random_functions(
        self, key: PRNGKeyArray, num_features: int, x: Float[Array, "n d"]
    ) -> tuple[Callable, ...]:
        """A draw of the latent less its mean, by random features."""
        return (random_function(self.kernel, key, num_features, _example(x)),)

    def mean(self, x: Float[Array, "n d"]) -> Float[Array, "n 1"]:
        """The prior mean at each input."""
        return _means(self.mean_function, x)[:, None]

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
        return _features(self.mean_functions)

    def random_functions(
        self, key: PRNGKeyArray, num_features: int, x: Float[Array, "n d"]
    ) -> tuple[Callable, ...]:
        """A draw of each latent less its mean, by random features."""
        keys = jax.random.split(key, self.num_latents)
        kernels = self.kernels * (self.num_latents // len(self.kernels))
        pairs = zip(kernels, keys, strict=True)
        example = _example(x)
        return tuple(random_function(k, key, num_features, example) for k, key in pairs)

    def mean(self, x: Float[Array, "n d"]) -> Float[Array, "n C"]:
        """The prior mean of each latent at each input."""
        return means_of(self.mean_functions, x, self.num_latents)

    def covariance(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"] | None = None
    ) -> Float[Array, "C n m"]:
        """The prior covariance of each latent between two sets of inputs."""
        return _over(self.kernels, lambda kernel: gram(kernel, x, z))

    def variance(self, x: Float[Array, "n d"]) -> Float[Array, "C n"]:
        """The prior variance of each latent at each input."""
        return _over(self.kernels, lambda kernel: diagonal(kernel, x))

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
        if num_latents is None or num_latents < 1:
            raise ValueError(
                f"num_latents: got {num_latents}, wanted a positive integer beside a "
                "single kernel."
            )
        kernels = (kernels,)
    elif num_latents not in (None, len(kernels)) or len(kernels) == 0:
        raise ValueError(
            f"kernels: got a sequence of {len(kernels)} with num_latents="
            f"{num_latents}, wanted one kernel for each latent."
        )
    num_latents = num_latents or len(kernels)
    means = mean_functions(mean, num_latents)
    return IndependentProcess(
        kernels=tuple(kernels), mean_functions=means, num_latents=num_latents
    )


def mean_functions(
    mean: Callable | Sequence[Callable] | None, num_latents: int
) -> tuple[Callable, ...]:
    """One mean function that all latents share, or one for each.

    Raises:
        ValueError: for another number of them, or a `Basis` beside other means.
    """
    means = (Zero(),) if mean is None else mean
    means = (means,) if callable(means) else tuple(means)
    if len(means) not in (1, num_latents):
        raise ValueError(
            f"mean: got {len(means)} mean functions, wanted 1 or {num_latents}."
        )
    if len(means) > 1 and any(isinstance(m, Basis) for m in means):
        raise ValueError("mean: got a Basis for one latent, wanted one that all share.")
    return means


def means_of(
    functions: tuple[Callable, ...], x: Float[Array, "n d"], num_latents: int
) -> Float[Array, "n C"]:
    """The mean of each latent at each input."""
    means = _over(functions, lambda function: _means(function, x)).T
    return jnp.broadcast_to(means, (x.shape[0], num_latents))


def class_diagonal(K: Float[Array, "C n m"]) -> Float[Array, "n C m C"]:
    """Covariances between all latents, of those within each."""
    identity = jnp.eye(K.shape[0], dtype=K.dtype)
    return jnp.einsum("cnm,cd->ncmd", K, identity)


def _example(x: Float[Array, "n d"]) -> Float[Array, " d"]:
    return jnp.zeros(x.shape[1], x.dtype)


def _features(functions: tuple[Callable, ...]) -> Callable | None:
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


def _over(modules: tuple, function: Callable) -> Array:
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
