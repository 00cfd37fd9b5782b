r"""Reference draws: elliptical slice sampling about a Gaussian approximation.

With the prior as its Gaussian, elliptical slice sampling mixes slowly once the data say
much. It leaves p(f | y) invariant with any Gaussian q, the rest of the density taken as
its likelihood (Nishihara, Murray & Adams 2014, §2): draws then are nearly independent
when q is good. In whitened coordinates f = m₀ + Lw, LLᵀ = K,

    q(w) = N(Lᵀb, A⁻¹),  A = I + s LᵀTL,

for the sites T of the approximation, widened by s < 1, and no inverse of K is needed.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jaxtyping import Array, Float, PRNGKeyArray

import jgp
from jgp.inference import DrawsPosterior, GaussianPosterior
from jgp.sampling import elliptical_slice, run

NUM_CHAINS = 4
TEMPER = 0.75
# Added to the diagonal of K, whose repeated inputs make it singular.
JITTER = 1e-10


@eqx.filter_jit
def sample_about(
    approximation: jgp.Approximation,
    key: PRNGKeyArray,
    *,
    num_warmup: int,
    num_samples: int,
    thinning: int,
) -> DrawsPosterior:
    """Draws from the posterior of the latents, four chains from draws of q.

    Args:
        approximation: One with sites; centres and scales the ellipses.
        key: A PRNG key.
        num_warmup: Steps thrown away.
        num_samples: Draws kept of each chain.
        thinning: Steps from one draw to the next.
    """
    model, x, y = approximation.model, approximation.x, approximation.y
    sites, gaussian = approximation.sites, approximation.posterior
    if sites is None or not isinstance(gaussian, GaussianPosterior):
        raise ValueError(
            f"approximation: got {approximation.method}, wanted one with sites."
        )
    prior_mean = model.process.mean(x)
    K = model.process.covariance(x)
    K = jnp.broadcast_to(K, (prior_mean.shape[1], *K.shape[1:]))
    L = jnp.linalg.cholesky(K + JITTER * jnp.eye(K.shape[1]))
    centre = jnp.einsum("cji,jc->ic", L, gaussian.weights)

    def precision_times(d):
        """A d."""
        T_Ld = sites.times(jnp.einsum("cij,jc->ic", L, d))
        return d + TEMPER * jnp.einsum("cji,jc->ic", L, T_Ld)

    basis = jnp.eye(centre.size).reshape(-1, *centre.shape)
    A = jax.lax.map(precision_times, basis, batch_size=256)
    R = jnp.linalg.cholesky(A.reshape(centre.size, centre.size))

    def draw(key) -> Float[Array, "n C"]:
        z = jax.random.normal(key, (centre.size,), centre.dtype)
        return jsl.solve_triangular(R, z, trans="T", lower=True).reshape(centre.shape)

    def log_ratio(d):
        """The log density of the posterior over q's, up to a constant."""
        w = centre + d
        f = prior_mean + jnp.einsum("cij,jc->ic", L, w)
        log_likelihood = jnp.sum(jax.vmap(model.likelihood.log_prob)(f, y))
        return log_likelihood + jnp.sum(d * precision_times(d) - w**2) / 2

    def step(state, *, key):
        return elliptical_slice.step(
            state, log_likelihood=log_ratio, draw=draw, key=key
        )

    def chain(start_key, run_key):
        state = elliptical_slice.init(draw(start_key), log_ratio)
        return run(
            step,
            state,
            key=run_key,
            num_samples=num_samples,
            num_warmup=num_warmup,
            thinning=thinning,
        ).draws

    start_key, run_key = jax.random.split(key)
    starts = jax.random.split(start_key, NUM_CHAINS)
    runs = jax.random.split(run_key, NUM_CHAINS)
    deviations = jax.vmap(chain)(starts, runs)
    return DrawsPosterior(model.process, x, L, centre[None, None] + deviations)
