"""Checkpoints of a fit: the trials of every search, to be taken again on resumption.

A search is a coroutine of what it is sent, so sending it the recorded trials puts it
where it was, to the last bit; only evaluations in flight are lost.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import PyTree

from jgp import _archive
from jgp._search import Trial


def save(
    path: Path, mark: str, trials: Sequence[Sequence[Trial]], states: Sequence[PyTree]
) -> None:
    """Write the trials and the states of all searches, at once or not at all."""
    content: dict[str, Any] = {}
    for i, (record, state) in enumerate(zip(trials, states, strict=True)):
        content[f"raw_{i}"] = np.array([t.raw for t in record])
        content[f"value_{i}"] = np.array([t.value for t in record])
        content[f"gradient_{i}"] = np.array([t.gradient for t in record])
        content[f"status_{i}"] = np.array([t.code for t in record], int)
        content |= _archive.flattened(f"state_{i}", state)
    _archive.write(path, mark, content)


def load(path: Path, mark: str, like: Sequence[PyTree]) -> list[tuple[list, PyTree]]:
    """The trials and the state of every search.

    Args:
        path: The file.
        mark: The fingerprint that it must have.
        like: States of the structure of those saved.

    Raises:
        ValueError: if the file is another fit's, or no checkpoint.
    """
    content = _archive.read(path, mark, "fit")
    return [
        (_trials(content, i), _archive.restored(content, f"state_{i}", state))
        for i, state in enumerate(like)
    ]


def _trials(content: dict[str, np.ndarray], i: int) -> list[Trial]:
    columns = (content[f"{name}_{i}"] for name in ("raw", "value", "gradient"))
    return [
        Trial(raw, float(value), gradient, int(code))
        for raw, value, gradient, code in zip(
            *columns, content[f"status_{i}"], strict=True
        )
    ]
