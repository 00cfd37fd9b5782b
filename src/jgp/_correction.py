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
Σᵢ (log Ẑᵢ − log of the inner EP's Ẑᵢ) under the same cavities.
"""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jgp._left_out import without_site
from jgp._linalg import inverse
from jgp.inference import Approximation, DenseSites, RankOneSites
from jgp.inference._sites import SitePosterior, site_posterior
from jgp.likelihoods import MultinomialProbit
from jgp.likelihoods._class_probabilities import contrast_matrix, log_orthant
from jgp.likelihoods._inner_ep import latent_contrasts, log_normaliser
from jgp.likelihoods._one_latent import tilted_moments

LARGEST_NUM_CLASSES = 3


@eqx.filter_jit
def evidence_correction(approximation: Approximation) -> Float[Array, ""]:
    """An analytic estimate of log Z − log Z_EP, to be added to `log_evidence`.

    Of first order for nested EP; of second order, with cumulants of orders 3 and 4, for
    `expectation_propagation` with power 1 and for nested_ep(..., inner="quadrature")
    with C <= 3. Cheap beside `evidence`, which has an error bar and this has not.

    Raises:
        ValueError: for an approximation by another method, or of more classes.
    """
    method, sites = approximation.method, approximation.sites
    if isinstance(sites, RankOneSites) and method == "nested_ep":
        return _first_order(approximation)
    if method not in ("nested_ep", "expectation_propagation"):
        raise ValueError(f"approximation: got {method}, wanted one by EP.")
    num_latents = approximation.model.process.num_latents
    if isinstance(sites, DenseSites) and num_latents > LARGEST_NUM_CLASSES:
        raise ValueError(
            f"approximation: got {num_latents} classes, wanted at most "
            f"{LARGEST_NUM_CLASSES} for the second-order correction."
        )
    return _second_order(approximation)


def _cavities(approximation: Approximation) -> tuple[Array, Array, SitePosterior]:
    """Means and covariances without the site of each point, and the posterior."""
    model, x, sites = approximation.model, approximation.x, approximation.sites
    assert sites is not None
    K, prior_mean = model.process.covariance(x), model.process.mean(x)
    posterior = site_posterior(K, prior_mean, sites)
    V, _ = without_site(posterior, sites)
    shift = jnp.einsum("icd,id->ic", V, posterior.weights)
    return posterior.mean - shift, V, posterior


def _first_order(approximation: Approximation) -> Float[Array, ""]:
    mean, V, _ = _cavities(approximation)

    def missing(m, V, label):
        inner = log_normaliser(latent_contrasts(m, V, label), label)
        B = contrast_matrix(label, m.shape[0], m.dtype)
        return log_orthant(B @ m, B @ V @ B.T) - inner

    return jnp.sum(jax.vmap(missing)(mean, V, approximation.y))


def _second_order(approximation: Approximation) -> Float[Array, ""]:
    mean, V, posterior = _cavities(approximation)
    S = posterior.covariance
    n, num_latents = mean.shape
    joint = approximation.posterior.joint(approximation.x).covariance
    joint = joint.reshape(n, num_latents, n, num_latents)
    if isinstance(approximation.model.likelihood, MultinomialProbit):
        B, third, fourth = _of_classes(mean, V, approximation.y)
    else:
        B, third, fourth = _of_one_latent(approximation, mean, V)
    # All in the coordinates Bf that a term depends on.
    V, S = B @ V @ B.mT, B @ S @ B.mT
    P = jnp.einsum("iac,icjd,jbd->iajb", B, joint, B)
    scale = jnp.einsum("iab,ibc->iac", inverse(S)[0], V)
    for _ in range(3):
        third = jnp.einsum("iabc,ida->ibcd", third, scale)
    for _ in range(4):
        fourth = jnp.einsum("iabce,ida->ibced", fourth, scale)
    off = 1 - jnp.eye(n, dtype=V.dtype)
    of_third = jnp.einsum("iabc,iajd->ijbcd", third, P)
    of_third = jnp.einsum("ijbcd,ibje->ijcde", of_third, P)
    of_third = jnp.einsum("ijcde,icjf,jdef->ij", of_third, P, third)
    of_fourth = jnp.einsum("iabcg,iajd->ijbcgd", fourth, P)
    of_fourth = jnp.einsum("ijbcgd,ibje->ijcgde", of_fourth, P)
    of_fourth = jnp.einsum("ijcgde,icjf->ijgdef", of_fourth, P)
    of_fourth = jnp.einsum("ijgdef,igjh,jdefh->ij", of_fourth, P, fourth)
    pairs = of_third / math.factorial(3) + of_fourth / math.factorial(4)
    return jnp.sum(off * pairs) / 2


def _of_classes(mean: Array, V: Array, y: Array) -> tuple[Array, Array, Array]:
    """B of each point and the third and fourth derivatives of log Ẑ in Bm₋."""

    def one(m, V, label):
        B = contrast_matrix(label, m.shape[0], m.dtype)
        log_probability = functools.partial(log_orthant, covariance=B @ V @ B.T)
        third = jax.jacfwd(jax.jacfwd(jax.grad(log_probability)))
        return B, third(B @ m), jax.jacfwd(third)(B @ m)

    return jax.vmap(one)(mean, V, y)


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
