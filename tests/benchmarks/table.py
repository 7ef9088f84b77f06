"""The rows as a table of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.benchmarks.rows import Row

HEADS = (
    "workload",
    "case",
    "through",
    "demand",
    "clients",
    "ratio",
    "to own table",
    "value",
    "unit",
    "floor",
    "own floor",
    "target",
    "met",
)
_MET = {True: "yes", False: "NO", None: ""}


def cells(row: Row) -> list[str]:
    return [
        row.workload,
        row.case,
        row.through,
        "" if row.demand is None else str(row.demand),
        str(row.clients),
        number(row.ratio),
        number(row.own_ratio),
        number(row.value),
        row.unit,
        number(row.floor),
        number(row.own_floor),
        row.target or "",
        _MET[row.met],
    ]


def text(rows: Iterable[Row]) -> str:
    """Return the table as Markdown whose columns line up."""
    lines: list[Sequence[str]] = [HEADS, *map(cells, rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(HEADS))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
