import functools
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jgp import _lapack
from tests.cases import slow_unless
from tests.test_linalg import EPS, wishart

FACTORISATIONS = [
    _lapack.cholesky,
    _lapack.eigh,
    _lapack.inverse,
    _lapack.inverse_root,
]


def batch_of(n, *shape):
    count = int(np.prod(shape))
    return jnp.asarray(np.stack([wishart(n, i) for i in range(count)])).reshape(
        *shape, n, n
    )


@pytest.mark.slow
def test_batched_calls_side_by_side_end():
    # As plain batched Cholesky calls these wait for one another within a few rounds
    # on two cores.
    program = """
        import jax, jax.numpy as jnp
        from jgp import _lapack

        @jax.jit
        def several(x):
            eye = jnp.eye(64)
            one = lambda i: jax.vmap(_lapack.cholesky)((i + 1.0) * x + i * eye)
            return sum(jnp.sum(one(i)) for i in range(8))

        x = jnp.broadcast_to(64 * jnp.eye(64) + 1, (10, 64, 64))
        for _ in range(300):
            several(x).block_until_ready()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    subprocess.run(command, check=True, timeout=120)


@pytest.mark.float32
@pytest.mark.parametrize("n", slow_unless([5], [1, 5, 130]))
@pytest.mark.parametrize("shape", [(1,), (3,), (2, 3)])
@pytest.mark.parametrize("function", FACTORISATIONS, ids=lambda f: f.__name__)
def test_a_batch_is_its_elements(function, shape, n):
    batch = batch_of(n, *shape)
    mapped = function
    for _ in shape:
        mapped = jax.vmap(mapped)
    got = jax.jit(mapped)(batch)
    one = jax.jit(function)
    for index in np.ndindex(*shape):
        expected = jax.tree.leaves(one(batch[index]))
        for g, e in zip(jax.tree.leaves(got), expected, strict=True):
            # The same operations; the condition number is 100.
            np.testing.assert_allclose(g[index], e, rtol=0, atol=1e4 * EPS)


@pytest.mark.float32
@pytest.mark.parametrize("n", slow_unless([1, 65], [1, 64, 65, 200]))
def test_inverses_by_halves(n):
    A = wishart(n)
    A_inverse, log_A = _lapack.inverse(jnp.asarray(A))
    root, log_root = _lapack.inverse_root(jnp.asarray(A))
    # Errors grow with the condition number, 100.
    atol = 100 * 100 * n * EPS
    np.testing.assert_allclose(A_inverse, np.linalg.inv(A), rtol=0, atol=atol)
    np.testing.assert_allclose(root @ A @ root.T, np.eye(n), rtol=0, atol=atol)
    np.testing.assert_array_equal(root, np.tril(root))
    for log in (log_A, log_root):
        np.testing.assert_allclose(log, np.linalg.slogdet(A)[1], atol=atol)


@pytest.mark.float32
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(
    "axes", [(0, 0), (0, None), (None, 0)], ids=["both", "factor", "right"]
)
def test_triangular_solves_under_vmap(axes, transpose):
    lower = jnp.tril(batch_of(4, 3)) + jnp.eye(4)[None]
    b = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 2)))
    lower = lower if axes[0] == 0 else lower[0]
    b = b if axes[1] == 0 else b[0]
    solve = functools.partial(_lapack.triangular_solve, transpose=transpose)
    got = jax.vmap(solve, in_axes=axes)(lower, b)
    matrix = np.swapaxes(lower, -1, -2) if transpose else lower
    expected = np.linalg.solve(matrix, np.broadcast_to(b, (3, 4, 2)))
    np.testing.assert_allclose(got, expected, rtol=0, atol=100 * EPS)


@pytest.mark.parametrize("transpose", slow_unless([True], [False, True]))
def test_derivatives_of_triangular_solves(transpose):
    lower = jnp.tril(batch_of(3, 2)) + jnp.eye(3)[None]
    b = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 2)))

    @jax.jit
    def solve(lower, b):
        one = functools.partial(_lapack.triangular_solve, transpose=transpose)
        return jax.vmap(one)(jnp.tril(lower), b)

    check_grads(solve, (lower, b), order=2, modes=("fwd", "rev"))
