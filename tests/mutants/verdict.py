"""Whether a mutant is killed: the named tests pass without it, and one of them fails with it."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.mutants.mutant import Mutant
from tests.mutants.workshop import Outcome, Workshop

# All named tests of one file, on a machine that does other things as well.
_LONGEST_SOUND_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Verdict:
    """`killer` is the test that failed, None for a survivor; `error` says why there is no verdict."""

    mutant: Mutant
    seconds: float
    killer: str | None = None
    error: str | None = None

    @property
    def word(self) -> str:
        if self.error is not None:
            return "error"
        return "SURVIVED" if self.killer is None else "killed"


def verdicts(mutants: Sequence[Mutant], database_urls: Sequence[str]) -> Iterator[Verdict]:
    """Yield the verdict on each of `mutants`, as they come; one at a time is worked on for each database."""
    free: SimpleQueue[Workshop] = SimpleQueue()
    with ExitStack() as stack:
        bytecode = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tenantfair-mutant-")))
        for url in database_urls:
            free.put(stack.enter_context(Workshop(url, bytecode)))
        pool = stack.enter_context(ThreadPoolExecutor(len(database_urls)))
        try:
            sound: set[str] = set()
            for passed in pool.map(lambda tests: _passing(free, tests), _by_file(mutants)):
                sound |= passed
            judged = [pool.submit(_judge, free, mutant, sound) for mutant in mutants]
            for future in as_completed(judged):
                yield future.result()
        finally:
            # Somebody stopped listening: what has begun ends, nothing more begins.
            pool.shutdown(cancel_futures=True)


def _by_file(mutants: Sequence[Mutant]) -> list[list[str]]:
    """The named tests, those of a file together."""
    files: dict[str, list[str]] = defaultdict(list)
    for test in dict.fromkeys(test for mutant in mutants for test in mutant.killed_by):
        files[test.partition("::")[0]].append(test)
    return list(files.values())


def _passing(free: SimpleQueue[Workshop], tests: Sequence[str]) -> frozenset[str]:
    """Run tests without a mutant and return which of them passed."""
    workshop = free.get()
    try:
        outcome = workshop.test(tests, longest=_LONGEST_SOUND_SECONDS)
        if outcome.code != pytest.ExitCode.USAGE_ERROR:
            return outcome.passed
        # One of them does not exist, and pytest has run none.
        return frozenset().union(*(workshop.test([test]).passed for test in tests))
    finally:
        free.put(workshop)


def _judge(free: SimpleQueue[Workshop], mutant: Mutant, sound: set[str]) -> Verdict:
    workshop = free.get()
    started = time.monotonic()
    try:
        unsound = [test for test in mutant.killed_by if test not in sound]
        if unsound:
            return Verdict(mutant, 0.0, error=f"without the mutant, {unsound[0]} does not pass")
        with workshop.mutated(mutant):
            outcome = workshop.test(mutant.killed_by, until_failure=True)
        killer, error = _read(outcome)
        return Verdict(mutant, time.monotonic() - started, killer, error)
    except Exception as failure:
        return Verdict(mutant, time.monotonic() - started, error=f"{type(failure).__name__}: {failure}")
    finally:
        free.put(workshop)


def _read(outcome: Outcome) -> tuple[str | None, str | None]:
    """Return the test that failed, or why the run says nothing."""
    if outcome.code == 0 and outcome.passed:
        return None, None
    if outcome.code == 1 and outcome.failed:
        return min(outcome.failed), None
    said = [line for line in outcome.output.splitlines() if line.strip()]
    return None, f"pytest ended with {outcome.code}: {' / '.join(said[-3:])}"
