r"""E[log Σ exp f_c] of independent normals, by integrals over one dimension.

log Σ exp f_c + γ is the mean of the largest of f_c + G_c, G_c standard Gumbel (McFadden
1974), whose distribution function is a product. So, for any a,

    E[log Σ exp f_c] = a + ∫ exp(−e^{a−u}) − ∏_c φ_c(u) du,

φ_c(u) = E[exp(−e^{f_c−u})].

The integrand is analytic and decays at both ends, so the trapezoid converges
exponentially; φ_c takes Gauss-Hermite. The cost is linear in the number of classes.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jgp._cubature import gauss_hermite

NUM_LEVELS = 64
NUM_NODES = 24
# Standard deviations and Gumbel units beyond which the integrand is nothing.
DEVIATIONS = 6.0
BELOW, ABOVE = 4.0, 12.0


def expected_log_sum_exp(
    mean: Float[Array, "n C"], variance: Float[Array, "n C"]
) -> Float[Array, " n"]:
    """E[log Σ_c exp f_c], f_c ~ N(mean, variance) independent.

    To 1e-9 for standard deviations up to 1, to 1e-6 at 2, 1e-4 at 3 and 0.1 at 10.
    """
    dtype = mean.dtype
    z, weights = gauss_hermite(NUM_NODES, dtype)
    deviation = jnp.sqrt(variance)
    # Where the levels lie is a constant: what the trapezoid misses is nothing.
    m, s = lax.stop_gradient((mean, deviation))
    largest = jnp.max(m + 3 * s, axis=1) + float(np.log(m.shape[1]))
    a = jnp.minimum(jax.nn.logsumexp(m + s**2 / 2, axis=1), largest)
    low = jnp.minimum(a, jnp.max(m - DEVIATIONS * s, axis=1)) - BELOW
    high = jnp.maximum(a, jnp.max(m + DEVIATIONS * s, axis=1)) + ABOVE
    step = (high - low) / (NUM_LEVELS - 1)
    index = jnp.arange(NUM_LEVELS, dtype=dtype)
    decay = jnp.exp((a - low)[:, None] - step[:, None] * index[None])
    centred = mean - a[:, None]
    rates = jnp.exp(centred[:, :, None] + deviation[:, :, None] * z[None, None])
    phi = jnp.exp(-decay[:, None, :, None] * rates[:, :, None, :]) @ weights
    return a + step * jnp.sum(jnp.exp(-decay) - jnp.prod(phi, axis=1), axis=1)
