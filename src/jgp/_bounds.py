"""Parameters that ran to a bound of their domain, or that nothing depends on."""

import jax.numpy as jnp
import numpy as np

from jgp._constraints import AbstractConstraint
from jgp._evaluator import Evaluator
from jgp._runs import Run

# Raw parameters that moved less are not looked at, unless their gradient vanished;
# one that moved so far is only asked about the way it went.
FAR = 3.0
# How far beyond (a factor of 100 for a positive parameter) the objective must change.
BEYOND = 4.6
# By less than which it does not: far below what tells two models apart.
NEGLIGIBLE = 1e-3


def at_bounds(run: Run, evaluator: Evaluator) -> tuple[str, ...]:
    """Which parameters, where to, and what that says, in words.

    A parameter is at a bound where going on by a factor of 100 does not lower the
    objective by a thousandth, or after a long way is not possible.
    """
    if not run.accepted:
        return ()
    best, names = run.best, evaluator.parameters.names
    constraints = evaluator.parameters.each(lambda _path, _leaf, constraint: constraint)
    scale = max(1.0, abs(best.value))
    negligible = max(NEGLIGIBLE, 100 * float(np.finfo(best.raw.dtype).eps) * scale)
    way = best.raw - run.start
    # A number on the real line has no bound, and its units say nothing of far.
    moved = (np.abs(way) > FAR) & ~evaluator.parameters.on_the_real_line
    slopes = np.max(np.abs([t.gradient for t in run.accepted]), axis=0)
    found = []
    for i in np.flatnonzero(moved | (slopes <= 1e-9 * scale)):
        flat = []
        for sign in (1, -1):
            raw = best.raw.copy()
            raw[i] += sign * BEYOND
            trial, _ = evaluator.at(raw, run.approximation)
            level = trial.value - best.value <= negligible
            flat.append(level if trial.usable else abs(way[i]) > 2 * FAR)
        went = np.sign(way[i]) if moved[i] else 0
        up, down = flat[0] and went >= 0, flat[1] and went <= 0
        if up or down:
            found.append(_words(names[i], up, down, *_ends(constraints[i])))
    return tuple(found)


def _ends(constraint: AbstractConstraint) -> tuple[str, str]:
    """The ends of a parameter's domain."""
    if not constraint.entrywise(jnp.zeros(2)):
        return "0", "∞"
    ends = (constraint.from_real(jnp.asarray(end)) for end in (-jnp.inf, jnp.inf))
    low, high = (f"{float(end):g}".replace("inf", "∞") for end in ends)
    return low, high


def _words(name: str, up: bool, down: bool, low: str, high: str) -> str:
    short = name.split(".")[-1]
    where = f"{short} (model{name})"
    if up and down:
        return f"{where}: the data say nothing about it"
    entry = short.removeprefix("lengthscale")
    if up and high == "∞" and entry.startswith("["):
        return f"{where} → ∞: input {entry[1:-1]} carries no information"
    return f"{where} → {high if up else low}"
