"""Goes through a recording call by call and has the judge see what the database saw.

Claims hold the policy row to their end, so they are in the order of their commits. Each keeps the snapshot of
its end, which says what others had committed by then: that lies between this call and the one before, and so
may have come before, during or after the walk. What others took away counts as gone for all of that time,
and what they added as not there yet.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import inf
from operator import attrgetter
from typing import Final

from tenantfair.certify.admission import Scope
from tenantfair.certify.record import Record, Row, Snapshot
from tenantfair.certify.ring import Cursor, Ring
from tenantfair.certify.verdict import Call, Grant, Reason, Rule
from tenantfair.certify.windows import Judge

_MICROSECONDS: Final = 1_000_000
_CANDIDATES: Final = ("queued", "ready", "claimed")
_SERVED: Final = ("claimed", "unmarked", "poisoned")


@dataclass(frozen=True, slots=True)
class Peak:
    """The most runs of a scope that were admitted after a claim admitted one, and the cap then."""

    admitted: int
    cap: int


@dataclass
class Replayed:
    """What a replay came to: the judge that saw it, and the peak of each scope that was promoted."""

    judge: Judge
    peaks: dict[str, Peak] = field(default_factory=dict)


def replay(record: Record, *, failures: int = 0) -> Replayed:
    """Judge every window of the recording; `failures` inspections of a scope in a row may be in vain."""
    domain = _Domain(record, failures)
    turns, others = _sorted_out(record.rows)
    coming = _Others(others)
    for place, turn in enumerate(turns):
        following = turns[place + 1].xid if place + 1 < len(turns) else inf
        domain.take(turn, *coming.seen_by(turn.snapshot, following))
    domain.without_a_call(coming.rest())
    return domain.concluded()


class _Turn:
    """One call with the rows of its transaction."""

    def __init__(self, row: Row, own: Sequence[Row]) -> None:
        self.own = own
        self.xid = row.xid
        self.number = row.call or 0
        self.now = row.at or 0
        self.snapshot = Snapshot.parse(row.snapshot or "0:0:")
        self.before = Cursor(row.laps_before or 0, row.cursor_before or 0)
        self.after = Cursor(row.laps_after or 0, row.cursor_after or 0)


class _Domain:
    """The domain as the recording builds it up."""

    def __init__(self, record: Record, failures: int) -> None:
        opening = record.opening
        self._record = record
        self._cap, self._lease = opening.cap, opening.lease * _MICROSECONDS
        self._ring = dict(opening.ring)
        self._caps: dict[str, int | None] = dict(opening.caps)
        self._scopes: defaultdict[str, Scope] = defaultdict(Scope)
        for held, n in opening.runs.items():
            self._scopes[held.scope].move(held, n)
        # Since when a claim could have granted the scope something.
        self._since: dict[str, int] = {}
        self._recompute(self._scopes)
        judge = Judge(Ring(self._ring), opening.budget, opening.cursor, failures, midway=True)
        self._judge, self._replayed = judge, Replayed(judge)
        self._last: int | None = None

    def take(self, turn: _Turn, seen: Sequence[_Other], at_work: Sequence[_Other]) -> None:
        """Judge a call; what it has `seen` was committed since the last one, those `at_work` had begun."""
        # A step is counted while the changed row is locked: steps are in the order of changes, ids are not.
        others = sorted((row for other in seen for row in other.rows), key=_step_of)
        if self._last is not None and turn.number != self._last + 1:
            self._judge.event(Reason.ROLLED_BACK)
        self._last = turn.number
        self.without_a_call(seen)
        self._announce(others)
        self._announce(turn.own)
        self._lose(others)
        admissible = {scope for scope, at in self._since.items() if at <= turn.now}
        expired = turn.now - self._lease
        disturbed = {scope for other in (*seen, *at_work) for scope in other.disturbs(turn.now, expired)}
        grants = list(_grants(turn.own, self._ring))
        self._move(others, gains=True)
        touched = {row.scope_key or "" for row in others}
        self._recompute(touched)
        dawning = {scope for scope in touched if self._since.get(scope, inf) <= turn.now} - admissible
        self._judge.call(Call(turn.before, turn.after, grants, admissible, dawning, disturbed))
        self._move(turn.own, gains=True)
        self._move(turn.own, gains=False)
        self._recompute(row.scope_key or "" for row in turn.own)
        for scope in sorted({row.scope_key or "" for row in turn.own if _promotes(row)}):
            self._check_cap(scope)

    def without_a_call(self, others: Iterable[_Other]) -> None:
        """Nobody but a claim may give out runs."""
        for other in others:
            served: Counter[str] = Counter()
            epochs: Counter[str] = Counter()
            for row in other.rows:
                if row.kind == "epoch":
                    epochs[row.scope_key or ""] += row.n or 0
                elif row.kind == "run" and row.state in _SERVED:
                    served[row.scope_key or ""] += row.n or 0
            for scope in sorted(epochs.keys() | served.keys()):
                if served[scope] > 0 or epochs[scope]:
                    detail = f"{max(served[scope], 0)} outcomes, {epochs[scope]} epochs"
                    self._judge.violation(Rule.CURSOR, detail, scope)

    def concluded(self) -> Replayed:
        """Close what is open."""
        self._judge.finish(self._record.closing.cursor)
        if self._record.opening.functions != self._record.closing.functions:
            self._judge.refuse(Reason.FUNCTION)
        return self._replayed

    def _announce(self, rows: Iterable[Row]) -> None:
        """Tell the judge what makes windows ineligible, and keep the ring, the caps and the policy."""
        reasons: dict[Reason, None] = {}
        moved = [row for row in rows if row.kind in ("joined", "left", "cap", "policy")]
        newcomer = moved[0].scope_key if [row.kind for row in moved] == ["joined"] else None
        budget = None
        for row in moved:
            match row.kind:
                case "joined":
                    self._ring[row.n or 0] = row.scope_key or ""
                    reasons[Reason.RING] = None
                case "left":
                    self._ring.pop(row.n or 0, None)
                    reasons[Reason.RING] = None
                case "cap":
                    self._caps[row.scope_key or ""] = row.n
                    reasons[Reason.CAP] = None
                case "policy":
                    self._cap, self._lease = row.cap or 0, (row.lease or 0) * _MICROSECONDS
                    budget = row.budget
                    reasons[Reason.POLICY] = None
                    self._recompute(self._scopes)
        for reason in reasons:
            ring = self._ring if reason is Reason.RING else None
            self._judge.event(reason, ring=ring, budget=budget, newcomer=newcomer)

    def _lose(self, others: Sequence[Row]) -> None:
        """Take away what others took away, while a slot that they freed still counts as taken."""
        by_scope = sorted((row for row in others if row.kind == "run"), key=_scope_of)
        for scope, rows in groupby(by_scope, key=_scope_of):
            admitted = self._scopes[scope].admitted
            self._move(rows, gains=False)
            self._remember(scope, admitted)

    def _move(self, rows: Iterable[Row], *, gains: bool) -> None:
        for row in rows:
            n = row.n or 0
            if row.kind == "run" and row.state in _CANDIDATES and (n > 0) == gains:
                held = self._record.held(row)
                if held is not None:
                    self._scopes[held.scope].move(held, n)

    def _recompute(self, scopes: Iterable[str]) -> None:
        for scope in set(scopes):
            self._remember(scope, self._scopes[scope].admitted)

    def _remember(self, scope: str, admitted: int) -> None:
        found = self._scopes[scope].grantable_from(self._cap_of(scope), self._lease, admitted)
        if found is None:
            self._since.pop(scope, None)
        else:
            self._since[scope] = found

    def _cap_of(self, scope: str) -> int:
        own = self._caps.get(scope)
        return self._cap if own is None else own

    def _check_cap(self, scope: str) -> None:
        """Somebody was admitted: no more than the cap allows?"""
        admitted, cap = self._scopes[scope].admitted, self._cap_of(scope)
        peak = self._replayed.peaks.get(scope)
        if peak is None or admitted - cap > peak.admitted - peak.cap:
            self._replayed.peaks[scope] = Peak(admitted, cap)
        if admitted > cap:
            self._judge.violation(Rule.CAP, f"{admitted} admitted, the cap is {cap}", scope)


_scope_of = attrgetter("scope_key")
_step_of = attrgetter("step")
_xid_of = attrgetter("xid")


def _promotes(row: Row) -> bool:
    return row.kind == "run" and row.state == "queued" and (row.n or 0) < 0


def _locks(row: Row) -> bool:
    return row.kind == "touch" or (row.kind == "run" and row.state in _CANDIDATES and (row.n or 0) < 0)


def _grants(own: Sequence[Row], ring: dict[int, str]) -> Iterator[Grant]:
    """Yield what a call granted, in the order of its visits.

    A call serves one stretch of the ring in one statement, so statements and then places are that order.
    """
    place_of = {scope: place for place, scope in ring.items()}
    epochs: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    outcomes: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for row in own:
        if row.kind == "epoch":
            epochs[row.scope_key or ""].append((row.step, row.n or 0))
        elif row.kind == "run" and row.state in _SERVED and (row.n or 0) > 0:
            outcomes[row.scope_key or ""][row.step] += row.n or 0
    found = []
    for scope in epochs.keys() | outcomes.keys():
        place = place_of.get(scope, inf)
        moved, given = epochs[scope], sorted(outcomes[scope].items())
        if len(moved) == len(given):
            found += [
                (step, place, Grant(scope, n, count))
                for (_, n), (step, count) in zip(moved, given, strict=True)
            ]
        else:
            first = min(step for step, _ in (*moved, *given))
            totals = Grant(scope, sum(n for _, n in moved), sum(n for _, n in given))
            found.append((first, place, totals))
    yield from (grant for _, _, grant in sorted(found))


def _sorted_out(rows: Sequence[Row]) -> tuple[list[_Turn], list[Row]]:
    """Return the calls in their order, each with the rows of its transaction, and the rows of the others."""
    calls: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if row.kind == "call":
            calls[row.xid].append(row)
    own: defaultdict[int | None, list[Row]] = defaultdict(list)
    others = []
    for row in rows:
        if row.xid not in calls:
            others.append(row)
        elif row.kind != "call":
            mine = calls[row.xid]
            # A transaction with several calls, as tests make them: what came before a call is its own.
            owner = next((call for call in mine if call.step > row.step), mine[-1])
            own[owner.call].append(row)
    turns = [_Turn(call, own[call.call]) for found in calls.values() for call in found]
    return sorted(turns, key=attrgetter("number")), others


class _Other:
    """A transaction that is no claim. What it has updated was locked until its end, whatever came of it."""

    def __init__(self, xid: int, rows: Sequence[Row]) -> None:
        self.xid = xid
        self.rows = rows
        self._locked = [(row.scope_key or "", row.state, row.at or 0) for row in rows if _locks(row)]

    def disturbs(self, now: int, expired: int) -> set[str]:
        """Return the scopes of which it had locked the partition, or runs that a claim could have taken."""
        return {
            scope for scope, state, at in self._locked if (at < expired if state == "claimed" else at <= now)
        }


class _Others:
    """Hands out the transactions of others as the calls come to see them."""

    def __init__(self, rows: Iterable[Row]) -> None:
        by_xid = sorted(rows, key=_xid_of)
        self._coming = [_Other(xid, list(mine)) for xid, mine in groupby(by_xid, key=_xid_of)]
        self._next = 0
        self._hidden: list[_Other] = []

    def seen_by(self, snapshot: Snapshot, following: float) -> tuple[list[_Other], list[_Other]]:
        """Return what a call sees for the first time, and what had begun before the `following` call."""
        until = max(snapshot.xmax, following)
        while self._next < len(self._coming) and self._coming[self._next].xid < until:
            self._hidden.append(self._coming[self._next])
            self._next += 1
        seen = [other for other in self._hidden if snapshot.sees(other.xid)]
        self._hidden = [other for other in self._hidden if not snapshot.sees(other.xid)]
        return seen, self._hidden

    def rest(self) -> list[_Other]:
        """Return what no call has seen."""
        return self._hidden + self._coming[self._next :]
