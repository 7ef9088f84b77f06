"""What happened in a database, as the judge and the reports read it: plain values, no connection."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple, Self
from uuid import UUID


class Snapshot(NamedTuple):
    """What PostgreSQL saw as committed at one moment."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form of `pg_snapshot`."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(map(int, filter(None, running.split(",")))))

    def sees(self, xid: int) -> bool:
        return xid < self.xmin or (xid < self.xmax and xid not in self.running)


class Turn(NamedTuple):
    """One claim call, or one change of the policy: both hold the policy row, so they come one after another.

    `snapshot` is that of the turn's end, `at` is what a call took for now, `before` and `after` are (laps,
    cursor).
    """

    xid: int
    snapshot: Snapshot
    is_call: bool
    at: datetime
    before: tuple[int, int]
    after: tuple[int, int]
    cap: int | None
    budget: int


class RunMoved(NamedTuple):
    """One run that went from one state to another: queued, ready (admitted), claimed or gone."""

    seq: int
    xid: int
    at: datetime
    statement: int
    scope: str
    run_id: UUID
    before: str
    after: str
    due_at: datetime | None


class ScopeChanged(NamedTuple):
    """One scope that joined or left the ring, or got another cap of its own (kind `cap`)."""

    seq: int
    xid: int
    scope: str
    kind: str
    cap: int | None


class Record(NamedTuple):
    """Everything that happened, each list in the order of its writing."""

    turns: Sequence[Turn]
    runs: Sequence[RunMoved]
    scopes: Sequence[ScopeChanged]
