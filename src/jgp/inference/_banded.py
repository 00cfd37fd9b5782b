r"""Exact regression in one dimension with a kernel of compact support.

In the order of the inputs S = K + N is a band: with blocks of at least as many points
as lie within one support radius, block tridiagonal. Evidence, weights and variances
then cost O(nb²) time and O(nb) memory; the mathematics is that of `_block_tridiagonal`.
"""

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Bool, Float

from jgp._block_tridiagonal import factorise, log_density
from jgp._model import Model
from jgp._parameters import is_concrete
from jgp._process import GaussianProcess
from jgp._results import RESULTS, unless, worst
from jgp._types import positive_integer
from jgp.inference._approximation import Approximation, check_approximation, finish
from jgp.inference._banded_posterior import BandedPosterior, Blocks
from jgp.inference._data import prepare, tolerances
from jgp.inference._exact import conditioning, masked, sites_of
from jgp.likelihoods import AbstractGaussian

# Smaller blocks take as long: a step of the loop over them costs more than its work.
LEAST_BLOCK = 16
# Entries of blocks of S that are computed at once.
ENTRIES = 2**20


def exact_banded(
    model: Model,
    x: ArrayLike,
    y: Any,
    *,
    mask: ArrayLike | None = None,
    init: Approximation | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    max_steps: int = 1,
    throw: bool = True,
    bandwidth: int | None = None,
) -> Approximation:
    """What `exact` gives, for many inputs on a line and a kernel of short support.

    Time is O(n b²) and memory O(n b), where b points lie within one support radius. The
    posterior has no `gradient` and no `path`, and neither `condition` nor
    `leave_one_out` takes it.

    Args:
        model: A `GaussianProcess` whose kernel is zero from some distance on
            (`Wendland`, `TrigonometricCompact`, products with one of them), without a
            `Basis` as its mean, and a likelihood of Gaussian noise.
        x: (n, 1) or (n,) inputs, in any order.
        y: (n,) targets.
        mask: Which targets are observed, as for `exact`.
        init: Not used, as nothing is iterated; accepted like the rest by every verb.
        rtol: Not used.
        atol: Not used.
        max_steps: Not used.
        throw: Whether to raise `InferenceError` when K + σ²I cannot be factorised even
            with jitter or `bandwidth` was too small; otherwise look at `result`.
        bandwidth: The block size b, static. An interval of one support radius, open on
            one side, may hold up to b points. Left out, it is counted from the data and
            rounded up to a power of two, which needs values: where x or the kernel's
            parameters are traced it has to be given. So in `fit`,
            `infer=functools.partial(exact_banded, bandwidth=...)`, with room for the
            support to grow: steps to a support of more points are backed off from, and
            a fit that wants to go there ends as `stagnated`.

    Returns:
        An `Approximation` in 0 steps. Where `bandwidth` was too small its status is
        `bandwidth_too_small` and its evidence and moments are NaN, none of them wrong
        in silence.

    Raises:
        ValueError: for input that cannot be right, before anything is compiled.
        InferenceError: if `throw` and the factorisation failed.
    """
    y, observed = masked(y, mask)
    model, inputs, targets = prepare(model, x, y, regression=True)
    tolerances(rtol, atol, inputs.dtype)
    positive_integer("max_steps", max_steps)
    check_approximation(init, "init", "exact_banded", model, inputs)
    support = _check(model, inputs)
    if bandwidth is None:
        size = _block_size(inputs, support)
    else:
        size = min(int(positive_integer("bandwidth", bandwidth)), len(inputs))
    return finish(_exact_banded(model, inputs, targets, observed, max(1, size)), throw)


def _check(model: Model, x: Float[Array, "n d"]) -> Float[Array, ""]:
    """The support radius of a model that the banded path is for.

    Raises:
        ValueError: for another model, or other inputs.
    """
    process = model.process
    if not isinstance(process, GaussianProcess):
        raise ValueError(
            f"process: got {type(process).__name__}, wanted a GaussianProcess, of one "
            "latent function."
        )
    if process.features is not None:
        raise ValueError(
            "mean: got a Basis, whose coefficients only exact integrates out, wanted a "
            "function."
        )
    if x.shape[1] != 1:
        raise ValueError(f"x: got shape {x.shape}, wanted (n, 1) or (n,).")
    support = process.kernel.support()
    if support is None:
        raise ValueError(
            f"kernel: got {type(process.kernel).__name__} without compact support, "
            "wanted one that is zero from some distance on, such as Wendland, or a "
            "product with one."
        )
    return support


def _block_size(x: Float[Array, "n 1"], support: Float[Array, ""]) -> int:
    """The least power of two that `_fits`, but no more than n."""
    if not (is_concrete(x) and is_concrete(support)):
        raise ValueError(
            "bandwidth: got None with traced inputs or parameters, wanted the largest "
            "number of points within one support radius, or more."
        )
    points, radius = np.sort(np.asarray(x)[:, 0]), np.asarray(support)
    size = LEAST_BLOCK
    while size < len(points) and not _fits(points, radius, size):
        size *= 2
    return min(size, len(points))


def _fits(points: Any, radius: Any, size: int) -> Any:
    """Whether covariances reach no further than into the next block."""
    return (points[size:] - points[:-size] >= radius).all()


@eqx.filter_jit
def _exact_banded(
    model: Model, x: Array, y: Array, observed: Bool[Array, " n"] | None, size: int
) -> Approximation:
    process = cast(GaussianProcess, model.process)
    likelihood = cast(AbstractGaussian, model.likelihood.at_data(x))
    r = y - process.mean(x)[:, 0]
    noise = likelihood.variances((len(x), 1))
    # Behind the barrier: XLA would sort a constant x while it compiles, for minutes.
    order = jnp.argsort(lax.optimization_barrier(x[:, 0]))
    points, real = _in_blocks(x[order, 0], size, repeat=True)
    if observed is not None:
        r = jnp.where(observed, r, 0)
        there, _ = _in_blocks(observed[order].astype(x.dtype), size)
        real = real & (there > 0)
    diagonal, left = _covariance(process, points, real, noise[order, 0])
    # A covariance that the blocks do not hold is made NaN, and so is all from it.
    fits = _fits(x[order, 0], cast(Array, process.kernel.support()), size)
    diagonal = jnp.where(fits, diagonal, jnp.nan)
    residuals, _ = _in_blocks(r[order], size)
    factor, jitter, ok = factorise(diagonal, left, real)
    weights = factor.solve(residuals)
    log_evidence = log_density(diagonal, left, residuals, factor)
    own = jnp.zeros_like(r).at[order].set(weights.reshape(-1)[: len(x)])[:, None]
    blocks = Blocks(points, real, weights)
    posterior = BandedPosterior(process, x, own, blocks, factor)
    finite = jnp.all(jnp.isfinite(left)) & jnp.all(jnp.isfinite(r))
    finite = finite & (jnp.all(jnp.isfinite(diagonal)) | ~fits)
    result = worst(
        unless(ok | ~fits, RESULTS.not_positive_definite),
        unless(finite, RESULTS.non_finite),
        unless(fits, RESULTS.bandwidth_too_small),
        conditioning(noise, observed, jitter),
    )
    failed = (result != RESULTS.successful) & (result != RESULTS.ill_conditioned)
    fine = failed | jnp.isfinite(log_evidence)
    return Approximation(
        model,
        x,
        y,
        posterior,
        log_evidence,
        sites_of(y[:, None], noise, None if observed is None else observed[:, None]),
        RESULTS.where(fine, result, RESULTS.non_finite),
        jnp.array(0, jnp.int32),
        jnp.zeros((), x.dtype),
        jitter,
        method="exact_banded",
        evidence_kind="exact",
    )


def _in_blocks(
    v: Float[Array, " n"], size: int, repeat: bool = False
) -> tuple[Float[Array, "N b"], Bool[Array, "N b"]]:
    """Blocks of a vector, filled up with zeros or its last entry, and what is real."""
    num_blocks = max(1, -(-len(v) // size))
    missing = num_blocks * size - len(v)
    last = v[-1:] if repeat and len(v) else jnp.zeros(1, v.dtype)
    filled = jnp.concatenate([v, jnp.broadcast_to(last, (missing,))])
    real = jnp.arange(num_blocks * size) < len(v)
    return filled.reshape(num_blocks, size), real.reshape(num_blocks, size)


def _covariance(
    process: GaussianProcess,
    points: Float[Array, "N b"],
    real: Bool[Array, "N b"],
    noise: Float[Array, " n"],
) -> tuple[Float[Array, "N b b"], Float[Array, "N b b"]]:
    """The blocks of S on its diagonal and left of it, a few of them at a time.

    They are computed again in the reverse pass, as those of a dense matrix are.
    """

    @jax.checkpoint
    def one(pair):
        here, before = (points[:, None] for points in pair)
        return process.covariance(here)[0], process.covariance(here, before)[0]

    size = points.shape[1]
    before = jnp.concatenate([points[:1], points[:-1]])
    before_real = jnp.concatenate([real[:1], real[:-1]])
    batch = min(len(points), max(1, ENTRIES // (2 * size**2)))
    diagonal, left = lax.map(one, (points, before), batch_size=batch)
    noises, _ = _in_blocks(noise, size)
    identity = jnp.eye(size, dtype=noise.dtype)[None]
    diagonal = diagonal + noises[:, :, None] * identity
    variances = jnp.diagonal(diagonal, axis1=1, axis2=2)
    total = jnp.sum(jnp.where(real, variances, 0))
    count = jnp.sum(real, dtype=noise.dtype)
    mean = lax.stop_gradient(jnp.where(count > 0, total / jnp.maximum(count, 1), 1))
    diagonal = jnp.where(real[:, :, None] & real[:, None, :], diagonal, mean * identity)
    follows = (jnp.arange(len(points)) > 0)[:, None, None]
    follows = follows & real[:, :, None] & before_real[:, None, :]
    return diagonal, jnp.where(follows, left, 0)
