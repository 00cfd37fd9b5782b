"""The checks at the edge of every verb: what is concrete is looked at, in NumPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from jgp._model import Model
from jgp._parameters import cast, check_parameters, is_concrete
from jgp._process import AbstractProcess
from jgp._types import as_float
from jgp.likelihoods import AbstractGaussian


def as_inputs(x: ArrayLike, name: str = "x") -> Float[Array, "n d"]:
    """Inputs as a floating (n, d) array; a vector becomes (n, 1).

    Raises:
        ValueError: naming the argument, for other ranks, non-numbers, NaN or
            infinity.
    """
    kind = type(x).__name__
    check_unmasked(x, name)
    try:
        given = x if isinstance(x, Array) else np.asarray(x)
        if np.issubdtype(given.dtype, np.complexfloating):
            raise TypeError("complex numbers")
        array = as_float(given)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name}: got {kind} that is no array of numbers, wanted "
            "(n, d) or (n,) numbers."
        ) from error
    if jnp.finfo(array.dtype).bits < 32:
        raise ValueError(f"{name}: got {array.dtype}, wanted float32 or float64.")
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(
            f"{name}: got shape {array.shape}, wanted (n, d), or (n,) for d = 1."
        )
    if is_concrete(array):
        finite = np.isfinite(np.asarray(array))
        if not finite.all():
            raise ValueError(
                f"{name}: got {np.sum(~finite)} values that are NaN or infinite, "
                "wanted finite numbers."
            )
    return array


def check_unmasked(value: Any, name: str) -> None:
    """Raise a `ValueError` for NumPy's masked arrays, whose masks would be lost."""
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(
            f"{name}: got a masked array, wanted a plain one (for missing targets see "
            "`mask` of exact)."
        )


def check_inputs(
    x_new: ArrayLike, x: Float[Array, "n d"], process: AbstractProcess
) -> Float[Array, "m d"]:
    """New inputs in the dtype of the training inputs, and of their dimension."""
    new = as_inputs(_empty_as_matrix(x_new, x.shape[1]), "x_new")
    if new.shape[1] != x.shape[1]:
        raise ValueError(
            f"x_new: got shape {new.shape}, wanted (m, {x.shape[1]}), the dimension "
            "of the training inputs."
        )
    process.check_inputs(new, "x_new")
    given = new.astype(x.dtype)
    if is_concrete(given) and not np.isfinite(np.asarray(given)).all():
        raise ValueError(
            f"x_new: got values beyond the range of {x.dtype}, the dtype of the "
            "training inputs."
        )
    return given


def _empty_as_matrix(x: ArrayLike, dimension: int) -> ArrayLike:
    """An empty list is no points, of any dimension."""
    empty = isinstance(x, list | tuple) and len(x) == 0
    return np.zeros((0, dimension)) if empty else x


def prepare(
    model: Model, x: ArrayLike, y: Any, *, regression: bool | None = False
) -> tuple[Model, Array, Array]:
    """Model, inputs and targets, checked and in the dtype of the inputs.

    Args:
        model: A model.
        x: Inputs.
        y: Targets.
        regression: Whether the method is exact regression: only Gaussian noise, but
            priors that couple latents or have a flat part. None checks neither.

    Raises:
        ValueError: naming the argument, what was got and what was wanted.
    """
    if not isinstance(model, Model):
        raise ValueError(f"model: got {type(model).__name__}, wanted a jgp.Model.")
    check_parameters(model)
    inputs = as_inputs(x)
    if regression is not None:
        _check_method(model, inputs, regression)
    model.process.check_inputs(inputs)
    try:
        targets = check_targets(model, y, "y")
    except ValueError as error:
        beside = f" beside x of shape {inputs.shape}, wanted"
        of_shape = str(error).startswith("y: got shape")
        message = str(error).replace(", wanted", beside, 1) if of_shape else str(error)
        raise ValueError(message) from None
    if np.shape(targets)[:1] != inputs.shape[:1]:
        raise ValueError(
            f"y: got shape {np.shape(targets)} beside x of shape {inputs.shape}, "
            "wanted as many targets as inputs."
        )
    if inputs.shape[0] == 0 and not isinstance(model.likelihood, AbstractGaussian):
        raise ValueError(
            f"x: got no data (shape {inputs.shape}), wanted at least one point for "
            f"{type(model.likelihood).__name__}."
        )
    if not model.likelihood.classes:
        targets = targets.astype(inputs.dtype)
    return cast(model, inputs.dtype), inputs, targets


def _check_method(model: Model, x: Float[Array, "n d"], regression: bool) -> None:
    process, likelihood = model.process, type(model.likelihood).__name__
    if regression and not isinstance(model.likelihood, AbstractGaussian):
        raise ValueError(f"likelihood: got {likelihood}, wanted Gaussian for exact.")
    if not regression and process.coupled:
        raise ValueError(
            f"process: got {type(process).__name__}, whose latents depend on each "
            "other, wanted independent latents (or exact regression)."
        )
    if process.features is None:
        return
    if not regression:
        raise ValueError(
            "mean: got a Basis, whose coefficients only exact regression integrates "
            "out, wanted a function; for a proper prior add a kernel."
        )
    if is_coupled(model):
        raise ValueError(
            "mean: got a Basis for outputs whose noise is correlated, wanted a "
            "function (a Basis is for independent outputs)."
        )
    shape = jax.eval_shape(jax.vmap(process.features), x).shape
    if len(shape) != 2:
        raise ValueError(
            f"mean: got a Basis of features of shape {shape[1:]} at a point, wanted "
            "(p,), a vector."
        )
    num_features = shape[1]
    if x.shape[0] < num_features:
        raise ValueError(
            f"x: got {x.shape[0]} points for the {num_features} features of the mean's "
            "Basis, wanted at least as many points as features."
        )


def is_coupled(model: Model) -> bool:
    """Whether outputs depend on each other, by the prior or by Gaussian noise."""
    likelihood = model.likelihood
    gaussian = isinstance(likelihood, AbstractGaussian)
    return model.process.coupled or (gaussian and likelihood.correlated)


def check_targets(model: Model, y: Any, name: str) -> Array:
    """Targets as an array of the shape and kind that the likelihood wants.

    Raises:
        ValueError: naming the argument; for the values only where they are concrete.
    """
    num_latents = model.process.num_latents
    check_unmasked(y, name)
    try:
        if is_concrete(y) and np.iscomplexobj(np.asarray(y)):
            raise ValueError("y: got complex numbers, wanted real ones.")
        model.likelihood.check_shape(np.shape(y), num_latents)
        if is_concrete(y):
            y = model.likelihood.targets(y, num_latents)
    except ValueError as error:
        message = str(error)
        if not message.startswith("y: got"):  # NumPy's own, of ragged lists
            message = f"y: got no array ({message}), wanted one target a point."
        raise ValueError(message.replace("y:", f"{name}:", 1)) from None
    targets = jnp.asarray(y)
    # Traced labels get the dtype that concrete ones are given.
    return targets.astype(jnp.int32) if model.likelihood.classes else targets


def tolerances(rtol, atol, dtype) -> tuple[np.ndarray, np.ndarray]:
    """Tolerances as arrays of the working dtype: 1e-6, or 1e-4 in float32."""
    default = 1e-6 if np.finfo(dtype).bits == 64 else 1e-4
    rtol = default if rtol is None else rtol
    atol = default if atol is None else atol
    for name, value in (("rtol", rtol), ("atol", atol)):
        if is_concrete(value) and not (_is_number(value) and 0 <= value < np.inf):
            raise ValueError(f"{name}: got {value!r}, wanted a finite number >= 0.")
    return _scalar(rtol, dtype), _scalar(atol, dtype)


def bounded(name: str, value: Any, low: float, high: float, dtype: Any) -> Any:
    """A scalar option as an array; `ValueError` unless low <= value <= high."""
    if is_concrete(value) and not (_is_number(value) and low <= value <= high):
        raise ValueError(f"{name}: got {value!r}, wanted {low} <= {name} <= {high}.")
    return _scalar(value, dtype)


def _is_number(value: Any) -> bool:
    array = np.asarray(value)
    return array.ndim == 0 and np.issubdtype(array.dtype, np.number)


def _scalar(value: Any, dtype: Any) -> Any:
    return np.asarray(value, dtype) if is_concrete(value) else value.astype(dtype)
