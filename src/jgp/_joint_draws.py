"""Draws of hyperparameters and latents together: no approximation anywhere.

How chains move is in `_joint_moves`.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from jgp._hyperparameter_draws import (
    check_agreement,
    evenly_spaced,
    mixture,
    starts_about,
    whitening,
)
from jgp._joint_moves import State, joint_step, roots
from jgp._model import Model
from jgp._objective import LogDensity, log_density
from jgp._results import RESULTS, unless
from jgp._types import check_key, positive_integer
from jgp.inference import Approximation
from jgp.inference._data import check_inputs
from jgp.inference._draws import DrawsPosterior
from jgp.likelihoods import Averaged, Categorical
from jgp.sampling import effective_sample_size, rhat, scan

MOVES = ("surrogate", "whitened")
LARGEST_RHAT = 1.05
# Surrogate variances, at most this multiple of the prior's.
WIDEST = 1e3


class JointDraws(eqx.Module):
    """Draws of hyperparameters with the latents at the training inputs.

    Args:
        raw: Raw parameters (logarithms of positive ones).
        natural: The same on the natural scale.
        whitened: w; the latents are m + Lw with the m and L of the same draw.
        rhat: Of each raw parameter.
        ess: Bulk effective sample size of each.
        result: `oscillating` where chains disagree.
        density: The log density of the raw parameters; its `names` are theirs.
    """

    raw: Float[Array, "chains draws p"]
    natural: Float[Array, "chains draws p"]
    whitened: Float[Array, "chains draws n C"]
    rhat: Float[Array, " p"]
    ess: Float[Array, " p"]
    result: RESULTS
    density: LogDensity = eqx.field(repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The path of each parameter."""
        return self.density.names

    def predict(
        self, x_new: ArrayLike, *, num: int = 256, key: PRNGKeyArray | None = None
    ) -> Categorical | Averaged:
        """Observations at each input, averaged over `num` of the draws.

        Args:
            x_new: (m, d) inputs.
            num: How many, evenly spaced over all chains.
            key: As for `Approximation.predict`.

        Raises:
            ValueError: as for `Approximation.predict`.
        """
        total = self.raw.shape[0] * self.raw.shape[1]
        chosen = evenly_spaced(total, num)
        raws = self.raw.reshape(total, -1)[chosen]
        w = self.whitened.reshape(total, *self.whitened.shape[2:])[chosen]
        points = check_inputs(
            x_new, self.density.x, self.density.model(raws[0]).process
        )
        return _predicted(self.density, raws, w, points, key)


def sample_joint(
    model: Model,
    x: ArrayLike,
    y: Any,
    *,
    key: PRNGKeyArray,
    infer: Callable[..., Approximation] | None = None,
    moves: str = "surrogate",
    num_samples: int = 1000,
    num_warmup: int = 500,
    num_chains: int = 4,
    thinning: int = 1,
    slices: int = 5,
    throw: bool = True,
) -> JointDraws:
    """Markov chains over every parameter not frozen and the latents, exactly.

    Args:
        model: Where chains start about, with priors (`jgp.with_prior`); the model that
            `fit` found is a good one. Latents must be independent.
        x: (n, d) inputs.
        y: Targets, as the likelihood wants them.
        key: A PRNG key.
        infer: As for `fit`: used for the shape of moves and the starts, on which the
            draws do not depend once the chains have mixed.
        moves: Of hyperparameters: "surrogate", latents following as the data allow, or
            "whitened", w held.
        num_samples: Draws a chain, at least 4.
        num_warmup: Steps before, thrown away.
        num_chains: Chains.
        thinning: Steps between draws that are kept.
        slices: Elliptical slices of the latents for each move of the hyperparameters.
        throw: Whether to raise `InferenceError` when chains disagree.

    Raises:
        ValueError: for input that cannot be right.
        InferenceError: if no start has a finite density, or see `throw`.
    """
    check_key(key)
    if moves not in MOVES:
        raise ValueError(f"moves: got {moves!r}, wanted one of {', '.join(MOVES)}.")
    positive_integer("num_samples", num_samples, least=4)
    counts = {
        "num_warmup": num_warmup,
        "num_chains": num_chains,
        "thinning": thinning,
        "slices": slices,
    }
    for name, value in counts.items():
        positive_integer(name, value)
    if model.process.coupled:
        raise ValueError(
            f"model: got a {type(model.process).__name__}, whose latents depend on "
            "each other, wanted independent latents."
        )
    density = log_density(model, x, y, infer=infer)
    start_key, run_key = jax.random.split(key)
    directions = whitening(model, x, y, infer, density.raw)
    raws = starts_about(density, directions, num_chains, start_key)
    start = density.raw[None] + raws @ directions.T
    variances = None
    if moves == "surrogate":
        variances = _surrogates(density)
    raw, whitened = _chains(
        density,
        variances,
        directions,
        start,
        jax.random.split(run_key, num_chains),
        int(num_samples),
        int(num_warmup),
        int(thinning),
        int(slices),
    )
    natural = jax.vmap(jax.vmap(density.parameters.natural))(raw)
    found = rhat(raw)
    result = unless(jnp.all(found <= LARGEST_RHAT), RESULTS.oscillating)
    if throw:
        check_agreement("sample_joint", found, density.names, result, "")
    ess = effective_sample_size(raw)
    return JointDraws(raw, natural, whitened, found, ess, result, density)


def _surrogates(density: LogDensity) -> Float[Array, "n C"]:
    """Variances about as wide as the likelihood of each latent: those of the sites."""
    found = density.infer(density.model(density.raw), density.x, density.y)
    prior = found.model.process.variance(density.x).T
    prior = jnp.broadcast_to(
        prior, (density.x.shape[0], found.model.process.num_latents)
    )
    if found.sites is None:
        return prior
    identity = jnp.eye(prior.shape[1], dtype=prior.dtype)
    columns = (found.sites.times(jnp.broadcast_to(e, prior.shape)) for e in identity)
    precision = jnp.stack([c[:, i] for i, c in enumerate(columns)], axis=1)
    return 1 / jnp.maximum(precision, 1 / (WIDEST * prior))


@eqx.filter_jit
def _chains(
    density: LogDensity,
    variances: Float[Array, "n C"] | None,
    directions: Float[Array, "p p"],
    start: Float[Array, "chains p"],
    keys: PRNGKeyArray,
    num_samples: int,
    num_warmup: int,
    thinning: int,
    slices: int,
) -> State:
    shape = (density.x.shape[0], density.model(density.raw).process.num_latents)
    step = functools.partial(
        joint_step,
        density=density,
        variances=variances,
        directions=directions,
        slices=slices,
    )

    def chain(raw, key):
        w_key, key = jax.random.split(key)
        w = jax.random.normal(w_key, shape, density.x.dtype)
        return scan(
            step,
            State(raw, w),
            key=key,
            num_samples=num_samples,
            num_warmup=num_warmup,
            thinning=thinning,
            collect=lambda state: state,
        ).draws

    return jax.vmap(chain)(start, keys)


@eqx.filter_jit
def _predicted(density: LogDensity, raws, whitened, points, key) -> Any:
    def one(draw):
        raw, w = draw
        model = density.model(raw)
        _, root = roots(density, model)
        posterior = DrawsPosterior(model.process, density.x, root, w[None, None])
        return posterior.predict(model.likelihood, points, key=key)

    return mixture(one, (raws, whitened), density.model(raws[0]).likelihood)
