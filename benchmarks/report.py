"""Rows as Markdown tables that are aligned as plain text too."""

from collections.abc import Callable, Sequence

from benchmarks.measure import Row

Column = tuple[str, Callable[[Row], str]]


def tables(rows: Sequence[Row], title: str, notes: Sequence[str] = ()) -> str:
    """What the methods say and what they cost, with a title and notes below."""
    parts = [f"### {title}", table(rows, SAYS), table(rows, COSTS), *notes]
    return "\n\n".join(parts) + "\n"


def table(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """One Markdown table; the first column to the left, numbers to the right."""
    cells = [[cell(row) for _, cell in columns] for row in rows]
    return markdown([name for name, _ in columns], cells)


def markdown(head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """Cells as an aligned Markdown table."""
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    rule = ["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])]
    lines = [_line(head, widths), _line(rule, widths)]
    return "\n".join(lines + [_line(row, widths) for row in cells])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if i == 0 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "| " + " | ".join(padded) + " |"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def _lengthscales(row: Row) -> str:
    values = row.lengthscales
    if len(values) > 4:
        return f"{min(values):.2f} to {max(values):.2f}"
    return ", ".join(f"{value:.2f}" for value in values)


def _corrected(row: Row) -> str:
    if row.corrected_log_evidence is None:
        return ""
    return f"{row.corrected_log_evidence:.3f} ± {row.corrected_standard_error:.3f}"


def _distance(row: Row) -> str:
    if row.mean_distance is None:
        return ""
    return f"{row.mean_distance:.2f} ({row.mean_distance_noise:.2f})"


def _trace(row: Row) -> str:
    if row.reference_trace is None:
        return f"{row.trace:.1f}"
    return f"{row.trace:.1f} ({row.reference_trace:.1f})"


SAYS: tuple[Column, ...] = (
    ("method", lambda row: row.method),
    ("link", lambda row: row.link),
    ("lengthscales", _lengthscales),
    ("log evidence", lambda row: _number(row.log_evidence, ".3f")),
    ("corrected", _corrected),
    ("test errors", lambda row: str(row.test_errors)),
    ("test log prob.", lambda row: _number(row.test_log_probability, ".4f")),
    ("‖m − m_MCMC‖ (noise)", _distance),
    ("trace Σ (MCMC)", _trace),
)
COSTS: tuple[Column, ...] = (
    ("method", lambda row: row.method),
    ("link", lambda row: row.link),
    ("fit", lambda row: _seconds(row.fit_seconds)),
    ("first call", lambda row: _seconds(row.first_call_seconds)),
    ("later calls", lambda row: _seconds(row.later_call_seconds)),
    ("peak MB (added)", lambda row: _memory(row)),
    ("max R-hat", lambda row: _number(row.rhat, ".3f")),
    ("min ESS", lambda row: _number(row.ess, ".0f")),
    ("min ESS/s", lambda row: _number(row.ess_per_second, ".3g")),
)


def _memory(row: Row) -> str:
    return f"{row.peak_memory_mb:.0f} (+{row.peak_memory_growth_mb:.0f})"
