"""What a fit maximises: the log evidence, or another score, and the log prior."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from jgp._free_parameters import FreeParameters, check_inside, free_parameters
from jgp._model import Model, log_prior
from jgp._parameters import is_concrete
from jgp._results import RESULTS
from jgp._selection import leave_one_out
from jgp.inference import Approximation, elbo, exact, laplace, nested_ep
from jgp.inference._data import prepare
from jgp.inference._exact import masked
from jgp.likelihoods import AbstractGaussian, MultinomialProbit


class Verb(eqx.Module):
    """An inference method with its options, static ones compared by value.

    Partials made alike compare unequal; these do not.
    """

    options: dict[str, Any]
    verb: Callable = eqx.field(static=True)

    def __init__(self, infer: Callable):
        partial = isinstance(infer, functools.partial)
        if not callable(infer) or (partial and infer.args):
            raise ValueError(
                f"infer: got {str(infer)[:60]}, wanted a method, or a partial of one "
                "with keywords only."
            )
        self.verb = infer.func if partial else infer
        options = dict(infer.keywords) if partial else {}
        self.options = {**options, "throw": False}

    def __call__(self, model: Model, x: Array, y: Any, **more: Any) -> Approximation:
        """The approximation; its failure is its status."""
        return self.verb(model, x, y, **{**self.options, **more})


def default_infer(model: Model) -> Callable[..., Approximation]:
    """The method that suits a likelihood."""
    if isinstance(model.likelihood, AbstractGaussian):
        return exact
    return nested_ep if isinstance(model.likelihood, MultinomialProbit) else laplace


def log_evidence(approximation: Approximation) -> Float[Array, ""]:
    """The log evidence, a `ValueError` where there is none."""
    if approximation.log_evidence is None:
        raise ValueError(f"infer: got {approximation.method}, which has no evidence.")
    return approximation.log_evidence


def leave_one_out_score(approximation: Approximation) -> Float[Array, ""]:
    """Σᵢ log p(yᵢ | y₋ᵢ) by `leave_one_out`."""
    found = leave_one_out(approximation)
    return jnp.sum(found.log_prob, where=getattr(found, "observed", None))


OBJECTIVES = {
    "log_evidence": log_evidence,
    "elbo": elbo,
    "leave_one_out": leave_one_out_score,
}


@eqx.filter_jit
def value_and_gradient(
    raw: Float[Array, " p"],
    parameters: FreeParameters,
    x: Array,
    y: Any,
    init: Approximation | None,
    infer: Verb,
    score: Callable[[Approximation], Array],
) -> tuple[Float[Array, ""], Float[Array, " p"], Approximation]:
    """−(score + log prior), its gradient in raw parameters, and the approximation."""

    def loss(raw):
        model = parameters.at(raw)
        approximation = infer(model, x, y, init=init)
        value = -(score(approximation) + log_prior(model))
        return value, approximation

    (value, approximation), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(
        raw
    )
    return value, gradient, approximation


class LogDensity(eqx.Module):
    """The log posterior density of the free parameters of a model, unnormalised.

    A function of the vector of raw parameters (logarithms of positive ones): log
    evidence + log prior + log|∂natural/∂raw|, differentiable, −∞ where inference
    failed. NaN never comes out, so that a sampler rejects such a point.

    Args:
        parameters: The model's free parameters; `raw` is where it stands, `names` what
            the entries are, `at` the model with other values.
        x: Inputs.
        y: Targets.
        infer: The inference method.
    """

    parameters: FreeParameters
    x: Array
    y: Any
    infer: Verb

    @property
    def raw(self) -> Float[Array, " p"]:
        """The raw parameters of the model given."""
        return self.parameters.raw

    @property
    def names(self) -> tuple[str, ...]:
        """The path of each entry."""
        return self.parameters.names

    def model(self, raw: Float[Array, " p"]) -> Model:
        """The model with these raw parameters."""
        return self.parameters.at(raw)

    @eqx.filter_jit
    def __call__(self, raw: Float[Array, " p"]) -> Float[Array, ""]:
        """The log density at raw parameters (p,); a `ValueError` for other shapes."""
        if raw.shape != self.raw.shape:
            raise ValueError(f"raw: got shape {raw.shape}, wanted {self.raw.shape}.")
        model = self.parameters.at(raw)
        approximation = self.infer(model, self.x, self.y)
        value = log_evidence(approximation) + log_prior(model)
        value = value + self.parameters.log_jacobian(raw)
        usable = jnp.isfinite(value) & (approximation.result == RESULTS.successful)
        return jnp.where(usable, value, -jnp.inf)


def log_density(
    model: Model,
    x: ArrayLike,
    y: Any,
    *,
    infer: Callable[..., Approximation] | None = None,
) -> LogDensity:
    """The log posterior of a model's free parameters, for any sampler.

    Without priors on all of them (`jgp.with_prior`) it may have no finite integral.

    Args:
        model: A model with priors.
        x: (n, d) inputs.
        y: Targets, as the likelihood wants them.
        infer: As for `fit`.

    Raises:
        ValueError: for input that cannot be right, or nothing to train.
    """
    model, inputs, targets, verb = problem(model, x, y, infer)
    parameters = free_parameters(model)
    check_inside(parameters)
    return LogDensity(parameters, inputs, targets, verb)


def problem(
    model: Model, x: ArrayLike, y: Any, infer: Callable[..., Approximation] | None
) -> tuple[Model, Array, Any, Verb]:
    """What a fit works on, checked: model, inputs, targets and the method."""
    if not all(map(is_concrete, jax.tree.leaves((model, x, y)))):
        raise ValueError(
            "model, x, y: got traced arguments, wanted concrete ones. What searches "
            "or samples hyperparameters is a loop on the host, which cannot run "
            "inside jit, vmap or grad; loop over it instead."
        )
    y, _ = masked(y, getattr(infer, "keywords", {}).get("mask"))
    model, inputs, targets = prepare(model, x, y, regression=None)
    return (
        model,
        inputs,
        targets,
        Verb(default_infer(model) if infer is None else infer),
    )
