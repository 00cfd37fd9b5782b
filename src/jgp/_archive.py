"""Arrays in one file, written at once or not at all, that say what they belong to."""

import hashlib
import os
import re
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree


def fingerprint(*parts: Any) -> str:
    """A digest of arrays, of the text of everything else, and of the structure.

    Functions count by their text, without the place in memory that it names.
    """
    digest = hashlib.sha256(_text(jax.tree.structure(parts)).encode())
    for leaf in jax.tree.leaves(parts):
        array = _host(leaf) if isinstance(leaf, jax.Array | np.ndarray) else None
        text = _text(leaf) if array is None else f"{array.dtype}{array.shape}"
        digest.update(text.encode())
        digest.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _text(value: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def write(path: Path, mark: str, content: dict[str, Any]) -> None:
    """Write arrays with the fingerprint that they belong to."""
    temporary = path.with_name(path.name + ".part")
    with open(temporary, "wb") as file:
        np.savez(file, fingerprint=np.array(mark), **content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def read(path: Path, mark: str, what: str) -> dict[str, np.ndarray]:
    """The arrays of a file of this fingerprint.

    Raises:
        ValueError: if the file is another's, or none that `write` wrote.
    """
    try:
        with open(path, "rb") as handle, np.load(handle) as file:
            content = dict(file)
        found = str(content["fingerprint"])
    except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
        raise ValueError(
            f"checkpoint: got {path}, which is no checkpoint of a {what} ({error})."
        ) from error
    if found != mark:
        raise ValueError(
            f"checkpoint: got {path}, which is of another {what} (other data, model or "
            "options). Delete it, or pass another path."
        )
    return content


def flattened(name: str, tree: PyTree) -> dict[str, np.ndarray]:
    """The arrays of a pytree under numbered names."""
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    return {f"{name}_{j}": _host(leaf) for j, leaf in enumerate(leaves)}


def restored(content: dict[str, np.ndarray], name: str, like: PyTree) -> PyTree:
    """The pytree of those names, in the structure of another."""
    arrays, rest = eqx.partition(like, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    found = [jnp.asarray(content[f"{name}_{j}"]) for j in range(len(leaves))]
    return eqx.combine(jax.tree.unflatten(structure, found), rest)


def _host(leaf: Any) -> np.ndarray:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)
