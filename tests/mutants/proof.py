"""The mutants as a part of the proof: one unit each."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutants.catalog import ALL
from tests.mutants.servers import databases
from tests.mutants.verdict import Verdict, verdicts
from tests.proof.record import Row

PART = "mutants"
JOBS = 2
_QUICK_STEP = 10


def rows(*, quick: bool, done: frozenset[str]) -> Iterator[Row]:
    """Yield the verdict on every mutant that is not `done`; `quick` takes every tenth."""
    chosen = [mutant for mutant in ALL[:: _QUICK_STEP if quick else 1] if mutant.name not in done]
    if not chosen:
        return
    with databases(JOBS) as urls:
        for verdict in verdicts(chosen, urls):
            yield _row(verdict)


def _row(verdict: Verdict) -> Row:
    mutant = verdict.mutant
    killed = verdict.word == "killed"
    return Row(
        PART,
        mutant.name,
        f"mutants of the {'SQL' if mutant.is_sql else 'Python'}: killed by the tests of the rule",
        1,
        1,
        "",
        0 if killed else 1,
        verdict.seconds / JOBS,
        "" if killed else f"{verdict.word}: {mutant.breaks}{f'; {verdict.error}' if verdict.error else ''}",
    )
