"""The Student-t process: a Gaussian process of unknown amplitude."""

from typing import cast

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jgp import _parameters
from jgp._model import Model
from jgp._process import GaussianProcess
from jgp._results import RESULTS
from jgp._types import as_float
from jgp.conjugate._distributions import InverseGamma, StudentT, log_marginal
from jgp.inference import Approximation, GaussianPosterior, exact
from jgp.inference._factor import CholeskyFactor
from jgp.likelihoods import Normal


class StudentTApproximation(eqx.Module):
    """The posterior of a Student-t process. Built by `student_t_process`.

    Args:
        approximation: The Gaussian process given the data, for amplitude 1.
        amplitude: The posterior of the amplitude s²; twice its shape is the degrees
            of freedom of all predictions.
        log_evidence: log p(y | x), s² integrated out.
    """

    approximation: Approximation
    amplitude: InverseGamma
    log_evidence: Float[Array, ""]

    @property
    def result(self) -> RESULTS:
        """How the factorisation ended; compare with `RESULTS.successful`."""
        return self.approximation.result

    def marginals(self, x_new: ArrayLike) -> StudentT:
        """The latent function at each of (m, d) inputs, or (m,) for d = 1."""
        moments = self.approximation.posterior.marginals(x_new)
        return _scaled(self.amplitude, moments.mean, moments.variance)

    def predict(
        self, x_new: ArrayLike, *, noise_variance: ArrayLike | None = None
    ) -> StudentT:
        """An observation at each input, for `noise_variance` see `Approximation`."""
        y = self.approximation.predict(x_new, noise_variance=noise_variance)
        assert isinstance(y, Normal)
        return _scaled(self.amplitude, y.mean, y.variance)


def student_t_process(
    model: Model,
    x: ArrayLike,
    y: ArrayLike,
    *,
    shape: ArrayLike,
    scale: ArrayLike,
    throw: bool = True,
) -> StudentTApproximation:
    """Exact regression with an unknown amplitude of prior and noise together.

    y ~ N(m, s²(K + N)) and s² ~ InverseGamma(shape, scale) make y a multivariate t of
    2·shape degrees of freedom; given n observations there are n more, and the
    variances of the Gaussian process are scaled by (2·scale + rᵀS⁻¹r)/(2·shape + n),
    S = K + N and r = y − m (Shah, Wilson & Ghahramani 2014). The p coefficients of a
    mean with a `Basis` have a flat prior whatever s² is, and n − p stands for n.

    Args:
        model: A `GaussianProcess` under Gaussian noise.
        x: (n, d) inputs.
        y: (n,) targets.
        shape: a > 0; for a = b → ∞ the Gaussian process itself.
        scale: b > 0.
        throw: Whether to raise `InferenceError` if S cannot be factorised.

    Raises:
        ValueError: for another process or noise, and whatever `exact` refuses.
        InferenceError: if `throw` and the factorisation failed.
    """
    if isinstance(model, Model) and not isinstance(model.process, GaussianProcess):
        got = type(model.process).__name__
        raise ValueError(f"process: got {got}, wanted a GaussianProcess.")
    amplitude = InverseGamma(as_float(shape), as_float(scale))
    return _integrated(exact(model, x, y, throw=throw), amplitude)


@eqx.filter_jit
def _integrated(approximation: Approximation, prior: InverseGamma):
    """The amplitude integrated out; unchecked, as a failed factor is all NaN."""
    x, y = approximation.x, approximation.y
    prior = _parameters.cast(prior, x.dtype)
    posterior = cast(GaussianPosterior, approximation.posterior)
    factor = cast(CholeskyFactor, posterior.factor)
    r = y[:, None] - posterior.process.mean(x)
    square, num = jnp.sum(r * posterior.weights), factor.num_observed(1)
    log_det = factor.log_determinant(1)
    amplitude = InverseGamma(prior.shape + num / 2, prior.scale + square / 2)
    log_evidence = log_marginal(prior.shape, prior.scale, num, square, log_det)
    return StudentTApproximation(approximation, amplitude, log_evidence)


@eqx.filter_jit
def _scaled(amplitude: InverseGamma, mean: Array, variance: Array) -> StudentT:
    # The root of zero, without its infinite derivative; NaN stays NaN.
    certain = variance == 0
    root = jnp.sqrt(jnp.where(certain, 1, variance) * amplitude.scale / amplitude.shape)
    df = 2 * amplitude.shape
    return StudentT(df, mean, jnp.where(certain, 0, root))
