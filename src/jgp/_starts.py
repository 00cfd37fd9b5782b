"""Where a search for hyperparameters starts: values that the data suggest.

Lengthscales from distances between inputs, the variance of a regression and its noise
as shares of the mean square of the targets. A few combinations are laid out for the
best to be taken: a search from far too long a lengthscale ends where all is noise.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from jgp import means
from jgp._evaluator import Evaluator
from jgp._free_parameters import FreeParameters, free_parameters
from jgp._model import Model, trainable
from jgp._process import GaussianProcess, IndependentProcess
from jgp._standardize import Rescaled, Standardize
from jgp.inference import Approximation
from jgp.kernels import AbstractKernel, Constant, Power, Product, Scaled, Sum, Warped
from jgp.kernels._stationary import AbstractStationary
from jgp.likelihoods import AbstractGaussian
from jgp.likelihoods._robust import AbstractNoise

# Lengthscales in units of the median distance, and the noise's shares of the variance.
LENGTHSCALES = (1.0, 0.3, 0.1)
SHARES = (0.3, 0.01)
# Points whose distances are looked at.
MAX_POINTS = 500
# Random starts: the range of a lengthscale in those units, and the spread of the
# logarithm of any other parameter.
RANGE = (0.03, 3.0)
SPREAD = 1.0
TRANSPARENT = (Sum, Product, Power, Scaled, GaussianProcess, IndependentProcess)


def starts(
    evaluator: Evaluator, model: Model, y: Any, init: str, restarts: int, key: Any
) -> list[tuple[np.ndarray, Approximation]]:
    """Raw parameters with the approximation there, of every search.

    Of the targets y those that are missing are NaN.
    """
    own = np.asarray(evaluator.parameters.raw)
    candidates = [own]
    if init == "data":
        suggested = from_data(model, evaluator.x, y)
        candidates.extend(np.asarray(free_parameters(m).raw) for m in suggested)
    usable = [raw for raw in candidates if np.all(np.isfinite(raw))]
    found = [(raw, *evaluator.cold(raw)) for raw in _distinct(usable)]
    # The model's own values where nothing else is better.
    raw, approximation, _ = max(found, key=lambda f: f[2])
    chosen = [(raw, approximation)]
    if restarts > 1:
        others = at_random(evaluator.parameters, raw, restarts - 1, key)
        chosen.extend((other, evaluator.cold(other)[0]) for other in others)
    return chosen


def _distinct(candidates: list[np.ndarray]) -> list[np.ndarray]:
    return list({c.tobytes(): c for c in candidates}.values())


def from_data(model: Model, x: Array, y: Any) -> list[Model]:
    """The model with its trainable parameters where the data suggest, several times."""
    points = np.asarray(x)[:: max(1, len(x) // MAX_POINTS)]
    regression = isinstance(model.likelihood, AbstractGaussian | AbstractNoise)
    found = []
    for lengthscale in LENGTHSCALES:
        spread = _spread(model, points, lengthscale)
        found.extend(
            _scaled(spread, np.asarray(y), share) if regression else spread
            for share in (SHARES if regression else (1.0,))
        )
    mask = trainable(model)
    held = eqx.filter(model, mask, inverse=True)
    found = [eqx.combine(eqx.filter(start, mask), held) for start in found]
    return [_within_bounds(start) for start in found]


def _within_bounds(model: Model) -> Model:
    """What `jgp.bound` bounds, at least a hundredth of the way inside.

    Of the ratio of the ends where both are positive, else of the difference.
    """
    ends = {path: (low, high) for path, low, high in model.bounds}

    def inside(path, leaf):
        if (name := jtu.keystr(path)) not in ends:
            return leaf
        low, high = ends[name]
        if low > 0:
            factor = (high / low) ** 0.01
            return jnp.clip(leaf, low * factor, high / factor)
        margin = (high - low) / 100
        return jnp.clip(leaf, low + margin, high - margin)

    return jtu.tree_map_with_path(inside, model) if ends else model


def at_random(
    parameters: FreeParameters,
    start: Float[np.ndarray, " p"],
    num: int,
    key: PRNGKeyArray,
) -> list[np.ndarray]:
    """Raw parameters about a start, lengthscales uniform in their logarithm."""
    spread = np.where(parameters.on_the_real_line, 0.0, SPREAD)
    long = np.array(parameters.each(lambda path, *_: path.endswith(".lengthscale")))
    low, high = np.log(RANGE)
    found = []
    for each in jax.random.split(key, num):
        normal_key, uniform_key = jax.random.split(each)
        normal = np.asarray(jax.random.normal(normal_key, start.shape, start.dtype))
        uniform = jax.random.uniform(uniform_key, start.shape, start.dtype)
        shift = np.where(long, low + (high - low) * np.asarray(uniform), normal)
        found.append((start + spread * shift).astype(start.dtype))
    return found


def _spread(model: Model, points: np.ndarray, factor: float) -> Model:
    process = _with_lengthscales(model.process, points, factor)
    return eqx.tree_at(lambda m: m.process, model, process)


def _with_lengthscales(node: PyTree, points: np.ndarray, factor: float) -> PyTree:
    """Lengthscales at `factor` times the median distance, wherever points are points.

    Inside kernels whose inputs mean something else they stay as they are.
    """
    if isinstance(node, Warped):
        points = np.asarray(jax.vmap(node.map)(jnp.asarray(points)))
        inner = _with_lengthscales(node.kernel, points, factor)
        return eqx.tree_at(lambda n: n.kernel, node, inner)
    if isinstance(node, AbstractStationary) and node.lengthscale.ndim < 2:
        value = _typical(points, node.lengthscale) * factor
        value = jnp.asarray(value, node.lengthscale.dtype)
        return eqx.tree_at(lambda n: n.lengthscale, node, value)
    if not isinstance(node, TRANSPARENT):
        return node
    for name in (field.name for field in dataclasses.fields(node)):
        value = getattr(node, name)
        several = isinstance(value, tuple)
        inner = tuple(
            _with_lengthscales(k, points, factor)
            if isinstance(k, AbstractKernel)
            else k
            for k in (value if several else (value,))
        )
        if any(isinstance(k, AbstractKernel) for k in inner):
            new = inner if several else inner[0]
            node = eqx.tree_at(lambda n, name=name: getattr(n, name), node, new)
    return node


def _typical(points: np.ndarray, like: Array) -> np.ndarray:
    """The median distance that is not zero: in each dimension, or in all together."""
    difference = np.abs(points[:, None] - points[None])
    if like.ndim == 0:
        distances = [np.sqrt(np.sum(difference**2, axis=2))]
    elif like.shape == points.shape[1:]:
        distances = list(np.moveaxis(difference, 2, 0))
    else:
        return np.asarray(like)
    found = [np.median(d[d > 0]) if np.any(d > 0) else np.nan for d in distances]
    own = np.broadcast_to(np.asarray(like), (len(found),))
    return np.where(np.isfinite(found), found, own).reshape(like.shape)


def _scaled(model: Model, y: np.ndarray, share: float) -> Model:
    """A regression's mean, variance and noise, the noise with a share of the whole."""
    process = model.process
    observed = y[np.isfinite(y)]
    function = getattr(process, "mean_function", None)
    centre = 0.0
    if isinstance(function, Rescaled):
        centre = float(function.offset)
    if isinstance(function, means.Constant) and observed.size:
        centre = float(np.mean(observed))
        value = jnp.asarray(centre, function.value.dtype)
        process = eqx.tree_at(lambda p: p.mean_function.value, process, value)
    square = float(np.mean((observed - centre) ** 2)) if observed.size else 0.0
    if not square > 0:
        return eqx.tree_at(lambda m: m.process, model, process)
    if isinstance(process, GaussianProcess):
        kernel = _with_variance(process.kernel, (1 - share) * square)
        process = eqx.tree_at(lambda p: p.kernel, process, kernel)
    elif isinstance(process, IndependentProcess):
        kernels = tuple(
            _with_variance(k, (1 - share) * square) for k in process.kernels
        )
        process = eqx.tree_at(lambda p: p.kernels, process, kernels)
    model = eqx.tree_at(lambda m: m.process, model, process)
    name, size = "noise_variance", share * square
    if isinstance(model.likelihood, AbstractNoise):
        name, size = "scale", np.sqrt(size)
    if not hasattr(model.likelihood, name):
        return model
    old = getattr(model.likelihood, name)
    new = jnp.full(old.shape, size, old.dtype)
    return eqx.tree_at(lambda m: getattr(m.likelihood, name), model, new)


def _standardised(kernel: AbstractKernel) -> AbstractKernel | None:
    """What `standardized` folded, None where it did not."""
    if not isinstance(kernel, Scaled) or not isinstance(kernel.kernel, Warped):
        return None
    warped = kernel.kernel
    return warped.kernel if isinstance(warped.map, Standardize) else None


def _with_variance(kernel: AbstractKernel, variance: float) -> AbstractKernel:
    """A kernel of this variance, if it has a factor for it; terms share it."""
    folded = _standardised(kernel)
    if isinstance(kernel, Scaled) and folded is not None:
        inner = _with_variance(folded, variance / float(kernel.variance))
        return eqx.tree_at(lambda k: k.kernel.kernel, kernel, inner)
    if isinstance(kernel, Scaled | Constant):
        new = jnp.asarray(variance, kernel.variance.dtype)
        return eqx.tree_at(lambda k: k.variance, kernel, new)
    if isinstance(kernel, Sum):
        share = variance / len(kernel.kernels)
        terms: Sequence = [_with_variance(k, share) for k in kernel.kernels]
        return eqx.tree_at(lambda k: k.kernels, kernel, tuple(terms))
    return kernel
