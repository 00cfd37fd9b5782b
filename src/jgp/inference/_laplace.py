r"""Laplace's approximation (Rasmussen & Williams 2006, Alg. 3.1, 3.3 and 5.1).

The mode f̂ of p(f | y) is found by Newton's method. A Newton step from f is the mean of
the Gaussian posterior under the sites T = W = −∇²log p(y | f), ν = Wf + ∇log p(y | f),
so the posterior algebra of `_sites` is the whole of it: O(Cn³) a step for softmax,
whose W = diag(π) − ππᵀ is a rank-one site. At the mode

    log q(y) = log p(y | f̂) − ½∇log p(y | f̂)ᵀ(f̂ − m₀) − ½log|I + KW|,

which depends on hyperparameters through f̂ too: its derivative is implicit.
"""

import functools
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PyTree

from jgp._fixed_point import (
    PATIENCE,
    FixedPoint,
    empty_like,
    scaled_change,
)
from jgp._implicit import fixed_point
from jgp._linalg import apply_blocks
from jgp._model import Model
from jgp._results import RESULTS, unless
from jgp._types import positive_integer
from jgp.inference._approximation import Approximation, check_approximation, finish
from jgp.inference._data import prepare, tolerances
from jgp.inference._gaussian_posterior import GaussianPosterior
from jgp.inference._site_approximation import site_approximation
from jgp.inference._site_posterior import SitePosterior, site_posterior
from jgp.inference._sites import AbstractSites, DiagonalSites, RankOneSites
from jgp.likelihoods import AbstractLikelihood, Softmax

HALVINGS = 30
ARMIJO = 1e-4


def laplace(
    model: Model,
    x: ArrayLike,
    y: Any,
    *,
    init: Approximation | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    max_steps: int = 100,
    throw: bool = True,
) -> Approximation:
    """Approximate the posterior by a Gaussian at its mode.

    For likelihoods that are log-concave in f: `Softmax`, or any with one latent (or
    one output a latent), whose derivatives are taken by autodiff. Newton's full step
    alone can cycle for ever even then, so a step that lowers the objective is halved.
    Differentiable to any order with respect to the model.

    Args:
        model: A process with independent latents and a likelihood.
        x: (n, d) inputs.
        y: Targets, as the likelihood wants them.
        init: An earlier approximation by `laplace` on as many points.
        rtol: Tolerance on the gradient of the objective, relative to the gradient of
            the log likelihood; 1e-6 in float64 and 1e-4 in float32 by default.
        atol: Absolute tolerance on that gradient, likewise.
        max_steps: Bound on Newton steps.
        throw: Whether to raise `InferenceError` when Newton does not converge;
            otherwise look at `result`.

    Raises:
        ValueError: for input that cannot be right, before anything is compiled.
        InferenceError: if `throw` and Newton's method did not converge.
    """
    model, inputs, targets = prepare(model, x, y)
    init = check_approximation(init, "init", "laplace", model, inputs)
    start = None if init is None else cast(GaussianPosterior, init.posterior).weights
    approximation = _laplace(
        model,
        inputs,
        targets,
        start,
        *tolerances(rtol, atol, inputs.dtype),
        positive_integer("max_steps", max_steps),
    )
    return finish(approximation, throw)


@functools.singledispatch
def laplace_sites(
    likelihood: AbstractLikelihood, f: Float[Array, "n C"], y: Array
) -> AbstractSites:
    """The sites T = −∇²log p(y | f), ν = Tf + ∇log p(y | f) of a likelihood.

    By autodiff for one latent, or one output a latent. Register a case for a
    likelihood whose Hessian is diagonal minus rank one.
    """
    if not likelihood.factorises:
        raise ValueError(
            f"likelihood: got {type(likelihood).__name__}, wanted Softmax or a "
            "likelihood of one latent for laplace."
        )

    def slope(f):
        return jax.grad(lambda f: jnp.sum(likelihood.log_probs(f, y)))(f)

    # Points do not meet in the likelihood: a direction for each latent is enough.
    num_latents = f.shape[1]
    columns = []
    for c in range(num_latents):
        direction = jnp.zeros_like(f).at[:, c].set(1)
        columns.append(-jax.jvp(slope, (f,), (direction,))[1][:, c])
    precision = jnp.stack(columns, axis=1)
    return DiagonalSites(precision, precision * f + slope(f))


@laplace_sites.register
def _(likelihood: Softmax, f: Float[Array, "n C"], y: Int[Array, " n"]) -> RankOneSites:
    probs = jax.nn.softmax(f, axis=1)
    centred = f - jnp.sum(probs * f, axis=1, keepdims=True)
    observed = jax.nn.one_hot(y, f.shape[1], dtype=f.dtype)
    return RankOneSites(probs, probs * centred + observed - probs)


class _Conditional(eqx.Module):
    """What a Newton step computes at f beside the next f."""

    sites: AbstractSites
    posterior: SitePosterior


@eqx.filter_jit
def _update(f: Float[Array, "n C"], params: tuple) -> tuple[Array, _Conditional]:
    """The plain Newton step: undamped, with the true Hessian."""
    K, prior_mean, likelihood, y = params
    sites = laplace_sites(likelihood, f, y)
    posterior = site_posterior(K, prior_mean, sites)
    return posterior.mean, _Conditional(sites, posterior)


class _Newton(eqx.Module):
    step: Int[Array, ""]
    f: Float[Array, "n C"]
    weights: Float[Array, "n C"]
    following: tuple[Float[Array, "n C"], Float[Array, "n C"]]
    conditional: _Conditional
    residual: Float[Array, ""]
    polished: Bool[Array, ""]
    best: Float[Array, ""]
    best_step: Int[Array, ""]


def _run(params: PyTree, controls: PyTree) -> FixedPoint:
    """Newton's method on log p(y | f) − ½aᵀ(f − m₀), a = K⁻¹(f − m₀), halving steps.

    a is carried beside f (a step moves both along a line), so K is never inverted.
    """
    K, prior_mean, likelihood, y = params
    weights, rtol, atol, max_steps = controls

    def objective(f, a):
        log_prob = jnp.sum(likelihood.log_probs(f, y))
        return log_prob - jnp.sum(a * (f - prior_mean)) / 2

    def search(f, a, slope, posterior: SitePosterior):
        """The longest of the steps 1, ½, ¼, … that raises the objective enough.

        Merely not to fall is too little: full steps can cycle at one level for ever.
        """
        df, da = posterior.mean - f, posterior.weights - a
        expected = ARMIJO * jnp.sum((slope - a) * df)
        start = objective(f, a)
        slack = 10 * jnp.finfo(f.dtype).eps * jnp.abs(start)

        def worse(trial):
            halvings, size = trial
            value = objective(f + size * df, a + size * da)
            enough = value >= start + size * expected - slack
            return ~enough & (halvings < HALVINGS)

        full = (jnp.array(0, jnp.int32), jnp.ones((), f.dtype))
        _, size = lax.while_loop(worse, lambda t: (t[0] + 1, t[1] / 2), full)
        return f + size * df, a + size * da

    def advance(s: _Newton):
        (f, a), step = s.following, s.step + 1
        _, conditional = _update(f, params)
        slope = conditional.sites.linear - conditional.sites.times(f)
        residual = scaled_change(slope.ravel(), a.ravel(), rtol, atol)
        residual = jnp.where(jnp.isfinite(residual), residual, jnp.inf)
        better = residual < s.best
        return _Newton(
            step,
            f,
            a,
            search(f, a, slope, conditional.posterior),
            conditional,
            residual,
            s.residual <= 1,
            jnp.where(better, residual, s.best),
            jnp.where(better, step, s.best_step),
        )

    def unfinished(s: _Newton):
        # One step more than the tolerance asks for: it squares the error, and the
        # evidence, not stationary in f, is only as accurate as the mode.
        improving = s.step - s.best_step < PATIENCE
        return ~s.polished & (s.step < max_steps) & improving

    f = prior_mean + apply_blocks(K, weights)
    zero = jnp.array(0, jnp.int32)
    infinity = jnp.array(jnp.inf, f.dtype)
    nothing = empty_like(lambda f: _update(f, params)[1], f)
    first = _Newton(
        zero,
        f,
        weights,
        (f, weights),
        nothing,
        infinity,
        jnp.array(False),
        infinity,
        zero,
    )
    last = lax.while_loop(unfinished, advance, first)
    result = RESULTS.where(
        last.step < max_steps, RESULTS.stagnated, RESULTS.max_steps_reached
    )
    result = RESULTS.where(jnp.isinf(last.residual), RESULTS.non_finite, result)
    result = RESULTS.where(last.residual <= 1, RESULTS.successful, result)
    return FixedPoint(last.f, last.conditional, last.step, last.residual, result)


@eqx.filter_jit
def _laplace(
    model: Model,
    x: Array,
    y: Array,
    weights: Float[Array, "n C"] | None,
    rtol: Any,
    atol: Any,
    max_steps: Any,
) -> Approximation:
    K, prior_mean = model.process.covariance(x), model.process.mean(x)
    likelihood = model.likelihood.at_data(x)
    start = jnp.zeros_like(prior_mean) if weights is None else weights
    params = (K, prior_mean, likelihood, y)
    controls = jax.tree.map(jnp.asarray, (start, rtol, atol, max_steps))
    found = fixed_point(_run, _update, params, controls, newton=True)
    f, conditional = found.value, found.auxiliary
    sites, posterior = conditional.sites, conditional.posterior
    slope = sites.linear - sites.times(f)
    log_evidence = (
        jnp.sum(likelihood.log_probs(f, y))
        - jnp.sum(slope * (f - prior_mean)) / 2
        - posterior.log_determinant / 2
    )
    # The algebra takes W to be positive: a likelihood that is not log-concave there.
    concave = unless(jnp.all(sites.precision >= 0), RESULTS.not_positive_definite)
    return site_approximation(
        (model, x, y),
        found,
        sites,
        posterior,
        log_evidence,
        method="laplace",
        evidence_kind="laplace",
        failures=(concave,),
    )
