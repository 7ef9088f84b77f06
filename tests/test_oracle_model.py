"""Random worlds of the pure model under the judge of traces: no breach, and broken models are found out.

The population of a world stays as it is: nobody joins or leaves, and what a call has leased is given back
before the next. So every window is eligible as long as its target is admissible.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests import model
from tests.oracle import Call, Judgement, Refused, Ring, Rule, Trace, Verdict, Visit, bounds, check_trace

NOW, CUTOFF = 1000, 900
SCOPES = "abcde"


@dataclass(frozen=True)
class World:
    domain: model.Domain
    demands: Sequence[int]
    locks: Sequence[Set[str]]

    @property
    def ring(self) -> Ring:
        return tuple(self.domain.ring())


@st.composite
def worlds(draw: st.DrawFn, *, locks: bool, calls: int | None = None) -> World:
    """A domain of two to five scopes with work of every kind, and the calls to be made on it."""
    scopes = draw(st.lists(st.sampled_from(SCOPES), min_size=2, max_size=5, unique=True))
    kinds = st.sampled_from(["queued", "ready", "expired", "live", "later"])
    found = []
    for scope in scopes:
        for kind in draw(st.lists(kinds, min_size=1, max_size=12)):
            found.append(a_row(len(found) + 1, scope, kind, draw(st.sampled_from([0, 0, 0, 4, 5]))))
    positions = {scope: place for place, scope in enumerate(scopes, 1)}
    domain = model.Domain(
        positions,
        found,
        cap=draw(st.integers(1, 6)),
        budget=draw(st.integers(1, 7)),
        cursor=draw(st.integers(0, len(scopes) + 1)),
    )
    # So many that, without locks, each window must close.
    number = calls or bounds(len(scopes), len(scopes), 0, domain.budget, model.QUANTUM).calls
    demands = st.integers(1, 20)
    locked = st.sets(st.sampled_from(scopes)) if locks else st.just(set())
    return World(
        domain,
        draw(st.lists(demands, min_size=number, max_size=number)),
        draw(st.lists(locked, min_size=number, max_size=number)),
    )


def a_row(number: int, scope: str, kind: str, attempts: int) -> model.Row:
    row = model.Row(number, scope, attempts=attempts)
    match kind:
        case "queued" | "ready":
            row.wake_at, row.admitted = NOW - number, kind == "ready"
        case "expired" | "live":
            row.claimed_at, row.admitted = CUTOFF - 1 if kind == "expired" else NOW, True
        case _:
            row.wake_at = NOW + 1
    return row


def admissible(domain: model.Domain) -> set[str]:
    """The scopes that could be granted something if nobody held a lock, by the rules and not by the model."""
    found = set()
    for scope in domain.positions:
        mine = [row for row in domain.rows if row.scope == scope and row.parked is None]
        due = [row for row in mine if row.wake_at is not None and row.wake_at <= NOW]
        expired = any(row.claimed_at is not None and row.claimed_at < CUTOFF for row in mine)
        slot = sum(row.admitted for row in mine) < domain.cap_of(scope)
        if expired or any(row.admitted or slot for row in due):
            found.add(scope)
    return found


def play(world: World, engine: type[model.Call] = model.Call, *, durable: bool = True) -> Trace:
    """Make the calls and record them; a cursor that is not durable falls back after each."""
    domain, ring = world.domain, world.ring
    start = (domain.laps, domain.cursor)
    entries = []
    for demand, locked in zip(world.demands, world.locks, strict=True):
        domain.locked_scopes = set(locked)
        able, epochs, before = admissible(domain), Counter(domain.epochs), (domain.laps, domain.cursor)
        call = engine(domain, now=NOW, expired_before=CUTOFF, demand=demand, preference=None)
        call.walk()
        after = (domain.laps, domain.cursor)
        outcomes = Counter(outcome.scope for outcome in call.outcomes)
        entries.append(Call(demand, before, after, visits(call), able, domain.epochs - epochs, outcomes))
        if not durable:
            domain.laps, domain.cursor = before
        give_back(domain, {outcome.id for outcome in call.outcomes})
    return Trace(ring, start, entries, (domain.laps, domain.cursor), domain.budget, model.QUANTUM)


def visits(call: model.Call) -> tuple[Visit, ...]:
    """The visits of a call, each with where it really left the cursor."""
    left_at = [*(visit.cursor_before for visit in call.inspections[1:]), call.domain.cursor]
    return tuple(
        Visit(
            visit.visit,
            visit.cursor_before,
            after,
            visit.scope,
            visit.disposition,
            visit.outcome_count,
            int(visit.disposition == "grant"),
        )
        for visit, after in zip(call.inspections, left_at, strict=True)
    )


def give_back(domain: model.Domain, leased: Set[int]) -> None:
    for row in domain.rows:
        if row.id in leased and row.claimed_at is not None:
            row.claimed_at, row.wake_at = None, NOW


def longest_failure(trace: Trace, target: str) -> int:
    """How many inspections of the target fail in a row: the least L that can be supplied."""
    longest = now = 0
    for call in trace.entries:
        for visit in call.visits:
            if visit.scope == target:
                now = 0 if visit.outcomes else now + 1
                longest = max(longest, now)
    return longest


def judge(trace: Trace, target: str, failures: int) -> list[Verdict]:
    return check_trace(trace, target, {scope for _, scope in trace.ring}, failures)


@settings(deadline=None)
@given(worlds(locks=True, calls=12))
def test_no_window_of_the_model_is_above_the_bound(world: World) -> None:
    trace = play(world)
    for _, target in trace.ring:
        for verdict in judge(trace, target, longest_failure(trace, target)):
            assert verdict.judgement is not Judgement.BREACH
            assert verdict.ratio <= 1


@settings(deadline=None)
@given(worlds(locks=False))
def test_without_locks_every_admissible_scope_is_served_within_the_bound(world: World) -> None:
    able = admissible(world.domain)
    trace = play(world)
    for target in able:
        first = judge(trace, target, failures=0)[0]
        assert first.judgement is Judgement.WITHIN


@settings(deadline=None)
@given(worlds(locks=True, calls=2))
def test_cursor_that_is_not_durable_is_found_out(world: World) -> None:
    trace = play(world, durable=False)
    with pytest.raises(Refused) as refused:
        judge(trace, trace.ring[0][1], failures=1000)
    assert refused.value.rule is Rule.CONTIGUOUS


class Staying(model.Call):
    """Leaves the cursor where it was when a visit meets a locked partition."""

    def __init__(self, domain: model.Domain, **arguments: Any) -> None:
        super().__init__(domain, **arguments)
        self.came_from = domain.cursor

    def nothing(self, scope: str) -> str:
        self.came_from = self.domain.cursor
        return super().nothing(scope)

    def visit(self, scope: str, quantum: int) -> tuple[str, int]:
        disposition, granted = super().visit(scope, quantum)
        if disposition == "partition_lock_skip":
            self.domain.cursor = self.came_from
        self.came_from = self.domain.cursor
        return disposition, granted


@settings(deadline=None)
@given(worlds(locks=False, calls=1))
def test_visit_that_does_not_move_the_cursor_is_found_out(world: World) -> None:
    everything_locked = replace(world, locks=[set(world.domain.positions)])
    trace = play(everything_locked, Staying)
    assume(any(visit.disposition == "partition_lock_skip" for visit in trace.entries[0].visits))
    with pytest.raises(Refused) as refused:
        judge(trace, trace.ring[0][1], failures=1000)
    assert refused.value.rule is Rule.SUCCESSOR


class Denying(model.Call):
    """Says of one scope that it has nothing, as a slot held back for another class would."""

    def grantable(self, scope: str) -> int:
        return 0 if scope == SCOPES[0] else super().grantable(scope)


@settings(deadline=None)
@given(worlds(locks=False))
def test_admissible_scope_that_is_denied_is_found_out_whatever_its_visits_say(world: World) -> None:
    assume(SCOPES[0] in admissible(world.domain))
    with pytest.raises(Refused) as refused:
        judge(play(world, Denying), SCOPES[0], failures=0)
    assert refused.value.rule is Rule.TARGET_FAILURES
