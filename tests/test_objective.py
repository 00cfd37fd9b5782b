"""The log density of free parameters, for samplers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import jgp
from jgp import kernels, likelihoods, priors
from jgp._constraints import Covariances, Increasing, Interval, Lengths, Positive
from tests.problems import toy

X = np.linspace(0, 1, 8)
Y = np.sin(5 * X)


def regression():
    kernel = 1.5 * kernels.SquaredExponential(0.4)
    model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(0.1))
    model = jgp.with_prior(model, lambda m: m.process, priors.LogNormal(1.0, 1.0))
    return jgp.with_prior(model, lambda m: m.likelihood, priors.HalfNormal(1.0))


def test_is_evidence_prior_and_jacobian():
    model = regression()
    density = jgp.log_density(model, X, Y)
    raw = density.raw + jnp.asarray([0.3, -0.2, 0.1])
    moved = density.model(raw)
    natural = jnp.exp(raw)
    lognormal, half = priors.LogNormal(1.0, 1.0), priors.HalfNormal(1.0)
    expected = float(jgp.exact(moved, X, Y).log_evidence)
    expected += float(jnp.sum(lognormal(natural[:2])) + half(natural[2]))
    expected += float(jnp.sum(raw))
    np.testing.assert_allclose(density(raw), expected, rtol=1e-12)
    assert [name.split(".")[-1] for name in density.names] == [
        "lengthscale",
        "variance",
        "noise_variance",
    ]
    gradient = jax.jit(jax.grad(density))(raw)
    for i in range(3):
        step = 1e-5 * np.eye(3)[i]
        difference = (density(raw + step) - density(raw - step)) / 2e-5
        np.testing.assert_allclose(gradient[i], difference, rtol=1e-6, atol=1e-8)
    batch = jax.vmap(density)(jnp.stack([raw, density.raw]))
    np.testing.assert_allclose(batch, [density(raw), density(density.raw)], rtol=1e-12)


@pytest.mark.slow
def test_integrates_to_the_marginal_evidence_on_either_scale():
    # One free parameter: over its logarithm with the Jacobian, over itself without.
    model = jgp.freeze(
        regression(), lambda m: (m.process.kernel.variance, m.likelihood)
    )
    density = jgp.log_density(model, X, Y)
    raw = jnp.linspace(-6, 6, 2001)
    value = jnp.exp(jax.vmap(lambda r: density(r[None]))(raw))
    by_raw = float(jnp.sum(value)) * 12 / 2000
    natural = jnp.linspace(1e-3, 60, 60001)
    weights, nodes = 60 / 60000, natural[:, None]

    def without(point):
        raw = jnp.log(point)
        return jnp.exp(density(raw) - jnp.sum(raw))

    by_natural = float(jnp.sum(jax.lax.map(without, nodes, batch_size=1000))) * weights
    np.testing.assert_allclose(by_raw, by_natural, rtol=2e-3)


def test_failed_inference_has_no_density():
    data = toy()
    kernel = 100.0 * kernels.SquaredExponential(0.5)
    process = jgp.independent(kernel, num_latents=3)
    model = jgp.Model(process, likelihoods.MultinomialProbit(3))
    infer = jgp.log_density(model, data.x, data.y).infer.verb
    assert infer is jgp.nested_ep

    def hopeless(model, x, y, **options):
        return jgp.nested_ep(model, x, y, max_steps=1, **options)

    density = jgp.log_density(model, data.x, data.y, infer=hopeless)
    assert float(density(density.raw)) == -np.inf


@pytest.mark.parametrize(
    ("constraint", "raw"),
    [
        (Positive(), np.array([0.3, -1.0])),
        (Interval(0.0, 2.0), np.array(0.7)),
        (Increasing(), np.array([0.5, -1.0, 0.2])),
        (Lengths(), np.array([0.5, -1.0])),
        (Lengths(), np.array([[0.5, 0.0], [0.3, -0.4]])),
        (Covariances(), np.array([[0.5, 0, 0], [0.3, -0.4, 0], [0.1, 0.9, 0.2]])),
    ],
)
def test_log_jacobians_are_those_of_autodiff(constraint, raw):
    raw = jnp.asarray(raw)
    chosen = np.arange(raw.size)
    if raw.ndim == 2:
        chosen = np.flatnonzero(np.tril(np.ones(raw.shape)))
    flat, unravel = ravel_pytree(raw)

    def natural(entries):
        return constraint.from_real(unravel(flat.at[chosen].set(entries))).ravel()[
            chosen
        ]

    J = jax.jacfwd(natural)(flat[chosen])
    expected = np.linalg.slogdet(np.atleast_2d(J))[1]
    np.testing.assert_allclose(constraint.log_jacobian(raw), expected, rtol=1e-12)


@pytest.mark.float32
@pytest.mark.parametrize("raw", [-200.0, -44.0, 0.0, 44.0, 200.0])
def test_jacobian_of_an_interval_far_out(raw):
    interval = Interval(1.0, 3.0)
    value, gradient = jax.value_and_grad(interval.log_jacobian)(jnp.asarray(raw))
    wanted = np.log(2) - abs(raw) - 2 * np.log1p(np.exp(-abs(raw)))
    np.testing.assert_allclose(value, wanted, rtol=1e-6)
    np.testing.assert_allclose(gradient, -np.tanh(raw / 2), rtol=1e-6)
    assert np.isfinite(jax.grad(interval.from_real)(jnp.asarray(raw)))
