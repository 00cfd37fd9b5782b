import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jgp
from jgp import kernels, likelihoods, means
from jgp._constraints import Lengths, NonNegative, Real
from jgp._model import trainable

EPS = float(np.finfo(jnp.result_type(float)).eps)


def regression():
    kernel = 2.0 * kernels.Matern32(np.array([0.5, 3.0]))
    process = jgp.GaussianProcess(kernel, means.Constant(-0.7))
    return jgp.Model(process, likelihoods.Gaussian(0.1))


def classification():
    ks = [c * kernels.Matern52(0.3 * c) for c in (1.0, 2.0, 3.0)]
    return jgp.Model(jgp.independent(ks), likelihoods.Softmax(3))


@pytest.mark.float32
def test_parameters_of_a_model():
    rows = {path: type(constraint) for path, _, constraint in jgp.table(regression())}
    assert rows == {
        ".process.kernel.kernel.lengthscale": Lengths,
        ".process.kernel.variance": NonNegative,
        ".process.mean_function.value": Real,
        ".likelihood.noise_variance": NonNegative,
    }
    tree = jgp.constraints(classification())
    assert isinstance(tree.process.kernels[2].kernel.lengthscale, Lengths)


@pytest.mark.float32
@pytest.mark.parametrize("build", [regression, classification])
def test_round_trip_through_the_reals(build):
    model = jgp.freeze(build(), lambda m: m.process)
    raw = jgp.to_real(model)
    back = jgp.from_real(raw)
    assert back.frozen == model.frozen
    assert jax.tree.structure(back) == jax.tree.structure(model)
    for got, wanted in zip(jax.tree.leaves(back), jax.tree.leaves(model), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=8 * EPS)


@pytest.mark.float32
def test_positive_parameters_are_logarithms():
    raw = jgp.to_real(regression())
    np.testing.assert_allclose(raw.likelihood.noise_variance, np.log(0.1), rtol=4 * EPS)
    np.testing.assert_allclose(
        raw.process.kernel.kernel.lengthscale, np.log([0.5, 3]), rtol=4 * EPS
    )
    np.testing.assert_allclose(raw.process.mean_function.value, -0.7, rtol=EPS)


def test_freeze_names_paths_and_leaves_values_alone():
    model = classification()
    frozen = jgp.freeze(model, lambda m: m.process.kernels[1].kernel.lengthscale)
    assert frozen.frozen == (".process.kernels[1].kernel.lengthscale",)
    assert model.frozen == ()
    for got, wanted in zip(
        jax.tree.leaves(frozen), jax.tree.leaves(model), strict=True
    ):
        assert got is wanted
    chosen = trainable(frozen)
    assert chosen.process.kernels[1].kernel.lengthscale is False
    assert chosen.process.kernels[1].variance is True
    assert [*jax.tree.leaves(chosen)].count(True) == 5
    assert all(jax.tree.leaves(trainable(model)))


def test_freezing_twice_adds_up_and_repeats_nothing():
    def lengthscale(model):
        return model.process.kernel.kernel.lengthscale

    once = jgp.freeze(regression(), lengthscale)
    twice = jgp.freeze(once, lambda m: m.process.kernel)
    assert twice.frozen == (
        ".process.kernel.kernel.lengthscale",
        ".process.kernel.variance",
    )
    assert jgp.freeze(twice, lengthscale).frozen == twice.frozen
    both = jgp.freeze(
        regression(), lambda m: (m.likelihood.noise_variance, m.process.mean_function)
    )
    assert both.frozen == (
        ".likelihood.noise_variance",
        ".process.mean_function.value",
    )
    everything = jgp.freeze(regression(), lambda m: m)
    assert not any(jax.tree.leaves(trainable(everything)))


def test_a_where_that_selects_nothing_is_told_the_leaves():
    for where in (
        lambda m: 3.0,
        lambda m: (),
        lambda m: m.likelihood.num_latents,
        lambda m: m.process.num_latents,
    ):
        with pytest.raises(ValueError, match=r"where: got .* \.process\.kernel\.var"):
            jgp.freeze(regression(), where)
    with pytest.raises(AttributeError):
        jgp.freeze(regression(), lambda m: m.process.kernels)


def test_frozen_values_can_change_without_compiling(compilations):
    @eqx.filter_jit
    def total(model):
        return jnp.sum(model.process.covariance(jnp.ones((2, 2))))

    def where(m):
        return m.process.kernel.variance

    model = jgp.freeze(regression(), where)
    assert float(total(model)) == 8
    other = eqx.tree_at(where, model, jnp.asarray(5.0, float))
    with compilations() as count:
        assert float(total(other)) == 20
    assert count() == 0


@pytest.mark.parametrize(
    ("process", "likelihood", "message"),
    [
        (
            kernels.Matern32(1.0),
            likelihoods.Gaussian(0.1),
            "process: got Matern32, wanted a process such as GaussianProcess",
        ),
        (
            jgp.GaussianProcess(kernels.Matern32(1.0)),
            0.1,
            r"likelihood: got float, wanted one of jgp\.likelihoods",
        ),
        (
            jgp.GaussianProcess(kernels.Matern32(1.0)),
            likelihoods.Gaussian,
            "likelihood: got .*, wanted one of",
        ),
        (
            jgp.independent(kernels.Matern32(1.0), num_latents=2),
            likelihoods.Softmax(3),
            "process: got 2 latent functions, wanted 3 for Softmax",
        ),
        (
            jgp.GaussianProcess(kernels.Matern32(1.0)),
            likelihoods.MultinomialProbit(2),
            "process: got 1 latent functions, wanted 2 for MultinomialProbit",
        ),
    ],
)
def test_what_does_not_fit_together(process, likelihood, message):
    with pytest.raises(ValueError, match=message):
        jgp.Model(process, likelihood)


def test_gaussian_noise_goes_with_any_number_of_latents():
    process = jgp.independent(kernels.Matern32(1.0), num_latents=4)
    assert jgp.Model(process, likelihoods.Gaussian(0.1)).process.num_latents == 4
