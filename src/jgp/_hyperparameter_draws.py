r"""Markov chains over hyperparameters, and predictions averaged over them.

The target is `log_density`: evidence × prior × Jacobian in raw parameters φ. Chains run
in z with φ = φ₀ + Lz, LLᵀ the inverse of the observed information at the model given
(the identity where that is not positive definite), so that a step has one length in all
directions. NUTS is blackjax's (Hoffman & Gelman 2014), with its window adaptation.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray

from jgp._information import fisher_information
from jgp._linalg import cholesky
from jgp._model import Model
from jgp._objective import LogDensity, log_density
from jgp._parameters import is_concrete
from jgp._results import RESULTS, InferenceError, unless
from jgp._types import check_key, positive_integer
from jgp.inference import Approximation
from jgp.inference._data import check_inputs
from jgp.likelihoods import Averaged, Categorical
from jgp.sampling import effective_sample_size, nuts, rhat, scan
from jgp.sampling._hamiltonian import imported

# Above it chains disagree (Vehtari et al. 2021).
LARGEST_RHAT = 1.01
# Draws of a start for each chain, of which the first with a finite density is taken.
MAX_TRIES = 20
# Of starts about the model, in the whitened coordinates.
SPREAD = 0.5


class HyperparameterDraws(eqx.Module):
    """Draws of hyperparameters, and the mixture of the posteriors that they give.

    Args:
        raw: Raw parameters (logarithms of positive ones).
        natural: The same on the natural scale.
        rhat: Of each raw parameter.
        ess: Bulk effective sample size of each.
        num_divergences: Of each chain, after warm-up: of a few, the draws near narrow
            places of the density are not to be trusted.
        result: `oscillating` where chains disagree.
        density: The log density sampled; its `names` are the parameters'.
    """

    raw: Float[Array, "chains draws p"]
    natural: Float[Array, "chains draws p"]
    rhat: Float[Array, " p"]
    ess: Float[Array, " p"]
    num_divergences: Int[Array, " chains"]
    result: RESULTS
    density: LogDensity = eqx.field(repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The path of each parameter."""
        return self.density.names

    def predict(
        self,
        x_new: ArrayLike,
        *,
        num: int = 64,
        key: PRNGKeyArray | None = None,
        noise_variance: ArrayLike | None = None,
    ) -> Categorical | Averaged:
        """Observations at each input, averaged over `num` of the draws.

        Class probabilities are averaged; other observations have a mixture of what
        the draws predict (`jgp.likelihoods.Averaged`).

        Args:
            x_new: (m, d) inputs.
            num: Draws that inference is run at, evenly spaced over all chains.
            key: As for `Approximation.predict`.
            noise_variance: As for `Approximation.predict`.

        Raises:
            ValueError: as for `Approximation.predict`.
        """
        total = self.raw.shape[0] * self.raw.shape[1]
        raws = self.raw.reshape(total, -1)[evenly_spaced(total, num)]
        model = self.density.model(raws[0])
        points = check_inputs(x_new, self.density.x, model.process)
        model.likelihood.at(points, noise_variance)  # refuses what cannot be
        if noise_variance is not None:
            noise_variance = jnp.asarray(noise_variance, points.dtype)
        return _mixture(self.density, raws, points, key, noise_variance)


def sample_hyperparameters(
    model: Model,
    x: ArrayLike,
    y: Any,
    *,
    key: PRNGKeyArray,
    infer: Callable[..., Approximation] | None = None,
    num_samples: int = 500,
    num_warmup: int = 500,
    num_chains: int = 4,
    throw: bool = True,
) -> HyperparameterDraws:
    """NUTS over every parameter not frozen; needs `blackjax` (the extra `mcmc`).

    Args:
        model: Where chains start about, with priors (`jgp.with_prior`): without them
            the density may have no finite integral. The model that `fit` found is a
            good one.
        x: (n, d) inputs.
        y: Targets, as the likelihood wants them.
        key: A PRNG key.
        infer: As for `fit`. The density is −∞ where it fails.
        num_samples: Draws a chain, at least 4.
        num_warmup: Steps before, in which step size and metric are adapted.
        num_chains: Chains.
        throw: Whether to raise `InferenceError` when chains disagree.

    Raises:
        ValueError: for input that cannot be right.
        ImportError: without blackjax.
        InferenceError: if no start has a finite density, or see `throw`.
    """
    check_key(key)
    for name, value in (("num_warmup", num_warmup), ("num_chains", num_chains)):
        positive_integer(name, value)
    positive_integer("num_samples", num_samples, least=4)
    imported()
    density = log_density(model, x, y, infer=infer)
    root = whitening(model, x, y, infer, density.raw)
    start_key, run_key = jax.random.split(key)
    starts = starts_about(density, root, num_chains, start_key)
    keys = jax.random.split(run_key, num_chains)
    raw, divergent = _chains(
        density, root, starts, keys, int(num_warmup), int(num_samples)
    )
    natural = jax.vmap(jax.vmap(density.parameters.natural))(raw)
    found = rhat(raw)
    result = unless(jnp.all(found <= LARGEST_RHAT), RESULTS.oscillating)
    divergences = jnp.sum(divergent, axis=1)
    if throw:
        lost = f", {int(np.sum(divergences))} divergences"
        check_agreement("sample_hyperparameters", found, density.names, result, lost)
    ess = effective_sample_size(raw)
    return HyperparameterDraws(raw, natural, found, ess, divergences, result, density)


def whitening(model, x, y, infer, raw: Array) -> Float[Array, "p p"]:
    """A root of the inverse information, or the identity."""
    found = fisher_information(model, x, y, infer=infer)
    if bool(found.result == RESULTS.successful):
        root = cholesky(found.raw_covariance).lower
        # What the evidence does not tell, the prior must: no wider than a factor of e².
        scale = jnp.sqrt(jnp.diagonal(found.raw_covariance))
        return root * jnp.minimum(1, 2 / scale)[:, None]
    return jnp.eye(raw.size, dtype=raw.dtype)


def starts_about(
    density: LogDensity, root: Array, num: int, key: PRNGKeyArray
) -> Float[Array, "num p"]:
    """Whitened starts about the model, where the density is finite."""
    starts = []
    for each in jax.random.split(key, num):
        normals = jax.random.normal(each, (MAX_TRIES, len(density.raw)), root.dtype)
        tries = (z for z in SPREAD * normals)
        raws = ((z, density(density.raw + root @ z)) for z in tries)
        start = next((z for z, value in raws if np.isfinite(value)), None)
        if start is None:
            raise InferenceError(
                f"sample_hyperparameters: none of {MAX_TRIES} starts about the model "
                "has a finite density. Start from a model that `fit` found."
            )
        starts.append(start)
    return jnp.stack(starts)


@eqx.filter_jit
def _chains(
    density: LogDensity,
    root: Float[Array, "p p"],
    starts: Float[Array, "chains p"],
    keys: PRNGKeyArray,
    num_warmup: int,
    num_samples: int,
) -> tuple[Float[Array, "chains draws p"], Bool[Array, "chains draws"]]:
    centre = density.raw

    def target(z):
        return density(centre + root @ z)

    step = functools.partial(nuts.step, log_density=target)

    def chain(start, key):
        warm_key, key = jax.random.split(key)
        state = nuts.warm_up(start, target, key=warm_key, num_steps=num_warmup)
        chain = scan(step, state, key=key, num_samples=num_samples, num_warmup=0)
        return chain.draws, chain.infos.divergent

    z, divergent = jax.vmap(chain)(starts, keys)
    return centre[None, None] + z @ root.T, divergent


@eqx.filter_jit
def _mixture(
    density: LogDensity, raws, points, key, noise_variance
) -> Categorical | Averaged:
    def one(raw):
        model = density.model(raw)
        found = density.infer(model, density.x, density.y)
        return found.predict(points, key=key, noise_variance=noise_variance)

    return mixture(one, raws, density.model(raws[0]).likelihood)


def mixture(predict: Callable, draws: Any, likelihood: Any) -> Categorical | Averaged:
    """What is predicted at each draw, averaged: class probabilities, or a mixture."""
    found = lax.map(predict, draws)
    if likelihood.classes:
        return Categorical(jnp.mean(found.probs, axis=0))
    return Averaged(found)


def evenly_spaced(total: int, num: int) -> np.ndarray:
    """Which of all draws predictions are averaged over."""
    num = min(int(positive_integer("num", num)), total)
    return np.linspace(0, total - 1, num).astype(int)


def check_agreement(
    verb: str,
    found: Float[Array, " p"],
    names: tuple[str, ...],
    result: RESULTS,
    more: str,
) -> None:
    """`InferenceError` for chains that disagree, unless they are traced."""
    if is_concrete(found) and not bool(result == RESULTS.successful):
        raise InferenceError(
            f"{verb}: chains disagree, R-hat {np.max(found):.3g} at "
            f"{names[int(np.argmax(found))]}{more}. Raise num_warmup and num_samples, "
            "give the parameters priors, or pass throw=False to look at the draws."
        )
