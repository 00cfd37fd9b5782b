r"""E[log Σ exp f_c] of independent normals, by integrals over one dimension.

log Σ exp f_c + γ is the mean of the largest of f_c + G_c, G_c standard Gumbel (McFadden
1974), whose distribution function is a product. So, for any a,

    E[log Σ exp f_c] = a + ∫ exp(−e^{a−u}) − ∏_c φ_c(u) du,

φ_c(u) = E[exp(−e^{f_c−u})].

The integrand is analytic and decays at both ends, so the trapezoid converges
exponentially; φ_c takes Gauss-Hermite. The cost is linear in the number of classes. The
levels u move with the moments and are differentiated with them: derivatives are those
of the sum.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jgp._cubature import gauss_hermite

NUM_LEVELS = 96
NUM_NODES = 24
# Standard deviations and Gumbel units beyond which the integrand is nothing.
DEVIATIONS = 6.0
BELOW, ABOVE = 4.0, 12.0
# exp(−exp x) is zero beyond.
LARGEST = 7.0


def expected_log_sum_exp(
    mean: Float[Array, "n C"], variance: Float[Array, "n C"]
) -> Float[Array, " n"]:
    """E[log Σ_c exp f_c], f_c ~ N(mean, variance) independent.

    To 1e-11 for standard deviations up to 1, 1e-6 at 2, 1e-4 at 3 and 0.1 at 10.
    """
    dtype = mean.dtype
    z, weights = gauss_hermite(NUM_NODES, dtype)
    s = jnp.sqrt(variance)
    largest = jnp.max(mean + 3 * s, axis=1) + float(np.log(mean.shape[1]))
    a = jnp.minimum(jax.nn.logsumexp(mean + variance / 2, axis=1), largest)
    low = jnp.minimum(a, jnp.max(mean - DEVIATIONS * s, axis=1)) - BELOW
    high = jnp.maximum(a, jnp.max(mean + DEVIATIONS * s, axis=1)) + ABOVE
    step = (high - low) / (NUM_LEVELS - 1)
    index = jnp.arange(NUM_LEVELS, dtype=dtype)
    below = (a - low)[:, None] - step[:, None] * index[None]
    f = (mean - a[:, None])[:, :, None] + s[:, :, None] * z[None, None]
    exponents = f[:, :, None, :] + below[:, None, :, None]
    phi = jnp.exp(-jnp.exp(jnp.minimum(exponents, LARGEST))) @ weights
    own = jnp.exp(-jnp.exp(jnp.minimum(below, LARGEST)))
    return a + step * jnp.sum(own - jnp.prod(phi, axis=1), axis=1)
