"""Where searches start: what random starts move, and how far."""

import jax.numpy as jnp
import numpy as np

import jgp
from jgp import kernels, likelihoods
from jgp._free_parameters import free_parameters
from jgp._starts import RANGE, at_random


def test_random_starts_scale_a_triangular_lengthscale(key):
    root = jnp.asarray([[1.0, 0.0], [0.3, 2.0]])
    kernel = kernels.SquaredExponential(root)
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(0.1))
    parameters = free_parameters(model)
    assert parameters.on_the_real_line.tolist() == [False, True, False, False]
    own = np.asarray(parameters.raw)
    others = np.stack(at_random(parameters, own, 50, key))
    moved = others[:, :3] - own[:3]
    assert np.all(moved[:, 1] == 0)
    # Logarithms uniform over their range: so is their mean.
    low, high = np.log(RANGE)
    error = (high - low) / np.sqrt(12 * 50)
    assert np.all(
        np.abs(np.mean(moved[:, [0, 2]], axis=0) - (low + high) / 2) < 4 * error
    )
