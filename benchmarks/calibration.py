"""Simulation-based calibration: where the truth ranks among draws of the posterior.

python -m benchmarks.calibration

Latents are drawn from the prior and labels from the likelihood, many times over; of an
exact posterior the rank of each latent among its draws is uniform (Talts et al. 2018).
Ranks of Gaussian posteriors are their distribution function at the truth. Latents of
one data set depend on each other: one of them is looked at in each. The last row is
that of a posterior which is known to be wrong, twice as narrow as nested EP's.
"""

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import stats

import jgp
from benchmarks.report import markdown
from benchmarks.timing import machine
from jgp import kernels, likelihoods

NUM_CLASSES = 3
X = np.linspace(0, 1, 8)[:, None]
BINS = 10
DRAWS = 49


def model(likelihood: Any = likelihoods.MultinomialProbit) -> jgp.Model:
    """Three classes on eight points, with a prior that the labels say little about."""
    each = [4.0 * kernels.SquaredExponential(0.3)] * NUM_CLASSES
    return jgp.Model(jgp.independent(each), likelihood(NUM_CLASSES))


def gaussian(verb: Callable, likelihood: Any, shrink: float = 1.0) -> Callable:
    """The posterior distribution function at the truth."""

    def rank(key: Array, f: Array, y: Array, index: Array) -> Array:
        marginals = verb(model(likelihood), X, y, throw=False).posterior.marginals(X)
        z = (f - marginals.mean) / (shrink * jnp.sqrt(marginals.variance))
        return jax.scipy.stats.norm.cdf(z.ravel()[index])

    return rank


def chains(key: Array, f: Array, y: Array, index: Array) -> Array:
    """The share of draws below the truth, ties of ranks broken at random."""
    rank_key, key = jax.random.split(key)
    found = jgp.sample_posterior(
        model(),
        X,
        y,
        key=key,
        num_chains=1,
        num_warmup=200,
        thinning=20,
        max_steps=20 * DRAWS,
        throw=False,
    )
    draws = found.posterior.draws.reshape(DRAWS, -1)[:, index]  # pyright: ignore[reportAttributeAccessIssue]
    below = jnp.sum((draws < f.ravel()[index]).astype(f.dtype))
    return (below + jax.random.uniform(rank_key, dtype=f.dtype)) / (DRAWS + 1)


# Each with the likelihood that its data are drawn from.
PROBIT, SOFTMAX = likelihoods.MultinomialProbit, likelihoods.Softmax
METHODS = {
    "nested EP": (gaussian(jgp.nested_ep, PROBIT), PROBIT),
    "Laplace (softmax)": (gaussian(jgp.laplace, SOFTMAX), SOFTMAX),
    "MCMC": (chains, PROBIT),
    "nested EP, half as wide": (gaussian(jgp.nested_ep, PROBIT, 0.5), PROBIT),
}


def ranks(method: Callable, likelihood: Any, num: int) -> np.ndarray:
    """Ranks in [0, 1] over data sets of the model, the same for all of a likelihood."""
    prior = model().process.covariance(jnp.asarray(X))
    root = jnp.linalg.cholesky(prior + 1e-10 * jnp.eye(len(X))[None])

    def one(key):
        f_key, y_key, index_key, method_key = jax.random.split(key, 4)
        w = jax.random.normal(f_key, (len(X), NUM_CLASSES))
        f = jnp.einsum("cij,jc->ic", root, w)
        probs: Any = model(likelihood).likelihood.observe(f)
        y = jax.random.categorical(y_key, jnp.log(probs.probs)).astype(jnp.int32)
        index = jax.random.randint(index_key, (), 0, f.size)
        return method(method_key, f, y, index)

    keys = jax.random.split(jax.random.key(0), num)
    return np.asarray(jax.jit(functools.partial(jax.lax.map, one, batch_size=50))(keys))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the histogram of ranks of each method, and how uniform it is."""
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser("benchmarks.calibration", description=description)
    parser.add_argument("--num", type=int, default=2000, help="data sets")
    options = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    cells = []
    for name, (method, likelihood) in METHODS.items():
        found = ranks(method, likelihood, options.num)
        counts, _ = np.histogram(found, BINS, (0.0, 1.0))
        p = stats.chisquare(counts).pvalue
        outside = np.mean(np.abs(found - 0.5) > 0.45)
        histogram = " ".join(str(count) for count in counts)
        cells.append([name, histogram, f"{p:.2g}", f"{outside:.3f}"])
    head = ["posterior", "ranks in tenths", "p of uniform", "outside 90 %"]
    print(markdown(head, cells))
    print(", ".join(f"{k}: {v}" for k, v in machine().items()))


if __name__ == "__main__":
    main()
