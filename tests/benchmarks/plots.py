"""Which rows become a chart: what one run costs against how much there is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.benchmarks.rows import Row
from tests.benchmarks.svg import Points, chart

_SIZE = re.compile(r"^([\d,]+) (.+)$")


def write(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write every chart for which there are at least two sizes, and return the files."""
    written = []
    for name, title, across, up, lines in _charts(rows):
        if len({x for points in lines.values() for x, _ in points}) > 1:
            path = folder / f"{name}.svg"
            path.write_text(chart(title, across, up, lines), encoding="utf-8")
            written.append(path)
    return written


def _charts(rows: Sequence[Row]) -> Iterable[tuple[str, str, str, str, dict[str, Points]]]:
    def of(workload: str, *words: str) -> list[Row]:
        return [row for row in rows if row.workload == workload and all(word in row.case for word in words)]

    for name, title, chosen in (
        ("w1", "W1, one tenant, one client", of("W1")),
        ("w2", "W2, 2,000 tenants, one client", of("W2")),
    ):
        single = [row for row in chosen if row.clients == 1 and row.unit == "claims/s"]
        yield (
            name,
            title,
            "demand of a call",
            "us per claim",
            _lines(single, _demand, lambda value, _: 1e6 / value),
        )
    for case in ("one tenant", "1,000 tenants"):
        sized = [row for row in of("W5", f"ready, {case}") if row.unit == "ms"]
        name = "w5_" + case.replace(",", "").replace(" ", "_")
        yield (
            name,
            f"W5, demand 1, {case}",
            "ready runs",
            "ms per claim",
            _lines(sized, _size, lambda value, _: value),
        )
    for step in ("in", "finished", "deleted"):
        sized = [row for row in of("bulk", f" {step}") if "one by one" not in row.case]
        yield (
            f"bulk_{step}",
            f"Runs of one tenant {step} by one statement",
            "runs",
            "us per run",
            _lines(sized, _size, lambda value, size: value * 1e3 / size),
        )


def _lines(
    rows: Iterable[Row], size: Callable[[Row], float], cost: Callable[[float, float], float]
) -> dict[str, Points]:
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        x = size(row)
        for name, value in (
            ("one-index table", row.floor),
            ("run table, bare", row.own_floor),
            (row.through, row.value),
        ):
            point = (x, cost(value, x)) if value else None
            line = found.setdefault(name, [])
            if point is not None and x not in {known for known, _ in line}:
                line.append(point)
    return {name: points for name, points in found.items() if points}


def _demand(row: Row) -> float:
    return float(row.demand or 1)


def _size(row: Row) -> float:
    found = _SIZE.match(row.case)
    assert found is not None, row.case
    return float(found[1].replace(",", ""))
