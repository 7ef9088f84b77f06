"""The judge of claim traces, judged itself: formulas, traces at the bound, forgeries, a whole small grid."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import ceil

import pytest

from tests.oracle import (
    Call,
    Counts,
    Cursor,
    Event,
    Judgement,
    Refused,
    Ring,
    Rule,
    Trace,
    Visit,
    bounds,
    check_trace,
    compare,
)

Entry = Call | Event


# Traces by hand


def a_call(ring: Ring, before: Cursor, demand: int, results: Sequence[int]) -> Call:
    """Walk the ring from `before`; each result is what one visit grants."""
    laps, cursor = before
    visits, granted, epochs = [], Counter[str](), Counter[str]()
    for ordinal, outcomes in enumerate(results, 1):
        following = [place for place in ring if place[0] > cursor]
        position, scope = (following or ring)[0]
        laps += not following
        disposition = "grant" if outcomes else "lock_miss"
        visits.append(Visit(ordinal, cursor, position, scope, disposition, outcomes, int(outcomes > 0)))
        cursor = position
        granted[scope] += outcomes
        epochs[scope] += outcomes > 0
    everyone = {scope for _, scope in ring}
    return Call(demand, before, (laps, cursor), tuple(visits), everyone, epochs, granted)


def a_trace(ring: Ring, demand: int, calls: Sequence[Sequence[int]], *, visits: int, quantum: int) -> Trace:
    entries: list[Call] = []
    cursor = (0, 0)
    for results in calls:
        entries.append(a_call(ring, cursor, demand, results))
        cursor = entries[-1].after
    return Trace(ring, (0, 0), entries, cursor, visits, quantum)


HOT_DORMANT_TARGET = ((10, "hot"), (40, "dormant"), (90, "target"))
AT_THE_BOUND = a_trace(HOT_DORMANT_TARGET, 2, [[2], [0, 0], [2], [0, 2]], visits=2, quantum=2)
PAIR = {"hot", "target"}


def refuses(rule: Rule, trace: Trace, cohort: Set[str] = PAIR, failures: int = 1) -> None:
    with pytest.raises(Refused) as refused:
        check_trace(trace, "target", cohort, failures)
    assert refused.value.rule is rule


# The formulas


@pytest.mark.conformance(147)
@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((1, 1, 0), Counts(0, 0, 1)),
        ((2, 2, 0), Counts(1, 8, 2)),
        ((2, 2, 1), Counts(2, 16, 4)),
        ((2, 35, 0), Counts(1, 8, 3)),
        ((10, 100, 0), Counts(9, 72, 12)),
        ((5, 1000, 2), Counts(12, 96, 108)),
        ((33, 33, 0), Counts(32, 256, 33)),
        ((1, 501, 0), Counts(0, 0, 16)),
        ((1, 33, 0), Counts(0, 0, 2)),
    ],
)
def test_bounds_are_those_computed_by_hand(sizes: tuple[int, int, int], expected: Counts) -> None:
    assert bounds(*sizes, S=32, Q=8) == expected


@pytest.mark.conformance(148)
def test_small_budgets_have_bounds_that_traces_reach_exactly() -> None:
    assert bounds(2, 3, 1, 2, 2) == Counts(2, 4, 4)
    (first,) = check_trace(AT_THE_BOUND, "target", PAIR, 1)
    assert first.seen == first.bound == Counts(2, 4, 4)

    assert bounds(3, 3, 2, 1, 2) == Counts(6, 12, 9)
    ring = ((1, "a"), (2, "b"), (3, "target"))
    lap, last = [[2], [2], [0]], [[2], [2], [2]]
    trace = a_trace(ring, 2, [*lap, *lap, *last], visits=1, quantum=2)
    (second,) = check_trace(trace, "target", {"a", "b", "target"}, 2)
    assert second.seen == second.bound == Counts(6, 12, 9)
    assert second.judgement is Judgement.WITHIN
    assert second.ratio == 1


@pytest.mark.conformance(149)
def test_shorter_expression_for_the_calls_is_no_bound() -> None:
    ring = ((1, "hot"), (2, "target"))
    trace = a_trace(ring, 1, [[1], [1]], visits=2, quantum=8)
    (verdict,) = check_trace(trace, "target", PAIR, 0)
    assert verdict.seen.calls == 2 == bounds(2, 2, 0, 2, 8).calls
    shorter = replace(verdict.bound, calls=ceil(len(ring) / 2))
    assert compare(verdict.seen, shorter).judgement is Judgement.BREACH


@pytest.mark.parametrize("count", ["grants", "outcomes", "calls"])
def test_one_more_than_the_bound_is_a_breach(count: str) -> None:
    bound = bounds(2, 3, 1, 2, 2)
    over = replace(bound, **{count: getattr(bound, count) + 1})
    assert compare(bound, bound).judgement is Judgement.WITHIN
    assert compare(over, bound).judgement is Judgement.BREACH
    assert compare(over, bound).ratio > 1


def test_open_window_fails_once_its_calls_are_used_up_and_never_passes() -> None:
    bound = bounds(2, 3, 1, 2, 2)
    assert compare(bound, bound, closed=False).judgement is Judgement.BREACH
    assert compare(Counts(1, 2, 3), bound, closed=False).judgement is Judgement.INELIGIBLE


@pytest.mark.conformance(150)
@pytest.mark.parametrize(
    ("rule", "sizes"),
    [
        (Rule.COHORT_SIZE, (0, 3, 0, 2, 2)),
        (Rule.COHORT_SIZE, (4, 3, 0, 2, 2)),
        (Rule.VISIT_BUDGET, (2, 3, 0, 0, 2)),
        (Rule.QUANTUM, (2, 3, 0, 2, 0)),
        (Rule.FAILURES, (2, 3, -1, 2, 2)),
    ],
)
def test_impossible_sizes_are_refused(rule: Rule, sizes: tuple[int, int, int, int, int]) -> None:
    with pytest.raises(Refused) as refused:
        bounds(*sizes)
    assert refused.value.rule is rule


@pytest.mark.conformance(150)
def test_impossible_population_is_refused() -> None:
    refuses(Rule.TARGET, AT_THE_BOUND, {"hot"})
    refuses(Rule.COHORT, AT_THE_BOUND, {"hot", "target", "stranger"})
    hot, dormant, target = HOT_DORMANT_TARGET
    unordered, twice, same_place = (
        (dormant, hot, target),
        (hot, (20, "hot"), target),
        (hot, (10, "dormant"), target),
    )
    for ring in (unordered, twice, same_place, ((0, "hot"), target)):
        refuses(Rule.RING, replace(AT_THE_BOUND, ring=ring))


# Forgeries: each changes one thing of the trace that reaches the bound


def forged(call: int, visit: int | None = None, **changes: object) -> Trace:
    entries = list(AT_THE_BOUND.entries)
    if visit is not None:
        visits = list(entries[call].visits)
        visits[visit] = replace(visits[visit], **changes)
        changes = {"visits": tuple(visits)}
    entries[call] = replace(entries[call], **changes)
    return replace(AT_THE_BOUND, entries=entries)


def with_call(index: int, demand: int, results: Sequence[int]) -> Trace:
    """Another walk in place of one call."""
    entries = list(AT_THE_BOUND.entries)
    entries[index] = a_call(HOT_DORMANT_TARGET, entries[index].before, demand, results)
    return replace(AT_THE_BOUND, entries=entries)


def twice_hot() -> Trace:
    again = Visit(1, 10, 10, "hot", "grant", 2, 1)
    return forged(1, visits=(again,))


@pytest.mark.conformance(151)
@pytest.mark.parametrize(
    ("rule", "trace"),
    [
        pytest.param(Rule.CONTIGUOUS, forged(1, 1, before=10), id="visit begins elsewhere"),
        pytest.param(Rule.CONTIGUOUS, forged(1, before=(0, 0)), id="call begins elsewhere"),
        pytest.param(Rule.CONTIGUOUS, forged(1, after=(0, 40)), id="call ends elsewhere"),
        pytest.param(Rule.CONTIGUOUS, forged(2, after=(0, 10)), id="lap not counted"),
        pytest.param(Rule.CONTIGUOUS, replace(forged(3, after=(7, 90)), end=(7, 90)), id="laps made up"),
        pytest.param(Rule.CONTIGUOUS, replace(AT_THE_BOUND, start=(7, 0)), id="trace begins elsewhere"),
        pytest.param(Rule.CONTIGUOUS, replace(AT_THE_BOUND, end=(7, 0)), id="trace ends elsewhere"),
        pytest.param(Rule.SUCCESSOR, forged(1, 0, after=90), id="position passed over"),
        pytest.param(Rule.SUCCESSOR, forged(1, 0, scope="target"), id="scope of another position"),
        pytest.param(Rule.SUCCESSOR, forged(1, 0, after=10), id="cursor stays"),
        pytest.param(Rule.EARLY_STOP, with_call(1, 2, [0]), id="unfilled call stops early"),
        pytest.param(Rule.EARLY_STOP, with_call(0, 2, [1]), id="half filled call stops early"),
        pytest.param(Rule.EARLY_STOP, forged(0, visits=()), id="call without a visit"),
        pytest.param(Rule.FILLED, with_call(0, 2, [2, 0]), id="visit after the demand was filled"),
        pytest.param(Rule.BUDGET, with_call(1, 2, [0, 0, 0]), id="more visits than the budget"),
        pytest.param(Rule.ORDINALS, forged(1, 1, ordinal=3), id="visit left out of the count"),
        pytest.param(Rule.ORDINALS, forged(0, 0, ordinal=0), id="count from zero"),
        pytest.param(Rule.GRANT_SIZE, forged(0, 0, outcomes=0), id="grant of nothing"),
        pytest.param(Rule.GRANT_SIZE, with_call(0, 3, [3]), id="grant above the quantum"),
        pytest.param(Rule.GRANT_SIZE, with_call(0, 1, [2]), id="grant above the demand"),
        pytest.param(Rule.EPOCH, forged(0, 0, epoch_delta=0), id="grant without an epoch"),
        pytest.param(Rule.EPOCH, forged(0, 0, epoch_delta=2), id="grant of two epochs"),
        pytest.param(Rule.FAILED_VISIT, forged(1, 0, epoch_delta=1), id="epoch of a failed visit"),
        pytest.param(Rule.FAILED_VISIT, forged(1, 0, outcomes=1), id="outcome of a failed visit"),
        pytest.param(Rule.EVIDENCE, forged(0, epochs={"hot": 2}), id="another epoch in the database"),
        pytest.param(Rule.EVIDENCE, forged(0, outcomes={"hot": 1}), id="fewer outcomes in the database"),
        pytest.param(Rule.EVIDENCE, forged(1, outcomes={"dormant": 1}), id="outcome that no visit tells"),
        pytest.param(Rule.OUTSIDER, with_call(1, 2, [1, 0]), id="grant outside the cohort"),
        pytest.param(Rule.ROTATION, twice_hot(), id="two grants of a competitor"),
        pytest.param(Rule.TARGET_FAILURES, with_call(3, 2, [0, 0]), id="the target fails once too often"),
        pytest.param(Rule.COMMITTED, forged(0, committed=False), id="call that did not commit"),
    ],
)
def test_forged_trace_is_refused_by_the_rule_it_breaks(rule: Rule, trace: Trace) -> None:
    refuses(rule, trace)


def test_call_ends_at_its_thirty_second_grant() -> None:
    ring = tuple((place, f"t{place:02}") for place in range(1, 36))
    everyone = {scope for _, scope in ring}
    for grants, rule in ((31, Rule.EARLY_STOP), (33, Rule.FILLED)):
        with pytest.raises(Refused) as refused:
            check_trace(a_trace(ring, 300, [[1] * grants], visits=40, quantum=8), "t35", everyone, 0)
        assert refused.value.rule is rule
    trace = a_trace(ring, 300, [[1] * 32, [1] * 32], visits=40, quantum=8)
    verdicts = check_trace(trace, "t35", everyone, 0)
    assert [verdict.judgement for verdict in verdicts] == [Judgement.WITHIN]


# Traces at the bound, and windows


@pytest.mark.conformance(152)
def test_trace_at_the_bound_passes_and_fails_with_one_failure_less() -> None:
    assert sum(len(call.visits) for call in AT_THE_BOUND.entries) == 6
    (verdict,) = check_trace(AT_THE_BOUND, "target", PAIR, 1)
    assert verdict.judgement is Judgement.WITHIN
    assert verdict.seen == Counts(grants=2, outcomes=4, calls=4)
    assert verdict.ratio == 1
    refuses(Rule.TARGET_FAILURES, AT_THE_BOUND, failures=0)


@pytest.mark.conformance(152)
def test_lone_target_may_fail_and_be_granted_in_one_call() -> None:
    trace = a_trace(((5, "target"),), 1, [[0, 1]], visits=2, quantum=2)
    (verdict,) = check_trace(trace, "target", {"target"}, 1)
    assert verdict.judgement is Judgement.WITHIN
    assert verdict.seen == Counts(0, 0, 1)
    refuses(Rule.TARGET_FAILURES, trace, {"target"}, 0)


def test_larger_cohort_than_was_granted_makes_nothing_easier() -> None:
    everyone = {"hot", "dormant", "target"}
    assert check_trace(AT_THE_BOUND, "target", everyone, 1) == check_trace(AT_THE_BOUND, "target", PAIR, 1)


def test_every_window_of_a_trace_has_its_verdict() -> None:
    trace = a_trace(HOT_DORMANT_TARGET, 2, [[2], [0, 2], [2], [0, 0]], visits=2, quantum=2)
    first, second = check_trace(trace, "target", PAIR, 1)
    assert (first.judgement, first.seen) == (Judgement.WITHIN, Counts(1, 2, 2))
    assert (second.judgement, second.reason) == (Judgement.INELIGIBLE, "the window has not closed")


@pytest.mark.parametrize("place", [1, 2, 3])
def test_event_in_a_window_makes_it_ineligible_and_before_it_does_not(place: int) -> None:
    def with_event(at: int) -> Trace:
        entries: list[Entry] = list(AT_THE_BOUND.entries)
        return replace(AT_THE_BOUND, entries=[*entries[:at], Event("the policy changed"), *entries[at:]])

    (verdict,) = check_trace(with_event(place), "target", PAIR, 1)
    assert (verdict.judgement, verdict.reason) == (Judgement.INELIGIBLE, "the policy changed")
    assert (verdict.bound, verdict.ratio) == (None, 0)
    for outside in (0, 4):
        (verdict,) = check_trace(with_event(outside), "target", PAIR, 1)
        assert verdict.judgement is Judgement.WITHIN


@pytest.mark.parametrize("call", [1, 2, 3])
def test_window_without_an_admissible_target_or_a_recorded_call_is_ineligible(call: int) -> None:
    (verdict,) = check_trace(forged(call, admissible={"hot"}), "target", PAIR, 1)
    assert (verdict.judgement, verdict.reason) == (Judgement.INELIGIBLE, "the target was not admissible")
    (verdict,) = check_trace(forged(call, visits=None), "target", PAIR, 1)
    assert (verdict.judgement, verdict.reason) == (Judgement.INELIGIBLE, "a call was not recorded")


def test_call_that_nobody_recorded_may_have_opened_the_window() -> None:
    (verdict,) = check_trace(forged(0, visits=None, admissible=set()), "target", PAIR, 1)
    assert (verdict.judgement, verdict.seen.calls) == (Judgement.INELIGIBLE, 4)


def test_grant_of_a_call_that_nobody_recorded_closes_the_window() -> None:
    (ineligible,) = check_trace(forged(3, visits=None), "target", PAIR, 1)
    again = a_trace(HOT_DORMANT_TARGET, 2, [[2], [0, 2], [2], [0, 2]], visits=2, quantum=2)
    entries = [again.entries[0], replace(again.entries[1], visits=None), *again.entries[2:]]
    first, second = check_trace(replace(again, entries=entries), "target", PAIR, 0)
    assert first.judgement is ineligible.judgement is Judgement.INELIGIBLE
    assert (second.judgement, second.seen) == (Judgement.WITHIN, Counts(1, 2, 2))


@pytest.mark.parametrize(("calls", "failures"), [([[2], [0, 0], [2], [0, 0]], 0), ([[2], [2], [0, 0]], 9)])
def test_what_an_ineligible_window_may_not_do_is_not_refused(calls: list[list[int]], failures: int) -> None:
    trace = a_trace(HOT_DORMANT_TARGET, 2, calls, visits=2, quantum=2)
    entries = [trace.entries[0], Event("the policy changed"), *trace.entries[1:]]
    (verdict,) = check_trace(replace(trace, entries=entries), "target", PAIR, failures)
    assert (verdict.judgement, verdict.reason) == (Judgement.INELIGIBLE, "the policy changed")


def test_calls_after_a_change_are_held_to_what_holds_then() -> None:
    ring: Ring = ((10, "hot"), (90, "target"))
    opening = a_call(ring, (0, 0), 2, [2])
    short = a_call(ring, opening.after, 2, [0])
    entries = [opening, Event("the policy changed", visits=1), short]
    (verdict,) = check_trace(Trace(ring, (0, 0), entries, short.after, 2, 2), "target", PAIR, 9)
    assert verdict.judgement is Judgement.INELIGIBLE


def test_target_off_the_ring_has_no_window_whatever_its_rows_are() -> None:
    ring: Ring = ((10, "hot"), (90, "target"))
    opening = replace(a_call(ring, (0, 0), 2, [2]), admissible={"hot"})
    nothing = replace(a_call((), opening.after, 2, []), admissible={"target"})
    entries = [opening, Event("a scope left the ring", ring=()), nothing]
    assert check_trace(Trace(ring, (0, 0), entries, nothing.after, 2, 2), "target", PAIR, 0) == []


def test_window_opens_only_once_the_target_is_admissible() -> None:
    (verdict,) = check_trace(forged(0, admissible={"hot"}), "target", PAIR, 1)
    assert verdict.seen == Counts(grants=1, outcomes=2, calls=3)


def test_window_after_a_change_of_the_ring_is_judged_on_the_new_one() -> None:
    small = ((10, "hot"), (90, "target"))
    opening = a_call(HOT_DORMANT_TARGET, (0, 0), 2, [2])
    granted = a_call(small, opening.after, 2, [2])
    then = [a_call(small, granted.after, 2, [2])]
    then.append(a_call(small, then[0].after, 2, [2]))
    entries = [opening, Event("a scope left the ring", ring=small), granted, *then]
    trace = Trace(HOT_DORMANT_TARGET, (0, 0), entries, then[1].after, 2, 2)
    first, second = check_trace(trace, "target", PAIR, 0)
    assert first.judgement is Judgement.INELIGIBLE
    assert (second.judgement, second.bound) == (Judgement.WITHIN, bounds(2, 2, 0, 2, 2))


# The whole of a small grid

QUANTUM = 2
Appetite = Callable[[int, int], int]
# What a competitor takes at its position in the target's n-th lap, while the demand lasts.
APPETITES: list[Appetite] = [
    lambda position, lap: QUANTUM,
    lambda position, lap: 1,
    lambda position, lap: QUANTUM * ((position + lap) % 2),
]


@dataclass(frozen=True)
class World:
    """A ring whose last position is the target's, with competitors at some of the others."""

    size: int
    budget: int
    allowed: int
    failing: int
    start: int
    demand: int
    competitors: tuple[int, ...]
    appetite: Appetite

    def trace(self) -> Trace:
        """Call until the target is granted, whose first `failing` visits fail."""
        ring = tuple((position, str(position)) for position in range(1, self.size + 1))
        cursor, lap, entries = (0, self.start), 0, []
        while not entries or not entries[-1].outcomes[str(self.size)]:
            left, results, position = self.demand, [], cursor[1]
            while left and len(results) < self.budget:
                position = position % self.size + 1
                wanted = 0
                if position == self.size:
                    wanted, lap = QUANTUM * (lap >= self.failing), lap + 1
                elif position in self.competitors:
                    wanted = self.appetite(position, lap)
                results.append(min(wanted, left))
                left -= results[-1]
            entries.append(a_call(ring, cursor, self.demand, results))
            cursor = entries[-1].after
        return Trace(ring, (0, self.start), entries, cursor, self.budget, QUANTUM)


def small_worlds(size: int) -> Iterator[World]:
    for number in range(min(size, 3)):
        for competitors in combinations(range(1, size), number):
            for budget, allowed in product((1, 2, 3, 4), (0, 1, 2)):
                for rest in product(range(allowed + 1), range(size + 1), (1, QUANTUM, QUANTUM + 1)):
                    for appetite in APPETITES[: 3 if number else 1]:
                        yield World(size, budget, allowed, *rest, competitors, appetite)


@pytest.mark.conformance(153)
@pytest.mark.parametrize("size", range(1, 6))
def test_no_small_world_is_above_the_bound_and_every_bound_is_reached(size: int) -> None:
    reached: dict[tuple[int, int, int], set[str]] = defaultdict(set)
    for world in small_worlds(size):
        cohort = {str(size), *map(str, world.competitors)}
        (verdict,) = check_trace(world.trace(), str(size), cohort, world.allowed)
        assert verdict.judgement is Judgement.WITHIN, (world, verdict)
        kind = (len(cohort), world.budget, world.allowed)
        bound = bounds(len(cohort), size, world.allowed, world.budget, QUANTUM)
        for count, value in vars(verdict.seen).items():
            assert value <= getattr(bound, count), (world, verdict)
            if value == getattr(bound, count):
                reached[kind].add(count)
    assert set(reached) == set(product(range(1, min(size, 3) + 1), (1, 2, 3, 4), (0, 1, 2)))
    for (_, _, allowed), counts in reached.items():
        # That of the calls is exact where no inspection of the target may fail.
        assert counts >= {"grants", "outcomes", *(["calls"] if allowed == 0 else [])}
