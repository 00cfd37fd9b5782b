"""Likelihoods of one class among C, each with one latent a class."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jgp._cubature import gauss_hermite
from jgp._normal import inverse_mills, log_ndtr
from jgp.likelihoods._base import AbstractLikelihood, check_method
from jgp.likelihoods._class_probabilities import (
    other_classes,
    probit_by_inner_ep,
    probit_by_monte_carlo,
    probit_by_orthant,
    softmax_by_cubature,
)
from jgp.likelihoods._predictive import Categorical

# The integrand of the probit likelihood about its mode, scaled by its curvature, is
# so nearly normal that these reach 1e-9 (tests/likelihoods).
NUM_NODES = 24
NEWTON_STEPS = 8


class Softmax(AbstractLikelihood):
    """p(y = c | f) = exp(f_c)/Σ_d exp(f_d) (Rasmussen & Williams 2006, eq. 3.34).

    Args:
        num_classes: C, at least 2.
    """

    num_latents: int | None = eqx.field(static=True)

    def __init__(self, num_classes: int):
        self.num_latents = check_num_classes(num_classes)

    @property
    def classes(self) -> bool:
        """Labels."""
        return True

    @property
    def log_concave(self) -> bool:
        """It is."""
        return True

    def log_prob(self, f: Float[Array, " C"], y: Int[Array, ""]) -> Float[Array, ""]:
        """Log p(y | f) at one point."""
        return jax.nn.log_softmax(f)[y]

    def observe(self, f: Float[Array, "n C"]) -> Categorical:
        """softmax(f)."""
        return Categorical(jax.nn.softmax(f, axis=1))

    def predict(
        self,
        mean: Float[Array, "n C"],
        covariance: Float[Array, "n C C"],
        *,
        method: str | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Categorical:
        """E[softmax(f)], over the full covariance of the latents.

        `method` is "cubature" alone: Gauss-Hermite on the contrasts for C <= 3, a
        fixed lattice beyond, which `key` shifts at random.
        """
        check_method(method, ("cubature",))
        return Categorical(softmax_by_cubature(mean, covariance, key=key))

    def check_shape(self, shape: tuple[int, ...], num_latents: int) -> None:
        """(n,)."""
        check_label_shape(shape, num_latents)

    def targets(self, y: Any, num_latents: int) -> np.ndarray:
        """Integer labels 0..C-1."""
        return class_labels(y, num_latents)


class MultinomialProbit(AbstractLikelihood):
    """p(y = c | f) = E[∏_{d≠c} Φ(u + f_c − f_d)], u ~ N(0, 1).

    The probability that f_c + noise is the largest, with independent unit noise on
    each latent (Riihimäki, Jylänki & Vehtari 2013, eq. 4).

    Args:
        num_classes: C, at least 2.
    """

    num_latents: int | None = eqx.field(static=True)

    def __init__(self, num_classes: int):
        self.num_latents = check_num_classes(num_classes)

    @property
    def classes(self) -> bool:
        """Labels."""
        return True

    @property
    def log_concave(self) -> bool:
        """It is."""
        return True

    def log_prob(self, f: Float[Array, " C"], y: Int[Array, ""]) -> Float[Array, ""]:
        """Log p(y | f) at one point, by Gauss-Hermite about the integrand's mode.

        The log integrand ψ(u) = −½u² + Σ log Φ(u + d_k) is concave and its derivative
        convex, so Newton from 0 climbs to the mode without overshooting.
        """
        d = f[y] - f[other_classes(y, f.shape[0])]
        frozen = lax.stop_gradient(d)

        def newton(u, _):
            rho, q = inverse_mills(u + frozen)
            return u + (jnp.sum(rho) - u) / (1 + jnp.sum(q)), None

        start = jnp.zeros((), f.dtype)
        mode, _ = lax.scan(newton, start, None, length=NEWTON_STEPS)
        _, q = inverse_mills(mode + frozen)
        scale = 1 / jnp.sqrt(1 + jnp.sum(q))
        nodes, weights = gauss_hermite(NUM_NODES, f.dtype)
        u = mode + scale * nodes
        # Nodes last: sums over the minor axis do not vectorise on a CPU.
        terms = log_ndtr(u[None, :] + d[:, None])
        psi = (nodes**2 - u**2) / 2 + jnp.sum(terms, axis=0)
        return jnp.log(scale) + jax.nn.logsumexp(psi, b=weights)

    def observe(self, f: Float[Array, "n C"]) -> Categorical:
        """p(y = c | f) for every class."""
        labels = jnp.arange(f.shape[1], dtype=jnp.int32)
        over_labels = jax.vmap(self.log_prob, in_axes=(None, 0))
        log_probs = jax.vmap(over_labels, in_axes=(0, None))(f, labels)
        return Categorical(jax.nn.softmax(log_probs, axis=1))

    def predict(
        self,
        mean: Float[Array, "n C"],
        covariance: Float[Array, "n C C"],
        *,
        method: str | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Categorical:
        """E[p(y | f)], over the full covariance of the latents.

        `method` is one of
            "inner_ep"     the normaliser of inner EP for each class, renormalised
                           (error about 2e-4 for weakly correlated latents, up to
                           1e-2 for strongly correlated ones);
            "orthant"      the (C−1)-dimensional normal orthant probability: to
                           rounding for C <= 3 (bivariate normal), beyond on a fixed
                           lattice that `key` shifts at random, to 1e-6 for C <= 12
                           (at C = 10 about half a second a probability);
            "monte_carlo"  draws with control variates; needs `key`.
        """
        method = check_method(method, ("inner_ep", "orthant", "monte_carlo"))
        if method == "inner_ep":
            return Categorical(probit_by_inner_ep(mean, covariance))
        if method == "orthant":
            return Categorical(probit_by_orthant(mean, covariance, key=key))
        if key is None:
            raise ValueError('key: got None, wanted a key for method="monte_carlo".')
        return Categorical(probit_by_monte_carlo(mean, covariance, key=key))

    def check_shape(self, shape: tuple[int, ...], num_latents: int) -> None:
        """(n,)."""
        check_label_shape(shape, num_latents)

    def targets(self, y: Any, num_latents: int) -> np.ndarray:
        """Integer labels 0..C-1."""
        return class_labels(y, num_latents)


def check_num_classes(num_classes: Any) -> int:
    """`num_classes` as an int; `ValueError` unless it is an integer >= 2."""
    if isinstance(num_classes, bool) or not isinstance(num_classes, int | np.integer):
        raise ValueError(f"num_classes: got {num_classes!r}, wanted an integer >= 2.")
    if num_classes < 2:
        raise ValueError(f"num_classes: got {num_classes}, wanted an integer >= 2.")
    return int(num_classes)


def check_label_shape(shape: tuple[int, ...], num_classes: int) -> None:
    """`ValueError` unless the shape is (n,)."""
    if len(shape) != 1:
        raise ValueError(
            f"y: got shape {shape}, wanted (n,) integers 0..{num_classes - 1}."
        )


def class_labels(y: Any, num_classes: int) -> np.ndarray:
    """Labels as int32; `ValueError` unless (n,) and integral in 0..C-1."""
    y, wanted = np.asarray(y), f"integers 0..{num_classes - 1}"
    check_label_shape(y.shape, num_classes)
    if not (np.issubdtype(y.dtype, np.number) or y.dtype == bool):
        raise ValueError(f"y: got dtype {y.dtype}, wanted {wanted}.")
    right = np.isfinite(y) & (y == np.floor(y)) & (y >= 0) & (y < num_classes)
    if not right.all():
        raise ValueError(f"y: got the label {y[~right][0]}, wanted {wanted}.")
    return y.astype(np.int32)
