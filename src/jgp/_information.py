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
import numpy as np
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
from jgp.inference._exact import masked
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
        chosen: Which of their entries these are: all, but of a triangular or symmetric
            matrix the lower triangle.
    """

    estimate: Float[Array, " p"]
    information: Float[Array, "p p"]
    raw: Float[Array, " p"]
    raw_covariance: Float[Array, "p p"]
    covariance: Float[Array, "p p"]
    gradient: Float[Array, " p"]
    result: RESULTS
    free: PyTree = eqx.field(repr=False)
    chosen: "_Chosen" = eqx.field(repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The path of each entry."""
        return self.chosen.names

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
        natural, monotone = _natural(self.free, self.chosen), self.chosen.monotone
        raws = natural(self.raw - spread), natural(self.raw + spread)
        each = np.asarray(monotone)
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
    y, _ = masked(y, getattr(infer, "keywords", {}).get("mask"))
    model, inputs, targets = prepare(model, x, y, regression=None)
    infer = default_infer(model) if infer is None else infer
    free, fixed = eqx.partition(model, trainable(model))
    if not jax.tree.leaves(free):
        raise ValueError("model: got one with every parameter frozen.")
    names, kept, monotone, start = [], [], [], 0
    for path, leaf, constraint in table(free):
        # Of such a matrix the rest is no parameter.
        triangular = constraint.triangular(leaf)
        counts = np.tril(np.ones(leaf.shape)) if triangular else np.ones(leaf.shape)
        for i in np.flatnonzero(counts):
            names.append(path if leaf.size == 1 else f"{path}[{i}]")
            kept.append(start + int(i))
            monotone.append(not triangular)
        start += leaf.size
    chosen = _Chosen(tuple(names), tuple(kept), tuple(monotone))
    return _information(free, fixed, inputs, targets, _Verb(infer), chosen)


class _Chosen(eqx.Module):
    """Which entries of the raw vector are parameters, and what they are called."""

    names: tuple[str, ...] = eqx.field(static=True)
    kept: tuple[int, ...] = eqx.field(static=True)
    monotone: tuple[bool, ...] = eqx.field(static=True)


class _Verb(eqx.Module):
    """A verb with its options, static ones compared by value."""

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


@eqx.filter_jit
def _information(free, fixed, x, y, infer, chosen) -> Information:
    whole, unravel = ravel_pytree(to_real(free))
    kept = np.asarray(chosen.kept)
    natural, flat = _natural(free, chosen), whole[kept]

    def log_evidence(flat):
        raw = unravel(whole.at[kept].set(flat))
        found = infer.verb(eqx.combine(from_real(raw), fixed), x, y, **infer.options)
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
        chosen,
    )


def _natural(
    free: PyTree, chosen: _Chosen
) -> Callable[[Float[Array, " p"]], Float[Array, " p"]]:
    """The map from raw to natural parameters, both as vectors."""
    whole, unravel = ravel_pytree(to_real(free))
    kept = np.asarray(chosen.kept)
    return lambda flat: ravel_pytree(from_real(unravel(whole.at[kept].set(flat))))[0][
        kept
    ]
