"""Ratios of gamma functions of large arguments."""

import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

# From here on four terms of Stirling's series are good to 1e-14.
LARGE = 16.0


def log_gamma_ratio(x: Float[Array, "*n"], y: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Log Γ(x + y)/Γ(x) − y log x for x > 0, y >= 0, without cancellation.

    For large x by Stirling's series S of both, (x + y − ½) log(1 + y/x) − y + S(x + y)
    − S(x), which goes to 0 as x grows; two log gammas would leave rounding errors of
    their own size.
    """
    large = x >= LARGE
    stirling = jnp.where(large, x, LARGE)
    moderate = jnp.where(large, LARGE, x)
    series = _stirling(stirling + y) - _stirling(stirling)
    grown = (stirling + y - 0.5) * jnp.log1p(y / stirling)
    small = gammaln(moderate + y) - gammaln(moderate) - y * jnp.log(moderate)
    return jnp.where(large, grown - y + series, small)


def _stirling(x: Array) -> Array:
    """Log Γ(x) − (x − ½) log x + x − ½ log 2π, for x >= `LARGE`."""
    inverse = 1 / x
    square = inverse * inverse
    terms = 1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680))
    return inverse * terms
