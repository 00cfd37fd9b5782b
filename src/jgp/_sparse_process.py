"""A prior that carries inducing inputs, for methods that see the data through them."""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from jgp._parameters import is_concrete
from jgp._process import AbstractProcess
from jgp._types import as_float


class SparseProcess(AbstractProcess):
    """Independent latents, with the inducing inputs of sparse methods.

    The prior is that of `process`; methods other than the sparse ones take no notice of
    the inducing inputs. These are parameters like any other: `fit` moves them unless
    they are frozen.

    Args:
        process: `GaussianProcess(kernel)` or `independent(...)`.
        inducing_inputs: Z, (M, d) for all latents or (C, M, d) with those of each; (M,)
            for d = 1. `choose_inducing_inputs` finds some among the data.

    Raises:
        ValueError: for latents that depend on each other, and for inducing inputs that
            are not finite, none, or that the kernels do not take.
    """

    process: AbstractProcess
    inducing_inputs: Float[Array, "*C M d"]
    num_latents: int = eqx.field(static=True)

    def __init__(self, process: AbstractProcess, inducing_inputs: ArrayLike):
        if not isinstance(process, AbstractProcess):
            raise ValueError(
                f"process: got {type(process).__name__}, wanted a process such as "
                "GaussianProcess(kernel) or independent([kernel, ...])."
            )
        if process.coupled or isinstance(process, SparseProcess):
            raise ValueError(
                f"process: got {type(process).__name__}, wanted GaussianProcess or "
                "independent latents."
            )
        self.process = process
        self.num_latents = process.num_latents
        self.inducing_inputs = _checked(inducing_inputs, process)

    @property
    def num_inducing(self) -> int:
        """M, the inducing inputs of each latent."""
        return self.inducing_inputs.shape[-2]

    @property
    def all_inducing_inputs(self) -> Float[Array, "N d"]:
        """The inducing inputs of all latents one below the other."""
        return self.inducing_inputs.reshape(-1, self.inducing_inputs.shape[-1])

    @property
    def features(self) -> Callable | None:
        """Functions of a point whose coefficients have a flat prior, if any."""
        return self.process.features

    def inducing_covariance(
        self, x: Float[Array, "n d"] | None = None
    ) -> Float[Array, "C M n"]:
        """K_ZZ of each latent, or K_Zx; a leading 1 where one serves all latents."""
        Z = self.inducing_inputs
        if Z.ndim == 2:
            return self.process.covariance(Z, x)
        latents = map(self.process.latent, range(self.num_latents))
        return jnp.concatenate(
            [latent.covariance(Z[c], x) for c, latent in enumerate(latents)]
        )

    def inducing_mean(self) -> Float[Array, "M C"]:
        """The prior mean of each latent at its inducing inputs."""
        Z = self.inducing_inputs
        if Z.ndim == 2:
            return self.process.mean(Z)
        latents = map(self.process.latent, range(self.num_latents))
        means = [latent.mean(Z[c]) for c, latent in enumerate(latents)]
        return jnp.concatenate(means, axis=1)

    def random_functions(
        self, key: PRNGKeyArray, num_features: int, x: Float[Array, "n d"]
    ) -> tuple[Callable, ...]:
        """A draw of each latent less its mean, by random features."""
        return self.process.random_functions(key, num_features, x)

    def split(self, which: Sequence[int]) -> tuple[AbstractProcess, AbstractProcess]:
        """The processes of some terms of its kernel and of the others."""
        chosen, rest = self.process.split(which)
        Z = self.inducing_inputs
        return SparseProcess(chosen, Z), SparseProcess(rest, Z)

    def latent(self, number: int) -> AbstractProcess:
        """The process of one of the latents alone, with its inducing inputs."""
        Z = self.inducing_inputs
        own = Z if Z.ndim == 2 else Z[number]
        return SparseProcess(self.process.latent(number), own)

    def mean(self, x: Float[Array, "n d"]) -> Float[Array, "n C"]:
        """The prior mean of each latent at each input."""
        return self.process.mean(x)

    def covariance(
        self, x: Float[Array, "n d"], z: Float[Array, "m d"] | None = None
    ) -> Float[Array, "C n m"]:
        """The prior covariance of each latent between two sets of inputs."""
        return self.process.covariance(x, z)

    def variance(self, x: Float[Array, "n d"]) -> Float[Array, "C n"]:
        """The prior variance of each latent at each input."""
        return self.process.variance(x)

    def check_inputs(self, x: Float[Array, "n d"], name: str = "x") -> None:
        """Raise a `ValueError` if a kernel does not take the inputs."""
        dimension = self.inducing_inputs.shape[-1]
        if x.shape[-1] != dimension:
            raise ValueError(
                f"{name}: got shape {x.shape} beside inducing inputs in {dimension} "
                f"dimensions, wanted (n, {dimension})."
            )
        self.process.check_inputs(x, name)


def base_process(process: AbstractProcess) -> AbstractProcess:
    """The process without its inducing inputs."""
    return process.process if isinstance(process, SparseProcess) else process


def _checked(given: ArrayLike, process: AbstractProcess) -> Float[Array, "*C M d"]:
    """Inducing inputs as an array, a vector as points on a line."""
    try:
        Z = as_float(given)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"inducing_inputs: got {type(given).__name__} that is no array of numbers, "
            "wanted (M, d) numbers."
        ) from error
    Z = Z[:, None] if Z.ndim == 1 else Z
    num_latents = process.num_latents
    shared = Z.ndim == 2
    if not (shared or (Z.ndim == 3 and Z.shape[0] == num_latents)) or Z.size == 0:
        raise ValueError(
            f"inducing_inputs: got shape {jnp.shape(given)}, wanted (M, d) or "
            f"({num_latents}, M, d), M >= 1."
        )
    if is_concrete(Z) and not np.all(np.isfinite(np.asarray(Z))):
        raise ValueError("inducing_inputs: got NaN or infinity, wanted finite numbers.")
    process.check_inputs(Z.reshape(-1, Z.shape[-1]), "inducing_inputs")
    return Z
