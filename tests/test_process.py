import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jgp
from jgp import kernels, means
from tests.cases import points

DOUBLE = jnp.result_type(float) == jnp.float64
ATOL = 1e-14 if DOUBLE else 1e-6
X, Z = points(2, 5), points(2, 3, seed=1)
ALIKE = [2.0 * kernels.Matern32(0.5), 0.3 * kernels.Matern32(2.0)]
UNLIKE = [kernels.Matern12(0.5), 0.3 * kernels.SquaredExponential(2.0)]
PRODUCTS = {
    "alike": ALIKE,
    "unlike": UNLIKE,
    "alike in structure, not in shape": [
        kernels.Matern52(0.5),
        kernels.Matern52(np.array([0.5, 2.0])),
    ],
    "alike but for a static field": [
        kernels.on(kernels.Matern32(0.7), 0),
        kernels.on(kernels.Matern32(0.7), 1),
    ],
    "alike but for an exponent": [
        kernels.Matern32(0.7) ** 2,
        kernels.Matern32(0.7) ** 3,
    ],
    "one": ALIKE[:1],
}


@pytest.mark.float32
@pytest.mark.parametrize("name", PRODUCTS)
def test_covariances_are_the_kernels(name):
    ks, x, z = PRODUCTS[name], jnp.asarray(X), jnp.asarray(Z)
    process = jgp.independent(ks)
    C = len(ks)
    assert process.num_latents == C
    square, cross = process.covariance(x), process.covariance(x, z)
    assert square.shape == (C, 5, 5)
    assert cross.shape == (C, 5, 3)
    variance = process.variance(x)
    assert variance.shape == (C, 5)
    for c, kernel in enumerate(ks):
        np.testing.assert_allclose(square[c], kernels.gram(kernel, x), atol=ATOL)
        np.testing.assert_allclose(cross[c], kernels.gram(kernel, x, z), atol=ATOL)
        np.testing.assert_allclose(variance[c], np.diagonal(square[c]), atol=ATOL)
        assert process.kernels[c] is kernel
    np.testing.assert_array_equal(process.mean(x), np.zeros((5, C)))


@pytest.mark.float32
def test_a_shared_kernel_has_one_covariance():
    process = jgp.independent(ALIKE[0], num_latents=3)
    x = jnp.asarray(X)
    assert process.num_latents == 3
    assert len(process.kernels) == 1
    assert process.covariance(x).shape == (1, 5, 5)
    assert process.variance(x).shape == (1, 5)
    assert process.mean(x).shape == (5, 3)
    np.testing.assert_allclose(
        process.covariance(x)[0], kernels.gram(ALIKE[0], x), atol=ATOL
    )


@pytest.mark.float32
def test_means_are_shared_or_one_a_latent():
    x = jnp.asarray(X)
    linear = means.Linear(np.array([0.5, -2.0]), 0.3)
    wanted = X @ [0.5, -2.0] + 0.3
    shared = jgp.independent(ALIKE, mean=linear).mean(x)
    assert shared.shape == (5, 2)
    np.testing.assert_allclose(shared, np.stack([wanted] * 2, axis=1), atol=1e-6)
    mixed = jgp.independent(ALIKE, mean=[means.Constant(0.7), linear]).mean(x)
    np.testing.assert_allclose(mixed[:, 0], 0.7, atol=1e-6)
    np.testing.assert_allclose(mixed[:, 1], wanted, atol=1e-6)
    alike = jgp.independent(ALIKE, mean=[means.Constant(0.7), means.Constant(-1.0)])
    np.testing.assert_allclose(alike.mean(x), np.full((5, 2), [0.7, -1.0]), atol=1e-6)
    function = jgp.independent(ALIKE, mean=lambda point: point[0] ** 2).mean(x)
    np.testing.assert_allclose(function[:, 1], X[:, 0] ** 2, rtol=1e-5)


@pytest.mark.float32
def test_one_latent():
    x, z = jnp.asarray(X), jnp.asarray(Z)
    process = jgp.GaussianProcess(ALIKE[0], means.Constant(0.7))
    assert process.num_latents == 1
    np.testing.assert_allclose(
        process.covariance(x, z)[0], kernels.gram(ALIKE[0], x, z), atol=ATOL
    )
    assert process.covariance(x).shape == (1, 5, 5)
    np.testing.assert_allclose(process.variance(x), np.full((1, 5), 2.0), atol=ATOL)
    np.testing.assert_allclose(process.mean(x), np.full((5, 1), 0.7), atol=1e-6)
    np.testing.assert_array_equal(jgp.GaussianProcess(ALIKE[0]).mean(x), 0)


@pytest.mark.float32
def test_no_points():
    process, x = jgp.independent(ALIKE), jnp.asarray(X)
    empty = x[:0]
    assert process.covariance(empty).shape == (2, 0, 0)
    assert process.covariance(x, empty).shape == (2, 5, 0)
    assert process.variance(empty).shape == (2, 0)
    assert process.mean(empty).shape == (0, 2)


def test_kernels_of_one_structure_compile_as_one():
    def size(process):
        return len(str(jax.make_jaxpr(process.covariance)(jnp.asarray(X))))

    alike = [kernels.Matern52(0.1 * (c + 1)) for c in range(20)]
    assert size(jgp.independent(alike)) < 2.5 * size(jgp.independent(alike[:2]))


@pytest.mark.long
@pytest.mark.slow
def test_gradients_reach_each_kernel():
    x = jnp.asarray(X)
    for ks in (ALIKE, UNLIKE):

        def total(process):
            return jnp.sum(process.covariance(x)) + jnp.sum(process.variance(x))

        gradient = eqx.filter_grad(total)(jgp.independent(ks))
        for got, kernel in zip(gradient.kernels, ks, strict=True):
            alone = eqx.filter_grad(total)(jgp.GaussianProcess(kernel)).kernel
            for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(alone), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((ALIKE[0],), {}, "num_latents: got None, wanted a positive integer beside"),
        ((ALIKE[0],), {"num_latents": 0}, "num_latents: got 0, wanted a positive"),
        (([],), {}, "kernels: got a sequence of 0"),
        ((ALIKE,), {"num_latents": 3}, "sequence of 2 with num_latents=3, wanted one"),
        (
            (ALIKE,),
            {"mean": [means.Zero()] * 3},
            "mean: got 3 mean functions, wanted 1 or 2",
        ),
        ((ALIKE,), {"mean": []}, "mean: got 0 mean functions, wanted 1 or 2"),
    ],
)
def test_numbers_of_latents_must_agree(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        jgp.independent(*arguments, **options)


def test_dimensions_are_checked_for_every_kernel():
    wide = kernels.Matern52(np.array([0.5, 2.0, 1.0]))
    for process in (jgp.independent([ALIKE[0], wide]), jgp.GaussianProcess(wide)):
        process.check_inputs(jnp.zeros((4, 3)))
        with pytest.raises(ValueError, match="lengthscale: got 3 entries, wanted one"):
            process.check_inputs(jnp.zeros((4, 2)))


@pytest.mark.parametrize("mean", [lambda p: p, lambda p: p[:1]])
def test_a_mean_is_a_scalar(mean):
    x = jnp.zeros((4, 3))
    with pytest.raises(ValueError, match="mean: got a function with values of shape"):
        jgp.GaussianProcess(kernels.Matern12(), mean=mean).mean(x)
    with pytest.raises(ValueError, match="mean: got a function with values of shape"):
        jgp.independent([kernels.Matern12()] * 2, mean=[mean, mean]).mean(x)


def test_what_is_no_process():
    matern = kernels.Matern52()
    wrong = {
        "kernel: got str, wanted a kernel": [
            lambda: jgp.GaussianProcess("a"),
            lambda: jgp.independent(["a", matern]),
        ],
        "kernel: got NoneType": [lambda: jgp.coregionalised(None, [[1.0]])],
        "mean: got float, wanted a function": [
            lambda: jgp.GaussianProcess(matern, 0.5),
            lambda: jgp.independent(matern, num_latents=2, mean=[0.5, 0.5]),
            lambda: means.polynomial(1, 3.0),
        ],
        "features: got int": [lambda: means.Basis(3)],
        "num_latents: got": [
            lambda: jgp.independent(matern, num_latents="a"),
            lambda: jgp.independent(matern, num_latents=True),
        ],
        r"got 'a' \(str\), wanted a number": [lambda: kernels.Matern52("a")],
        "got complex numbers": [lambda: kernels.Matern52(1 + 2j)],
    }
    for message, calls in wrong.items():
        for call in calls:
            with pytest.raises(ValueError, match=message):
                call()
