import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jgp.kernels import (
    AbstractKernel,
    Constant,
    Matern12,
    Matern52,
    Power,
    Product,
    Scaled,
    Select,
    SquaredExponential,
    Sum,
    Warped,
    check_dimension,
    gram,
    on,
)
from jgp.testing import check_kernel
from tests import cases

A, B, C = SquaredExponential(0.7), Matern12(1.3), Matern52(2.0)
X = cases.points(2)
KA, KB, KC = (np.asarray(gram(kernel, X)) for kernel in (A, B, C))


@pytest.mark.float32
@pytest.mark.parametrize("name", cases.each_kernel())
def test_laws(name):
    case = cases.KERNELS[name]
    x = cases.points(case.dimension, domain=case.domain)
    check_kernel(case.instance, jnp.asarray(x))


@pytest.mark.float32
@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (A + B + C, KA + KB + KC),
        (A * B * C, KA * KB * KC),
        ((A + B) * C, (KA + KB) * KC),
        (A * B + C, KA * KB + KC),
        (2 * A, 2 * KA),
        (A * 2.5, 2.5 * KA),
        (A + 0.3, KA + 0.3),
        (1 + A, KA + 1),
        (B**3, KB**3),
        (B**1, KB),
        (2.5 * (A + 0.3) ** 2 * B, 2.5 * (KA + 0.3) ** 2 * KB),
    ],
)
def test_algebra_is_the_algebra_of_gram_matrices(kernel, expected):
    # A few rounded operations on values below 10.
    tolerance = 50 * np.finfo(expected.dtype).eps
    np.testing.assert_allclose(gram(kernel, X), expected, rtol=tolerance)


def parts(kernel):
    assert isinstance(kernel, Sum | Product)
    return kernel.kernels


def test_sums_and_products_are_flat():
    assert parts(A + B + (C + A)) == (A, B, C, A)
    assert parts(A * B * (C * A)) == (A, B, C, A)
    assert Sum([A, A + B]).kernels == (A, A, B)
    assert Product([A, A + B]).kernels == (A, Sum((A, B)))


def test_builtin_sum_adds_no_constant():
    assert parts(sum([A, B, C])) == (A, B, C)


@pytest.mark.parametrize(
    "number", [2, 2.0, np.float64(2.0), np.array(2.0), jnp.asarray(2.0)]
)
def test_a_number_on_either_side_is_a_trainable_variance(number):
    for kernel in (number * A, A * number):
        assert isinstance(kernel, Scaled)
        assert kernel.variance.shape == ()
        assert float(kernel.variance) == 2.0
    for kernel in (number + A, A + number):
        assert isinstance(kernel, Sum)
        (constant,) = (k for k in kernel.kernels if isinstance(k, Constant))
        assert float(constant.variance) == 2.0


def test_gradient_reaches_the_variances():
    kernel = 2.0 * A + 0.5
    slope = eqx.filter_grad(lambda k: jnp.sum(gram(k, X)))(kernel)
    np.testing.assert_allclose(slope.kernels[0].variance, np.sum(KA), rtol=1e-13)
    np.testing.assert_allclose(slope.kernels[1].variance, KA.size, rtol=1e-13)


@pytest.mark.parametrize("exponent", [0, -1, 1.5, 2.0])
def test_other_powers_are_refused(exponent):
    with pytest.raises(ValueError, match=r"exponent: got .*, wanted an integer >= 1"):
        _ = A**exponent


def test_what_is_neither_kernel_nor_number_is_refused():
    with pytest.raises(TypeError):
        _ = A + "1"
    with pytest.raises(TypeError):
        _ = None * A
    with pytest.raises(ValueError, match=r"variance: got shape \(2,\)"):
        _ = A * np.ones(2)
    with pytest.raises(ValueError, match="kernels: got none"):
        Sum(())


def test_warped_maps_both_points_and_trains_the_map():
    class Stretch(eqx.Module):
        factor: jax.Array

        def __call__(self, x):
            return self.factor * x

    kernel = Warped(A, Stretch(jnp.asarray(2.0)))
    np.testing.assert_allclose(gram(kernel, X), gram(A, 2 * X), rtol=1e-13)
    # Stretching the inputs by c is dividing the lengthscale by c: with l = 0.7 / c,
    # dK/dc = dK/dl (-l / c).
    by_factor = eqx.filter_grad(lambda k: jnp.sum(gram(k, X)))(kernel)
    short = SquaredExponential(0.35)
    by_length = eqx.filter_grad(lambda k: jnp.sum(gram(k, X)))(short)
    np.testing.assert_allclose(
        by_factor.map.factor, by_length.lengthscale * -0.35 / 2, rtol=1e-12
    )


def test_on_takes_the_dimensions_in_the_order_given():
    x = cases.points(3)
    ard = SquaredExponential(np.array([0.5, 2.0]))
    np.testing.assert_array_equal(gram(on(ard, (2, 0)), x), gram(ard, x[:, [2, 0]]))
    np.testing.assert_array_equal(gram(on(A, 1), x), gram(A, x[:, 1:2]))
    # A separable kernel is the product of its factors on their own dimensions.
    factors = on(SquaredExponential(0.5), 0) * on(SquaredExponential(2.0), 1)
    np.testing.assert_allclose(gram(factors, X), gram(ard, X), rtol=1e-13)


@pytest.mark.parametrize("dims", [(), (-1,), (0, -2)])
def test_on_refuses_dimensions_that_cannot_be(dims):
    with pytest.raises(ValueError, match="dims: got"):
        on(A, dims)


def test_select_refuses_a_dimension_out_of_range():
    with pytest.raises(ValueError, match=r"dims: got \(2,\), wanted integers < 2"):
        Select((2,))(jnp.ones(2))


@pytest.mark.parametrize("wrap", [lambda k: k, lambda k: 2.0 * (k + A) ** 2 * B + 1.0])
def test_check_dimension_finds_the_kernel_that_disagrees(wrap):
    ard = wrap(SquaredExponential(np.array([0.5, 2.0])))
    check_dimension(ard, 2)
    for d in (1, 3):
        with pytest.raises(ValueError, match=f"lengthscale: got 2 entries.* {d}, the"):
            check_dimension(ard, d)
    single = wrap(SquaredExponential(np.array([0.5])))
    with pytest.raises(ValueError, match="lengthscale: got 1 entries"):
        check_dimension(single, 2)
    selecting = wrap(on(Matern12(np.array([1.0, 2.0])), (0, 3)))
    check_dimension(selecting, 4)
    with pytest.raises(ValueError, match=r"dims: got \(0, 3\), wanted integers < 3"):
        check_dimension(selecting, 3)


def test_check_dimension_under_transformations():
    @jax.jit
    def traced(lengthscale):
        check_dimension(SquaredExponential(lengthscale), 2)
        return lengthscale

    traced(jnp.ones(2))
    with pytest.raises(ValueError, match="lengthscale: got 3 entries"):
        traced(jnp.ones(3))
    # Each element of a stacked kernel has one lengthscale for each dimension.
    jax.vmap(traced)(jnp.ones((3, 2)))


def test_check_dimension_wants_a_scalar_kernel():
    class Vector(AbstractKernel):
        def __call__(self, x, z):
            return x * z

    with pytest.raises(ValueError, match=r"kernel: got a value of shape \(2,\)"):
        check_dimension(Vector(), 2)


def test_check_kernel_names_the_law_that_fails():
    class Skew(AbstractKernel):
        def __call__(self, x, z):
            return jnp.exp(-jnp.sum(jnp.abs(x - 2 * z)))

    class Indefinite(AbstractKernel):
        def __call__(self, x, z):
            return jnp.sum(jnp.square(x - z))

    class Root(AbstractKernel):  # exp(-r) through a square root that has no guard
        def __call__(self, x, z):
            return jnp.exp(-jnp.sqrt(jnp.sum(jnp.square(x - z))))

    class WrongSlope(AbstractKernel):
        def __call__(self, x, z):
            frozen = jax.lax.stop_gradient(x - z)
            return jnp.exp(-jnp.sum(jnp.square(frozen)))

    for kernel, law in [
        (Skew(), "symmetry"),
        (Indefinite(), "positive semidefiniteness"),
        (Root(), "gradient: not finite"),
        (WrongSlope(), "gradient: off by"),
    ]:
        with pytest.raises(AssertionError, match=f"^{law}"):
            check_kernel(kernel, X)


def test_power_keeps_its_exponent_static():
    assert jax.tree.leaves(Power(A, 2)) == jax.tree.leaves(A)
