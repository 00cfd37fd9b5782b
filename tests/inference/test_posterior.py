import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jgp
from jgp import kernels, likelihoods
from jgp.inference import _posterior
from tests.problems import squared_exponentials, toy

METHODS = (
    "exact one",
    "exact two",
    "laplace one",
    "laplace",
    "nested_ep",
    "variational",
)


@functools.cache
def posterior(method):
    data = toy()
    kernel = 1.5 * kernels.Matern32(0.9)
    process = jgp.GaussianProcess(kernel, jgp.means.Constant(0.4))
    y = np.sin(data.x[:, 0])
    match method:
        case "exact one":
            return jgp.exact(
                jgp.Model(process, likelihoods.Gaussian(0.1)), data.x, y
            ).posterior
        case "laplace one":
            return jgp.laplace(
                jgp.Model(process, likelihoods.Gaussian(0.1)), data.x, y
            ).posterior
        case "exact two":
            process = jgp.independent([kernel, kernels.Matern52(0.5)])
            model = jgp.Model(process, likelihoods.Gaussian(0.1))
            return jgp.exact(model, data.x, np.stack([y, y**2], axis=1)).posterior
    likelihood = {
        "laplace": likelihoods.Softmax(3),
        "nested_ep": likelihoods.MultinomialProbit(3),
        "variational": likelihoods.Softmax(3),
    }[method]
    model = squared_exponentials(likelihood, [0.7, 1.0, 1.5], 10.0)
    return getattr(jgp, method)(model, data.x, data.y).posterior


# Four new points and two old ones.
POINTS = np.concatenate([toy().x_new, toy().x[:2]])


def flat(moments):
    """Joint mean and covariance as a vector and a matrix."""
    mean, covariance = map(np.asarray, moments)
    return mean.ravel(), covariance.reshape(mean.size, mean.size)


@pytest.mark.parametrize("method", METHODS)
def test_marginals_are_the_diagonal_of_the_joint(method):
    marginals = posterior(method).marginals(POINTS)
    mean, covariance = flat(posterior(method).joint(POINTS))
    np.testing.assert_allclose(np.ravel(marginals.mean), mean, atol=1e-10)
    np.testing.assert_allclose(
        np.ravel(marginals.variance), np.diagonal(covariance), atol=1e-10
    )
    C = posterior(method).process.num_latents
    assert marginals.covariance.shape == (6, C, C)
    assert marginals.mean.shape == marginals.variance.shape == ((6, C)[: 1 + (C > 1)])
    blocks = covariance.reshape(6, C, 6, C)
    np.testing.assert_allclose(
        marginals.covariance, blocks[np.arange(6), :, np.arange(6)], atol=1e-10
    )


@pytest.mark.parametrize("method", METHODS)
def test_covariances_are_symmetric_and_positive_semidefinite(method):
    _, covariance = flat(posterior(method).joint(POINTS))
    np.testing.assert_allclose(covariance, covariance.T, atol=1e-12)
    # Variances are at most 10: rounding leaves eigenvalues above −1e-12.
    assert np.linalg.eigvalsh(covariance).min() > -1e-12
    marginals = np.asarray(posterior(method).marginals(POINTS).covariance)
    np.testing.assert_array_equal(marginals, marginals.transpose(0, 2, 1))
    assert np.linalg.eigvalsh(marginals).min() > -1e-12


@pytest.mark.parametrize("method", METHODS)
def test_posterior_variances_are_below_the_priors_for_gaussian_sites(method):
    marginals = posterior(method).marginals(POINTS)
    prior = np.asarray(posterior(method).process.variance(jnp.asarray(POINTS)))
    variance = np.asarray(marginals.variance).reshape(6, -1)
    assert np.all(variance <= prior.T + 1e-12)
    assert np.all(variance >= 0)
    far = posterior(method).marginals(np.full((1, 2), 1e4))
    np.testing.assert_allclose(np.ravel(far.variance), prior[:, 0], rtol=1e-10)
    mean = posterior(method).process.mean(jnp.full((1, 2), 1e4))
    np.testing.assert_allclose(np.ravel(far.mean), np.ravel(mean), atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_draws_have_the_moments_of_the_joint(method):
    num = 20_000
    draws = posterior(method).sample(POINTS, key=jax.random.key(1), num=num)
    joint = posterior(method).joint(POINTS)
    assert draws.shape == (num, *joint.mean.shape)
    mean, covariance = flat(joint)
    draws = np.asarray(draws).reshape(num, -1)
    deviation = np.sqrt(np.diagonal(covariance))
    # Five standard errors, plus that of a jitter of 1e-9 where a variance is tiny.
    error = 5 * deviation / np.sqrt(num) + 1e-6
    assert np.all(np.abs(draws.mean(axis=0) - mean) < error)
    error = 5 * np.sqrt(2) * np.outer(deviation, deviation) / np.sqrt(num) + 1e-6
    assert np.all(np.abs(np.cov(draws.T) - covariance) < error)


def test_draws_depend_on_the_key_alone():
    first, again, other = (
        posterior("exact one").sample(POINTS, key=jax.random.key(seed), num=3)
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert np.all(np.asarray(first) != np.asarray(other))


@pytest.mark.parametrize("method", METHODS)
def test_predictions_do_not_depend_on_batching(method):
    together = posterior(method).marginals(POINTS)
    for i in range(0, 6, 2):
        alone = posterior(method).marginals(POINTS[i : i + 1])
        for got, wanted in zip(alone, together, strict=True):
            np.testing.assert_allclose(got[0], wanted[i], atol=1e-13)


@pytest.mark.parametrize("method", ["exact two", "nested_ep"])
@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_predictions_do_not_depend_on_the_size_of_chunks(method, chunk, monkeypatch):
    whole = posterior(method).marginals(POINTS)
    size = posterior(method).process.num_latents * 12
    monkeypatch.setattr(_posterior, "CHUNK_SIZE", chunk * size + 1)
    # A fresh compilation, which sees the smaller size.
    inner = _posterior._marginals.__wrapped__
    chunked = eqx.filter_jit(lambda p, x: inner(p, x))(
        posterior(method), jnp.asarray(POINTS)
    )
    np.testing.assert_allclose(
        np.asarray(chunked[0]).ravel(), np.ravel(whole.mean), atol=1e-13
    )
    np.testing.assert_allclose(chunked[1], whole.covariance, atol=1e-13)


@pytest.mark.parametrize("method", METHODS)
def test_no_new_points(method):
    C = posterior(method).process.num_latents
    rest = (C,) if C > 1 else ()
    for empty in (np.zeros((0, 2)), []):
        marginals = posterior(method).marginals(empty)
        assert marginals.mean.shape == marginals.variance.shape == (0, *rest)
        assert marginals.covariance.shape == (0, C, C)
        joint = posterior(method).joint(empty)
        assert joint.mean.shape == (0, *rest)
        assert joint.covariance.shape == (0, *rest, 0, *rest)
        draws = posterior(method).sample(empty, key=jax.random.key(0), num=3)
        assert draws.shape == (3, 0, *rest)


@functools.cache
def line():
    process = jgp.GaussianProcess(kernels.Matern52(1.5))
    model = jgp.Model(process, likelihoods.Gaussian(0.1))
    return model, jgp.exact(model, np.arange(4.0), np.array([0.0, 1.0, 0.5, -1.0]))


@pytest.mark.parametrize(
    "convert",
    [
        list,
        tuple,
        lambda x: np.asarray(x, float),
        lambda x: np.asarray(x, float)[:, None],
        np.asarray,
        lambda x: jnp.asarray(x, jnp.int32),
        lambda x: np.asarray(x, np.uint8)[:, None],
    ],
    ids=["list", "tuple", "(n,)", "(n, 1)", "ints", "jax ints", "small ints"],
)
def test_inputs_of_any_kind_are_the_same_inputs(convert):
    model, wanted = line()
    y = [0.0, 1.0, 0.5, -1.0]
    got = jgp.exact(model, convert(range(4)), y)
    assert got.x.shape == (4, 1)
    assert float(got.log_evidence) == float(wanted.log_evidence)
    x_new = convert([2, 7])
    for a, b in zip(
        got.posterior.marginals(x_new),
        wanted.posterior.marginals(np.array([[2.0], [7.0]])),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(
        got.log_prob(x_new, convert([1, 0]) if convert in (list, tuple) else [1, 0]),
        wanted.log_prob([2.0, 7.0], [1.0, 0.0]),
    )


def test_inputs_of_another_precision_are_taken_in_that_of_the_data():
    model, wanted = line()
    assert wanted.predict(np.array([2.0], np.float32)).mean.dtype == jnp.float64
    single = jgp.exact(model, np.arange(4, dtype=np.float32), np.zeros(4))
    assert single.predict(np.array([2.0])).mean.dtype == jnp.float32


def test_a_posterior_can_be_conditioned_on_under_jit_and_vmap():
    def mean_at(x_new):
        return posterior("nested_ep").marginals(x_new).mean

    points = jnp.asarray(POINTS)
    batched = jax.vmap(lambda p: mean_at(p[None])[0])(points)
    np.testing.assert_allclose(batched, mean_at(points), atol=1e-12)
    step = 1e-5
    slope = jax.jacfwd(lambda p: mean_at(p[None])[0])(points[0])
    shifts = step * jnp.eye(2)
    numeric = [
        (mean_at(points[:1] + s[None]) - mean_at(points[:1] - s[None]))[0] / (2 * step)
        for s in shifts
    ]
    np.testing.assert_allclose(slope, np.stack(numeric, axis=1), atol=1e-8)
