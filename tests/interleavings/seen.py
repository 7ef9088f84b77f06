"""What a session does and how it ends, and what is seen of a schedule."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.interleavings.actors import COMMIT, Job
from tests.interleavings.look import Domain


class Work(Protocol):
    """What a session does; see `operations.Operation`."""

    points: str
    autocommit: bool

    def perform(self) -> Any: ...


@dataclass(frozen=True)
class End:
    """How a session ends: by `how`, at its nth stop (from 0), or before COMMIT when `at` is None."""

    how: str = COMMIT
    at: int | None = None

    def __str__(self) -> str:
        return self.how if self.at is None else f"{self.how} at {self.at}"


@dataclass
class Seen:
    """One schedule as it was executed.

    `order` has a letter for each step, `trace` what each session came to in the order in which it did,
    without the steps that only began to wait: two schedules with the same trace are the same schedule.
    """

    order: str = ""
    trace: list[str] = field(default_factory=list)
    enabled: list[str] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    looks: list[Domain] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        return " ".join(self.trace)

    @property
    def done(self) -> str:
        """The letters of those who committed."""
        return "".join(sorted(letter for letter, job in self.jobs.items() if job.committed))

    def word(self, letter: str) -> str:
        """Return what a session was told; "-" when it did not commit."""
        return str(self.jobs[letter].result.word) if self.jobs[letter].committed else "-"

    def before(self, first: str, second: str) -> bool:
        """Return whether one session had committed ("B") before another passed a gate ("A:recheck").

        `second` is a pattern; of gates passed more than once the first time counts.
        """
        stops = [place for place, what in enumerate(self.trace) if re.match(second, what)]
        if not stops or not self.jobs[first].committed:
            return False
        # A session passes a gate with its next step, so all that stands before its next stop was done by
        # then.
        onwards = (
            place for place in range(stops[0] + 1, len(self.trace)) if self.trace[place][0] == second[0]
        )
        return self.trace.index(f"{first}:done") < next(onwards)
