"""Every kernel and operation of the sources at forty digits."""

import json
import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jgp import kernels
from jgp.kernels import gram

REFERENCE = json.loads(
    (Path(__file__).parents[1] / "reference" / "kernels.json").read_text()
)
GRAMS, POINTS = REFERENCE["grams"], REFERENCE["points"]
EPS = float(np.finfo(jnp.result_type(float)).eps)
# In the source squared exponentials, rational quadratics and periodic kernels take a
# squared length.
SE = kernels.SquaredExponential(math.sqrt(0.7))
RQ, PERIODIC = kernels.RationalQuadratic, kernels.Periodic
METRIC = np.array([[0.6, 0.2], [0.2, 0.9]])
POLYNOMIAL = kernels.Polynomial(2, METRIC, 0.5)
BLOCKS = (PERIODIC(math.sqrt(0.7), 2 * math.pi), kernels.Matern32(0.8))
UNIFORM = {"c1": 1e-4, "c2": 9e-4}
# The mean over windows has its own weights; the first is a constant.
MEAN_SSIM = (
    kernels.MeanSSIM((3, 3), 2, window_variance=[0.4, 0.3, 0.2, 0.1], **UNIFORM) + 0.05
)


def circle(x):
    return jnp.concatenate([jnp.cos(x), jnp.sin(x)])


def gibbs_lengthscale(x):
    return jnp.stack([0.5 + 0.2 * x[0] ** 2, 0.3 + 1 / (1 + x[0] ** 2)])


def amplitude(x):
    return 1 + x[0] - 2 * x[1] ** 2


def own_variance(x):
    return POLYNOMIAL(x, x)[None]


def metric(x):
    corner = 0.2 * jnp.sin(x[1])
    other = jnp.full_like(corner, 0.6)
    return jnp.stack(
        [jnp.stack([0.4 + x[0] ** 2 / 2, corner]), jnp.stack([corner, other])]
    )


KERNELS = {
    "se_iso_l0.7_X1": SE,
    "se_iso_l0.7_X2": SE,
    "se_full_X2": kernels.SquaredExponential(np.linalg.cholesky(METRIC)),
    "se_ard_X3": 1.7 * kernels.SquaredExponential(np.array([0.5, 0.8, 1.3])),
    "gibbs_X2": kernels.Gibbs(gibbs_lengthscale),
    "gamma_exp_g0.5_l0.7_X2": kernels.GammaExponential(0.5, 0.7),
    "gamma_exp_g1_l0.7_X2": kernels.GammaExponential(1.0, 0.7),
    "gamma_exp_g2_l0.7_X2": kernels.GammaExponential(2.0, 0.7),
    "rq_a2_l0.7_X2": RQ(2.0, math.sqrt(0.7)),
    "nn_X2": kernels.NeuralNetwork(
        np.array([[0.7, 0.1, -0.2], [0.1, 1.3, 0.3], [-0.2, 0.3, 0.8]])
    ),
    "poly_p1_X2": kernels.Polynomial(1, METRIC, 0.5),
    "poly_p2_X2": POLYNOMIAL,
    "trig_X1": kernels.TrigonometricCompact(),
    "periodic_l0.7_X1": BLOCKS[0],
    "cauchy_XP": kernels.Cauchy(),
    "wiener_XP": kernels.Wiener(),
    "op_sum": SE + POLYNOMIAL,
    "op_product": SE * POLYNOMIAL,
    "op_power3": POLYNOMIAL**3,
    "op_vertical_rescale": kernels.Scaled(SE, amplitude=amplitude),
    "op_const_scale": 2.5 * SE + 0.3,
    "op_normalise": kernels.Normalized(POLYNOMIAL),
    "op_warp_periodic_identity": kernels.Warped(SE, circle),
    "op_warp_cauchy": kernels.Warped(kernels.Cauchy(), own_variance),
    "op_diff_se_i1": kernels.Derivative(SE, 0),
    "op_diff_poly2_i1": kernels.Derivative(POLYNOMIAL, 0),
    "op_direct_sum": kernels.DirectSum(BLOCKS, (1, 2)),
    "op_cartesian": kernels.TensorProduct(BLOCKS, (1, 2)),
    "op_paciorek_se": kernels.NonStationary(kernels.SquaredExponential(), metric),
    "op_ssim_uniform": kernels.SSIM(**UNIFORM),
    "op_mssim": MEAN_SSIM,
    "op_k_ssim_alpha_beta": 1.5 * kernels.SSIM(**UNIFORM) + 0.2,
}
for name in [name for name in GRAMS if name.startswith("pp_")]:
    KERNELS[name] = kernels.Wendland(GRAMS[name]["params"]["q"])
CLOSED = {
    0.5: kernels.Matern12,
    1.5: kernels.Matern32,
    2.5: kernels.Matern52,
    3.5: kernels.Matern72,
}
for name in GRAMS:
    if name.startswith("matern"):
        params = GRAMS[name]["params"]
        KERNELS[f"{name} any nu"] = kernels.Matern(params["nu"], params["l"])
        if params["nu"] in CLOSED:
            KERNELS[name] = CLOSED[params["nu"]](params["l"])


def points_of(name):
    which = GRAMS[name]["points"]
    if which == "inline":
        image = "ssim" in name
        which = "images3x3_rowmajor" if image else "Z(=X1[i],X2[i])"
    return np.array(POINTS[which], float)


def test_the_reference_is_covered():
    covered = {name.removesuffix(" any nu") for name in KERNELS}
    # The isotropic trigonometric form in two dimensions is not a kernel.
    assert set(GRAMS) - covered == {"trig_X2"}


@pytest.mark.parametrize("name", KERNELS)
def test_values_at_forty_digits(name):
    entry = GRAMS[name.removesuffix(" any nu")]
    K = gram(KERNELS[name], points_of(name.removesuffix(" any nu")))
    wanted = np.array(entry["gram"])
    # Relative to each entry, whose exponents are up to 30 and rounded by as many eps;
    # sums and derivatives cancel, relative to the largest.
    np.testing.assert_allclose(K, wanted, rtol=200 * EPS, atol=8 * EPS * np.max(wanted))


@pytest.mark.parametrize("name", KERNELS)
def test_least_eigenvalue(name):
    entry = GRAMS[name.removesuffix(" any nu")]
    K = gram(KERNELS[name], points_of(name.removesuffix(" any nu")))
    least = np.linalg.eigvalsh(K)[0]
    scale = np.trace(K)
    np.testing.assert_allclose(least, entry["min_eig"], rtol=0, atol=1e-14 * scale)


def at_unit_distance(kernel):
    return float(kernel(jnp.ones(1), jnp.zeros(1)))


def test_limits():
    limits = REFERENCE["limits"]
    matern = limits["matern_nu_inf"]
    # 1/ν from the squared exponential of the same lengthscale.
    value = at_unit_distance(kernels.Matern(200.0, 2.0))
    assert abs(value - matern["se_thesis_l2"]) < 1e-3
    gamma = at_unit_distance(kernels.GammaExponential(2.0, 2.0))
    np.testing.assert_allclose(gamma, limits["gamma2"]["gexp"], rtol=1e-14)
    quadratic = at_unit_distance(RQ(1e8, math.sqrt(2.0)))
    np.testing.assert_allclose(quadratic, limits["rq_alpha_inf"]["rq_1e8"], rtol=1e-14)
