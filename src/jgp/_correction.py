r"""What an EP evidence misses, by an expansion about its fixed point.

With F_i the ratio of the tilted distribution of point i to the marginal q(f_i),
Z = Z_EP E_q[∏ᵢ F_i] holds exactly. Two moments are matched, so in Hermite polynomials
F_i = 1 + Σ_{l≥3} E_tilted[He_l] He_l/l!, and since E[He_l(x)He_k(z)] = δ_lk l! ρ^l for
unit normals of correlation ρ, the pairs of points contribute

    log Z − log Z_EP ≈ Σ_{i<j} Σ_{l≥3} (1/l!) ⟨c_{l,i}, (Σ_ii⁻¹Σ_ijΣ_jj⁻¹)^{⊗l} c_{l,j}⟩

with the tilted cumulants c of order l (for l = 3, 4 and 5 they are those moments). This
is the second-order correction of Opper, Paquet & Winther 2013. A cumulant is V₋^{⊗l}
times the l-th derivative of log Ẑ in the cavity mean.

Nested EP matches no tilted moments exactly; its first-order correction is
Σᵢ (log Ẑᵢ − log of the inner EP's Ẑᵢ) under the same cavities. What its mismatch adds
to the pairs is neglected.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from jgp._left_out import without_site
from jgp._linalg import inverse
from jgp._orthant_cumulants import orthant_cumulants, weighted_cumulants
from jgp._parameters import is_concrete
from jgp.inference import Approximation, RankOneSites
from jgp.inference._site_posterior import SitePosterior, site_posterior
from jgp.likelihoods import LatentNoiseGaussian, MultinomialProbit
from jgp.likelihoods._class_probabilities import contrast_matrix, log_orthant
from jgp.likelihoods._inner_ep import latent_contrasts, log_normaliser
from jgp.likelihoods._latent_noise import tilted_points
from jgp.likelihoods._one_latent import tilted_moments

METHODS = ("nested_ep", "expectation_propagation")
LARGEST_NUM_CLASSES = 12


def evidence_correction(
    approximation: Approximation, *, order: int = 2
) -> Float[Array, ""]:
    """An analytic estimate of log Z − log Z_EP, to be added to `log_evidence`.

    For `nested_ep` and, with power 1, `expectation_propagation`. Much cheaper than
    `evidence`, which has an error bar and this has not.

    Args:
        approximation: By EP.
        order: 1 for what nesting misses, zero where tilted moments are exact; 2 adds
            the pairs of points, with cumulants of orders 3 and 4.

    Returns:
        The correction; NaN where EP did not converge or a cavity is improper.

    Raises:
        ValueError: for an approximation by another method or of another power, an
            order other than 1 and 2, or the second order with more than 12 classes.
    """
    method = getattr(approximation, "method", type(approximation).__name__)
    if method not in METHODS:
        raise ValueError(f"approximation: got {method}, wanted one by EP.")
    power = getattr(approximation.diagnostics, "power", 1.0)
    if is_concrete(power) and np.any(np.asarray(power) != 1):
        raise ValueError(f"approximation: got one of power {power}, wanted power 1.")
    if not isinstance(order, int) or order not in (1, 2):
        raise ValueError(f"order: got {order!r}, wanted 1 or 2.")
    num_classes = approximation.model.process.num_latents
    if order == 2 and num_classes > LARGEST_NUM_CLASSES:
        raise ValueError(
            f"order: got 2 for {num_classes} classes, wanted 1, or at most "
            f"{LARGEST_NUM_CLASSES} classes."
        )
    return _correction(approximation, order)


@eqx.filter_jit
def _correction(approximation: Approximation, order: int) -> Float[Array, ""]:
    model, x, sites = approximation.model, approximation.x, approximation.sites
    assert sites is not None
    K, prior_mean = model.process.covariance(x), model.process.mean(x)
    posterior = site_posterior(K, prior_mean, sites)
    V, proper = without_site(posterior, sites)
    mean = posterior.mean - jnp.einsum("icd,id->ic", V, posterior.weights)
    of_classes = isinstance(model.likelihood, MultinomialProbit)
    total = jnp.zeros((), mean.dtype)
    if of_classes:
        total = total + _of_nesting(approximation, mean, V)
    if order == 2:
        cumulants = _of_one_latent
        if isinstance(model.likelihood, LatentNoiseGaussian):
            cumulants = _of_two_latents
        elif of_classes:
            cumulants = _of_classes
        terms = cumulants(approximation, mean, V)
        total = total + _of_pairs(approximation, posterior, V, *terms)
    usable = jnp.all(proper) & (approximation.residual <= 1)
    return jnp.where(usable, total, jnp.nan)


def _of_nesting(approximation: Approximation, mean: Array, V: Array) -> Array:
    """Σᵢ log of the exact over the inner normaliser; zero for exact tilted moments."""
    if not isinstance(approximation.sites, RankOneSites):
        return jnp.zeros((), mean.dtype)

    def missing(point):
        m, V, label = point
        inner = log_normaliser(latent_contrasts(m, V, label), label)
        B = contrast_matrix(label, m.shape[0], m.dtype)
        return log_orthant(B @ m, B @ V @ B.T) - inner

    return jnp.sum(lax.map(missing, (mean, V, approximation.y)))


def _of_pairs(
    approximation: Approximation,
    posterior: SitePosterior,
    V: Array,
    B: Array,
    third: Array,
    fourth: Array,
) -> Float[Array, ""]:
    """½ Σ_{i≠j} Σ_l (1/l!) ⟨…⟩ in the coordinates Bf that a term depends on."""
    n, num_latents = posterior.mean.shape
    joint = approximation.posterior.joint(approximation.x).covariance
    joint = joint.reshape(n, num_latents, n, num_latents)
    V, S = B @ V @ B.mT, B @ posterior.covariance @ B.mT
    # Σ⁻¹V₋ turns derivatives in the cavity mean into Σ⁻¹ times the cumulants.
    scale = jnp.einsum("iab,ibc->iac", inverse(S)[0], V)
    for _ in range(3):
        third = jnp.einsum("iabc,ida->ibcd", third, scale)
    for _ in range(4):
        fourth = jnp.einsum("iabce,ida->ibced", fourth, scale)

    def with_others(point):
        i, third_i, fourth_i = point
        P = jnp.einsum("ac,cjd,jbd->ajb", B[i], joint[i], B)
        of_third = jnp.einsum("abc,ajd->jbcd", third_i, P)
        of_third = jnp.einsum("jbcd,bje->jcde", of_third, P)
        of_third = jnp.einsum("jcde,cjf,jdef->j", of_third, P, third)
        of_fourth = jnp.einsum("abcg,ajd->jbcgd", fourth_i, P)
        of_fourth = jnp.einsum("jbcgd,bje->jcgde", of_fourth, P)
        of_fourth = jnp.einsum("jcgde,cjf->jgdef", of_fourth, P)
        of_fourth = jnp.einsum("jgdef,gjh,jdefh->j", of_fourth, P, fourth)
        pairs = of_third / math.factorial(3) + of_fourth / math.factorial(4)
        return jnp.sum(jnp.where(jnp.arange(n) == i, 0, pairs))

    return jnp.sum(lax.map(with_others, (jnp.arange(n), third, fourth))) / 2


def _of_classes(
    approximation: Approximation, mean: Array, V: Array
) -> tuple[Array, Array, Array]:
    """B of each point and the third and fourth derivatives of log Ẑ in Bm₋."""

    def one(point):
        m, V, label = point
        B = contrast_matrix(label, m.shape[0], m.dtype)
        unit = jnp.eye(B.shape[0], dtype=m.dtype)
        return B, *orthant_cumulants(B @ m, B @ V @ B.T + 1 + unit)

    return lax.map(one, (mean, V, approximation.y))


def _of_two_latents(
    approximation: Approximation, mean: Array, V: Array
) -> tuple[Array, Array, Array]:
    """B = I at each point and the third and fourth derivatives of log Ẑ in m₋."""

    def one(m, V, y):
        points, weights = tilted_points(m, V, y)
        w = inverse(V)[0] @ (points - m[:, None])
        return jnp.eye(2, dtype=m.dtype), *weighted_cumulants(w, weights)

    return jax.vmap(one)(mean, V, approximation.y)


def _of_one_latent(approximation: Approximation, mean: Array, V: Array):
    likelihood = approximation.model.likelihood.at_data(approximation.x)
    y, ones = approximation.y, jnp.ones_like(mean[:, 0])

    def curvature(m):
        return -tilted_moments(likelihood, m, V[:, 0, 0], y, None).curvature

    def third(m):
        return jax.jvp(curvature, (m,), (ones,))[1]

    value, slope = jax.jvp(third, (mean[:, 0],), (ones,))
    B = jnp.ones((mean.shape[0], 1, 1), mean.dtype)
    return B, value[:, None, None, None], slope[:, None, None, None, None]
