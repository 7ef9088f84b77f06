"""What a part reports, and the file that keeps it: one line of JSON per finished unit."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """What came of one unit of a part.

    `unit` is its stable name ("S1", "states 4000-4999"); rows with the same `what` are added up in the table.
    `done` of `of` were tried, `of` is None where there is no whole; `seeds` is "4000-4999" or empty.
    `failures` counts violations. With `not_run`, `note` says what was missing and nothing counts.
    """

    part: str
    unit: str
    what: str
    done: int
    of: int | None
    seeds: str
    failures: int
    seconds: float
    note: str = ""
    not_run: bool = False


class Store:
    """The results of one part, of whatever builds; each method looks at those of one build only."""

    def __init__(self, folder: Path, part: str, build: str) -> None:
        self.path = folder / f"{part}.jsonl"
        self._build = build

    def rows(self) -> list[Row]:
        """Return the latest row of each unit, in the order in which the units were first finished.

        A violation stays: a unit that failed and passes when it is repeated is shown failed until `forget`.
        """
        found: dict[str, Row] = {}
        for line in self._lines():
            if "row" in line:
                row = Row(**line["row"])
                if not (row.unit in found and found[row.unit].failures):
                    found[row.unit] = row
        return list(found.values())

    def done(self) -> frozenset[str]:
        """Return the units that need not be run again; what was not run is tried each time."""
        return frozenset(row.unit for row in self.rows() if not row.not_run)

    def facts(self) -> dict[str, Any] | None:
        """Return what is known of the run that went through the whole part, None if none did."""
        ends = [line["end"] for line in self._lines() if "end" in line]
        return ends[-1] if ends else None

    def add(self, row: Row) -> None:
        self._write({"row": asdict(row)})

    def end(self, facts: dict[str, Any]) -> None:
        self._write({"end": facts})

    def forget(self, *, failed_only: bool = False) -> None:
        """Drop the results, or only the failed ones, of every build."""
        kept = [line for line in self._read() if failed_only and not _failed(line)]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("".join(map(_text, kept)), encoding="utf-8")

    def _write(self, line: dict[str, Any]) -> None:
        line = {"build": self._build, "at": datetime.now(UTC).isoformat(timespec="seconds"), **line}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_text(line))

    def _lines(self) -> Iterable[dict[str, Any]]:
        return (line for line in self._read() if line["build"] == self._build)

    def _read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        # A line that the end of its writer cut short says nothing.
        return [json.loads(line) for line in lines if line.endswith("\n")]


def _failed(line: dict[str, Any]) -> bool:
    return bool(line.get("row", {}).get("failures"))


def _text(line: dict[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False) + "\n"
