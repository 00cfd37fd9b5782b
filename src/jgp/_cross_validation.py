"""Cross-validation in K folds: what the rest of the data says of each fold."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from jgp._model import Model
from jgp._objective import Verb, problem
from jgp._results import RESULTS
from jgp._types import check_key, positive_integer
from jgp.inference import Approximation
from jgp.likelihoods import FixedNoiseGaussian


class KFold(eqx.Module):
    """K folds of the data at random, each predicted from the others.

    Folds differ in size by one at most, and hold each class in its share. As
    `objective=KFold(5, key=key)` of `fit` their log predictive density is maximised,
    at the cost of K more approximations a step.

    Args:
        num_folds: K, at least 2; the number of data leaves out one at a time.
        key: A PRNG key, which says what goes where.
    """

    num_folds: int = eqx.field(static=True)
    key: PRNGKeyArray

    def __init__(self, num_folds: int = 5, *, key: PRNGKeyArray):
        self.num_folds = int(positive_integer("num_folds", num_folds, least=2))
        check_key(key)
        self.key = key

    def log_prob(
        self,
        model: Model,
        x: ArrayLike,
        y: Any,
        *,
        infer: Callable[..., Approximation] | None = None,
    ) -> Float[Array, " n"]:
        """The log density of each observation given the other folds.

        NaN where inference failed on those.

        Args:
            model: A model.
            x: (n, d) inputs.
            y: Targets, as the likelihood wants them.
            infer: As for `fit`.

        Raises:
            ValueError: for input that cannot be right, fewer data than folds, or a
                method with options of its own for each point (mask, init).
        """
        model, inputs, targets, verb = problem(model, x, y, infer)
        return _log_prob(self.objective(model, targets, verb), model, inputs, targets)

    def objective(self, model: Model, y: Any, infer: Verb) -> "KFoldObjective":
        """The folds of targets that have been checked, as an objective."""
        num_data = y.shape[0]
        if num_data < self.num_folds:
            raise ValueError(
                f"num_folds: got {self.num_folds} for {num_data} data, wanted no more "
                "folds than data."
            )
        own = [o for o in ("mask", "init") if infer.options.get(o) is not None]
        if own:
            raise ValueError(
                f"infer: got one with {own[0]}=, which is of all the data, wanted one "
                "without for folds of them."
            )
        order = np.asarray(jax.random.permutation(self.key, num_data))
        if model.likelihood.classes:
            order = order[np.argsort(np.asarray(y)[order], kind="stable")]
        # Cards are dealt: neighbours in the order go to different folds.
        folds = [order[k :: self.num_folds] for k in range(self.num_folds)]
        groups = []
        for size in sorted({f.size for f in folds}, reverse=True):
            tests = np.stack([f for f in folds if f.size == size])
            rest = [np.setdiff1d(np.arange(num_data), test) for test in tests]
            groups.append((jnp.asarray(np.stack(rest)), jnp.asarray(tests)))
        return KFoldObjective(infer, tuple(groups))


class KFoldObjective(eqx.Module):
    """Σᵢ log p(yᵢ | y of the other folds), with the model of an approximation.

    Args:
        infer: The inference method.
        groups: Folds of equal size: what each is predicted from, and its own indices.
    """

    infer: Verb
    groups: tuple[tuple[Int[Array, "k rest"], Int[Array, "k fold"]], ...]

    def __call__(self, approximation: Approximation) -> Float[Array, ""]:
        """The sum over all data."""
        model, x, y = approximation.model, approximation.x, approximation.y
        return jnp.sum(self.log_prob(model, x, y))

    def log_prob(self, model: Model, x: Array, y: Array) -> Float[Array, " n"]:
        """Each term, in the order of the data."""

        def fold(indices):
            rest, test = indices
            likelihood = model.likelihood
            part = eqx.tree_at(
                lambda m: m.likelihood, model, likelihood.at_points(rest)
            )
            noise = None
            if isinstance(likelihood, FixedNoiseGaussian):
                noise = likelihood.at_points(test).noise_variance
            found = self.infer(part, x[rest], y[rest])
            log_prob = found.log_prob(x[test], y[test], noise_variance=noise)
            return jnp.where(found.result == RESULTS.successful, log_prob, jnp.nan)

        total = jnp.zeros(x.shape[0], x.dtype)
        for rest, tests in self.groups:
            # One after another: batched, all would wait for the slowest.
            total = total.at[tests].set(lax.map(fold, (rest, tests)))
        return total


@eqx.filter_jit
def _log_prob(
    objective: KFoldObjective, model: Model, x: Array, y: Array
) -> Float[Array, " n"]:
    return objective.log_prob(model, x, y)
