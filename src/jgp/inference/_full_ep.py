r"""EP with full sites: of likelihoods of a few latents, by exact tilted moments.

What it needs of a likelihood is log Ẑ(m₋, V₋) = log E[p(y | f)] at one point, f of the
cavity, differentiable in m₋. With g and −H its first two derivatives there, the tilted
mean is m₋ + V₋g and the tilted covariance V₋ − V₋HV₋, so the site that matches them has

    T = (I − HV₋)⁻¹H,   ν = (I + TV₋)(g + Hm₋).

For the multinomial probit Ẑ is an orthant probability of the contrasts h_k = f_y − f_k,

    Ẑ(m₋) = P(u + h_k + e_k > 0 for all k ≠ y),   u, e_k ~ N(0, 1),

in closed form for C <= 3 and by Genz's lattice beyond: nested EP is measured by it.
T is a full block (diagonal minus rank one for C <= 3): the joint algebra of
`_joint_sites`, O((nC)³), for small problems.
"""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp._fixed_point import FixedPoint, iterate
from jgp._implicit import fixed_point
from jgp._linalg import cholesky, inverse
from jgp._model import Model
from jgp._results import RESULTS, unless
from jgp.inference._approximation import Approximation
from jgp.inference._ep_evidence import stationary_evidence
from jgp.inference._site_approximation import site_approximation
from jgp.inference._site_posterior import (
    SitePosterior,
    centred_normaliser,
    site_posterior,
)
from jgp.inference._sites import DenseSites
from jgp.likelihoods import (
    AbstractLikelihood,
    LatentNoiseGaussian,
    MultinomialProbit,
    _latent_noise,
)
from jgp.likelihoods._class_probabilities import contrast_matrix, log_orthant

# Unknown latents above which (nC)³ is no longer reasonable.
LARGEST = 4000


class _Swept(eqx.Module):
    posterior: SitePosterior
    cavities: tuple[Float[Array, "n C"], Float[Array, "n C C"]]
    log_constants: Float[Array, " n"]


def check_size(size: int, what: str, instead: str) -> None:
    """Raise a `ValueError` for more latents than full blocks are reasonable for."""
    if size > LARGEST:
        raise ValueError(
            f"{what} for nC = {size} latents, wanted at most {LARGEST}, {instead}."
        )


@eqx.filter_jit
def full_ep(
    model: Model,
    x: Array,
    y: Array,
    init: DenseSites | None,
    rtol: Any,
    atol: Any,
    max_steps: Any,
    damping: Any,
    *,
    window: int,
    method: str,
) -> Approximation:
    """The compiled part of EP with full sites."""
    K, prior_mean = model.process.covariance(x), model.process.mean(x)
    root, jitter, ok = jax.lax.stop_gradient(cholesky(K))
    update = eqx.filter_jit(_update)

    def run(params, controls) -> FixedPoint:
        start, rtol, atol, max_steps, damping = controls
        return iterate(
            update,
            start,
            params,
            rtol=rtol,
            atol=atol,
            max_steps=max_steps,
            damping=damping,
            window=window,
        )

    n, num_latents = prior_mean.shape
    zeros = jnp.zeros((n, num_latents, num_latents), x.dtype)
    start = DenseSites(zeros, jnp.zeros_like(prior_mean)) if init is None else init
    likelihood = model.likelihood.at_data(x)
    params = (K, prior_mean, likelihood, y, root)
    controls = (start, *jax.tree.map(jnp.asarray, (rtol, atol, max_steps, damping)))
    found = fixed_point(run, _update, params, controls)
    sites, swept = found.value, found.auxiliary
    posterior = swept.posterior
    value = centred_normaliser(prior_mean, posterior) + jnp.sum(swept.log_constants)
    log_evidence = stationary_evidence(
        value, K, prior_mean, (likelihood, y), posterior, swept.cavities, local=_local
    )
    return site_approximation(
        (model, x, y),
        found,
        sites,
        posterior,
        log_evidence,
        method=method,
        evidence_kind="ep",
        failures=(unless(jnp.all(ok), RESULTS.not_positive_definite),),
        jitter=jitter,
    )


def _update(sites: DenseSites, params: tuple) -> tuple[DenseSites, _Swept]:
    K, prior_mean, likelihood, y, root = params
    posterior = site_posterior(K, prior_mean, sites, root)
    (T, nu), cavities, log_constants = jax.vmap(functools.partial(_match, likelihood))(
        posterior.mean, posterior.covariance, posterior.weights, sites.precision, y
    )
    return DenseSites(T, nu), _Swept(posterior, cavities, log_constants)


def _local(terms: tuple, cavities: tuple[Array, Array]) -> Float[Array, ""]:
    """Σ log Ẑᵢ as a function of the likelihood and the observations."""
    likelihood, y = terms
    each = jax.vmap(functools.partial(log_normaliser, likelihood))(*cavities, y)
    return jnp.sum(each)


@functools.singledispatch
def log_normaliser(
    likelihood: AbstractLikelihood,
    mean: Float[Array, " C"],
    covariance: Float[Array, "C C"],
    y: Array,
) -> Float[Array, ""]:
    """Log E[p(y | f)] at one point, f ~ N(mean, covariance).

    Raises:
        ValueError: for a likelihood without a case.
    """
    raise ValueError(
        f"likelihood: got {type(likelihood).__name__}, wanted LatentNoiseGaussian or "
        "MultinomialProbit for EP with full sites."
    )


@log_normaliser.register
def _(likelihood: LatentNoiseGaussian, mean, covariance, y):
    return _latent_noise.log_normaliser(mean, covariance, y)


@log_normaliser.register
def _(likelihood: MultinomialProbit, mean, covariance, y):
    B = contrast_matrix(y, mean.shape[0], mean.dtype)
    return log_orthant(B @ mean, B @ covariance @ B.T)


def _match(
    likelihood: AbstractLikelihood,
    mean: Float[Array, " C"],
    covariance: Float[Array, "C C"],
    weights: Float[Array, " C"],
    T: Float[Array, "C C"],
    y: Array,
) -> tuple[tuple[Array, Array], tuple[Array, Array], Array]:
    """The site that matches the tilted moments, the cavity, and log c of the old site.

    With S = RRᵀ and Q = I − RᵀTR, the cavity is V₋ = RQ⁻¹Rᵀ and m₋ = m − V₋b;
    T' = H + HR₋(I − R₋ᵀHR₋)⁻¹R₋ᵀH, symmetric. The old site counts as a multiple of its
    value at m, so log c = log Ẑ − ½log|Q| + ½bᵀV₋b.
    """
    identity = jnp.eye(mean.shape[0], dtype=mean.dtype)
    R = cholesky(covariance).lower
    Q_inverse, log_Q = inverse(identity - R.T @ T @ R)
    V = R @ Q_inverse @ R.T
    cavity = mean - V @ weights
    log_Z, g, H = _tilted(likelihood, cavity, V, y)
    R = cholesky(V).lower
    RH = R.T @ H
    inner, _ = inverse(identity - RH @ R)
    new_T = H + RH.T @ inner @ RH
    new_T = (new_T + new_T.T) / 2
    target = g + H @ cavity
    new_nu = target + new_T @ (V @ target)
    log_constant = log_Z + (weights @ V @ weights - log_Q) / 2
    return (new_T, new_nu), (cavity, V), log_constant


def _tilted(
    likelihood: AbstractLikelihood,
    mean: Float[Array, " C"],
    V: Float[Array, "C C"],
    y: Array,
) -> tuple[Array, Array, Array]:
    """Log Ẑ, its gradient and minus its Hessian in the mean."""

    def log_Z(mean):
        return log_normaliser(likelihood, mean, V, y)

    value, gradient = jax.value_and_grad(log_Z)(mean)
    return value, gradient, -jax.jacfwd(jax.grad(log_Z))(mean)
