"""`python -m tests.benchmarks.page`: put the figures of the latest results into docs/explanation/speed.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.table import number

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/explanation/speed.md"
RESULTS = Path(__file__).parent / "results/latest.json"

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
_HEADS = ("what", "through", "demand", "clients", "of the floor", "of our table", "value", "target", "met")
_WORKLOADS = ("W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8", "W9", "bulk")
_PROBES = ("probe_commit_ms", "probe_cpu_ms")
_MET = {True: "yes", False: "**no**", None: ""}


def figures(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the section between the markers: the machine, then a table for each workload."""
    first = rows[0]
    ranges = [_range([row[name] for row in rows if name in row]) for name in _PROBES]
    judged = [row for row in rows if row["met"] is not None]
    lines = [
        f"PostgreSQL {first['postgresql']}, Python {first['python']}, Django {first['django']},"
        f" psycopg {first['psycopg']}; {first['machine']}.",
        f"A tiny commit took {ranges[0]}, a CPU loop {ranges[1]}: the wider, the busier the machine was.",
        "",
        f"{sum(row['met'] for row in judged)} of {len(judged)} targets are met.",
    ]
    missing = [name for name in _WORKLOADS if name not in {row["workload"] for row in rows}]
    if missing:
        lines += ["", f"Not part of this run: {', '.join(missing)}."]
    for workload in dict.fromkeys(row["workload"] for row in rows):
        lines += ["", f"### {workload}", "", *_table(row for row in rows if row["workload"] == workload)]
    return "\n".join(lines)


def _range(values: Sequence[float]) -> str:
    return f"{min(values):g} to {max(values):g} ms" if values else "nobody knows how long"


def _table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return [_line(_HEADS), _line(["---"] * len(_HEADS)), *(_line(_cells(row)) for row in rows)]


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        row["case"],
        row["through"],
        "" if row["demand"] is None else str(row["demand"]),
        str(row["clients"]),
        number(row["ratio"]),
        number(row["own_ratio"]),
        f"{number(row['value'])} {row['unit']}",
        row["target"] or "",
        _MET[row["met"]],
    ]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def write(page: Path = PAGE, results: Path = RESULTS) -> None:
    """Replace what stands between the markers of `page`."""
    text = page.read_text(encoding="utf-8")
    before, found, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"{page} has no place for figures")
    section = figures(json.loads(results.read_text(encoding="utf-8")))
    page.write_text(f"{before}{BEGIN}\n\n{section}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    write()
    sys.exit()
