"""What a recording hands over: plain values, no connection. Times are microseconds since 1970."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from tenantfair.certify.ring import Cursor


class Snapshot(NamedTuple):
    """What the database saw as committed at one moment."""

    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form of `pg_snapshot`."""
        _, xmax, running = text.split(":")
        return cls(int(xmax), frozenset(map(int, filter(None, running.split(",")))))

    def sees(self, xid: int) -> bool:
        return xid < self.xmax and xid not in self.running


class Held(NamedTuple):
    """A state of runs since, or due at, a time; `at` is None for what was due before the recording."""

    scope: str
    state: str
    at: int | None


class State(NamedTuple):
    """The domain in one snapshot: `runs` counts what is queued, ready and claimed."""

    cap: int
    budget: int
    lease: int
    cursor: Cursor
    ring: Mapping[int, str]
    caps: Mapping[str, int]
    runs: Counter[Held]
    functions: Sequence[str]


class Row(NamedTuple):
    """One row of the journal, with the columns that its kind has."""

    step: int
    xid: int
    kind: str
    scope_key: str | None
    state: str | None
    at: int | None
    n: int | None
    call: int | None
    snapshot: str | None
    laps_before: int | None
    cursor_before: int | None
    laps_after: int | None
    cursor_after: int | None
    cap: int | None
    budget: int | None
    lease: int | None


class Record(NamedTuple):
    """A whole recording. What was due by `due` is due at None; what is due after `until` is left out."""

    opening: State
    closing: State
    rows: Sequence[Row]
    due: int
    until: int

    def adds_up(self) -> bool:
        """Return whether the opening and the journal make the closing: whether nothing escaped them."""
        found = Counter(self.opening.runs)
        ring = {scope: place for place, scope in self.opening.ring.items()}
        for row in self.rows:
            if row.kind == "run" and row.state in ("queued", "ready", "claimed"):
                if (held := self.held(row)) is not None:
                    found[held] += row.n or 0
            elif row.kind == "joined":
                ring[row.scope_key or ""] = row.n or 0
        left = {row.scope_key for row in self.rows if row.kind == "left"}
        closing = {scope: place for place, scope in self.closing.ring.items()}
        return (
            {held: n for held, n in found.items() if n} == dict(self.closing.runs)
            and closing.items() <= ring.items()
            and (ring.keys() - closing.keys()) <= left
        )

    def held(self, row: Row) -> Held | None:
        """Return where a `run` row puts its runs; None for what is not due before the recording ends."""
        at = row.at
        if row.state != "claimed" and at is not None and at <= self.due:
            at = None
        elif row.state == "queued" and at is not None and at > self.until:
            return None
        return Held(row.scope_key or "", row.state or "", at)
