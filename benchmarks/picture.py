"""The picture of a comparison: class regions, and a pair of latents beside MCMC."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D

import jgp
from benchmarks import regions
from benchmarks.data import Dataset
from benchmarks.measure import Measured, class_probabilities
from benchmarks.methods import Method
from jgp.inference import DrawsPosterior

# Masses inside the contours of the Gaussian.
MASSES = (0.5, 0.9, 0.99)
INK, ACCENT = "0.25", "#C2185B"
DENSITY = LinearSegmentedColormap.from_list(
    "density", ["#FFFFFF", "#DCE3EA", "#9FB3C8", "#627D98", "#334E68"]
)
BARS = ("#334E68", "#9FB3C8", "#C2185B", "#F0A6C0")
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "0.5",
    "axes.labelcolor": INK,
    "xtick.color": "0.35",
    "ytick.color": "0.35",
    "legend.frameon": False,
}


class Panel(NamedTuple):
    """A method with its approximation, and the reference where there is one."""

    method: Method
    found: jgp.Approximation
    reference: Measured | None


def draw(
    data: Dataset,
    panels: list[Panel],
    path: Path,
    chains: Callable[[jgp.Approximation], DrawsPosterior] | None,
) -> None:
    """Draw the picture of a comparison and write it.

    `chains` adds the class regions by MCMC to those of iris.
    """
    with rc_context(STYLE):
        width = 3.4 * (len(panels) + 1)
        figure = Figure(figsize=(width, 7.0), dpi=160, layout="constrained")
        FigureCanvasAgg(figure)
        grid: Any = figure.subfigures(2, 1, hspace=0.04)
        top, bottom = grid
        if data.name == "iris":
            maps = [
                regions.Map(
                    f"{panel.method.label} ({panel.method.link})",
                    panel.method,
                    panel.found.model,
                    chains=None,
                )
                for panel in panels
            ]
            method, found, reference = panels[0]
            if chains is not None and reference is not None:
                title = f"MCMC ({method.link})"
                maps.append(regions.Map(title, method, found.model, chains))
            regions.draw(top, data, maps)
        else:
            _bars(top, data, panels)
        _pairs(bottom, data, panels)
        figure.savefig(path)


def _bars(figure: SubFigure, data: Dataset, panels: list[Panel]) -> None:
    """The probability of the right class at test points, by class."""
    ax = figure.subplots()
    posteriors = []
    for panel in panels:
        model = panel.found.model
        label = f"{panel.method.label} ({panel.method.link})"
        posteriors.append((label, model, panel.found.posterior))
        if panel.reference is not None:
            label = f"MCMC ({panel.method.link})"
            posteriors.append((label, model, panel.reference.posterior))
    classes = np.unique(data.y_new)
    width = 0.8 / len(posteriors)
    for number, (label, model, posterior) in enumerate(posteriors):
        probs = class_probabilities(posterior, model, data.x_new)
        right = probs[np.arange(len(data.y_new)), data.y_new]
        heights = [right[data.y_new == c].mean() for c in classes]
        offset = (number - (len(posteriors) - 1) / 2) * width
        ax.bar(
            np.arange(len(classes)) + offset,
            heights,
            0.92 * width,
            color=BARS[number % len(BARS)],
            label=label,
        )
    counts = [np.sum(data.y_new == c) for c in classes]
    names = [f"{data.classes[c]}\n{k}" for c, k in zip(classes, counts, strict=True)]
    ax.set_xticks(np.arange(len(classes)), names)
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel("class, and number of test points")
    ax.set_ylabel("mean probability of the right class")
    ax.set_ylim(0, 1)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(posteriors))


def _pairs(figure: SubFigure, data: Dataset, panels: list[Panel]) -> None:
    """The two likeliest classes' latents at the most ambiguous training point."""
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    point, pair = _most_ambiguous(data, panels[0])
    label = data.classes[data.y[point]]
    figure.suptitle(
        f"two latents at the most ambiguous training point (labelled {label})",
        fontsize=10,
        color=INK,
    )
    for ax, panel in zip(axes, panels, strict=True):
        _pair(ax, data, panel, point, pair)


def _most_ambiguous(data: Dataset, panel: Panel) -> tuple[int, list[int]]:
    probs = class_probabilities(panel.found.posterior, panel.found.model, data.x)
    entropy = -np.sum(probs * np.log(np.maximum(probs, 1e-300)), axis=1)
    point = int(np.argmax(entropy))
    return point, sorted(np.argsort(probs[point])[-2:].tolist())


def _pair(ax: Axes, data: Dataset, panel: Panel, point: int, pair: list[int]) -> None:
    marginals = panel.found.posterior.marginals(data.x[[point]])
    mean = np.asarray(marginals.mean)[0, pair]
    covariance = np.asarray(marginals.covariance)[0][np.ix_(pair, pair)]
    spread = 3.6 * np.sqrt(np.diag(covariance))
    low, high = mean - spread, mean + spread
    handles = []
    if panel.reference is not None:
        draws = np.asarray(panel.reference.posterior.draws)[:, :, point][..., pair]
        draws = draws.reshape(-1, 2)
        low = np.minimum(low, np.quantile(draws, 0.001, axis=0))
        high = np.maximum(high, np.quantile(draws, 0.999, axis=0))
        ax.hist2d(
            *draws.T,
            bins=int(np.clip(2 * len(draws) ** (1 / 3), 15, 45)),
            range=np.stack([low, high], axis=1).tolist(),
            cmap=DENSITY,
            rasterized=True,
        )
        centre = draws.mean(axis=0)
        ax.plot(*centre, "+", color="white", markersize=11, markeredgewidth=3.5)
        ax.plot(*centre, "+", color=INK, markersize=10, markeredgewidth=1.6)
        handles += [
            Line2D([], [], marker="s", color="#627D98", linestyle="", label="MCMC"),
            Line2D([], [], marker="+", color=INK, linestyle="", label="its mean"),
        ]
    grid = np.stack(np.meshgrid(*np.linspace(low, high, 160).T), axis=-1)
    centred = grid - mean
    inverse = np.linalg.inv(covariance)
    squared = np.einsum("ijk,kl,ijl->ij", centred, inverse, centred)
    levels = [-2 * np.log1p(-mass) for mass in MASSES]
    contours = ax.contour(
        grid[..., 0], grid[..., 1], squared, levels, colors=ACCENT, linewidths=1.3
    )
    words = {
        level: f"{100 * mass:.0f} %" for level, mass in zip(levels, MASSES, strict=True)
    }
    ax.clabel(contours, fmt=words, fontsize=7)
    ax.plot(*mean, "o", color=ACCENT, markersize=4)
    handles.append(Line2D([], [], color=ACCENT, label=panel.method.label))
    ax.legend(handles=handles, loc="upper left", fontsize=8)
    names = [data.classes[c] for c in pair]
    ax.set_xlabel(f"$f$ of {names[0]}")
    ax.set_ylabel(f"$f$ of {names[1]}")
    ax.set_title(f"{panel.method.label} ({panel.method.link})")
