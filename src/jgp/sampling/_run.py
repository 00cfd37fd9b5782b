"""Long runs of many chains, on the host, in compiled chunks.

Step t of a chain uses `fold_in(key, t)`, so that the path of a chain depends neither on
the chunks nor on where a run was interrupted and taken up again.
"""

import concurrent.futures
import contextlib
import operator
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree
from tqdm import tqdm

from jgp import _archive
from jgp._cores import side_by_side
from jgp._parameters import is_concrete
from jgp._results import RESULTS
from jgp._types import check_key, positive_integer
from jgp.sampling._chains import sampled, warmed
from jgp.sampling._steps import are_finite, check_starts, check_steps, stand_still

# Steps of all chains between looks at the clock, unless told.
CHUNK_SIZE = 500


class Run(NamedTuple):
    """Draws of several chains.

    Args:
        draws: What was collected, (chains, draws, ...), in the memory of the host; with
            `reduce`, the last value of each chain.
        infos: One info a step after warm-up, (chains, steps, ...).
        state: The last state of each chain, to go on from with another key.
        result: `non_finite` where a draw is, `never_moved` where all draws of a chain
            are one and the same, `max_steps_reached` for a run that was interrupted.
    """

    draws: PyTree
    infos: PyTree
    state: PyTree
    result: RESULTS


def run(
    step: Callable[..., tuple[Any, Any]],
    state: PyTree,
    *,
    key: PRNGKeyArray,
    num_samples: int,
    num_warmup: int = 0,
    thinning: int = 1,
    chains: int = 4,
    collect: Callable[[Any], Any] = operator.attrgetter("position"),
    warmup_step: Callable[..., tuple[Any, Any]] | None = None,
    reduce: tuple[PyTree, Callable[[Any, Any], Any]] | None = None,
    chunk_size: int = CHUNK_SIZE,
    vectorize: bool = True,
    progress: bool = True,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 10.0,
) -> Run:
    """Run chains, with a progress bar after two seconds; Ctrl-C gives the draws so far.

    Args:
        step: `step(state, key=key)` returns the next state and an info. Passing the
            same function again compiles nothing.
        state: The states to start from, stacked along a leading axis of length
            `chains`.
        key: A typed random key, from which each chain has its own.
        num_samples: Draws to keep of each chain, at least 1.
        num_warmup: Steps before the first draw, whose infos are dropped.
        thinning: Steps from one draw to the next; what lies between never leaves the
            device.
        chains: Chains, which move together.
        collect: What of a state to keep as a draw; its position by default.
        warmup_step: As for `scan`.
        reduce: A start and a function of what was accumulated and a draw, which makes
            the next: what is accumulated is kept in place of the draws, so that memory
            does not grow with them. `(0.0, lambda total, draw: total + draw)` sums.
        chunk_size: Steps between one look at the clock and the next.
        vectorize: Whether chains are one batch, which is best for cheap densities and
            on accelerators. False runs each by itself, as many at once as a CPU has
            cores: no chain waits for another that needs more evaluations in a step.
        progress: Whether to show the bar.
        checkpoint: A file that is written now and then, at once or not at all, and
            resumed from where it exists: the draws are the same to the last bit.
        checkpoint_every: Seconds between writings.

    Returns:
        The draws of all chains, and how they ended.

    Raises:
        ValueError: If a count is out of range, `key` is no key, a step no step, the
            states have another leading axis or one is not finite, an argument is traced
            (use `scan`), or the checkpoint is of another run.
    """
    num_samples, chains, thinning, chunk_size = (
        int(positive_integer(name, value))
        for name, value in (
            ("num_samples", num_samples),
            ("chains", chains),
            ("thinning", thinning),
            ("chunk_size", chunk_size),
        )
    )
    num_warmup = int(positive_integer("num_warmup", num_warmup, least=0))
    check_steps(step, warmup_step)
    _check(state, key, chains)
    if not isinstance(vectorize, bool):
        raise ValueError(f"vectorize: expected True or False, got {vectorize!r}.")
    state = jax.tree.map(jnp.asarray, state)
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None and not path.parent.is_dir():
        raise ValueError(f"checkpoint: expected a path in a directory, got {path}.")
    keys = jax.random.split(key, chains)
    plan = _Plan(step, warmup_step, collect, reduce, num_warmup, thinning)
    progress_so_far = _Progress(plan, state, keys, chains)
    numbers = (num_samples, num_warmup, thinning, vectorize)
    mark = _archive.fingerprint(key, state, numbers, reduce and reduce[0])
    if path is not None and path.exists():
        progress_so_far.load(_archive.read(path, mark, "run"))
    bar = tqdm(desc="chains", delay=2.0, disable=not progress, unit="step")
    with contextlib.nullcontext() if vectorize else side_by_side() as pool:
        progress_so_far.pool = pool
        interrupted = _drive(
            progress_so_far,
            _ends(num_samples, num_warmup, thinning, chunk_size),
            bar,
            None if path is None else (path, mark, checkpoint_every),
        )
    return progress_so_far.ended(interrupted)


def _drive(
    so_far: "_Progress",
    ends: list[int],
    bar: tqdm,
    file: tuple[Path, str, float] | None,
) -> bool:
    """Go on to each end in turn; whether that was interrupted."""

    def write() -> None:
        if file is not None:
            _archive.write(file[0], file[1], so_far.content())

    written, interrupted = time.monotonic(), False
    bar.total = ends[-1]
    with bar:
        bar.update(so_far.done)
        try:
            for end in ends:
                if end <= so_far.done:
                    continue
                bar.update(so_far.advance(end))
                if file is not None and time.monotonic() - written > file[2]:
                    write()
                    written = time.monotonic()
        except KeyboardInterrupt:
            if so_far.empty:
                raise
            interrupted = True
        finally:
            write()
    return interrupted


class _Plan(NamedTuple):
    """What is run: functions, and how draws lie among the steps."""

    step: Callable[..., tuple[Any, Any]]
    warmup_step: Callable[..., tuple[Any, Any]] | None
    collect: Callable[[Any], Any]
    reduce: tuple[PyTree, Callable[[Any, Any], Any]] | None
    num_warmup: int
    thinning: int


class _Progress:
    """How far a run is: its states, what was kept, and the steps done.

    Args:
        plan: What is run.
        state: The states of all chains.
        keys: A key for each.
        chains: How many.
    """

    def __init__(self, plan: _Plan, state: PyTree, keys: PRNGKeyArray, chains: int):
        self.plan, self.state, self.keys, self.done = plan, state, keys, 0
        self.draws: list[PyTree] = []
        self.infos: list[PyTree] = []
        self.pool: concurrent.futures.Executor | None = None
        self.total = None
        if plan.reduce is not None:
            first = jax.tree.map(jnp.asarray, plan.reduce[0])
            self.total = jax.tree.map(lambda a: jnp.stack([a] * chains), first)

    @property
    def empty(self) -> bool:
        """Whether nothing has been sampled."""
        return not self.infos

    def advance(self, end: int) -> int:
        """Go on to a step; how many that were."""
        plan, num = self.plan, end - self.done
        start = jnp.asarray(self.done)
        if end <= plan.num_warmup:
            told = plan.warmup_step is not None
            warm = plan.warmup_step if plan.warmup_step is not None else plan.step
            (self.state,) = self._over_chains(
                lambda state, _, keys: (warmed(warm, told, state, keys, start, num),)
            )
        else:
            found = self._over_chains(self._sampled(start, num // plan.thinning))
            self.state, self.total, draws, infos = found
            self.infos.append(_on_host(infos))
            if plan.reduce is None:
                self.draws.append(_on_host(draws))
        self.done = end
        return num

    def _sampled(self, start: Array, num: int) -> Callable[..., tuple]:
        plan = self.plan
        update = None if plan.reduce is None else plan.reduce[1]
        fixed = (plan.step, plan.collect, update, plan.thinning)
        return lambda state, total, keys: sampled(fixed, state, total, keys, start, num)

    def _over_chains(self, advance: Callable[..., tuple]) -> tuple:
        """Of states, totals and keys, of all chains at once or of each by itself."""
        stacked = (self.state, self.total, self.keys)
        if self.pool is None:
            return jax.block_until_ready(advance(*stacked))

        def alone(i: int) -> tuple:
            one = jax.tree.map(lambda leaf: leaf[i : i + 1], stacked)
            return jax.block_until_ready(advance(*one))

        parts = list(self.pool.map(alone, range(self.keys.shape[0])))
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)

    def content(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        content = {"done": np.array(self.done), "empty": np.array(self.empty)}
        content |= _archive.flattened("state", self.state)
        content |= _archive.flattened("total", self.total)
        content |= _archive.flattened("draws", _joined(self.draws))
        return content | _archive.flattened("infos", _joined(self.infos))

    def load(self, content: dict[str, np.ndarray]) -> None:
        """Take up what a checkpoint holds."""
        self.done = int(content["done"])
        self.state = _archive.restored(content, "state", self.state)
        self.total = _archive.restored(content, "total", self.total)
        if not bool(content["empty"]):
            one = self._sampled(jnp.asarray(0), 1)
            shapes = jax.eval_shape(one, self.state, self.total, self.keys)
            like = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes)
            self.infos = [_on_host(_archive.restored(content, "infos", like[3]))]
            if self.plan.reduce is None:
                self.draws = [_on_host(_archive.restored(content, "draws", like[2]))]

    def ended(self, interrupted: bool) -> Run:
        """All that was kept."""
        draws = self.total if self.plan.reduce is not None else _joined(self.draws)
        result = RESULTS.successful
        if interrupted:
            result = RESULTS.max_steps_reached
        if self.plan.reduce is None and stand_still(draws):
            result = RESULTS.never_moved
        if not are_finite(draws):
            result = RESULTS.non_finite
        return Run(draws, _joined(self.infos), self.state, result)


def _ends(num_samples: int, num_warmup: int, thinning: int, size: int) -> list[int]:
    """The steps at which chunks end: none of them both warm-up and sampling."""
    size = max(size, thinning) // thinning * thinning
    warm = [*range(size, num_warmup, size), *([num_warmup] if num_warmup else [])]
    last = num_warmup + num_samples * thinning
    return [*warm, *range(num_warmup + size, last, size), last]


def _on_host(tree: PyTree) -> PyTree:
    return jax.tree.map(np.asarray, tree)


def _joined(parts: list[PyTree]) -> PyTree:
    """Chunks one after another along the axis of draws."""
    if not parts:
        return None
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *parts)


def _check(state: PyTree, key: PRNGKeyArray, chains: int) -> None:
    check_key(key)
    leaves = jax.tree.leaves(state)
    if not all(map(is_concrete, [*leaves, key])):
        raise ValueError(
            "state, key: got a traced one, expected concrete ones. `run` is a loop on "
            "the host; inside jit, vmap or grad use `scan`."
        )
    lengths = {jnp.shape(leaf)[:1] for leaf in leaves}
    if lengths != {(chains,)}:
        raise ValueError(
            f"state: expected a leading axis of length chains = {chains} on every "
            f"array, got {sorted(lengths)}."
        )
    check_starts(state)
