"""Pictures, by matplotlib (extra `plots`); each returns the axes drawn on."""

from typing import Any

import numpy as np

from jgp._profile import Profile


def evidence_profile(found: Profile, *, level: float = 0.95, ax: Any = None) -> Any:
    """A profile of the log evidence, with its interval shaded.

    Args:
        found: From `jgp.profile`.
        level: The confidence of the interval.
        ax: Axes to draw on, by default new ones.

    Returns:
        The axes.
    """
    if ax is None:
        from matplotlib import pyplot

        ax = pyplot.subplots()[1]
    line = ax.plot(found.values, found.objective, marker=".")[0]
    low, high = found.interval(level)
    start, end = np.clip([low, high], found.values[0], found.values[-1])
    ax.axvspan(start, end, color=line.get_color(), alpha=0.15, linewidth=0)
    if found.values[0] > 0 and found.values[-1] > 4 * found.values[0]:
        ax.set_xscale("log")
    ax.set_xlabel(found.name.lstrip("."))
    ax.set_ylabel("log evidence")
    return ax
