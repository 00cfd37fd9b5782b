"""Predictions averaged over draws of a model."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jgp.likelihoods._latent_noise import NoisePredictive
from jgp.likelihoods._mixture import Predictive
from jgp.likelihoods._predictive import Normal, check_number


class Averaged(eqx.Module):
    """The mixture, of equal weights, of what each of several models predicts.

    Args:
        components: Their predictions, of one kind, stacked along a leading axis.
    """

    components: Normal | NoisePredictive | Predictive

    def _each(self, function: Any) -> Array:
        return eqx.filter_vmap(function)(self.components)

    @property
    def mean(self) -> Float[Array, "n *C"]:
        """The mean of y at each input; NaN where a component has none."""
        return jnp.mean(self._each(lambda c: c.mean), axis=0)

    @property
    def variance(self) -> Float[Array, "n *C"]:
        """The variance of y at each input, by the law of total variance."""
        within = jnp.mean(self._each(lambda c: c.variance), axis=0)
        return within + jnp.var(self._each(lambda c: c.mean), axis=0)

    @property
    def stddev(self) -> Float[Array, "n *C"]:
        """The standard deviation of y at each input."""
        return jnp.sqrt(self.variance)

    def log_prob(self, y: Array) -> Float[Array, " n"]:
        """The log density, or log probability, of an observation at each input.

        Raises:
            ValueError: as that of a component.
        """
        each = self._each(lambda c: c.log_prob(y))
        return jax.nn.logsumexp(each, axis=0) - math.log(each.shape[0])

    def sample(self, *, key: PRNGKeyArray, num: int) -> Array:
        """(num, n, ...) draws; each of all inputs comes from one component."""
        check_number(num)
        which_key, draw_key = jax.random.split(key)
        leaves = jax.tree.leaves(eqx.filter(self.components, eqx.is_array))
        size = leaves[0].shape[0]
        which = jax.random.randint(which_key, (num,), 0, size)
        arrays, rest = eqx.partition(self.components, eqx.is_array)

        def one(i, key):
            component = jax.tree.map(lambda leaf: leaf[i], arrays)
            return eqx.combine(component, rest).sample(key=key, num=1)[0]

        return jax.vmap(one)(which, jax.random.split(draw_key, num))
