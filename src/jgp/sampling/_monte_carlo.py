r"""Plain and quasi-Monte Carlo means, with control variates.

The mean of $f$ less $b^\top h$, where the control variates $h$ have mean 0, has the
mean of $f$ for any $b$, and the least variance, $(1 - R^2)\operatorname{var} f$, where
$b$ is the regression of $f$ on $h$ (Owen 2013, §8.9; Cabral 2021, §4.5.1). Fitted to
the same draws it leaves a bias of order 1/num.

Scrambled Sobol points are uniform each, and fill the cube more evenly than draws do:
the error of smooth $f$ falls almost as $1/\text{num}$, and as $\text{num}^{-3/2}$
under enough smoothness (Owen 1997). How large it is, independent scramblings tell.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jgp._lapack import eigh
from jgp._parameters import is_concrete
from jgp._types import as_float, check_key, positive_integer
from jgp.sampling._importance import Estimate
from jgp.sampling._tempering import in_batches

# Independent scramblings, whose spread is the standard error.
NUM_SCRAMBLINGS = 16


def monte_carlo(
    function: Callable[[Any], Array],
    sample: Callable[[Any], Any],
    *,
    key: PRNGKeyArray,
    num: int,
    control_variates: Callable[[Any], Array] | None = None,
    sobol_dimension: int | None = None,
    batch_size: int | None = None,
) -> Estimate:
    """The mean of a function of a random draw, with its standard error.

    Args:
        function: Maps a draw to a number or an array.
        sample: Maps a key to a draw; with `sobol_dimension`, a point of the open unit
            cube, an array of that length (`jax.scipy.special.ndtri` of it is normal).
        key: A typed random key; with `sobol_dimension`, not a traced one.
        num: Draws; with `sobol_dimension`, rounded up to 16 times a power of two, as
            16 scramblings say what the error is.
        control_variates: Maps a draw to numbers of mean 0, one or a vector, whose
            regression is taken off: far fewer of them than draws.
        sobol_dimension: How many uniform numbers a draw takes, for quasi-Monte Carlo.
        batch_size: Draws at once; all by default.

    Returns:
        The estimate and its standard error, in the shape of what `function` returns.
        With n draws and k control variates the error is the residuals' standard
        deviation, of n − k − 1 degrees of freedom, over √n.

    Raises:
        ValueError: If there are no more draws than control variates and one, or
            `sobol_dimension` is less than 1, or `key` is no key.
    """
    check_key(key)
    num = int(positive_integer("num", num, least=2))
    if sobol_dimension is None:
        inputs = jax.random.split(key, num)
    else:
        inputs = _sobol(key, num, sobol_dimension)

    def one(given):
        draw = sample(given)
        value = as_float(function(draw))
        none = jnp.zeros(0, value.dtype)
        controls = none if control_variates is None else control_variates(draw)
        return value, jnp.atleast_1d(as_float(controls))

    values, controls = in_batches(one, inputs, batch_size)
    if controls.ndim != 2:
        raise ValueError(
            f"control_variates: expected a number or a vector of them for each draw, "
            f"got shape {controls.shape[1:]}."
        )
    shape, count = values.shape[1:], values.shape[0]
    values = values.reshape(count, -1)
    if count <= controls.shape[1] + 1:
        raise ValueError(
            f"num: got {count} draws for {controls.shape[1]} control variates, "
            "expected more."
        )
    if sobol_dimension is None:
        mean, error = _regressed(values, controls.astype(values.dtype))
    else:
        mean, error = _scrambled(values, controls.astype(values.dtype))
    return Estimate(mean.reshape(shape), error.reshape(shape))


def _regressed(
    values: Float[Array, "num m"], controls: Float[Array, "num k"]
) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
    """Means without what the control variates explain, and their errors."""
    num, k = controls.shape
    rest = values - controls @ _coefficients(values, controls)
    mean = jnp.mean(rest, axis=0)
    variance = jnp.sum((rest - mean[None]) ** 2, axis=0) / (num - k - 1)
    return mean, jnp.sqrt(variance / num)


def _coefficients(
    values: Float[Array, "num m"], controls: Float[Array, "num k"]
) -> Float[Array, "k m"]:
    """The regression of the values; what repeats other control variates counts once."""
    if controls.shape[1] == 0:
        return jnp.zeros((0, values.shape[1]), values.dtype)
    centred = controls - jnp.mean(controls, axis=0, keepdims=True)
    scales = jnp.sqrt(jnp.sum(centred**2, axis=0))
    scales = jnp.where(scales > 0, scales, 1)
    unit = centred / scales[None]
    roots, directions = eigh(unit.T @ unit)
    smallest = controls.shape[0] * jnp.finfo(values.dtype).eps
    inverses = jnp.where(roots > smallest, 1 / jnp.maximum(roots, smallest), 0)
    projections = directions.T @ (unit.T @ values)
    return directions @ (inverses[:, None] * projections) / scales[:, None]


def _scrambled(
    values: Float[Array, "num m"], controls: Float[Array, "num k"]
) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
    """The same from the means of the scramblings, with coefficients from all points."""
    rest = values - controls @ _coefficients(values, controls)
    parts = rest.reshape(NUM_SCRAMBLINGS, -1, values.shape[1])
    means = jnp.mean(parts, axis=1)
    error = jnp.std(means, axis=0, ddof=1) / math.sqrt(NUM_SCRAMBLINGS)
    return jnp.mean(means, axis=0), error


def _sobol(key: PRNGKeyArray, num: int, dimension: int) -> Float[Array, "num d"]:
    """Scrambled points in the open unit cube, one scrambling after another."""
    from scipy.stats import qmc

    dimension = int(positive_integer("sobol_dimension", dimension))
    if not is_concrete(key):
        raise ValueError(
            "key: got a traced one, expected a concrete one for sobol_dimension, whose "
            "points are made on the host."
        )
    log_size = max(0, math.ceil(math.log2(num / NUM_SCRAMBLINGS)))
    seeds = np.asarray(jax.random.bits(key, (NUM_SCRAMBLINGS,), "uint32"))
    engines = (qmc.Sobol(dimension, rng=np.random.default_rng(s)) for s in seeds)
    points = np.concatenate([engine.random_base2(log_size) for engine in engines])
    points = jnp.asarray(points, jnp.result_type(float))
    # Rounded to float32 a point may lie on a face, where normals are infinite.
    info = jnp.finfo(points.dtype)
    return jnp.clip(points, info.tiny, 1 - info.epsneg)
