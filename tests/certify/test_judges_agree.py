"""The certificate's judge and the tests' own, which share no code, come to the same verdicts.

The tests' judge sees each visit; the certificate's sees only what the database keeps of a call. So the tests'
judge may refuse more traces, and where both judge a window they agree in every number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings

from tenantfair.certify.bound import Counts, bound
from tenantfair.certify.ring import Cursor, Ring
from tenantfair.certify.verdict import Call, Grant, Reason, Rule
from tenantfair.certify.windows import Judge
from tests import oracle
from tests.test_oracle import AT_THE_BOUND, forged, small_worlds, with_call
from tests.test_oracle_model import World, longest_failure, play, worlds

REASONS = {
    "the window has not closed": Reason.OPEN,
    "the target was not admissible": Reason.NOT_ADMISSIBLE,
}


def told(trace: oracle.Trace, failures: int) -> Judge:
    """The certificate's judge, told of a trace what the database keeps of it."""
    judge = Judge(Ring(dict(trace.ring)), trace.visits, Cursor(*trace.start), failures, trace.quantum)
    for call in trace.entries:
        visits = call.visits
        judge.call(Call(Cursor(*call.before), Cursor(*call.after), grants(visits), call.admissible))
    judge.finish(Cursor(*trace.end))
    return judge


def grants(visits: Iterable[oracle.Visit]) -> list[Grant]:
    return [
        Grant(visit.scope, visit.epoch_delta, visit.outcomes)
        for visit in visits
        if visit.outcomes or visit.epoch_delta
    ]


def compare(trace: oracle.Trace, failures: int) -> int:
    """See that both say the same of every window of every scope; return how many were judged."""
    judge = told(trace, failures)
    assert judge.violations == []
    everyone = {scope for _, scope in trace.ring}
    ineligible = []
    judged = 0
    for scope in everyone:
        verdicts = oracle.check_trace(trace, scope, everyone, failures)
        mine = [window for window in judge.windows if window.scope == scope]
        theirs = [found for found in verdicts if found.judgement is not oracle.Judgement.INELIGIBLE]
        ineligible += [REASONS[v.reason] for v in verdicts if v.judgement is oracle.Judgement.INELIGIBLE]
        assert [window.holds for window in mine] == [
            found.judgement is oracle.Judgement.WITHIN for found in theirs
        ]
        assert [tuple(window.seen) for window in mine] == [
            (found.seen.grants, found.seen.outcomes, found.seen.calls) for found in theirs
        ]
        for window, found in zip(mine, theirs, strict=True):
            # Theirs allows all the failures that it was told of, this one as many as there were.
            full = bound(
                cohort=window.cohort,
                ring=window.ring,
                failures=failures,
                budget=window.budget,
                quantum=trace.quantum,
            )
            assert full == Counts(found.bound.grants, found.bound.outcomes, found.bound.calls)
            assert window.failures <= failures
            if window.failures == failures:
                assert window.ratio == found.ratio
        judged += len(mine)
    counted = {reason: number for reason, number in judge.ineligible.items() if reason is not Reason.LATE}
    assert counted == {reason: ineligible.count(reason) for reason in set(ineligible)}
    return judged


@pytest.mark.conformance(152)
def test_they_agree_on_the_trace_that_reaches_the_bound() -> None:
    (verdict,) = oracle.check_trace(AT_THE_BOUND, "target", {"hot", "target"}, 1)
    (window,) = [found for found in told(AT_THE_BOUND, 1).windows if found.scope == "target"]
    assert tuple(window.seen) == tuple(window.limit) == (2, 4, 4)
    assert window.failures == 1
    assert window.ratio == verdict.ratio == 1


@pytest.mark.conformance(151)
@pytest.mark.parametrize(
    ("rule", "trace"),
    [
        pytest.param(Rule.WALK, forged(0, after=(0, 11)), id="cursor at no place"),
        pytest.param(Rule.WALK, forged(1, after=(0, 10)), id="cursor stays"),
        pytest.param(Rule.WALK, forged(2, after=(0, 10)), id="lap not counted"),
        pytest.param(Rule.BUDGET, forged(3, after=(7, 90)), id="laps made up"),
        pytest.param(Rule.BUDGET, with_call(1, 2, [0, 0, 0]), id="more visits than the budget"),
        pytest.param(Rule.STOPPED, with_call(1, 2, [0]), id="unfilled call stops early"),
        pytest.param(Rule.QUANTUM, with_call(0, 3, [3]), id="grant above the quantum"),
        pytest.param(Rule.EPOCH, forged(0, 0, epoch_delta=0), id="grant without an epoch"),
        pytest.param(Rule.EPOCH, forged(1, 0, epoch_delta=1), id="epoch of a failed visit"),
        pytest.param(Rule.EPOCH, forged(0, 0, epoch_delta=3), id="more epochs than outcomes"),
        pytest.param(Rule.WALK, forged(0, 0, scope="target"), id="grant where the cursor was not"),
        pytest.param(Rule.WALK, forged(0, 0, epoch_delta=2), id="two grants in one visit"),
        pytest.param(Rule.FAILURES, with_call(3, 2, [0, 0]), id="the target fails once too often"),
    ],
)
def test_what_no_claim_may_do_is_refused_by_both(rule: Rule, trace: oracle.Trace) -> None:
    assert rule in {violation.rule for violation in told(trace, 1).violations}
    with pytest.raises(oracle.Refused):
        oracle.check_trace(trace, "target", {"hot", "target"}, 1)


@pytest.mark.conformance(156)
@pytest.mark.parametrize("left_out", range(4))
def test_call_that_is_missing_makes_windows_ineligible(left_out: int) -> None:
    entries = [call for place, call in enumerate(AT_THE_BOUND.entries) if place != left_out]
    judge = told(replace(AT_THE_BOUND, entries=entries), 9)
    assert judge.ineligible[Reason.MISSING] or left_out == 0
    assert [window for window in judge.windows if window.scope == "target"] == []


@pytest.mark.conformance(153)
@pytest.mark.parametrize("size", range(1, 6))
def test_they_agree_on_all_of_the_small_grid(size: int) -> None:
    judged = 0
    for world in small_worlds(size):
        trace = world.trace()
        judge = told(trace, world.allowed)
        cohort = {str(size), *map(str, world.competitors)}
        (verdict,) = oracle.check_trace(trace, str(size), cohort, world.allowed)
        (window,) = [found for found in judge.windows if found.scope == str(size)]
        assert tuple(window.seen) == (verdict.seen.grants, verdict.seen.outcomes, verdict.seen.calls)
        # Laps of one call in which nobody was granted anything leave no trace.
        assert window.failures <= world.failing
        assert window.failures == world.failing or world.size < world.budget
        assert window.holds
        assert window.cohort == len(window_cohort(trace, str(size)))
        judged += 1
    assert judged > 100


def window_cohort(trace: oracle.Trace, target: str) -> set[str]:
    """Who is granted something until the target is, which happens in the last call."""
    found: set[str] = set()
    for call in trace.entries:
        for visit in call.visits:
            if visit.outcomes:
                found.add(visit.scope)
                if visit.scope == target:
                    return found
    return found


@settings(deadline=None, max_examples=400)
@given(worlds(locks=False))
def test_they_agree_on_random_worlds(world: World) -> None:
    compare(play(world), failures=0)


@settings(deadline=None, max_examples=400)
@given(worlds(locks=True, calls=12))
def test_they_agree_on_random_worlds_with_locks(world: World) -> None:
    trace = play(world)
    most = max(longest_failure(trace, scope) for _, scope in trace.ring)
    compare(trace, failures=most)
