"""Gaussian observation noise: one variance, given ones, a function, correlated."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from jgp._constraints import COVARIANCES, NON_NEGATIVE, NonNegative
from jgp._gaussian import Gaussian as MultivariateNormal
from jgp._linalg import diagonal_matrices
from jgp._parameters import is_concrete
from jgp._types import as_float
from jgp.likelihoods._base import AbstractLikelihood, check_method
from jgp.likelihoods._predictive import Normal

# A field that `fit` never trains, whatever the model freezes.
FIXED_NON_NEGATIVE = {**NON_NEGATIVE, "fixed": True}


class AbstractGaussian(AbstractLikelihood):
    """y = f + ε with Gaussian ε, one output for each latent."""

    @abc.abstractmethod
    def variances(self, shape: tuple[int, ...]) -> Float[Array, "n C"]:
        """The noise variance of each of (n, C) outputs."""

    @property
    def log_concave(self) -> bool:
        """Yes."""
        return True

    @property
    def factorises(self) -> bool:
        """Whether the noise of each output is independent of the others."""
        return not self.correlated

    @property
    def correlated(self) -> bool:
        """Whether the noise of the outputs of a point is correlated."""
        return self.covariance is not None

    @property
    def same_for_all(self) -> bool:
        """Whether all outputs of a point have the same noise variance."""
        return False

    @property
    def covariance(self) -> Float[Array, "C C"] | None:
        """The noise covariance between the outputs of a point, if not diagonal."""
        return None

    def covariances(self, shape: tuple[int, ...]) -> Float[Array, "n C C"]:
        """The noise covariance between the (n, C) outputs of each point."""
        if self.covariance is None:
            return diagonal_matrices(self.variances(shape))
        return jnp.broadcast_to(self.covariance, (*shape, shape[1]))

    def log_prob(self, f: Float[Array, " C"], y: Array) -> Float[Array, ""]:
        """Log N(y; f, noise) at one point."""
        variance = self.variances((1, f.shape[0]))[0]
        square = (jnp.reshape(y, f.shape) - f) ** 2 / variance
        return -jnp.sum(square + jnp.log(2 * jnp.pi * variance)) / 2

    def log_predictive(
        self,
        mean: Float[Array, "n C"],
        covariance: Float[Array, "n C C"],
        y: Float[Array, "n *C"],
    ) -> Float[Array, " n"]:
        """The log density of all outputs at each input, together."""
        total = covariance + self.covariances(mean.shape)
        return MultivariateNormal(mean, total).log_prob(y.reshape(mean.shape))

    def observe(self, f: Float[Array, "n C"]) -> Normal:
        """N(f, noise)."""
        return _normal(f, self.variances(f.shape))

    def predict(
        self,
        mean: Float[Array, "n C"],
        covariance: Float[Array, "n C C"],
        *,
        method: str | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Normal:
        """N(mean, variance + noise), in closed form; the marginal of each output."""
        del key
        check_method(method, ("closed_form",))
        variance = jnp.diagonal(covariance, axis1=1, axis2=2)
        return _normal(mean, variance + self.variances(mean.shape))

    def check_shape(self, shape: tuple[int, ...], num_latents: int) -> None:
        """(n,) for one latent and (n, C) for several."""
        wanted = "(n,)" if num_latents == 1 else f"(n, {num_latents})"
        right = len(shape) == 1 if num_latents == 1 else shape[1:] == (num_latents,)
        if not right:
            raise ValueError(f"y: got shape {shape}, wanted {wanted}.")

    def targets(self, y: Any, num_latents: int) -> np.ndarray:
        """Finite numbers, (n,) for one latent and (n, C) for several."""
        y = np.asarray(y)
        self.check_shape(y.shape, num_latents)
        if not np.issubdtype(y.dtype, np.number) and y.dtype != bool:
            raise ValueError(f"y: got dtype {y.dtype}, wanted numbers.")
        if not np.all(np.isfinite(y)):
            raise ValueError(
                f"y: got {np.sum(~np.isfinite(y))} values that are NaN or infinite, "
                "wanted finite numbers (to leave some out, see `mask` of exact)."
            )
        return y


class Gaussian(AbstractGaussian):
    """y = f + ε, ε ~ N(0, noise_variance), independent between outputs.

    Args:
        noise_variance: σ², a variance and not a standard deviation; zero is exact
            interpolation. A vector is one variance for each output.
    """

    noise_variance: Float[Array, "..."] = eqx.field(
        default=1.0, converter=as_float, metadata=NON_NEGATIVE
    )
    num_latents: int | None = eqx.field(init=False, static=True)

    def __init__(self, noise_variance: ArrayLike = 1.0):
        self.noise_variance = as_float(noise_variance)
        shape = self.noise_variance.shape
        if len(shape) > 1 or shape == (0,):
            raise ValueError(
                f"noise_variance: got shape {shape}, wanted a scalar or one variance "
                "for each output (given variances at each point are "
                "FixedNoiseGaussian)."
            )
        self.num_latents = shape[0] if shape else None

    @property
    def same_for_all(self) -> bool:
        """Whether one variance serves all outputs."""
        return self.noise_variance.ndim == 0

    def variances(self, shape: tuple[int, ...]) -> Float[Array, "n C"]:
        """The noise variance of each of (n, C) outputs."""
        return jnp.broadcast_to(self.noise_variance, shape)


class FixedNoiseGaussian(AbstractGaussian):
    """y = f + ε, ε ~ N(0, noise_variance), of variances given for every point.

    `fit` leaves them as they are. Predictions of f need nothing more; a prediction of y
    needs the noise there, `approximation.predict(x_new, noise_variance=...)`.

    Args:
        noise_variance: (n,) variances, not standard deviations, or (n, C) for C
            outputs; zero is exact interpolation.
    """

    noise_variance: Float[Array, "n *C"] = eqx.field(
        converter=as_float, metadata=FIXED_NON_NEGATIVE
    )
    num_latents: int | None = eqx.field(default=None, init=False, static=True)

    def __check_init__(self):
        if self.noise_variance.ndim not in (1, 2):
            raise ValueError(
                f"noise_variance: got shape {self.noise_variance.shape}, wanted (n,) "
                "or (n, C), a variance for each observation."
            )

    @property
    def same_for_all(self) -> bool:
        """Whether the given variances serve all outputs."""
        return self.noise_variance.ndim == 1

    def variances(self, shape: tuple[int, ...]) -> Float[Array, "n C"]:
        """The given variances; (n,) serve all outputs."""
        given = self.noise_variance
        given = given if given.ndim == 2 else given[:, None]
        if given.shape not in (shape, (shape[0], 1)):
            raise ValueError(
                f"noise_variance: got shape {self.noise_variance.shape} for "
                f"{shape[0]} points of {shape[1]} outputs, wanted ({shape[0]},) or "
                f"{shape}."
            )
        return jnp.broadcast_to(given, shape)

    def at_data(self, x: Float[Array, "n d"]) -> "FixedNoiseGaussian":
        """The likelihood itself.

        Raises:
            ValueError: unless there is a variance for each point.
        """
        self.check_points(x.shape[0])
        return self

    def at(
        self, x: Float[Array, "m d"], noise_variance: ArrayLike | None = None
    ) -> "FixedNoiseGaussian":
        """The likelihood of new observations, whose noise has to be given.

        Raises:
            ValueError: without it, or for another number of points.
        """
        if noise_variance is None:
            raise ValueError(
                "noise_variance: got None, wanted the variance of the noise at each "
                "new input: the given variances are those of the training points. "
                "posterior.marginals predicts the function without noise."
            )
        given = as_float(noise_variance)
        given = jnp.broadcast_to(given, x.shape[:1]) if given.ndim == 0 else given
        if is_concrete(given) and not np.all(NonNegative().contains(np.asarray(given))):
            raise ValueError(
                f"noise_variance: got {np.asarray(given)}, wanted finite numbers >= 0."
            )
        new = FixedNoiseGaussian(given.astype(x.dtype))
        new.check_points(x.shape[0])
        return new

    def check_points(self, n: int) -> None:
        """Raise a `ValueError` unless there is a variance for each of n points."""
        if self.noise_variance.shape[0] != n:
            raise ValueError(
                f"noise_variance: got shape {self.noise_variance.shape} for {n} "
                "points, wanted a variance for each."
            )

    def at_points(self, indices: Int[Array, " k"]) -> "FixedNoiseGaussian":
        """That of some data points alone."""
        return FixedNoiseGaussian(self.noise_variance[indices])

    def log_probs(self, f: Float[Array, "n C"], y: Array) -> Float[Array, " n"]:
        """Log N(yᵢ; fᵢ, σᵢ²) at every point."""
        variances = self.variances(f.shape)
        return jax.vmap(lambda v, f, y: Gaussian(v).log_prob(f, y))(variances, f, y)


class HeteroscedasticGaussian(AbstractGaussian):
    """y = f + ε, ε ~ N(0, exp g(x)), of a variance that is a function of the inputs.

    Args:
        log_noise_variance: g, a function of one point to a scalar, such as a mean of
            `jgp.means` or a network; its floating leaves are trained by `fit`.
    """

    log_noise_variance: Callable[[Float[Array, " d"]], Float[Array, ""]]
    num_latents: int | None = eqx.field(default=None, init=False, static=True)

    def __check_init__(self):
        function = self.log_noise_variance
        if not callable(function) or hasattr(function, "features"):
            raise ValueError(
                f"log_noise_variance: got {type(function).__name__}, wanted a function "
                "of one point, such as means.Linear."
            )

    def variances(self, shape: tuple[int, ...]) -> Float[Array, "n C"]:
        """Only `at` given inputs are there variances."""
        raise ValueError(
            "likelihood: got HeteroscedasticGaussian without inputs, wanted one `at` "
            "them."
        )

    def at(
        self, x: Float[Array, "m d"], noise_variance: ArrayLike | None = None
    ) -> FixedNoiseGaussian:
        """The likelihood of observations at inputs: given variances exp g(x)."""
        super().at(x, noise_variance)
        logarithm = jax.vmap(self.log_noise_variance)(x)
        if logarithm.ndim != 1:
            raise ValueError(
                "log_noise_variance: got a function with values of shape "
                f"{logarithm.shape[1:]}, wanted a scalar at each input."
            )
        return FixedNoiseGaussian(jnp.exp(logarithm).astype(x.dtype))


class CorrelatedGaussian(AbstractGaussian):
    """y = f + ε, ε ~ N(0, Σ) between the C outputs of a point (Cabral 2021, eq. 3.5).

    Args:
        noise_covariance: Σ, (C, C), symmetric positive definite.
    """

    noise_covariance: Float[Array, "C C"] = eqx.field(
        converter=as_float, metadata=COVARIANCES
    )
    num_latents: int | None = eqx.field(init=False, static=True)

    def __init__(self, noise_covariance: ArrayLike):
        self.noise_covariance = as_float(noise_covariance)
        shape = self.noise_covariance.shape
        if len(shape) != 2 or shape[0] != shape[1]:
            raise ValueError(f"noise_covariance: got shape {shape}, wanted (C, C).")
        self.num_latents = shape[0]

    @property
    def covariance(self) -> Float[Array, "C C"]:
        """Σ."""
        return self.noise_covariance

    def variances(self, shape: tuple[int, ...]) -> Float[Array, "n C"]:
        """The diagonal of Σ at every point."""
        return jnp.broadcast_to(jnp.diagonal(self.noise_covariance), shape)

    def log_prob(self, f: Float[Array, " C"], y: Array) -> Float[Array, ""]:
        """Log N(y; f, Σ) at one point."""
        return MultivariateNormal(f, self.noise_covariance).log_prob(y)


def _normal(mean: Float[Array, "n C"], variance: Float[Array, "n C"]) -> Normal:
    if mean.shape[1] == 1:
        return Normal(mean[:, 0], variance[:, 0])
    return Normal(mean, variance)
