"""The claim function itself under the judge of traces, on evidence that the database wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from random import Random

import pytest

from tenantfair.sql import install
from tests.claim_support import SHIPPED, Bench, Claimed, at, bench
from tests.oracle import Counts, Judgement, Refused, Rule, Verdict, bounds, check_trace
from tests.witness import Record, Witness, journal

pytestmark = pytest.mark.django_db

COHORT = {"hot", "target"}


@pytest.fixture
def domain(db: None) -> Iterator[Bench]:
    with journal(), bench() as found:
        yield found


def hot_and_target(domain: Bench) -> int:
    domain.ready("hot", 9)
    return domain.queued("target")[0]


def judge(witness: Witness, failures: int = 0) -> Verdict:
    """The verdict of the one window there is."""
    (verdict,) = check_trace(witness.trace(), "target", COHORT, failures)
    return verdict


@pytest.mark.conformance(154)
def test_target_at_the_end_of_a_long_ring_is_served_at_the_bound(domain: Bench) -> None:
    domain.ready("hot", 9)
    for number in range(33):
        domain.waiting(f"waiting-{number:02}")
    domain.queued("target")
    witness = Witness(domain)
    calls = [witness.claim() for _ in range(3)]
    assert [call.scopes for call in calls] == [["hot"], [], ["target"]]
    verdict = judge(witness)
    assert verdict.judgement is Judgement.WITHIN
    assert verdict.bound == bounds(2, 35, 0, 32, 8)
    assert verdict.seen == Counts(grants=1, outcomes=1, calls=3)
    assert verdict.ratio == 1


@pytest.mark.conformance(155)
@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("lock", ["partition", "run"])
def test_lock_on_the_target_is_a_failure_each_call(domain: Bench, lock: str, calls: int) -> None:
    target = hot_and_target(domain)
    witness = Witness(domain)
    witness.claim()
    holder = domain.locking_partition("target") if lock == "partition" else domain.locking_runs(target)
    missed = [witness.claim().dispositions for _ in range(calls)]
    assert missed == [["partition_lock_skip" if lock == "partition" else "lock_miss", "grant"]] * calls
    holder.rollback()
    assert witness.claim().scopes == ["target"]

    verdict = judge(witness, failures=calls)
    assert verdict.judgement is Judgement.WITHIN
    assert verdict.seen.grants == verdict.bound.grants == calls + 1
    with pytest.raises(Refused) as refused:
        judge(witness, failures=calls - 1)
    assert refused.value.rule is Rule.TARGET_FAILURES


def change_policy_and_restore(domain: Bench) -> None:
    domain.db.execute("UPDATE tenantfair_policy SET max_active = max_active + 1")
    domain.db.execute("UPDATE tenantfair_policy SET max_active = max_active - 1")


def change_cap_and_restore(domain: Bench) -> None:
    domain.override("hot", 20)
    domain.override("hot", None)


def replace_function_by_itself(domain: Bench) -> None:
    domain.db.execute(install("tenantfair_claim.v1"))


def let_somebody_leave(domain: Bench) -> None:
    domain.db.execute("DELETE FROM tenantfair_run WHERE scope_key = 'idle'")


def leave_and_come_back(domain: Bench) -> None:
    let_somebody_leave(domain)
    domain.waiting("idle")


INTERFERENCE: dict[str, tuple[Callable[[Bench], object], str]] = {
    "join": (lambda domain: domain.queued("newcomer"), "a scope joined the ring"),
    "leave": (let_somebody_leave, "a scope left the ring"),
    "leave and return": (leave_and_come_back, "a scope left the ring"),
    "policy": (change_policy_and_restore, "the policy changed"),
    "cap": (change_cap_and_restore, "the policy changed"),
    "function": (replace_function_by_itself, "a function was replaced"),
    "missing call": (lambda domain: domain.claim(trace=False), "a call was not recorded"),
}


@pytest.mark.conformance(156)
@pytest.mark.parametrize("name", INTERFERENCE)
def test_window_with_a_change_in_it_is_ineligible(domain: Bench, name: str) -> None:
    interfere, reason = INTERFERENCE[name]
    hot_and_target(domain)
    domain.waiting("idle")
    witness = Witness(domain)
    witness.claim()
    interfere(domain)
    while "target" not in witness.claim().scopes and len(witness.records) < 9:
        pass
    verdict = judge(witness, failures=100)
    assert (verdict.judgement, verdict.reason) == (Judgement.INELIGIBLE, reason)
    assert verdict.bound is None


@pytest.mark.conformance(156)
def test_window_with_a_call_rolled_back_in_it_is_ineligible(domain: Bench) -> None:
    hot_and_target(domain)
    witness = Witness(domain)
    witness.claim()
    witness.begin().execute("ROLLBACK")
    assert witness.claim().scopes == ["target"]
    verdict = judge(witness)
    assert (verdict.judgement, verdict.reason) == (Judgement.INELIGIBLE, "a call was rolled back")


@pytest.mark.conformance(156)
def test_window_of_a_target_that_could_not_be_granted_is_ineligible(domain: Bench) -> None:
    target = hot_and_target(domain)
    witness = Witness(domain)
    witness.claim()
    domain.park(target)
    witness.claim()
    domain.change(target, wake_at=at(-1))
    assert witness.claim().scopes == ["target"]
    verdict = judge(witness, failures=1)
    assert (verdict.judgement, verdict.reason) == (Judgement.INELIGIBLE, "the target was not admissible")


def test_function_whose_cursor_is_not_durable_is_found_out(domain: Bench) -> None:
    hot_and_target(domain)
    durable = "scan_ring_position = v_cursor,\n            scan_laps = v_laps,\n"
    assert SHIPPED.count(durable) == 1
    function = domain.function("tests_forgetful", SHIPPED.replace(durable, ""))
    witness = Witness(domain)
    assert [witness.claim(function=function).scopes for _ in range(3)] == [["hot"]] * 3
    with pytest.raises(Refused) as refused:
        witness.trace()
    assert refused.value.rule is Rule.EVIDENCE


# Evidence


def alone_and_locked(domain: Bench) -> Witness:
    """Three calls on a ring of one, of which all but the last visit the locked target for nothing."""
    (target,) = domain.queued("target")
    witness = Witness(domain)
    holder = domain.locking_runs(target)
    witness.claim()
    witness.claim()
    holder.rollback()
    assert witness.claim().scopes == ["target"]
    return witness


@pytest.mark.conformance(157)
def test_calls_on_a_ring_of_one_cannot_be_shuffled_or_left_out(domain: Bench) -> None:
    trace = alone_and_locked(domain).trace()
    assert {call.visits[0].after for call in trace.entries} == {domain.position("target")}
    (verdict,) = check_trace(trace, "target", {"target"}, 64)
    assert verdict.judgement is Judgement.WITHIN
    shuffled = [list(order) for order in permutations(trace.entries) if list(order) != trace.entries]
    omitted = [[call for call in trace.entries if call is not left_out] for left_out in trace.entries]
    for entries in shuffled + omitted:
        with pytest.raises(Refused) as refused:
            check_trace(replace(trace, entries=entries), "target", {"target"}, 64)
        assert refused.value.rule is Rule.CONTIGUOUS


@pytest.mark.conformance(157)
def test_order_of_the_calls_is_that_of_the_database(domain: Bench) -> None:
    witness = alone_and_locked(domain)
    shuffled = Random(7).sample(witness.records, 3)
    assert shuffled != witness.records
    assert witness.trace(shuffled) == witness.trace()


@pytest.mark.conformance(157)
@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_call_that_its_caller_leaves_out_is_known_to_the_database(domain: Bench, left_out: int) -> None:
    witness = alone_and_locked(domain)
    records = [record for place, record in enumerate(witness.records) if place != left_out]
    (verdict,) = check_trace(witness.trace(records), "target", {"target"}, 64)
    assert (verdict.judgement, verdict.reason) == (Judgement.INELIGIBLE, "a call was not recorded")


def altered(record: Record, row_kind: str, scope: str | None = None, **changes: object) -> Record:
    """The record with other values in some of its rows."""
    rows = [
        row._replace(**changes) if (row.row_kind, row.scope_key) == (row_kind, scope) else row
        for row in record.found.rows
    ]
    return replace(record, found=Claimed(rows))


@pytest.mark.conformance(157)
def test_outcomes_and_failures_that_the_database_does_not_know_are_refused(domain: Bench) -> None:
    hot_and_target(domain)
    witness = Witness(domain)
    assert witness.claim(2).scopes == ["hot", "target"]
    assert judge(witness).seen == Counts(grants=1, outcomes=1, calls=1)

    (record,) = witness.records
    failure = {"disposition": "lock_miss", "outcome_count": 0, "epoch_delta": 0}
    passed_over = replace(altered(record, "inspection", "hot", **failure), demand=1)
    served_more = replace(altered(record, "inspection", "target", outcome_count=2), demand=3)
    for forged in (passed_over, served_more):
        with pytest.raises(Refused) as refused:
            check_trace(witness.trace([forged]), "target", COHORT, 0)
        assert refused.value.rule is Rule.EVIDENCE


@pytest.mark.conformance(157)
def test_call_that_never_was_or_has_not_committed_is_refused(domain: Bench) -> None:
    hot_and_target(domain)
    witness = Witness(domain)
    witness.claim()
    (xid,) = domain.db.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    invented = altered(witness.records[0], "call", transaction_id=xid)
    with pytest.raises(Refused) as refused:
        witness.trace([*witness.records, invented])
    assert refused.value.rule is Rule.EVIDENCE

    open_call = witness.begin()
    with pytest.raises(Refused) as refused:
        witness.trace()
    assert refused.value.rule is Rule.COMMITTED
    open_call.execute("COMMIT")
    assert judge(witness).judgement is Judgement.WITHIN
