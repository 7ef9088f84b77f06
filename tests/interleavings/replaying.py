"""`replay("S4 yielded", "AABBA")`: play one schedule again, as a failing one prints itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.interleavings.explore import Explorer
from tests.interleavings.seen import End, Seen
from tests.interleavings.specs import CASES
from tests.interleavings.stage import Stage

_stages: list[Stage] = []


@contextmanager
def on(stage: Stage) -> Iterator[None]:
    """Make `replay` play on this stage."""
    _stages.append(stage)
    try:
        yield
    finally:
        _stages.pop()


def replay(case: str, order: str, **ends: End) -> Seen:
    """Play a schedule and fail if anything is wrong with it.

    A letter is a step of that session; steps of a session that waits or has ended are left out, and what is
    left in the end is played in the order of the letters. `ends` says how sessions end: `A=End("rollback",
    3)`.
    """
    seen = Explorer(_stages[-1], CASES[case], ends).replay(order)
    assert seen.problems == [], f"{order} of {case}, played as {seen.order}: {seen.key}"
    return seen
