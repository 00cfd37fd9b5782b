"""Likelihoods of one of two classes, by one latent."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jgp._normal import inverse_mills, log_ndtr, ndtr
from jgp.likelihoods._base import check_method
from jgp.likelihoods._categorical import class_labels
from jgp.likelihoods._mixture import gaussian_expectation, in_chunks
from jgp.likelihoods._one_latent import AbstractOneLatent, Tilted, tilted_moments
from jgp.likelihoods._predictive import Categorical


class AbstractBernoulli(AbstractOneLatent):
    """p(y = 1 | f) = σ(f), p(y = 0 | f) = σ(−f), for labels 0 and 1."""

    @abc.abstractmethod
    def probability(self, f: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """σ(f), elementwise."""

    @property
    def classes(self) -> bool:
        """Labels."""
        return True

    @property
    def log_concave(self) -> bool:
        """It is."""
        return True

    def features(
        self, y: Int[Array, " n"]
    ) -> tuple[Float[Array, "n 1"], Float[Array, "n 1"]]:
        """About 0, over distances of 1."""
        at = jnp.zeros((y.shape[0], 1), jnp.result_type(float))
        return at, jnp.ones_like(at)

    def conditional_mean(self, f: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """σ(f)."""
        return self.probability(f)

    def conditional_variance(self, f: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """σ(f)σ(−f)."""
        return self.probability(f) * self.probability(-f)

    def sample(self, f: Float[Array, "*n"], *, key: PRNGKeyArray) -> Int[Array, "*n"]:
        """A label for each f."""
        return jax.random.bernoulli(key, self.probability(f)).astype(jnp.int32)

    def observe(self, f: Float[Array, "n 1"]) -> Categorical:
        """(σ(−f), σ(f))."""
        probs = self.probability(-f), self.probability(f)
        return Categorical(jnp.concatenate(probs, axis=1))

    def targets(self, y: Any, num_latents: int) -> np.ndarray:
        """Integer labels 0 and 1."""
        del num_latents
        return class_labels(y, 2)


class BernoulliProbit(AbstractBernoulli):
    """p(y = 1 | f) = Φ(f) (Rasmussen & Williams 2006, §3.3)."""

    def probability(self, f: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Φ(f)."""
        return ndtr(f)

    def log_density(self, f: Float[Array, "*n"], y: Array) -> Float[Array, "*n"]:
        """Log Φ((2y − 1)f)."""
        return log_ndtr(signs(y, f) * f)

    def predict(
        self,
        mean: Float[Array, "n 1"],
        covariance: Float[Array, "n 1 1"],
        *,
        method: str | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Categorical:
        """Φ(±m/√(1 + v)), in closed form."""
        del key
        check_method(method, ("closed_form",))
        return self.observe(mean / jnp.sqrt(1 + covariance[:, :, 0]))


class BernoulliLogit(AbstractBernoulli):
    """p(y = 1 | f) = 1/(1 + exp(−f)) (Rasmussen & Williams 2006, §3.3)."""

    def probability(self, f: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """The logistic function."""
        return jax.nn.sigmoid(f)

    def log_density(self, f: Float[Array, "*n"], y: Array) -> Float[Array, "*n"]:
        """−log(1 + exp(−(2y − 1)f))."""
        return -jax.nn.softplus(-signs(y, f) * f)

    def predict(
        self,
        mean: Float[Array, "n 1"],
        covariance: Float[Array, "n 1 1"],
        *,
        method: str | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Categorical:
        """The averages of σ(−f) and σ(f), by panels."""
        del key
        check_method(method, ("panels",))

        def expectation(m, v):
            def both(f):
                return self.probability(-f), self.probability(f)

            return gaussian_expectation(both, m, v)

        averages = in_chunks(expectation, mean[:, 0], covariance[:, 0, 0])
        return Categorical(jnp.stack(averages, axis=1))


def signs(y: Array, f: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """−1 for the label 0 and 1 for the label 1, in the dtype of f."""
    return 2 * jnp.asarray(y).astype(f.dtype) - 1


@tilted_moments.register
def _(
    likelihood: BernoulliProbit,
    mean: Float[Array, " n"],
    variance: Float[Array, " n"],
    y: Array,
    power: Float[Array, " n"] | None = None,
) -> Tilted:
    """In closed form for power 1 (Rasmussen & Williams 2006, §3.9)."""
    if power is not None:
        return tilted_moments.dispatch(AbstractOneLatent)(
            likelihood, mean, variance, y, power
        )
    sign, total = signs(y, mean), 1 + variance
    z = sign * mean / jnp.sqrt(total)
    rho, q = inverse_mills(z)
    # 1 − vh = (1 + v(1 − q))/(1 + v), in which nothing cancels.
    return Tilted(
        log_ndtr(z),
        sign * rho / jnp.sqrt(total),
        q / total,
        (1 + variance * (1 - q)) / total,
    )
