"""The independent judge of recorded claims: its grid, its forgeries, its verdict on live claims."""

from __future__ import annotations

from collections.abc import Iterator

from tests.proof import pytests
from tests.proof.record import Row

PART = "oracle"
UNITS = {
    "every small world, and forgeries": "tests/test_oracle.py",
    "random worlds": "tests/test_oracle_model.py",
    "live claims": "tests/test_oracle_live.py",
}


def rows(*, quick: bool, done: frozenset[str]) -> Iterator[Row]:
    for unit, path in UNITS.items():
        if unit not in done:
            yield pytests.run(PART, unit, f"the judge of traces: {unit}", path)
