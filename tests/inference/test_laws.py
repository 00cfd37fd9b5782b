"""Laws of exact regression, on drawn data."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jgp
from jgp import kernels, likelihoods, means

SIGMA = np.array([[0.3, 0.1, 0.0], [0.1, 0.2, 0.05], [0.0, 0.05, 0.4]])
seeds = st.integers(0, 10**6)


def drawn(seed):
    """Eight inputs, two of them equal, three outputs, a mask and new inputs."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(8, 2)), rng.normal(size=(8, 3))
    x[-1] = x[0]
    return x, y, rng.random((8, 3)) > 0.2, rng.normal(size=(3, 2)), rng


def coupled(mixing, variance, noise):
    process = jgp.coregionalised(
        kernels.Matern52([0.8, 1.3]), mixing, variance, mean=means.Linear([0.2, -0.1])
    )
    return jgp.Model(process, likelihoods.CorrelatedGaussian(noise))


def close(got, wanted):
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.slow
@given(seeds)
@settings(max_examples=10)
def test_the_order_of_data_and_of_outputs_does_not_matter(seed):
    x, y, mask, x_new, rng = drawn(seed)
    mixing, variance = rng.normal(size=(3, 2)), rng.uniform(0.1, 1, size=3)
    found = jgp.exact(coupled(mixing, variance, SIGMA), x, y, mask=mask)
    rows, outputs = rng.permutation(8), rng.permutation(3)
    model = coupled(mixing[outputs], variance[outputs], SIGMA[np.ix_(outputs, outputs)])
    other = jgp.exact(model, x[rows], y[rows][:, outputs], mask=mask[rows][:, outputs])
    close(other.log_evidence, found.log_evidence)
    marginals, moved = (a.posterior.marginals(x_new) for a in (found, other))
    close(moved.mean, marginals.mean[:, outputs])
    close(moved.covariance, marginals.covariance[:, outputs][:, :, outputs])


@pytest.mark.slow
@given(seeds, st.sampled_from([1, 3, 7]))
@settings(max_examples=10)
def test_the_evidence_of_all_is_that_of_some_and_of_the_rest_given_them(seed, first):
    x, y, _, x_new, _ = drawn(seed)
    process = jgp.GaussianProcess(kernels.Matern32(0.9), means.Linear([0.2, -0.1]))
    model = jgp.Model(process, likelihoods.Gaussian(0.2))
    y = y[:, 0]
    whole, part = jgp.exact(model, x, y), jgp.exact(model, x[:first], y[:first])
    grown = jgp.condition(part, x[first:], y[first:])
    close(grown.log_evidence, whole.log_evidence)
    for pair in zip(
        grown.posterior.joint(x_new), whole.posterior.joint(x_new), strict=True
    ):
        close(*pair)
    rest = part.predict_joint(x[first:])
    r = y[first:] - rest.mean
    _, log_determinant = np.linalg.slogdet(2 * np.pi * rest.covariance)
    density = -(r @ np.linalg.solve(rest.covariance, r) + log_determinant) / 2
    close(part.log_evidence + density, whole.log_evidence)


@given(seeds, st.floats(0.1, 10), st.floats(-5, 5))
@settings(max_examples=10)
def test_units_and_trends_do_not_matter(seed, scale, slope):
    """With y in other units, and a line that an unknown line takes up."""
    x, y, _, x_new, _ = drawn(seed)

    def regression(variance, y):
        kernel = variance * kernels.SquaredExponential(0.9)
        process = jgp.GaussianProcess(kernel, means.polynomial(1))
        noise = likelihoods.Gaussian(0.2 * variance)
        return jgp.exact(jgp.Model(process, noise), x, y)

    found = regression(jnp.asarray(1.0), y[:, 0])
    line = slope * (1 + x[:, 1])
    other = regression(jnp.asarray(scale**2), scale * y[:, 0] + line)
    # Five of the eight observations are left to the density by three coefficients.
    close(other.log_evidence, found.log_evidence - 5 * np.log(scale))
    predicted, moved = found.predict(x_new), other.predict(x_new)
    np.testing.assert_allclose(
        moved.mean, scale * predicted.mean + slope * (1 + x_new[:, 1]), atol=1e-8
    )
    np.testing.assert_allclose(moved.variance, scale**2 * predicted.variance, rtol=1e-8)


@given(seeds)
@settings(max_examples=10)
def test_terms_add_up_and_know_less_apart(seed):
    x, y, _, x_new, _ = drawn(seed)
    parts = (kernels.Matern52(0.7), 0.5 * kernels.SquaredExponential([2.0, 0.4]), 0.3)
    model = jgp.Model(
        jgp.GaussianProcess(sum(parts[1:], parts[0])), likelihoods.Gaussian(0.1)
    )
    posterior = jgp.exact(model, x, y[:, 0]).posterior
    each = [posterior.component(i).marginals(x_new) for i in range(3)]
    total = posterior.marginals(x_new)
    close(sum(part.mean for part in each), total.mean)
    close(posterior.component((0, 1, 2)).marginals(x_new).variance, total.variance)
    rest = posterior.component((0, 2)).marginals(x_new)
    close(rest.mean + each[1].mean, total.mean)
    for i, part in enumerate(each):
        prior = np.asarray(
            kernels.diagonal(kernels.terms(model.process.kernel)[i], x_new)
        )
        assert np.all(part.variance <= prior + 1e-12)
