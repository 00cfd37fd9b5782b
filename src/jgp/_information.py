r"""How well the data determine the hyperparameters: the observed Fisher information.

At a maximum of the log evidence in raw parameters φ (logarithms of positive ones) the
curvature −∂²log p(y)/∂φ∂φᵀ is the observed information, its inverse the covariance of
the Gaussian approximation to their posterior under a flat prior in φ (Rasmussen &
Williams 2006, §5.4.1; MacKay 1999). A model with priors has their log density added. On
the natural scale θ(φ) it is J C Jᵀ, J = dθ/dφ, by the delta method.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, ArrayLike, Float

from jgp._free_parameters import FreeParameters, free_parameters
from jgp._linalg import cholesky, inverse_from_factor
from jgp._model import Model, log_prior
from jgp._objective import Verb, log_evidence, problem
from jgp._results import RESULTS, unless, worst
from jgp.inference import Approximation
from jgp.likelihoods._predictive import check_level


class Information(eqx.Module):
    """Estimates of the trainable parameters with their covariance.

    Entries are in the order of `names`; a vector has one entry an element.

    Args:
        estimate: The parameters on the natural scale.
        information: −∂²log p(y)/∂φ∂φᵀ in raw parameters.
        raw: The raw parameters φ.
        raw_covariance: Their covariance: of logarithms, for positive parameters.
        covariance: That of the natural ones.
        gradient: ∂log p(y)/∂φ, 0 at a maximum.
        result: How inference ended, and `not_positive_definite` where the evidence has
            no maximum in all directions; then the covariances are NaN.
        parameters: The trainable parameters: of a triangular or symmetric matrix the
            lower triangle.
    """

    estimate: Float[Array, " p"]
    information: Float[Array, "p p"]
    raw: Float[Array, " p"]
    raw_covariance: Float[Array, "p p"]
    covariance: Float[Array, "p p"]
    gradient: Float[Array, " p"]
    result: RESULTS
    parameters: FreeParameters = eqx.field(repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The path of each entry."""
        return self.parameters.names

    def interval(
        self, level: float = 0.95, *, scale: str = "log"
    ) -> tuple[Float[Array, " p"], Float[Array, " p"]]:
        """Intervals of the parameters, in natural units.

        Args:
            level: Their probability, in (0, 1).
            scale: "log" takes them in raw parameters, so that those of positive ones
                stay positive; "natural" is estimate ± z·stddev, as for entries of a
                triangular or symmetric matrix in any case.

        Raises:
            ValueError: for another scale, or a level that is no probability.
        """
        check_level(level)
        if scale not in ("log", "natural"):
            raise ValueError(f"scale: got {scale!r}, wanted 'log' or 'natural'.")
        z = ndtri(jnp.asarray((1 + level) / 2, self.raw.dtype))
        spread = z * jnp.sqrt(jnp.diagonal(self.covariance))
        ends = self.estimate - spread, self.estimate + spread
        if scale == "natural":
            return ends
        spread = z * jnp.sqrt(jnp.diagonal(self.raw_covariance))
        natural, each = self.parameters.natural, np.asarray(self.parameters.monotone)
        raws = natural(self.raw - spread), natural(self.raw + spread)
        low, high = (jnp.where(each, r, e) for r, e in zip(raws, ends, strict=True))
        return low, high


def fisher_information(
    model: Model,
    x: ArrayLike,
    y: Any,
    *,
    infer: Callable[..., Approximation] | None = None,
) -> Information:
    """The observed information of the hyperparameters, at a model that `fit` found.

    Args:
        model: The model at a maximum of the evidence.
        x: (n, d) inputs.
        y: Targets.
        infer: As for `fit`.

    Raises:
        ValueError: for a method without evidence, or nothing to train.
    """
    model, inputs, targets, verb = problem(model, x, y, infer)
    return _information(free_parameters(model), inputs, targets, verb)


@eqx.filter_jit
def _information(parameters: FreeParameters, x, y, infer: Verb) -> Information:
    raw = parameters.raw

    def objective(raw):
        model = parameters.at(raw)
        return log_evidence(infer(model, x, y)) + log_prior(model)

    reached = infer(parameters.at(raw), x, y).result
    gradient = jax.grad(objective)
    information = -jax.jacfwd(gradient)(raw)
    information = (information + information.T) / 2
    lower, added, ok = cholesky(information)
    # Jitter would make an interval of a direction in which there is no maximum.
    ok = ok & (added == 0)
    covariance = inverse_from_factor(information, lower)
    covariance = jnp.where(ok, covariance, jnp.nan)
    J = jax.jacfwd(parameters.natural)(raw)
    return Information(
        parameters.natural(raw),
        information,
        raw,
        covariance,
        J @ covariance @ J.T,
        gradient(raw),
        worst(reached, unless(ok, RESULTS.not_positive_definite)),
        parameters,
    )
