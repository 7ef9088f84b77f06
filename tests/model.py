"""A claim call said a second time, visit by visit and in plain Python, to compare the real one with.

Imports nothing of the package. Times are any values that compare. Nothing happens at the same time as a call
here: what other sessions hold locked, they hold from before the call until after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

GRANTS = 32
QUANTUM = 8
PAGE = 16


@dataclass
class Row:
    """One run. Healthy rows are due at `wake_at` or claimed at `claimed_at`; `parked` names other states."""

    id: int
    scope: str
    wake_at: Any = None
    claimed_at: Any = None
    admitted: bool = False
    attempts: int = 0
    parked: str | None = None
    locked: bool = False

    @property
    def unfinished(self) -> bool:
        return self.parked in (None, "waiting", "poisoned")


@dataclass(frozen=True)
class Outcome:
    visit: int
    ordinal: int
    id: int
    scope: str
    work_class: str
    poison: bool
    attempt: int
    eligible_at: Any


@dataclass(frozen=True)
class Inspection:
    visit: int
    cursor_before: int
    cursor_after: int
    scope: str
    disposition: str
    outcome_count: int


@dataclass
class Domain:
    positions: dict[str, int]
    rows: list[Row]
    cap: int = 10
    overrides: dict[str, int] = field(default_factory=dict)
    locked_scopes: set[str] = field(default_factory=set)
    budget: int = 32
    max_attempts: int = 5
    cursor: int = 0
    laps: int = 0
    epochs: Counter[str] = field(default_factory=Counter)

    def ring(self) -> list[tuple[int, str]]:
        on_it = {row.scope for row in self.rows if row.unfinished}
        return sorted((position, scope) for scope, position in self.positions.items() if scope in on_it)

    def admitted(self, scope: str) -> int:
        return sum(row.admitted for row in self.rows if row.scope == scope)

    def cap_of(self, scope: str) -> int:
        return self.overrides.get(scope, self.cap)

    def claim(self, **arguments: Any) -> Call:
        call = Call(self, **arguments)
        call.walk()
        return call


class Call:
    def __init__(
        self, domain: Domain, *, now: Any, expired_before: Any, demand: int, preference: str | None
    ) -> None:
        self.domain, self.now, self.expired_before = domain, now, expired_before
        self.demand, self.preference = demand, preference
        self.served: set[str] = set()
        self.sight = 0
        self.outcomes: list[Outcome] = []
        self.inspections: list[Inspection] = []

    # The walk

    def walk(self) -> None:
        domain = self.domain
        grants, visits = GRANTS, domain.budget
        while (left := self.demand - len(self.outcomes)) and grants and visits and (ring := domain.ring()):
            ahead = [place for place in ring if place[0] > domain.cursor]
            if not ahead:
                ahead, domain.laps = ring, domain.laps + 1
            ahead = ahead[:visits]
            plan = self.plan(ahead, left, grants)
            for position, scope in ahead:
                before, domain.cursor = domain.cursor, position
                visits -= 1
                disposition, granted = (
                    self.visit(scope, plan[scope]) if scope in plan else (self.nothing(scope), 0)
                )
                grants -= granted > 0
                domain.epochs[scope] += granted > 0
                self.inspections.append(
                    Inspection(len(self.inspections) + 1, before, position, scope, disposition, granted)
                )
                if plan and scope == list(plan)[-1]:
                    break

    def plan(self, ahead: list[tuple[int, str]], demand: int, grants: int) -> dict[str, int]:
        """The quantum of every planned visit; no position that could be granted something is passed."""
        self.sight = min(QUANTUM, demand)
        grantable = {scope: n for _, scope in ahead if (n := self.grantable(scope))}
        plan: dict[str, int] = {}
        chosen = list(grantable)[:grants]
        for index, scope in enumerate(chosen):
            if demand:
                plan[scope] = min(QUANTUM, grantable[scope], -(-demand // (len(chosen) - index)))
                demand -= plan[scope]
        return plan

    def grantable(self, scope: str) -> int:
        """What a visit could grant if nobody held any lock."""
        slots = self.domain.cap_of(scope) - self.domain.admitted(scope)
        return len(list(self.grants(self.candidates(scope, QUANTUM, slots), slots, QUANTUM)))

    def nothing(self, scope: str) -> str:
        return "cap_debt_denial" if self.queued(scope) else "empty_page"

    # One visit

    def visit(self, scope: str, quantum: int) -> tuple[str, int]:
        if scope in self.domain.locked_scopes:
            return "partition_lock_skip", 0
        slots = self.domain.cap_of(scope) - self.domain.admitted(scope)
        page = self.candidates(scope, quantum, slots)
        mine = [row for row in page if not row.locked]
        granted = list(self.grants(mine, slots, quantum))
        for ordinal, row in enumerate(granted, 1):
            self.grant(row, ordinal)
        if granted:
            return "grant", len(granted)
        if not mine:
            return "lock_miss", 0
        return "cap_debt_denial" if slots <= 0 else "denied", 0

    def candidates(self, scope: str, quantum: int, slots: int) -> list[Row]:
        """At most a page of rows in the order in which the visit wants them, whoever holds them locked."""
        ready, expired, queued = self.ready(scope), self.expired(scope), self.queued(scope)
        seen = ready + queued[: self.sight]
        queued = queued[: PAGE - len(ready)]
        if not expired and not any(map(self.poisonous, seen)):
            # Every queued row needs a slot then, and none is looked at that the visit could not promote.
            queued = queued[: max(0, min(quantum, slots))]
        admitted = sorted(ready + expired, key=self.rank)
        heads: list[Row] = []
        if self.demand > 1:
            if "ready" not in self.served:
                heads += ready[:1]
            if "expired" not in self.served:
                heads += expired[:1]
            heads.sort(key=self.rank)
            freed = sum(map(self.poisonous, heads))
            if "ready" not in self.served and not ready and slots + freed > 0:
                heads += queued[:1]
        return list({row.id: row for row in heads + admitted + queued}.values())[:PAGE]

    def grants(self, mine: list[Row], slots: int, quantum: int) -> Iterator[Row]:
        """Those of the locked candidates that are granted: the queue only as an unbroken run of its heads."""
        granted = promoted = 0
        # A head that finds no slot gets its second chance behind the admitted rows.
        for row in mine + [row for row in mine if not row.admitted]:
            if granted == quantum:
                return
            if row.admitted:
                slots += self.poisonous(row)
            elif slots > 0 and row in self.queued(row.scope)[promoted : promoted + 1]:
                promoted += 1
                slots -= not self.poisonous(row)
            else:
                continue
            granted += 1
            yield row

    def grant(self, row: Row, ordinal: int) -> None:
        poison = self.poisonous(row)
        eligible = row.claimed_at if row.wake_at is None else row.wake_at
        work_class = (
            "expired" if row.wake_at is None else "admitted_ready" if row.admitted else "queued_ready"
        )
        self.served.add("expired" if row.wake_at is None else "ready")
        row.attempts += not poison
        row.wake_at, row.claimed_at = None, None if poison else self.now
        row.admitted, row.parked = not poison, "poisoned" if poison else None
        visit = len(self.inspections) + 1
        self.outcomes.append(
            Outcome(visit, ordinal, row.id, row.scope, work_class, poison, row.attempts, eligible)
        )

    # What a scope holds

    def poisonous(self, row: Row) -> bool:
        return row.attempts >= self.domain.max_attempts

    def rank(self, row: Row) -> tuple[Any, ...]:
        """Among admitted rows: at demand one what the caller prefers, then poison, then age."""
        expired = row.wake_at is None
        preferred = self.demand == 1 and self.preference == ("expired" if expired else "ready")
        return (not preferred, not self.poisonous(row), row.claimed_at if expired else row.wake_at, row.id)

    def queued(self, scope: str) -> list[Row]:
        return self._due(scope, admitted=False)

    def ready(self, scope: str) -> list[Row]:
        return self._due(scope, admitted=True)[:PAGE]

    def expired(self, scope: str) -> list[Row]:
        rows = (
            row
            for row in self.domain.rows
            if row.scope == scope and row.claimed_at is not None and row.admitted
        )
        old = (row for row in rows if row.claimed_at < self.expired_before)
        return sorted(old, key=lambda row: (row.claimed_at, row.id))[:PAGE]

    def _due(self, scope: str, *, admitted: bool) -> list[Row]:
        rows = (row for row in self.domain.rows if row.scope == scope and row.wake_at is not None)
        due = (row for row in rows if row.wake_at <= self.now and row.admitted == admitted)
        return sorted(due, key=lambda row: (row.wake_at, row.id))
