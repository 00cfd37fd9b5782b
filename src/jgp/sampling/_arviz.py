"""Draws in the form that ArviZ reads."""

from typing import Any

import jax.tree_util as jtu
import numpy as np
from jaxtyping import PyTree


def to_arviz(draws: PyTree, infos: Any = None) -> Any:
    """An `arviz.InferenceData` of draws (chains, draws, ...) and the infos of steps.

    Args:
        draws: `Run.draws`: an array, called "position", or a pytree of arrays, called
            by their paths.
        infos: `Run.infos`; of thinned chains those of the last step before each draw.

    Raises:
        ValueError: For arrays without the two axes.
        ImportError: Without arviz (the extra `mcmc`).
    """
    try:
        import arviz
    except ImportError as error:
        raise ImportError("to_arviz needs arviz: pip install 'jgp[mcmc]'.") from error
    posterior = _named(draws, "position")
    shapes = {name: np.shape(value) for name, value in posterior.items()}
    leading = {shape[:2] for shape in shapes.values()}
    if not shapes or len(leading) > 1 or any(len(s) < 2 for s in shapes.values()):
        raise ValueError(
            f"draws: got shapes {shapes}, wanted (chains, draws, ...) for all."
        )
    num = next(iter(leading))[1]
    statistics = {
        _STATISTICS.get(name, name): value[
            :, value.shape[1] // num - 1 :: _every(value, num)
        ]
        for name, value in _named(infos, "info").items()
    }
    return arviz.from_dict(posterior=posterior, sample_stats=statistics or None)


# What ArviZ calls them.
_STATISTICS = {"divergent": "diverging", "acceptance": "acceptance_rate"}


def _every(value: np.ndarray, num: int) -> int:
    return max(1, value.shape[1] // num)


def _named(tree: PyTree, alone: str) -> dict[str, np.ndarray]:
    leaves, _ = jtu.tree_flatten_with_path(tree)
    return {_name(path) or alone: np.asarray(leaf) for path, leaf in leaves}


def _name(path: tuple[Any, ...]) -> str:
    parts = (getattr(p, "name", getattr(p, "key", getattr(p, "idx", p))) for p in path)
    return ".".join(map(str, parts))
