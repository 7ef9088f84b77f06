"""The one table at the end: rows of a part with the same `what` added up."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.proof.record import Row
from tests.proof.runner import Result

HEADER = ("part", "what", "how many", "seeds", "failures", "time", "notes")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_MOST_NOTES = 4


@dataclass(frozen=True)
class Line:
    """One line of the table, ready to be shown."""

    part: str
    what: str
    number: str
    seeds: str
    failures: str
    time: str
    notes: str

    @property
    def cells(self) -> tuple[str, ...]:
        return tuple(vars(self).values())


def lines(results: Iterable[Result]) -> list[Line]:
    found: list[Line] = []
    for result in results:
        whats = dict.fromkeys(row.what for row in result.rows)
        found += (_line([row for row in result.rows if row.what == what]) for what in whats)
        if not result.is_complete and not any(row.not_run for row in result.rows):
            found.append(
                Line(result.part.name, "(not gone through to the end)", "", "", "", "", "incomplete")
            )
    return found


def text(results: Sequence[Result]) -> str:
    shown = [HEADER, *(line.cells for line in lines(results))]
    widths = [max(len(cells[column]) for cells in shown) for column in range(len(HEADER) - 1)]
    return "\n".join("  ".join([*map(str.ljust, cells, widths), cells[-1]]).rstrip() for cells in shown)


def failures(results: Iterable[Result]) -> int:
    return sum(row.failures for result in results for row in result.rows)


def _line(rows: Sequence[Row]) -> Line:
    run = [row for row in rows if not row.not_run]
    return Line(
        rows[0].part,
        rows[0].what,
        _number(run) if run else "not run",
        seeds(row.seeds for row in run),
        f"{sum(row.failures for row in run)}" if run else "",
        clock(sum(row.seconds for row in run)) if run else "",
        _notes(rows),
    )


def _number(rows: Sequence[Row]) -> str:
    done = sum(row.done for row in rows)
    if any(row.of is None for row in rows):
        return f"{done:,}"
    return f"{done:,} of {sum(row.of or 0 for row in rows):,}"


def _notes(rows: Sequence[Row]) -> str:
    """Failures first; what was not run names its unit."""
    ordered = sorted(rows, key=lambda row: (not row.failures, not row.not_run))
    said = dict.fromkeys(
        f"{row.unit}: {row.note}" if row.failures or row.not_run else row.note for row in ordered if row.note
    )
    must = sum(bool(row.failures or row.not_run) for row in rows)
    shown = list(said)[: max(_MOST_NOTES, must)]
    return "; ".join([*shown, *(["..."] if len(said) > len(shown) else [])])


def seeds(found: Iterable[str]) -> str:
    """Join ranges that follow on each other."""
    joined: list[list[int]] = []
    others: dict[str, None] = {}
    for one in found:
        if not (match := _RANGE.fullmatch(one)):
            others |= {one: None} if one else {}
            continue
        joined.append([int(match[1]), int(match[2] or match[1])])
    merged: list[list[int]] = []
    for low, high in sorted(joined):
        if merged and low <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], high)
        else:
            merged.append([low, high])
    return ", ".join([*(f"{low}-{high}" if low < high else f"{low}" for low, high in merged), *others])


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
