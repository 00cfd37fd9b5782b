"""What kernels refuse, and how they say so."""

import jax.numpy as jnp
import numpy as np
import pytest

import jgp
from jgp import kernels, likelihoods
from jgp.kernels import gram

X = np.array([[0.2, 1.0], [0.5, 2.0]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kernels.Polynomial(0), "degree: got 0, wanted an integer >= 1"),
        (lambda: kernels.Polynomial(1.5), "degree: got 1.5"),
        (lambda: kernels.Wendland(-1), "smoothness: got -1"),
        (lambda: kernels.ArcCosine(3), "order: got 3, wanted 0, 1 or 2"),
        (lambda: kernels.Derivative(kernels.Matern52(), -1), "axis: got -1"),
        (lambda: kernels.Categorical(0), "num_categories: got 0"),
        (
            lambda: kernels.Coregionalization(np.ones((3, 2)), np.ones(2)),
            r"mixing, variance: got shapes \(3, 2\) and \(2,\)",
        ),
        (
            lambda: kernels.SpectralMixture(
                np.ones(2), np.ones((3, 1)), np.ones((3, 1))
            ),
            "weights, frequencies, bandwidths: got shapes",
        ),
        (
            lambda: kernels.NonStationary(kernels.Wendland(), lambda x: x),
            "kernel: got Wendland, wanted a stationary kernel that is positive",
        ),
        (
            lambda: kernels.NonStationary(kernels.TrigonometricCompact(), lambda x: x),
            "kernel: got TrigonometricCompact",
        ),
        (
            lambda: kernels.NonStationary(kernels.Matern12(np.ones(2)), lambda x: x),
            r"kernel: got a lengthscale of shape \(2,\), wanted a scalar",
        ),
        (
            lambda: kernels.GaussianSmoothed(kernels.Matern12(), 1.0),
            "kernel: got Matern12, wanted SquaredExponential",
        ),
        (lambda: kernels.MeanSSIM((4, 4), 5), r"window, stride: got \(5, 5\) and 1"),
        (
            lambda: kernels.MeanSSIM((4, 4), 2, window_variance=np.ones(3)),
            r"window_variance: got shape \(3,\), wanted \(9,\)",
        ),
        (lambda: kernels.SSIM(weights=[0.0, 0.0]), "weights: got"),
        (
            lambda: kernels.DirectSum((kernels.Matern12(),), (1, 2)),
            r"sizes: got \(1, 2\) for 1 kernels",
        ),
        (
            lambda: kernels.Convolved(
                kernels.Matern12(), min, np.ones((3, 1)), np.ones(2)
            ),
            "nodes, weights: got shapes",
        ),
    ],
)
def test_construction(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("kernel", "x", "message"),
    [
        (
            kernels.Matern32(np.ones(3)),
            X,
            "lengthscale: got 3 entries, wanted one, or 2",
        ),
        (kernels.Wendland(1, np.ones(3)), X, "lengthscale: got 3 entries"),
        (kernels.Periodic(1.0, np.ones(3)), X, r"period: got shape \(3,\)"),
        (kernels.Linear(np.ones(3)), X, r"variance: got shape \(3,\)"),
        (kernels.NeuralNetwork(np.eye(2)), X, r"variance: got shape \(2, 2\)"),
        (kernels.ArcCosine(1, np.ones(3)), X, r"variance: got shape \(3,\)"),
        (
            kernels.Derivative(kernels.Matern52(), 2),
            X,
            "axis: got 2, wanted an integer < 2",
        ),
        (kernels.Cauchy(), [[0.0], [1.0]], "x: got an input of 0.0, wanted all > 0"),
        (kernels.Cauchy(), X, "x: got inputs of dimension 2, wanted 1"),
        (kernels.Wiener(), [[-1.0], [1.0]], "x: got an input of -1.0, wanted all >= 0"),
        (2.0 * kernels.IntegratedWiener(), [[-1.0]], "x: got an input of -1.0"),
        (kernels.on(kernels.Wiener(), 1), -X, "x: got an input of -2.0"),
        (kernels.Categorical(3), [[0.0], [3.0]], "wanted integers from 0 to 2"),
        (kernels.Categorical(3), [[0.5]], "wanted integers from 0 to 2"),
        (
            kernels.Coregionalization(np.ones((2, 1)), np.ones(2)),
            [[2.0]],
            "wanted integers from 0 to 1",
        ),
        (
            kernels.WithDerivatives(kernels.Matern52()),
            [[0.1, 2.0]],
            r"x: got \[2.\] in the last coordinate",
        ),
        (
            kernels.TensorProduct((kernels.Matern12(), kernels.Matern12()), (1, 2)),
            X,
            "sizes: got blocks of 3 dimensions in all, wanted 2",
        ),
        (kernels.MeanSSIM((2, 2), 2), X, r"image_shape: got \(2, 2\)"),
        (kernels.SSIM(weights=[1, 2, 1]), X, "weights: got 3, wanted one for 2 pixels"),
        (kernels.Gibbs(lambda x: jnp.ones(3)), X, "lengthscale: got a function with"),
        (
            kernels.Convolved(kernels.Matern12(), lambda x, u: x - u, X, np.ones(2)),
            X,
            r"smoother: got a function with values of shape \(2,\)",
        ),
        (
            kernels.Scaled(kernels.Matern12(), amplitude=lambda x: x),
            X,
            r"kernel: got a value of shape \(2,\)",
        ),
        (
            kernels.NonStationary(kernels.Matern12(), lambda x: jnp.eye(3)),
            X,
            "metric: got a function with",
        ),
    ],
)
def test_evaluation(kernel, x, message):
    with pytest.raises(ValueError, match=message):
        gram(kernel, np.asarray(x))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (
            kernels.GammaExponential(2.5),
            r"gamma: got 2.5, wanted numbers in \(0.0, 2.0\]",
        ),
        (kernels.GammaExponential(0.0), "gamma: got 0"),
        (kernels.Matern(-0.5), "nu: got -0.5"),
        (kernels.RationalQuadratic(0.0), "alpha: got 0"),
        (kernels.Polynomial(2, -1.0), "variance: got -1"),
        (kernels.Polynomial(2, 1.0, -1.0), "offset: got -1"),
        (
            kernels.SquaredExponential(np.array([[1.0, 0.5], [0.0, 1.0]])),
            "lower triangular matrix of positive diagonal",
        ),
        (
            kernels.Linear(np.array([[1.0, 2.0], [2.0, 1.0]])),
            "symmetric positive definite matrix",
        ),
    ],
)
def test_parameters_out_of_range(kernel, message):
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(0.1))
    with pytest.raises(ValueError, match=message):
        jgp.exact(model, X, np.zeros(2))


def test_inference_checks_the_domain():
    model = jgp.Model(jgp.GaussianProcess(kernels.Wiener()), likelihoods.Gaussian(0.1))
    with pytest.raises(ValueError, match=r"x: got an input of -1.0, wanted all >= 0"):
        jgp.exact(model, np.array([-1.0, 1.0]), np.zeros(2))
    found = jgp.exact(model, np.array([0.5, 1.0]), np.zeros(2))
    with pytest.raises(ValueError, match=r"x_new: got an input of -2.0"):
        found.predict(np.array([-2.0]))
