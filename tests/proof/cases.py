"""Failures that other queues are known for, each as a test that rules it out here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests import cases
from tests.proof import pytests
from tests.proof.build import ROOT
from tests.proof.record import Row

PART = "cases"


def rows(*, quick: bool, done: frozenset[str]) -> Iterator[Row]:
    for path in sorted(Path(cases.__file__).parent.glob("test_*.py")):
        if path.stem not in done:
            yield pytests.run(
                PART, path.stem, "known failures of queues, ruled out", str(path.relative_to(ROOT))
            )
