"""Writes the figures of the last full run into docs/evidence.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.proof import table
from tests.proof.build import ROOT
from tests.proof.parts import PARTS, Part
from tests.proof.record import Row, Store
from tests.proof.runner import Result

PAGE = ROOT / "docs" / "evidence.md"
BEGIN = "[//]: # (figures: written by `make proof ARGS=--write-evidence`)"
END = "[//]: # (end of figures)"

_HEADER = ("part", "what", "how many", "seeds", "failures", "time", "notes")
_FACTS = ("date", "package", "commit", "postgresql", "python", "django", "psycopg")


def write(folder: Path, page: Path = PAGE) -> Path:
    """Put the results kept in `folder` between the marks of `page`, each part's of its newest build."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    shown = [_result(folder, part) for part in PARTS.values()]
    body = "\n\n".join([_results([result for result, _ in shown]), _runs(shown)])
    page.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}", encoding="utf-8")
    return page


def _result(folder: Path, part: Part) -> tuple[Result, dict[str, Any]]:
    newest = _newest(folder, part)
    store = Store(folder, part.name, newest.get("build", ""))
    facts = store.facts()
    rows = store.rows() or [
        Row(part.name, "all", part.name, 0, None, "", 0, 0.0, "no results are kept", not_run=True)
    ]
    about = {**(facts or {}), "date": newest.get("at", "")[:10]} if newest else {}
    return Result(part, rows, facts is not None), about


def _newest(folder: Path, part: Part) -> dict[str, Any]:
    path = folder / f"{part.name}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return dict(json.loads(lines[-1])) if lines else {}


def _results(results: Sequence[Result]) -> str:
    return _table(_HEADER, (line.cells for line in table.lines(results)))


def _runs(shown: Iterable[tuple[Result, dict[str, Any]]]) -> str:
    """The builds and machines, with the parts that were run on each."""
    parts: dict[tuple[str, ...], list[str]] = {}
    machines: dict[str, None] = {}
    for result, about in shown:
        if about:
            key = tuple(str(about.get(fact, "?")) for fact in _FACTS)
            parts.setdefault(key, []).append(result.part.name)
            machines[str(about.get("machine", "?"))] = None
    rows = ((", ".join(names), *key) for key, names in parts.items())
    return _table(("parts", *_FACTS), rows) + "\n\nMachine: " + "; ".join(machines) + "."


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
