"""Class probabilities over the two petal measurements of iris."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.lines import Line2D

import jgp
from benchmarks.data import Dataset
from benchmarks.measure import class_probabilities
from benchmarks.methods import Method
from jgp.inference import DrawsPosterior

# Okabe and Ito's colours, which everyone can tell apart.
COLOURS = np.array([[0, 114, 178], [230, 159, 0], [0, 158, 115]]) / 255
MARKERS = "os^"
PETALS = [2, 3]
GRID_SIZE = 80
# Of the draws of each chain, the regions of MCMC average over about so many.
NUM_DRAWS = 50
# Share of the colour, the rest white, so that points stand out.
SATURATION = 0.55


class Map(NamedTuple):
    """A panel: a method, the model to start from, and chains to show instead."""

    title: str
    method: Method
    start: jgp.Model
    chains: Callable[[jgp.Approximation], DrawsPosterior] | None


class Grid(NamedTuple):
    """Points over the petal measurements."""

    length: np.ndarray
    width: np.ndarray
    points: np.ndarray


def draw(figure: SubFigure, data: Dataset, maps: list[Map]) -> None:
    """One map of class probabilities a method, on common axes."""
    petals = _petals(data)
    grid = _grid(petals)
    axes = figure.subplots(1, len(maps), sharex=True, sharey=True, squeeze=False)[0]
    fitted: dict[str, jgp.Approximation] = {}
    for ax, panel in zip(axes, maps, strict=True):
        label = panel.method.label
        if label not in fitted:
            fitted[label] = jgp.fit(
                panel.start,
                petals.x,
                petals.y,
                infer=panel.method.infer,
                init="model",
                throw=False,
                progress=False,
            ).approximation
        found = fitted[label]
        posterior = found.posterior
        if panel.chains is not None:
            posterior = _thinned(panel.chains(found))
        probs = class_probabilities(posterior, found.model, grid.points)
        _map(ax, grid, probs.reshape(GRID_SIZE, GRID_SIZE, -1))
        _points(ax, petals)
        ax.set_title(panel.title)
        ax.set_xlabel("petal length (cm)")
    axes[0].set_ylabel("petal width (cm)")
    _legend(figure, data.classes)


def _thinned(posterior: DrawsPosterior) -> DrawsPosterior:
    whitened = posterior.whitened
    whitened = whitened[:, :: max(1, whitened.shape[1] // NUM_DRAWS)]
    return DrawsPosterior(posterior.process, posterior.x, posterior.root, whitened)


def _petals(data: Dataset) -> Dataset:
    """Sepals held at 0: the petals alone, in arrays of the shape compiled for."""
    keep = np.isin(np.arange(data.x.shape[1]), PETALS)
    return data._replace(x=data.x * keep, x_new=data.x_new * keep)


def _grid(data: Dataset) -> Grid:
    both = np.concatenate([data.x, data.x_new])[:, PETALS]
    margin = 0.08 * np.ptp(both, axis=0)
    low, high = both.min(axis=0) - margin, both.max(axis=0) + margin
    length, width = np.linspace(low, high, GRID_SIZE).T
    points = np.zeros((GRID_SIZE**2, data.x.shape[1]))
    points[:, PETALS] = np.stack(np.meshgrid(length, width), axis=-1).reshape(-1, 2)
    return Grid(length, width, points)


def _map(ax: Axes, grid: Grid, probs: np.ndarray) -> None:
    """Colours mixed by probability, the even odds, and lines of equal entropy."""
    image = 1 - SATURATION * (1 - probs @ COLOURS)
    extent = (grid.length[0], grid.length[-1], grid.width[0], grid.width[-1])
    ax.imshow(
        image, origin="lower", extent=extent, aspect="auto", interpolation="bilinear"
    )
    entropy = -np.sum(probs * np.log2(np.maximum(probs, 1e-300)), axis=-1)
    ax.contour(
        grid.length,
        grid.width,
        entropy,
        levels=[0.5, 1.0, 1.3],
        colors="white",
        linewidths=0.7,
        alpha=0.9,
    )
    for probability in np.moveaxis(probs, -1, 0):
        ax.contour(
            grid.length,
            grid.width,
            probability,
            levels=[0.5],
            colors="0.2",
            linewidths=1.1,
        )


def _points(ax: Axes, data: Dataset) -> None:
    for c, (colour, marker) in enumerate(zip(COLOURS, MARKERS, strict=True)):
        train, test = data.x[data.y == c], data.x_new[data.y_new == c]
        ax.plot(
            *train[:, PETALS].T,
            marker,
            color=0.75 * colour,
            markersize=4,
            markeredgecolor="white",
            markeredgewidth=0.4,
        )
        ax.plot(
            *test[:, PETALS].T,
            marker,
            markerfacecolor="none",
            markersize=5,
            markeredgecolor="0.1",
            markeredgewidth=0.9,
        )


def _legend(figure: SubFigure, classes: tuple[str, ...]) -> None:
    handles = [
        Line2D([], [], marker=marker, color=0.75 * colour, linestyle="", label=name)
        for name, colour, marker in zip(classes, COLOURS, MARKERS, strict=True)
    ]
    test = Line2D(
        [], [], marker="o", color="0.1", fillstyle="none", label="test points"
    )
    test.set_linestyle("")
    handles += [
        test,
        Line2D([], [], color="0.2", linewidth=1.1, label="probability ½"),
        Line2D([], [], color="0.75", linewidth=0.9, label="entropy ½, 1, 1.3 bits"),
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8
    )
