"""Elliptical slices on Iris: the time of 4 × 10 000 draws, and blackjax's for as many.

python -m benchmarks.sampling

Both walk in the same whitened latents under the same likelihood, chains as one batch,
in turns; the ratio is that of the medians.
"""

import argparse
import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import jgp
from benchmarks.evidence import problem
from benchmarks.report import markdown
from benchmarks.timing import machine, timed
from jgp.sampling import effective_sample_size, elliptical_slice, scan
from jgp.sampling import run as sampling_run

CHAINS = 4


def target(small: bool) -> tuple[Callable, int, jgp.Approximation]:
    """The log likelihood of whitened latents, their number, and an approximation."""
    model, x, y = problem("iris", small)
    found = jgp.nested_ep(model, x, y)
    K = model.process.covariance(found.x)
    root = jnp.linalg.cholesky(K + 1e-9 * jnp.eye(len(found.x))[None])
    num, num_latents = found.x.shape[0], model.process.num_latents

    def log_likelihood(w):
        f = jnp.einsum("cij,jc->ic", root, w.reshape(num, num_latents))
        return jnp.sum(model.likelihood.log_probs(f, found.y))

    return log_likelihood, num * num_latents, found


def ours(log_likelihood: Callable, size: int, num: int) -> Callable:
    """Chains of `jgp.sampling.elliptical_slice`."""
    step = functools.partial(
        elliptical_slice.step,
        log_likelihood=log_likelihood,
        draw=lambda key: jax.random.normal(key, (size,)),
    )

    def chain(key):
        start_key, key = jax.random.split(key)
        start = jax.random.normal(start_key, (size,))
        state = elliptical_slice.init(start, log_likelihood)
        return scan(step, state, key=key, num_samples=num, num_warmup=0).draws

    return jax.jit(jax.vmap(chain))


def side_by_side(log_likelihood: Callable, size: int, num: int) -> Callable:
    """The same chains by `jgp.sampling.run`, a core for each."""
    step = functools.partial(
        elliptical_slice.step,
        log_likelihood=log_likelihood,
        draw=lambda key: jax.random.normal(key, (size,)),
    )

    def chains(keys):
        starts = jax.vmap(lambda key: jax.random.normal(key, (size,)))(keys)
        init = functools.partial(elliptical_slice.init, log_likelihood=log_likelihood)
        found = sampling_run(
            step,
            jax.vmap(init)(starts),
            key=keys[0],
            num_samples=num,
            chains=CHAINS,
            vectorize=False,
            progress=False,
        )
        return found.draws

    return chains


def theirs(log_likelihood: Callable, size: int, num: int) -> Callable:
    """Chains of `blackjax.elliptical_slice`."""
    import blackjax

    algorithm: Any = blackjax.elliptical_slice(
        log_likelihood, mean=jnp.zeros(size), cov=jnp.ones(size)
    )

    def chain(key):
        start_key, key = jax.random.split(key)
        state = algorithm.init(jax.random.normal(start_key, (size,)))

        def advance(state, key):
            state, _ = algorithm.step(key, state)
            return state, state.position

        return lax.scan(advance, state, jax.random.split(key, num))[1]

    return jax.jit(jax.vmap(chain))


def main(arguments: Sequence[str] | None = None) -> None:
    """Time both, and what mixes better, and print a table."""
    description = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser("benchmarks.sampling", description=description)
    parser.add_argument("--small", action="store_true", help="40 points, 200 draws")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    num = 200 if options.small else 10_000
    log_likelihood, size, found = target(options.small)

    def about_nested_ep(keys):
        return jgp.sample_posterior(
            found.model,
            found.x,
            found.y,
            key=keys[0],
            proposal=found,
            num_chains=CHAINS,
            num_warmup=1,
            max_steps=num,
            throw=False,
        ).posterior.whitened  # pyright: ignore[reportAttributeAccessIssue]

    methods = {
        "jgp": ours(log_likelihood, size, num),
        "jgp, chains side by side": side_by_side(log_likelihood, size, num),
        "blackjax": theirs(log_likelihood, size, num),
        "jgp, about nested EP": about_nested_ep,
    }
    keys = jax.random.split(jax.random.key(0), CHAINS)
    first, later, draws = {}, {name: [] for name in methods}, {}
    for name, method in methods.items():
        first[name] = timed(functools.partial(method, keys)).seconds
    for _ in range(options.repeats):
        for name, method in methods.items():
            measured = timed(functools.partial(method, keys))
            draws[name] = measured.value
            later[name].append(measured.seconds)
    median = {name: statistics.median(seconds) for name, seconds in later.items()}
    cells = []
    for name in methods:
        whitened = draws[name].reshape(CHAINS, num, -1)
        ess = float(jnp.min(effective_sample_size(whitened)))
        numbers = f"{first[name]:.1f}", f"{median[name]:.2f}"
        ratio = f"{median[name] / median['blackjax']:.2f}"
        cells.append([name, *numbers, ratio, f"{ess / median[name]:.1f}"])
    head = ["sampler", "first (s)", "later (s)", "over blackjax", "least ESS/s"]
    print(markdown(head, cells))
    print(", ".join(f"{k}: {v}" for k, v in machine().items()))


if __name__ == "__main__":
    main()
