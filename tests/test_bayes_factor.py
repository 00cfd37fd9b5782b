import jax
import numpy as np
import pytest

import jgp
from jgp import kernels, likelihoods
from tests.problems import squared_exponentials, toy


def regression(lengthscale):
    x = np.linspace(0, 1, 8)
    process = jgp.GaussianProcess(kernels.SquaredExponential(lengthscale))
    return jgp.exact(jgp.Model(process, likelihoods.Gaussian(0.1)), x, np.sin(3 * x))


def test_exact_evidences_leave_no_error():
    first, second = regression(0.5), regression(0.01)
    found = jgp.log_bayes_factor(first, second)
    assert float(found.log_bayes_factor) > 1
    assert float(found.log_bayes_factor) == float(
        first.log_evidence - second.log_evidence
    )
    assert float(found.standard_error) == 0
    back = jgp.log_bayes_factor(second, first)
    assert float(back.log_bayes_factor) == -float(found.log_bayes_factor)


@pytest.mark.slow
def test_errors_of_estimates_add_in_squares():
    data = toy()
    likelihood = likelihoods.Softmax(3)
    model = squared_exponentials(likelihood, [1.0] * 3, 2.0)
    approximation = jgp.laplace(model, data.x, data.y)
    first, second = (
        jgp.evidence(
            approximation, key=jax.random.key(seed), method="importance", num=256
        )
        for seed in range(2)
    )
    found = jgp.log_bayes_factor(first, second)
    # One model twice.
    assert abs(float(found.log_bayes_factor)) < 4 * float(found.standard_error)
    np.testing.assert_allclose(
        found.standard_error, np.hypot(first.standard_error, second.standard_error)
    )
    beside = jgp.log_bayes_factor(first, regression(0.5))
    np.testing.assert_allclose(beside.standard_error, first.standard_error)
    with pytest.raises(ValueError, match=r"second: got laplace.*call `evidence` first"):
        jgp.log_bayes_factor(first, approximation)
    with pytest.raises(ValueError, match="first: got float, wanted an Evidence"):
        jgp.log_bayes_factor(1.0, second)
