"""The posterior as a mixture of Gaussian processes, one a draw of the latents."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from jgp._cubature import normal_lattice
from jgp._linalg import diagonal_matrices, semidefinite_root, solve_lower
from jgp._process import AbstractProcess
from jgp.inference._data import check_inputs
from jgp.inference._posterior import AbstractPosterior, Joint, Marginals
from jgp.likelihoods import (
    AbstractGaussian,
    AbstractLikelihood,
    AbstractOneLatent,
    Categorical,
    LatentNoiseGaussian,
    NoisePredictive,
    Normal,
    Predictive,
)
from jgp.likelihoods._base import check_method

# New points at which all draws are held at once.
CHUNK_SIZE = 16
# Points of the lattice that draws are paired with, a prime; more draws go round.
LATTICE_POINTS = 4093


class DrawsPosterior(AbstractPosterior):
    """A mixture over draws of the latents at the training inputs.

    Given a draw, the latents elsewhere are Gaussian: with A = K½⁻¹k*, their mean is
    m₀(x*) + Aᵀw and their covariance k** − AᵀA, the same for every draw.

    Args:
        process: The prior.
        x: Training inputs.
        root: K½, the lower Cholesky factor of the prior covariance.
        whitened: Draws w; the latents are m₀ + K½w.
    """

    process: AbstractProcess
    x: Float[Array, "n d"]
    root: Float[Array, "C n n"]
    whitened: Float[Array, "chains draws n C"]

    @property
    def draws(self) -> Float[Array, "chains draws n C"]:
        """Draws of the latents at the training inputs."""
        deviation = jnp.einsum("cij,kljc->klic", self.root, self.whitened)
        return self.process.mean(self.x)[None, None] + deviation

    def marginals(self, x_new: ArrayLike) -> Marginals:
        """Mean and variance of the mixture at each input."""
        mean, covariance = _joint_blocks(
            self, check_inputs(x_new, self.x, self.process)
        )
        variance = jnp.diagonal(covariance, axis1=1, axis2=2)
        if mean.shape[1] == 1:
            return Marginals(mean[:, 0], variance[:, 0], covariance)
        return Marginals(mean, variance, covariance)

    def joint(self, x_new: ArrayLike) -> Joint:
        """Mean and covariance of the mixture over all inputs together."""
        mean, covariance = _joint(self, check_inputs(x_new, self.x, self.process))
        if mean.shape[1] == 1:
            return Joint(mean[:, 0], covariance[:, 0, :, 0])
        return Joint(mean, covariance)

    def sample(
        self, x_new: ArrayLike, *, key: PRNGKeyArray, num: int
    ) -> Float[Array, "num n *C"]:
        """Joint draws: a draw of the mixture, then of the latents given it."""
        draws = _sample(self, check_inputs(x_new, self.x, self.process), key, num)
        return draws[..., 0] if draws.shape[-1] == 1 else draws

    def predict(
        self,
        likelihood: AbstractLikelihood,
        x_new: ArrayLike,
        *,
        key: PRNGKeyArray | None = None,
        method: str | None = None,
        noise_variance: ArrayLike | None = None,
    ) -> Categorical | Normal | NoisePredictive | Predictive:
        """The distribution of observations, averaged over the draws.

        Observations with Gaussian noise get the mixture's mean and variance, other
        numbers the mixture itself. For classes each draw is paired with one point of a
        fixed lattice for the latents given it, or with a random one where a key is
        given.
        """
        points = check_inputs(x_new, self.x, self.process)
        likelihood = likelihood.at(points, noise_variance)
        check_method(method, ("draws",))
        if isinstance(likelihood, AbstractGaussian):
            _, _, covariance = moments = self.marginals(points)
            mean = moments.mean.reshape(covariance.shape[:2])
            return likelihood.predict(mean, covariance)
        if isinstance(likelihood, AbstractOneLatent) and not likelihood.classes:
            mean, variance = _components(self, points)
            return Predictive(likelihood, mean[..., 0], variance[..., 0])
        if isinstance(likelihood, LatentNoiseGaussian):
            mean, variance = _components(self, points)
            return NoisePredictive(mean, diagonal_matrices(variance))
        return Categorical(_class_probabilities(self, likelihood, points, key))


def _conditional(
    posterior: DrawsPosterior, x_new: Float[Array, "m d"]
) -> tuple[Float[Array, "C n m"], Float[Array, "draws m C"]]:
    """A = K½⁻¹k* and the conditional mean of each draw."""
    process, x = posterior.process, posterior.x
    A = solve_lower(posterior.root, process.covariance(x, x_new))
    A = jnp.broadcast_to(A, (process.num_latents, *A.shape[1:]))
    w = posterior.whitened.reshape(-1, *posterior.whitened.shape[2:])
    return A, process.mean(x_new)[None] + jnp.einsum("cim,sic->smc", A, w)


def _conditional_variance(
    posterior: DrawsPosterior, A: Array, x_new: Array
) -> Float[Array, "m C"]:
    prior = posterior.process.variance(x_new)
    return jnp.maximum(prior - jnp.sum(A**2, axis=1), 0).T


@eqx.filter_jit
def _joint_blocks(posterior: DrawsPosterior, x_new: Float[Array, "m d"]):
    def one(point):
        A, means = _conditional(posterior, point[None])
        variance = _conditional_variance(posterior, A, point[None])[0]
        centred = means[:, 0] - jnp.mean(means[:, 0], axis=0, keepdims=True)
        between = centred.T @ centred / means.shape[0]
        return jnp.mean(means[:, 0], axis=0), between + jnp.diag(variance)

    return lax.map(one, x_new, batch_size=CHUNK_SIZE)


@eqx.filter_jit
def _joint(posterior: DrawsPosterior, x_new: Float[Array, "m d"]):
    A, means = _conditional(posterior, x_new)
    mean = jnp.mean(means, axis=0)
    centred = means - mean[None]
    between = jnp.einsum("smc,sld->mcld", centred, centred) / means.shape[0]
    within = posterior.process.covariance(x_new) - A.mT @ A
    identity = jnp.eye(mean.shape[1], dtype=mean.dtype)
    return mean, between + jnp.einsum("cml,cd->mcld", within, identity)


@eqx.filter_jit
def _sample(posterior: DrawsPosterior, x_new: Array, key: PRNGKeyArray, num: int):
    choice_key, normal_key = jax.random.split(key)
    A, means = _conditional(posterior, x_new)
    chosen = jax.random.randint(choice_key, (num,), 0, means.shape[0])
    within = posterior.process.covariance(x_new) - A.mT @ A
    lower = jax.vmap(semidefinite_root)(within)
    normals = jax.random.normal(normal_key, (num, *means.shape[1:]), means.dtype)
    return means[chosen] + jnp.einsum("cml,slc->smc", lower, normals)


@eqx.filter_jit
def _components(posterior: DrawsPosterior, x_new: Float[Array, "m d"]):
    """Means and variances (m, S, C) of the latents given each of S draws."""

    def one(point):
        A, means = _conditional(posterior, point[None])
        variance = _conditional_variance(posterior, A, point[None])
        return means[:, 0], jnp.broadcast_to(variance, means[:, 0].shape)

    return lax.map(one, x_new, batch_size=CHUNK_SIZE)


@eqx.filter_jit
def _class_probabilities(posterior: DrawsPosterior, likelihood, x_new, key):
    num_draws = posterior.whitened.shape[0] * posterior.whitened.shape[1]
    num_latents = posterior.process.num_latents
    if key is None:
        normals = normal_lattice(LATTICE_POINTS, num_latents, x_new.dtype)
        # Lattice points are ordered along their first coordinate, draws in time.
        order = (jnp.arange(num_draws) * 1597) % LATTICE_POINTS
        normals = normals[order]
    else:
        shape = (num_draws, num_latents)
        normals = jax.random.normal(key, shape, x_new.dtype)

    def one(point):
        A, means = _conditional(posterior, point[None])
        scale = jnp.sqrt(_conditional_variance(posterior, A, point[None]))
        observed = likelihood.observe(means[:, 0] + scale * normals)
        return jnp.mean(observed.probs, axis=0)

    return lax.map(one, x_new, batch_size=CHUNK_SIZE)
