"""Checkpoints of a fit: the trials of every search, to be taken again on resumption.

A search is a coroutine of what it is sent, so sending it the recorded trials puts it
where it was, to the last bit; only evaluations in flight are lost.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jgp._search import Trial


def fingerprint(*parts: Any) -> str:
    """A digest of arrays, and of the text of everything else."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(parts):
        array = None
        if isinstance(leaf, jax.Array | np.ndarray):
            is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            array = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
        text = repr(leaf) if array is None else f"{array.dtype}{array.shape}"
        digest.update(text.encode())
        digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def save(
    path: Path, mark: str, trials: Sequence[Sequence[Trial]], states: Sequence[PyTree]
) -> None:
    """Write the trials and the states of all searches, at once or not at all."""
    content: dict[str, Any] = {"fingerprint": np.array(mark)}
    for i, (record, state) in enumerate(zip(trials, states, strict=True)):
        content[f"raw_{i}"] = np.array([t.raw for t in record])
        content[f"value_{i}"] = np.array([t.value for t in record])
        content[f"gradient_{i}"] = np.array([t.gradient for t in record])
        content[f"status_{i}"] = np.array([t.code for t in record], int)
        for j, leaf in enumerate(_arrays(state)):
            content[f"state_{i}_{j}"] = np.asarray(leaf)
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "wb") as file:
        np.savez(file, **content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load(path: Path, mark: str, like: Sequence[PyTree]) -> list[tuple[list, PyTree]]:
    """The trials and the state of every search.

    Args:
        path: The file.
        mark: The fingerprint that it must have.
        like: States of the structure of those saved.

    Raises:
        ValueError: if the file is another fit's, or no checkpoint.
    """
    try:
        with np.load(path) as file:
            content = dict(file)
        found = str(content["fingerprint"])
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise ValueError(
            f"checkpoint: got {path}, which is no checkpoint of a fit ({error})."
        ) from error
    if found != mark:
        raise ValueError(
            f"checkpoint: got {path}, which is of another fit (other data, model or "
            "options). Delete it, or pass another path."
        )
    return [_read(content, i, state) for i, state in enumerate(like)]


def _read(content: dict, i: int, like: PyTree) -> tuple[list[Trial], PyTree]:
    columns = (content[f"{name}_{i}"] for name in ("raw", "value", "gradient"))
    codes = content[f"status_{i}"]
    trials = [
        Trial(raw, float(value), gradient, int(code))
        for raw, value, gradient, code in zip(*columns, codes, strict=True)
    ]
    arrays, rest = eqx.partition(like, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    read = [jnp.asarray(content[f"state_{i}_{j}"]) for j in range(len(leaves))]
    return trials, eqx.combine(jax.tree.unflatten(structure, read), rest)


def _arrays(state: PyTree) -> list:
    return jax.tree.leaves(eqx.filter(state, eqx.is_array))
