r"""How well the data determine the hyperparameters: the observed Fisher information.

At a maximum of the log evidence in raw parameters φ (logarithms of positive ones) the
curvature −∂²log p(y)/∂φ∂φᵀ is the observed information, its inverse the covariance of
the Gaussian approximation to their posterior under a flat prior in φ (Rasmussen &
Williams 2006, §5.4.1; MacKay 1999). On the natural scale θ(φ) it is J C Jᵀ,
J = dθ/dφ, by the delta method.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.special import ndtri
from jaxtyping import Array, ArrayLike, Float, PyTree

from jgp._fit import default_infer
from jgp._linalg import cholesky, inverse_from_factor
from jgp._model import Model, trainable
from jgp._parameters import from_real, table, to_real
from jgp._results import RESULTS, unless
from jgp.inference import Approximation
from jgp.inference._data import prepare
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
        result: `not_positive_definite` where the evidence has no maximum in all
            directions; then the covariances are NaN.
        free: The trainable parameters as the tree that they are.
        names: The path of each entry.
    """

    estimate: Float[Array, " p"]
    information: Float[Array, "p p"]
    raw: Float[Array, " p"]
    raw_covariance: Float[Array, "p p"]
    covariance: Float[Array, "p p"]
    gradient: Float[Array, " p"]
    result: RESULTS
    free: PyTree = eqx.field(repr=False)
    names: tuple[str, ...] = eqx.field(static=True)

    def interval(
        self, level: float = 0.95, *, scale: str = "log"
    ) -> tuple[Float[Array, " p"], Float[Array, " p"]]:
        """Intervals of the parameters, in natural units.

        Args:
            level: Their probability, in (0, 1).
            scale: "log" takes them in raw parameters, so that those of positive ones
                stay positive; "natural" is estimate ± z·stddev.

        Raises:
            ValueError: for another scale, or a level that is no probability.
        """
        check_level(level)
        if scale not in ("log", "natural"):
            raise ValueError(f"scale: got {scale!r}, wanted 'log' or 'natural'.")
        z = ndtri(jnp.asarray((1 + level) / 2, self.raw.dtype))
        if scale == "natural":
            spread = z * jnp.sqrt(jnp.diagonal(self.covariance))
            return self.estimate - spread, self.estimate + spread
        spread = z * jnp.sqrt(jnp.diagonal(self.raw_covariance))
        natural = _natural(self.free)
        return natural(self.raw - spread), natural(self.raw + spread)


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
    model, inputs, targets = prepare(model, x, y, regression=None)
    infer = default_infer(model) if infer is None else infer
    free, fixed = eqx.partition(model, trainable(model))
    if not jax.tree.leaves(free):
        raise ValueError("model: got one with every parameter frozen.")
    names = tuple(
        path if leaf.size == 1 else f"{path}[{i}]"
        for path, leaf, _ in table(free)
        for i in range(leaf.size)
    )
    return _information(free, fixed, inputs, targets, _Verb(infer), names)


class _Verb(eqx.Module):
    """A verb with its options, static ones compared by value."""

    options: dict[str, Any]
    verb: Callable = eqx.field(static=True)

    def __init__(self, infer: Callable):
        single = isinstance(infer, functools.partial)
        self.verb = infer.func if single else infer
        self.options = dict(infer.keywords) if single else {}


@eqx.filter_jit
def _information(free, fixed, x, y, infer, names) -> Information:
    flat, unravel = ravel_pytree(to_real(free))
    natural = _natural(free)

    def log_evidence(flat):
        model = eqx.combine(from_real(unravel(flat)), fixed)
        found = infer.verb(model, x, y, throw=False, **infer.options)
        if found.log_evidence is None:
            raise ValueError(f"infer: got {found.method}, which has no evidence.")
        return found.log_evidence

    gradient = jax.grad(log_evidence)
    information = -jax.jacfwd(gradient)(flat)
    information = (information + information.T) / 2
    lower, added, ok = cholesky(information)
    # Jitter would make an interval of a direction in which there is no maximum.
    ok = ok & (added == 0)
    covariance = inverse_from_factor(information, lower)
    covariance = jnp.where(ok, covariance, jnp.nan)
    J = jax.jacfwd(natural)(flat)
    return Information(
        natural(flat),
        information,
        flat,
        covariance,
        J @ covariance @ J.T,
        gradient(flat),
        unless(ok, RESULTS.not_positive_definite),
        free,
        names,
    )


def _natural(free: PyTree) -> Callable[[Float[Array, " p"]], Float[Array, " p"]]:
    """The map from raw to natural parameters, both as vectors."""
    _, unravel = ravel_pytree(free)
    return lambda flat: ravel_pytree(from_real(unravel(flat)))[0]
