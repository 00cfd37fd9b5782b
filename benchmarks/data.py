"""Data sets for the benchmarks: iris, wine, digits, or a CSV file of one's own."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_digits, load_iris, load_wine

DEFAULT_DIRECTORY = Path("../shared/data")
SMALL_SIZE = 60


class Dataset(NamedTuple):
    """Training and test data, with the words for plots."""

    name: str
    x: np.ndarray
    y: np.ndarray
    x_new: np.ndarray
    y_new: np.ndarray
    classes: tuple[str, ...]


def load(
    name: str, *, seed: int, directory: Path, rows: str = "uci", small: bool = False
) -> Dataset:
    """A data set by name, split at random but for digits (first 200, next 100).

    Args:
        name: "iris", "wine", "digits", or the name of a file
            `directory`/classification/`name`.csv with a header and `label` last.
        seed: Of the permutation before the split, 80 % to train.
        directory: Where files are.
        rows: "uci" or "sklearn": their iris differ in two rows.
        small: Keeps the first 60 training points.
    """
    if name == "digits":
        x, labels = _arrays(load_digits(return_X_y=True))
        x, labels, num_train = x[:300] / 16, labels[:300], 200
    else:
        x, labels = _table(name, directory, rows)
        order = np.random.RandomState(seed).permutation(len(x))
        x, labels, num_train = x[order], labels[order], (4 * len(x)) // 5
    if name != "iris" and name != "digits":
        x = (x - x[:num_train].mean(axis=0)) / _scale(x[:num_train])
    classes, y = np.unique(labels, return_inverse=True)
    train = slice(0, SMALL_SIZE if small else num_train)
    return Dataset(
        name,
        x[train],
        y[train],
        x[num_train:],
        y[num_train:],
        _class_names(name, classes),
    )


def iris(rows: str, directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """Fisher's iris as scikit-learn or UCI has it, in the order of both."""
    x, y = _arrays(load_iris(return_X_y=True))
    if rows == "uci":
        path = directory / "iris_uci.csv"
        if path.exists():
            x = np.loadtxt(path, delimiter=",", skiprows=1, usecols=range(4))
        else:
            x[34] = x[37] = [4.9, 3.1, 1.5, 0.1]
    return x, y


def _arrays(loaded: Any) -> tuple[np.ndarray, np.ndarray]:
    """What scikit-learn loads, which could be frames."""
    x, y = loaded
    return np.asarray(x), np.asarray(y)


def _table(name: str, directory: Path, rows: str) -> tuple[np.ndarray, np.ndarray]:
    if name == "iris":
        return iris(rows, directory)
    if name == "wine":
        return _arrays(load_wine(return_X_y=True))
    path = directory / "classification" / f"{name}.csv"
    if not path.exists():
        raise SystemExit(
            f"--data {name}: there is no {path}. Use iris, wine or digits, which come "
            "with scikit-learn, or put a comma-separated file there (one header line, "
            "numbers, and the column `label` last), or point --data-dir to the folder "
            f"that holds classification/{name}.csv."
        )
    table = np.genfromtxt(path, delimiter=",", skip_header=1, dtype=str)
    return table[:, :-1].astype(float), table[:, -1]


def _scale(x: np.ndarray) -> np.ndarray:
    scale = x.std(axis=0)
    return np.where(scale > 0, scale, 1)


def _class_names(name: str, classes: np.ndarray) -> tuple[str, ...]:
    if name == "iris":
        return ("setosa", "versicolor", "virginica")
    return tuple(str(label) for label in classes)
