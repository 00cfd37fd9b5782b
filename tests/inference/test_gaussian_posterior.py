"""Derivatives, components and draws as functions of a posterior."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jgp
from jgp import kernels, likelihoods, means
from tests.cases import slow_unless

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, size=(12, 2))
X[-1] = X[0]
Y = RNG.normal(size=(12, 2))
NEW = np.concatenate([RNG.uniform(-2, 2, size=(3, 2)), X[:1]])
SMOOTH = 1.3 * kernels.Matern52([0.9, 1.4])
ROUGH = 0.6 * kernels.SquaredExponential(0.5)
LINEAR = means.Linear([0.3, -0.1], 0.5)


def regression(process, y, noise=0.1):
    return jgp.exact(jgp.Model(process, likelihoods.Gaussian(noise)), X, y)


ONE = regression(jgp.GaussianProcess(SMOOTH + ROUGH, LINEAR), Y[:, 0])
FLAT = regression(jgp.GaussianProcess(SMOOTH + ROUGH, means.polynomial(1)), Y[:, 0])
TWO = regression(jgp.independent([SMOOTH, ROUGH], mean=LINEAR), Y)
TERMS = jgp.coregionalised(
    [SMOOTH, ROUGH], [[[1.0], [-0.5]], [[0.4], [0.9]]], [[0.1, 0.2], [0.0, 0.3]]
)
SIGMA = np.array([[0.2, 0.1], [0.1, 0.15]])
COUPLED = jgp.exact(jgp.Model(TERMS, likelihoods.CorrelatedGaussian(SIGMA)), X, Y)
NOISY = jgp.exact(
    jgp.Model(TWO.model.process, likelihoods.CorrelatedGaussian(SIGMA)), X, Y
)


@pytest.mark.parametrize("found", [ONE, FLAT], ids=["plain", "trend"])
def test_gradient_is_that_of_a_process_observed_with_its_derivatives(found):
    process = found.model.process
    lifted = jgp.GaussianProcess(
        kernels.WithDerivatives(process.kernel), means.WithDerivatives(LINEAR)
    )
    values = np.concatenate([X, np.zeros((12, 1))], axis=1)
    if found is FLAT:
        basis = means.Basis(means.WithDerivatives(process.features))
        lifted = jgp.GaussianProcess(kernels.WithDerivatives(process.kernel), basis)
    other = jgp.exact(jgp.Model(lifted, found.model.likelihood), values, Y[:, 0])
    np.testing.assert_allclose(other.log_evidence, found.log_evidence, rtol=1e-11)
    got = found.posterior.gradient(NEW)
    assert got.mean.shape == (4, 2)
    assert got.covariance.shape == (4, 2, 2)
    for i, point in enumerate(NEW):
        slopes = other.posterior.joint([[*point, 1], [*point, 2]])
        np.testing.assert_allclose(got.mean[i], slopes.mean, atol=1e-10)
        np.testing.assert_allclose(got.covariance[i], slopes.covariance, atol=1e-10)


@pytest.mark.parametrize("found", [TWO, COUPLED, NOISY], ids=["two", "coupled", "Σ"])
def test_gradient_is_the_slope_of_the_mean(found):
    got = found.posterior.gradient(NEW)
    assert got.mean.shape == (4, 2, 2)
    assert got.covariance.shape == (4, 2, 2, 2)
    h = 1e-5
    for axis in (0, 1):
        step = h * np.eye(2)[axis]
        above, below = (found.posterior.marginals(NEW + s).mean for s in (step, -step))
        difference = (above - below) / (2 * h)
        np.testing.assert_allclose(got.mean[:, :, axis], difference, atol=1e-8)
        # The variance of a difference quotient tends to that of the derivative.
        for i, point in enumerate(NEW):
            pair = found.posterior.joint(
                np.stack([point + 50 * step, point - 50 * step])
            )
            for c in (0, 1):
                block = pair.covariance[:, c, :, c]
                spread = block[0, 0] + block[1, 1] - 2 * block[0, 1]
                quotient = spread / (100 * h) ** 2
                at = got.covariance[i, c, axis, axis]
                np.testing.assert_allclose(at, quotient, rtol=1e-3)


@pytest.mark.float32
def test_gradient_in_single_precision():
    x = np.linspace(0, 1, 40, dtype=np.float32)
    hard = (100 * kernels.SquaredExponential(1.0), 1e-4)
    plain = (kernels.Matern52(0.5), 1e-2)
    for kernel, noise in (hard, plain):
        model = jgp.Model(jgp.GaussianProcess(kernel), likelihoods.Gaussian(noise))
        got = jgp.exact(model, x, np.sin(6 * x)).posterior.gradient(x)
        assert got.mean.dtype == jnp.float32
        assert np.all(np.asarray(got.covariance) >= 0)
    # Within three deviations of the truth, which is smoother than the prior's draws.
    spread = 3 * np.sqrt(got.covariance[:, 0, 0])
    assert np.all(np.abs(got.mean[:, 0] - 6 * np.cos(6 * x)) <= spread)


@pytest.mark.parametrize("found", [ONE, FLAT], ids=["plain", "trend"])
def test_components_are_those_of_a_process_observed_part_by_part(found):
    """Kernels over (x, part) see the sum for part 0 and each part for 1 and 2."""
    parts = found.model.process.kernel.kernels
    total = found.posterior.marginals(NEW)
    means_ = [found.posterior.component(j).marginals(NEW).mean for j in (0, 1)]
    at = jnp.asarray(NEW)
    if found is FLAT:
        base = jax.vmap(found.model.process.features)(at)
        base = (base @ found.posterior.coefficients)[:, 0]
    else:
        base = jax.vmap(LINEAR)(at)
    np.testing.assert_allclose(sum(means_) + base, total.mean, atol=1e-12)
    # By hand: cov(f_j, y) S⁻¹, with P in place of S⁻¹ for a trend.
    S = np.asarray(kernels.gram(parts[0] + parts[1], X)) + 0.1 * np.eye(12)
    M = np.linalg.inv(S)
    if found is FLAT:
        H = np.concatenate([np.ones((12, 1)), X], axis=1)
        M = M - M @ H @ np.linalg.solve(H.T @ M @ H, H.T @ M)
    for j, part in enumerate(parts):
        k = np.asarray(kernels.gram(part, X, NEW))
        wanted = np.asarray(kernels.diagonal(part, NEW)) - np.sum(k * (M @ k), axis=0)
        got = found.posterior.component(j).marginals(NEW).variance
        np.testing.assert_allclose(got, wanted, atol=1e-12)


def test_terms_of_a_coupled_process_are_its_components():
    total, S = COUPLED.posterior.marginals(NEW), TERMS.joint_covariance(X)
    S = np.asarray(S).reshape(24, 24) + np.kron(np.eye(12), SIGMA)
    sums = np.zeros((4, 2))
    for q in (0, 1):
        part = COUPLED.posterior.component(q)
        process = jgp.coregionalised(
            TERMS.kernels[q],
            TERMS.coregionalizations[q].mixing,
            TERMS.coregionalizations[q].variance,
        )
        k = np.asarray(process.joint_covariance(X, NEW)).reshape(24, 8)
        prior = np.asarray(process.joint_covariance(NEW)).reshape(8, 8)
        wanted = prior - k.T @ np.linalg.solve(S, k)
        got = np.asarray(part.joint(NEW).covariance).reshape(8, 8)
        np.testing.assert_allclose(got, wanted, atol=1e-12)
        sums += part.marginals(NEW).mean
    np.testing.assert_allclose(sums, total.mean, atol=1e-12)
    both = COUPLED.posterior.component((0, 1)).marginals(NEW)
    np.testing.assert_allclose(both.covariance, total.covariance, atol=1e-12)


def test_terms_are_found_within_scalings_and_functionals():
    kernel = kernels.WithDerivatives(2.0 * (SMOOTH + kernels.on(ROUGH + 1.5, 0)))
    parts = kernels.terms(kernel)
    assert len(parts) == 2
    x = np.concatenate([X[:4], [[0], [1], [2], [0]]], axis=1)
    total = sum(np.asarray(kernels.gram(part, x)) for part in parts)
    np.testing.assert_allclose(total, kernels.gram(kernel, x), atol=1e-12)
    assert len(kernels.terms(kernels.on(ROUGH + 1.5, 0))) == 2
    assert kernels.terms(SMOOTH) == (SMOOTH,)


ROUGH_ONES = [
    kernels.Matern12(),
    kernels.GammaExponential(1.9),
    kernels.Matern(0.9),
    kernels.Wendland(0),
    kernels.ArcCosine(0),
    kernels.White() + SMOOTH,
    kernels.Derivative(kernels.Matern32(), 0),
    2.0 * kernels.on(kernels.Matern12(), 1) * SMOOTH,
]


@pytest.mark.parametrize("kernel", ROUGH_ONES, ids=lambda kernel: type(kernel).__name__)
def test_draws_without_derivatives_have_no_gradient(kernel):
    found = regression(jgp.GaussianProcess(kernel), Y[:, 0])
    with pytest.raises(ValueError, match="without mean-square derivatives"):
        found.posterior.gradient(NEW)
    with pytest.raises(ValueError, match="without mean-square derivatives"):
        kernels.WithDerivatives(kernel)


def test_derivatives_of_draws_are_counted():
    counts = [
        (kernels.Matern32(), 1),
        (kernels.Matern52() * kernels.Matern72(), 2),
        (kernels.Matern(2.0), 1),
        (kernels.Matern(2.1), 2),
        (kernels.GammaExponential(2.0), np.inf),
        (kernels.Wendland(2), 2),
        (kernels.TrigonometricCompact(), 2),
        (kernels.WithDerivatives(kernels.Matern52()), 1),
        (kernels.SquaredExponential() + 1.0, np.inf),
    ]
    for kernel, count in counts:
        assert kernel.num_derivatives == count, kernel
    slopes = kernels.WithDerivatives(kernels.Matern52())
    model = jgp.Model(jgp.GaussianProcess(slopes), likelihoods.Gaussian(0.1))
    tagged = jgp.exact(model, [[0.0, 0], [0.0, 1]], [1.0, 2.0])
    with pytest.raises(ValueError, match="kernel: got WithDerivatives, whose last"):
        tagged.posterior.gradient([[0.0, 0.0]])
    boxes = kernels.WithIntegrals(kernels.Matern52())
    model = jgp.Model(jgp.GaussianProcess(boxes), likelihoods.Gaussian(0.1))
    means_over = jgp.exact(model, [[0.0, 1.0]], [1.0])
    with pytest.raises(ValueError, match="kernel: got WithIntegrals, whose points"):
        means_over.posterior.gradient([[0.0, 0.0]])


def test_components_that_do_not_exist():
    for wrong in ((2,), (), (0, 1, 2), (-1,), (0.5,)):
        with pytest.raises(ValueError, match=r"which: got \(.*wanted numbers 0 to 1"):
            ONE.posterior.component(wrong)
    with pytest.raises(
        ValueError, match=r"which: got \(0, 0\), wanted each number once"
    ):
        ONE.posterior.component((0, 0))
    with pytest.raises(ValueError, match="posterior: got that of a component"):
        ONE.posterior.component(0).component(0)
    with pytest.raises(ValueError, match="which: got 'both', wanted a number or"):
        ONE.posterior.component("both")
    with pytest.raises(ValueError, match=r"which: got \(1,\), wanted numbers 0 to 0"):
        TWO.posterior.component(1)


def moments_of_paths(posterior, num, **options):
    """Mean and covariance over many paths, each evaluated twice, in pieces."""

    def values(key):
        path = posterior.path(key=key, **options)
        return jnp.concatenate([path(NEW[:1]), path(NEW[1:])])

    draws = jax.jit(jax.vmap(values))(jax.random.split(jax.random.key(1), num))
    draws = np.asarray(draws).reshape(num, -1)
    return draws.mean(axis=0), np.cov(draws.T)


def agree(posterior, num, error=0.0, **options):
    """Within five standard errors of the joint posterior, and the features' error."""
    mean, covariance = moments_of_paths(posterior, num, **options)
    joint = posterior.joint(NEW)
    wanted = np.reshape(joint.covariance, covariance.shape)
    spread = np.sqrt(np.outer(np.diag(wanted), np.diag(wanted)))
    scale = np.sqrt(np.diag(wanted) / num)
    assert np.all(np.abs(mean - np.ravel(joint.mean)) <= 5 * scale)
    off = np.abs(covariance - wanted)
    assert np.all(off <= (5 * np.sqrt(2 / num) + error) * spread)


@pytest.mark.parametrize(
    "found",
    [pytest.param(ONE, marks=pytest.mark.slow), FLAT, COUPLED],
    ids=["plain", "trend", "coupled"],
)
def test_paths_at_given_inputs_have_the_posterior_moments(found):
    agree(found.posterior, 4000, inputs=NEW)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    "found", [ONE, FLAT, TWO, COUPLED, NOISY], ids=["one", "trend", "two", "terms", "Σ"]
)
def test_paths_by_features_have_the_posterior_moments(found):
    # Frequencies are drawn anew for each path, so that their error averages out.
    agree(found.posterior, 1500, num_features=100)


@pytest.mark.parametrize(
    "found",
    [FLAT, pytest.param(COUPLED, marks=pytest.mark.slow)],
    ids=["trend", "coupled"],
)
def test_paths_of_components_have_their_moments(found):
    agree(found.posterior.component(1), 4000, inputs=NEW)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("found", [ONE, COUPLED], ids=["one", "coupled"])
def test_paths_of_components_by_features_have_their_moments(found):
    agree(found.posterior.component(0), 1500, num_features=100)


@pytest.mark.slow
def test_paths_of_components_of_sites():
    kernel = SMOOTH + ROUGH
    model = jgp.Model(jgp.independent([kernel] * 3), likelihoods.MultinomialProbit(3))
    found = jgp.nested_ep(model, X, RNG.integers(0, 3, size=12))
    agree(found.posterior.component(0), 1500, inputs=NEW)


@pytest.mark.slow
def test_paths_of_sites():
    model = jgp.Model(
        jgp.independent([SMOOTH, ROUGH, SMOOTH]), likelihoods.MultinomialProbit(3)
    )
    found = jgp.nested_ep(model, X, RNG.integers(0, 3, size=12))
    agree(found.posterior, 1500, inputs=NEW)


@pytest.mark.long
@pytest.mark.float32
@pytest.mark.parametrize(
    "kernel",
    [
        kernels.SquaredExponential([0.7, 1.2]),
        kernels.Periodic([0.8, 1.5], 2.0),
        kernels.Cosine([1.7, 3.0]),
        0.5 * kernels.Linear([0.5, 2.0]) + 2.0,
        kernels.Linear([[1.0, 0.3], [0.3, 0.5]]),
        *slow_unless(
            [],
            [
                kernels.Matern32(np.linalg.cholesky([[0.7, 0.2], [0.2, 0.9]])),
                kernels.Matern(1.2, 0.8),
                (2.0 * kernels.SquaredExponential(1.0)) * (0.5 * kernels.Periodic()),
                kernels.TensorProduct(
                    (kernels.Matern52(0.7), kernels.Periodic()), (1, 1)
                ),
                kernels.DirectSum(
                    (kernels.Matern52(0.7), kernels.Constant(0.5)), (1, 1)
                ),
                kernels.RationalQuadratic(0.8, 0.7),
                kernels.SquaredExponential(1.0) * kernels.Matern52(1.5),
                kernels.on(kernels.Matern12(0.8), 1)
                + kernels.Scaled(SMOOTH, 1.5, jnp.sum),
            ],
        ),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_random_functions_have_their_kernel(kernel):
    dtype = jnp.result_type(float)
    at = jnp.asarray(NEW, dtype)

    def values(key):
        function = kernels.random_function(kernel, key, 50, at[0])
        return jax.vmap(function)(at)

    num = 4000
    draws = jax.jit(jax.vmap(values))(jax.random.split(jax.random.key(0), num))
    assert draws.dtype == dtype
    wanted = np.asarray(kernels.gram(kernel, at))
    second = np.asarray(draws.T @ draws) / num
    spread = np.sqrt(np.outer(np.diag(wanted), np.diag(wanted)))
    # Five standard errors; random frequencies leave products heavier than normal ones.
    assert np.all(np.abs(second - wanted) <= 6 * np.sqrt(2 / num) * spread)


@pytest.mark.slow
def test_a_path_is_a_function():
    path = ONE.posterior.path(key=jax.random.key(0), num_features=50)
    np.testing.assert_allclose(path(NEW)[2], path(NEW[2:3])[0], rtol=1e-12)
    again = ONE.posterior.path(key=jax.random.key(0), num_features=50)
    np.testing.assert_array_equal(path(NEW), again(NEW))
    assert np.all(
        np.isfinite(jax.grad(lambda x: path(x[None])[0])(jnp.asarray(NEW[0])))
    )
    with pytest.raises(ValueError, match="x_new: got shape"):
        path(np.ones((2, 3)))
    compact = regression(jgp.GaussianProcess(kernels.Wendland(1, 2.0)), Y[:, 0])
    with pytest.raises(ValueError, match="kernel: got Wendland, which has no random"):
        compact.posterior.path(key=jax.random.key(0))
    with pytest.raises(ValueError, match="num_features: got 0, wanted an integer >= 1"):
        ONE.posterior.path(key=jax.random.key(0), num_features=0)
    there = compact.posterior.path(key=jax.random.key(0), inputs=NEW)
    assert there(NEW).shape == (4,)


@pytest.mark.slow
def test_without_noise_a_path_goes_through_the_data():
    x = np.linspace(0, 3, 7)
    model = jgp.Model(
        jgp.GaussianProcess(kernels.Matern52(0.7)), likelihoods.Gaussian(0)
    )
    found = jgp.exact(model, x, np.sin(x))
    path = found.posterior.path(key=jax.random.key(3), num_features=100)
    np.testing.assert_allclose(path(x), np.sin(x), atol=1e-10)
