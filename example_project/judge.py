"""Judges a record against the two promises: the cap, and the bound on being passed over.

It knows the rules and shares no code with what it judges. For one tenant t, a window opens before the first
claim call that begins when t could be granted something, and closes with t's next grant. It is *eligible*
while the ring and every cap stay as they are and no call is missing. With A scopes granted in it, t
included, H scopes on the ring, a budget of S inspections a call, at most Q outcomes a grant and no failed
inspection of t:

    grants to others    <= A - 1
    outcomes of others  <= Q * (A - 1)
    claim calls         <= (A - 1) + ceil((H - A + 1) / S)

A window that is not eligible proves nothing: it is counted under its reason, never among the passed.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from example_project.record import Record, RunMoved, ScopeChanged, Turn

QUANTUM = 8

RING_CHANGED = "the ring or a cap changed"
POLICY_CHANGED = "the policy changed"
CALL_MISSING = "a claim call is missing from the record"
NOT_ADMISSIBLE = "the tenant ceased to be admissible"
OPENED_LATE = "the tenant became admissible only during the call that served it"
LEASE_EXPIRED = "the grant took over an expired lease"


class Bound(NamedTuple):
    """The most that may happen in a window."""

    grants: int
    outcomes: int
    calls: int


def bound(cohort: int, ring: int, budget: int, *, failures: int = 0, quantum: int = QUANTUM) -> Bound:
    """Return the bound for A = `cohort`, H = `ring`, S = `budget`, L = `failures`, Q = `quantum`."""
    if not 1 <= cohort <= ring or budget < 1 or quantum < 1 or failures < 0:
        raise ValueError(f"no window has A={cohort}, H={ring}, S={budget}, L={failures}, Q={quantum}")
    opportunities = failures + 1
    grants = opportunities * (cohort - 1)
    laps = -(-(ring - cohort + 1) // budget)
    return Bound(grants, quantum * grants, grants + opportunities * laps)


class Window(NamedTuple):
    """One eligible window: how often its tenant was passed over, and how often it may have been."""

    scope: str
    ring: int
    seen: Bound
    limit: Bound

    @property
    def holds(self) -> bool:
        return all(seen <= limit for seen, limit in zip(self.seen, self.limit, strict=True))


@dataclass
class Verdict:
    """What the judge found. `peaks` has, by scope, the most runs ever admitted at a time and the cap then."""

    eligible: list[Window] = field(default_factory=list)
    ineligible: Counter[str] = field(default_factory=Counter)
    peaks: dict[str, tuple[int, int]] = field(default_factory=dict)
    over_cap: list[str] = field(default_factory=list)
    calls: int = 0

    @property
    def contended(self) -> list[Window]:
        """The eligible windows in which the tenant was not alone on the ring."""
        return [window for window in self.eligible if window.ring > 1]

    @property
    def breaches(self) -> list[Window]:
        return [window for window in self.eligible if not window.holds]


def judge(record: Record) -> Verdict:
    """Go through the record turn by turn and judge every window and every admission in it."""
    bench = _Bench(record)
    for turn in record.turns:
        bench.take(turn)
    return bench.verdict


@dataclass
class _Scope:
    """Where the runs of a scope are, as far as committed. Values are due times."""

    queued: dict[UUID, datetime] = field(default_factory=dict)
    ready: dict[UUID, datetime] = field(default_factory=dict)
    claimed: set[UUID] = field(default_factory=set)
    cap: int | None = None
    on_ring: bool = False

    @property
    def admitted(self) -> int:
        return len(self.ready) + len(self.claimed)

    def could_be_granted(self, now: datetime, cap: int) -> bool:
        """Whether a call that begins at `now` may give it something; expired leases are left out."""
        return any(due <= now for due in self.ready.values()) or (
            self.admitted < cap and any(due <= now for due in self.queued.values())
        )

    def move(self, change: RunMoved) -> None:
        self.queued.pop(change.run_id, None)
        self.ready.pop(change.run_id, None)
        self.claimed.discard(change.run_id)
        if change.after == "claimed":
            self.claimed.add(change.run_id)
        elif change.after in ("queued", "ready") and change.due_at is not None:
            getattr(self, change.after)[change.run_id] = change.due_at


@dataclass
class _Open:
    """A window that has not closed yet."""

    ring: int
    calls: int = 0
    outcomes: int = 0
    grants: Counter[str] = field(default_factory=Counter)


class _Bench:
    """The state of the domain as the turns build it up, and the windows open in it."""

    def __init__(self, record: Record) -> None:
        self.verdict = Verdict()
        self._changes = _Visibility(record)
        self._scopes: defaultdict[str, _Scope] = defaultdict(_Scope)
        self._open: dict[str, _Open] = {}
        self._last: Turn | None = None

    def take(self, turn: Turn) -> None:
        own, others = self._changes.up_to(turn)
        if turn.is_call:
            self.verdict.calls += 1
            self._open_windows(turn)
        if any(isinstance(change, ScopeChanged) for change in others):
            self._refuse_all(RING_CHANGED)
        if not turn.is_call:
            self._refuse_all(POLICY_CHANGED)
        grants = [
            list(rows)
            for _, rows in groupby(
                (change for change in own if isinstance(change, RunMoved)),
                key=lambda row: (row.statement, row.scope),
            )
        ]
        if turn.is_call:
            for window in self._open.values():
                window.calls += 1
            for grant in grants:
                self._grant(grant, turn)
        for change in (*others, *own):
            self._apply(change)
        self._check_caps(grants, turn)
        self._last = turn

    def _open_windows(self, turn: Turn) -> None:
        """Open a window for every tenant that could be granted something when this call began."""
        if self._last is None:
            return  # what held before the first turn is not known
        if self._last.after != turn.before:
            self._refuse_all(CALL_MISSING)
            return  # nor what held before this one
        ring = [name for name, scope in self._scopes.items() if scope.on_ring]
        for name in ring:
            if self._scopes[name].could_be_granted(turn.at, self._cap(name, self._last)):
                self._open.setdefault(name, _Open(len(ring)))
            elif self._open.pop(name, None):
                self.verdict.ineligible[NOT_ADMISSIBLE] += 1

    def _grant(self, rows: Sequence[RunMoved], turn: Turn) -> None:
        served = rows[0].scope
        for name, window in self._open.items():
            if name != served:
                window.grants[served] += 1
                window.outcomes += len(rows)
        window = self._open.pop(served, None)
        if window is None:
            self.verdict.ineligible[OPENED_LATE] += 1
        elif any(row.before == "claimed" for row in rows):
            self.verdict.ineligible[LEASE_EXPIRED] += 1
        else:
            seen = Bound(window.grants.total(), window.outcomes, window.calls)
            limit = bound(len(window.grants) + 1, window.ring, turn.budget)
            self.verdict.eligible.append(Window(served, window.ring, seen, limit))

    def _refuse_all(self, reason: str) -> None:
        if self._open:
            self.verdict.ineligible[reason] += len(self._open)
            self._open.clear()

    def _apply(self, change: RunMoved | ScopeChanged) -> None:
        scope = self._scopes[change.scope]
        if isinstance(change, RunMoved):
            scope.move(change)
        elif change.kind == "cap":
            scope.cap = change.cap
        else:
            scope.on_ring = change.kind == "joined"

    def _check_caps(self, grants: Sequence[Sequence[RunMoved]], turn: Turn) -> None:
        """Whoever was admitted in this turn: are no more admitted at its end than its cap allows?"""
        for name in {rows[0].scope for rows in grants if any(row.before == "queued" for row in rows)}:
            admitted, cap = self._scopes[name].admitted, self._cap(name, turn)
            self.verdict.peaks[name] = max(self.verdict.peaks.get(name, (0, cap)), (admitted, cap))
            if admitted > cap:
                self.verdict.over_cap.append(f"{name}: {admitted} admitted, the cap is {cap}")

    def _cap(self, name: str, turn: Turn) -> int:
        own = self._scopes[name].cap
        return own if own is not None else turn.cap or 0


class _Visibility:
    """Hands out the changes of a record as the snapshots of its turns come to see them."""

    def __init__(self, record: Record) -> None:
        changes: list[RunMoved | ScopeChanged] = [*record.scopes, *record.runs]
        self._coming = iter(sorted(changes, key=lambda change: change.xid))
        self._next = next(self._coming, None)
        self._hidden: list[RunMoved | ScopeChanged] = []

    def up_to(self, turn: Turn) -> tuple[list[RunMoved | ScopeChanged], list[RunMoved | ScopeChanged]]:
        """Return what the turn itself did and what others committed since the last turn, each in order."""
        self._hidden.extend(self._begun(max(turn.snapshot.xmax, turn.xid + 1)))
        own, others, hidden = [], [], []
        for change in self._hidden:
            if change.xid == turn.xid:
                own.append(change)
            elif turn.snapshot.sees(change.xid):
                others.append(change)
            else:
                hidden.append(change)
        self._hidden = hidden
        return _in_order(own), _in_order(others)

    def _begun(self, before: int) -> Iterator[RunMoved | ScopeChanged]:
        while self._next is not None and self._next.xid < before:
            yield self._next
            self._next = next(self._coming, None)


def _in_order(changes: list[RunMoved | ScopeChanged]) -> list[RunMoved | ScopeChanged]:
    return sorted(changes, key=lambda change: (isinstance(change, RunMoved), change.seq))
