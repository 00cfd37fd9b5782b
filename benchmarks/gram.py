"""Gram matrices against the same formula by hand with a matrix product.

    python -m benchmarks.gram [--num 4000] [--dimension 8] [--repeats 9]

By hand means the expansion ‖x‖² + ‖z‖² − 2xᵀz of centred inputs. jgp sums squared
differences instead, which lose no digits. Times are medians in one run, alternating;
the errors are those of the near pair of an offset set of points.
"""

import argparse
import statistics

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.timing import machine, timed
from jgp import kernels

KERNELS = {
    "SquaredExponential": kernels.SquaredExponential,
    "Matern52": kernels.Matern52,
}
PROFILES = {
    "SquaredExponential": lambda s: jnp.exp(-s / 2),
    "Matern52": lambda s: (1 + jnp.sqrt(5 * s) + 5 * s / 3) * jnp.exp(-jnp.sqrt(5 * s)),
}


def by_hand(profile, x, lengthscale):
    """The expansion, with one matrix product."""
    u = x / lengthscale
    u = u - jnp.mean(u, axis=0)
    squares = jnp.sum(u**2, axis=1)
    s = jnp.maximum(squares[:, None] + squares[None] - 2 * u @ u.T, 0)
    return profile(s)


def by_jgp(kernel, x, lengthscale):
    """`jgp.kernels.gram`."""
    return kernels.gram(kernel(lengthscale), x)


def of_lengthscale(matrix, weights):
    """The gradient of a weighted sum of the matrix in the lengthscales."""
    return jax.grad(lambda x, ell: jnp.sum(weights * matrix(x, ell)), 1)


def main() -> None:
    """Time and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num", type=int, default=4000)
    parser.add_argument("--dimension", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(options.num, options.dimension)))
    weights = jnp.asarray(rng.normal(size=(options.num, options.num)))
    lengthscale = jnp.linspace(0.5, 3.0, options.dimension)

    print(", ".join(f"{name}: {value}" for name, value in machine().items()))
    print(f"n = {options.num}, d = {options.dimension}")
    for name, kernel in KERNELS.items():
        hand = lambda x, ell, name=name: by_hand(PROFILES[name], x, ell)  # noqa: E731
        ours = lambda x, ell, kernel=kernel: by_jgp(kernel, x, ell)  # noqa: E731
        for what, functions in {
            "matrix": (hand, ours),
            "gradient": (of_lengthscale(hand, weights), of_lengthscale(ours, weights)),
        }.items():
            compiled = [jax.jit(function) for function in functions]
            seconds = [[], []]
            for repeat in range(options.repeats + 1):
                for which, function in enumerate(compiled):
                    taken = timed(lambda f=function: f(x, lengthscale)).seconds
                    if repeat:
                        seconds[which].append(taken)
            by, our = map(statistics.median, seconds)
            ratios = sorted(b / a for a, b in zip(*seconds, strict=True))
            print(
                f"{name} {what}: by hand {1e3 * by:.0f} ms, jgp {1e3 * our:.0f} ms, "
                f"ratio {our / by:.2f} ({ratios[1]:.2f} to {ratios[-2]:.2f})"
            )
    _accuracy()
    _images()


def _accuracy() -> None:
    """Two points 1e-6 apart, 1e4 from the others: exp(−5e-13) to how many digits."""
    x = jnp.asarray([[0.0], [1e4], [1e4 + 2.0**-20]])
    exact = np.expm1(-(2.0**-41))
    for name, K in {
        "by hand": by_hand(PROFILES["SquaredExponential"], x, 1.0),
        "jgp": by_jgp(kernels.SquaredExponential, x, 1.0),
    }.items():
        error = abs(float(K[1, 2]) - 1 - exact)
        print(f"error of the near pair, {name}: {error:.1e}")


def _images() -> None:
    """As many images as scikit-learn has digits, 8 × 8, in windows of 3 × 3."""
    images = jnp.asarray(np.random.default_rng(1).uniform(size=(1797, 64)))
    kernel = kernels.MeanSSIM((8, 8), 3)
    first, later = (timed(lambda: kernels.gram(kernel, images)).seconds for _ in "ab")
    print(f"MeanSSIM, 1797 images: first call {first:.2f} s, later {later:.2f} s")


if __name__ == "__main__":
    main()
