"""Which windows of real claims are eligible, and what is made of those that are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction

from tenantfair import policy, runs
from tenantfair.certify import Certificate, Counts, Reason, Rule, Window
from tenantfair.certify.bound import bound
from tenantfair.certify.ring import Cursor, Ring
from tenantfair.certify.verdict import Call, Grant
from tenantfair.certify.windows import Judge
from tenantfair.sql import install
from tests.certify.scene import certified, claim
from tests.claim_support import LEASE, Bench, bench

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def domain() -> Iterator[Bench]:
    """Two scopes with runs to be granted, and a third that waits for a signal."""
    with bench() as found:
        found.policy(50)
        found.ready("hot", 40)
        found.queued("target", 40)
        found.waiting("idle")
        yield found


def of(certificate: Certificate, scope: str) -> list[Window]:
    return [window for window in certificate.windows if window.scope == scope]


def until_served(domain: Bench, scope: str, most: int = 9) -> None:
    while scope not in claim(domain).scopes:
        most -= 1
        assert most


def lately(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def test_others_count_in_the_order_of_their_changes_not_of_their_beginnings() -> None:
    """A slow enqueue has an early id, and brings its tenant back after a later one has taken it away."""
    with bench() as domain:
        domain.policy(4)
        domain.queued("a")
        domain.queued("z")

        def play() -> None:
            claim(domain, 2)
            slow = domain.holding(
                "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at) VALUES ('a', 'tests.task', now())"
            )
            domain.finish(*domain.admitted("a"))
            slow.execute("COMMIT")
            assert claim(domain).scopes == ["a"]
            claim(domain)

        certificate = certified(play)
    assert certificate.calls == 3
    assert certificate.violations == []


@pytest.mark.conformance(154)
def test_target_at_the_end_of_a_long_ring_reaches_the_bound() -> None:
    with bench() as domain:
        domain.policy(50)
        domain.queued("hot", 40)
        for number in range(33):
            domain.waiting(f"waiting-{number:02}")
        domain.queued("target", 5)
        claim(domain, 8)
        certificate = certified(lambda: [claim(domain) for _ in range(6)])
    assert certificate.holds
    (window,) = of(certificate, "target")
    assert window.limit == bound(cohort=2, ring=35, failures=0, budget=32) == Counts(1, 8, 3)
    assert window.seen == Counts(1, 1, 3)
    assert window.ratio == 1


def test_scope_that_joins_is_judged_from_the_first_call_after_that(domain: Bench) -> None:
    def play() -> None:
        claim(domain)
        claim(domain)
        claim(domain)
        domain.queued("late", 2)
        until_served(domain, "late")

    certificate = certified(play)
    assert certificate.holds
    (window,) = of(certificate, "late")
    assert (window.cohort, window.ring) == (2, 4)
    assert window.seen == Counts(1, 1, 2)


def test_window_that_may_have_begun_later_must_hold_from_both_calls() -> None:
    """A scope that came to the ring while a call went by is judged as if it had been there before."""
    judge = Judge(Ring({1: "a", 2: "late"}), 32, Cursor(0, 2))
    judge.call(Call(Cursor(0, 2), Cursor(2, 1), [Grant("a", 1, 1), Grant("a", 1, 1)], {"a"}, {"late"}))
    judge.call(Call(Cursor(2, 1), Cursor(2, 2), [Grant("late", 1, 1)], {"a", "late"}))
    assert judge.violations == []
    assert [window.scope for window in judge.windows] == ["a"]
    assert judge.ineligible == {Reason.DAWN: 1}


def change_policy_and_restore(domain: Bench) -> None:
    for step in (1, -1):
        domain.db.execute("UPDATE tenantfair_policy SET max_active = max_active + %s", [step])


def change_cap_and_restore(domain: Bench) -> None:
    domain.override("hot", 20)
    domain.override("hot", None)


def leave_and_come_back(domain: Bench) -> None:
    domain.db.execute("DELETE FROM tenantfair_run WHERE scope_key = 'idle'")
    domain.waiting("idle")


def roll_back_a_claim(domain: Bench) -> None:
    session = domain.session()
    session.execute("BEGIN")
    claim(domain, by=session)
    session.execute("ROLLBACK")


def park_and_wake(domain: Bench) -> None:
    rows = domain.db.execute(
        "SELECT id FROM tenantfair_run WHERE scope_key = 'target' AND wake_at IS NOT NULL"
    )
    ids = [row.id for row in rows.fetchall()]
    domain.change(*ids, wake_at=lately(3600))
    claim(domain)
    domain.change(*ids, wake_at=lately(-100))


INTERFERENCE: dict[str, tuple[Callable[[Bench], Any], Reason]] = {
    "join": (lambda domain: domain.waiting("newcomer"), Reason.RING),
    "leave": (
        lambda domain: domain.db.execute("DELETE FROM tenantfair_run WHERE scope_key = 'idle'"),
        Reason.RING,
    ),
    "leave and return": (leave_and_come_back, Reason.RING),
    "policy": (change_policy_and_restore, Reason.POLICY),
    "cap": (change_cap_and_restore, Reason.CAP),
    "rollback": (roll_back_a_claim, Reason.ROLLED_BACK),
    "not admissible": (park_and_wake, Reason.NOT_ADMISSIBLE),
}


@pytest.mark.conformance(156)
@pytest.mark.parametrize("name", INTERFERENCE)
def test_window_with_a_change_in_it_is_ineligible(domain: Bench, name: str) -> None:
    interfere, reason = INTERFERENCE[name]

    def play() -> None:
        until_served(domain, "target")
        until_served(domain, "hot")
        interfere(domain)
        until_served(domain, "target")

    certificate = certified(play)
    assert certificate.violations == []
    assert of(certificate, "target") == []
    assert certificate.ineligible[reason] >= 1


@pytest.mark.conformance(156)
def test_function_that_is_replaced_makes_every_window_ineligible(domain: Bench) -> None:
    def play() -> None:
        for _ in range(6):
            claim(domain)
        domain.db.execute(install("tenantfair_claim.v1"))

    certificate = certified(play)
    assert certificate.windows == []
    assert certificate.ineligible[Reason.FUNCTION] == 4
    assert not certificate.holds


@pytest.mark.conformance(155)
@pytest.mark.parametrize("lock", ["partition", "run"])
def test_locks_of_others_are_failures_that_must_be_allowed(domain: Bench, lock: str) -> None:
    (alone,) = domain.queued("alone")

    def play() -> None:
        until_served(domain, "hot")
        domain.change(alone, wake_at=lately(-100))
        holder = domain.locking_partition("alone") if lock == "partition" else domain.locking_runs(alone)
        for _ in range(4):
            claim(domain)
        holder.rollback()
        until_served(domain, "alone")

    strict = certified(play)
    assert {violation.rule for violation in strict.violations} == {Rule.FAILURES}
    assert {violation.scope for violation in strict.violations} == {"alone"}

    domain.finish(alone)
    (alone,) = domain.queued("alone")
    claim(domain, 3)
    domain.release(alone)
    allowing = certified(play, failures=2)
    assert allowing.violations == []


def test_scope_whose_runs_were_being_changed_may_be_inspected_in_vain(domain: Bench) -> None:
    rows = domain.db.execute("SELECT id FROM tenantfair_run WHERE scope_key = 'target'").fetchall()

    def play() -> None:
        until_served(domain, "target")
        until_served(domain, "hot")
        canceller = domain.session()
        canceller.execute("BEGIN")
        domain.change(*(row.id for row in rows[1:]), by=canceller, wake_at=lately(-50))
        claim(domain)
        claim(domain)
        canceller.execute("COMMIT")
        until_served(domain, "target")

    certificate = certified(play)
    assert certificate.violations == []
    assert certificate.ineligible[Reason.DISTURBED] == 1


QUEUED = {"wake_at": lately(-100)}
EXPIRED = {"claimed_at": lately(-LEASE - 100), "tenant_admitted_at": lately(-LEASE - 100)}
# What locks a scope until the commit and leaves its state and times as they were, most of it the cap as well.
TOUCHES: dict[str, tuple[dict[str, Any], Callable[[UUID], Any]]] = {
    "signal to a queued run": (QUEUED, lambda run_id: runs.signal(run_id, "hello")),
    "signal to an expired run": (EXPIRED, lambda run_id: runs.signal(run_id, "hello")),
    "the cap that it has": (QUEUED, lambda _: policy.put_override("alone", 5)),
    "another cap": (QUEUED, lambda _: policy.put_override("alone", 6)),
}


@pytest.mark.conformance(156)
@pytest.mark.parametrize("name", TOUCHES)
def test_scope_that_was_locked_by_a_change_of_no_effect_may_be_inspected_in_vain(
    domain: Bench, name: str
) -> None:
    columns, touch = TOUCHES[name]
    domain.override("alone", 5)
    _, second = domain.insert("alone", 2, **columns)

    def play() -> None:
        until_served(domain, "alone")
        until_served(domain, "hot")
        with transaction.atomic():
            touch(domain.run(second).run_id)
            for _ in range(4):
                assert claim(domain).scopes != ["alone"]
        until_served(domain, "alone")

    certificate = certified(play)
    assert certificate.violations == []
    assert of(certificate, "alone") == []
    assert certificate.ineligible[Reason.DISTURBED] == 1


@pytest.mark.conformance(155)
@pytest.mark.parametrize(
    "columns",
    [
        pytest.param(lambda: {"wake_at": lately(3600)}, id="scheduled"),
        pytest.param(lambda: {"claimed_at": lately(-1), "tenant_admitted_at": lately(-1)}, id="claimed"),
        pytest.param(lambda: {"poisoned_at": lately(-1), "poison_reason": "test"}, id="poisoned"),
    ],
)
def test_change_of_what_no_claim_takes_is_no_excuse(
    domain: Bench, columns: Callable[[], dict[str, Any]]
) -> None:
    (alone,) = domain.queued("alone")
    (other,) = domain.insert("alone", **columns())

    def play() -> None:
        until_served(domain, "hot")
        holder = domain.locking_runs(alone)
        domain.change(other, by=holder, pending_signals="[1]")
        for _ in range(4):
            claim(domain)
        holder.execute("COMMIT")
        until_served(domain, "alone")

    certificate = certified(play)
    assert {violation.rule for violation in certificate.violations} == {Rule.FAILURES}
    assert {violation.scope for violation in certificate.violations} == {"alone"}


def test_scope_alone_on_the_ring_proves_nothing() -> None:
    with bench() as domain:
        domain.policy(50)
        domain.queued("alone", 9)
        certificate = certified(lambda: [claim(domain) for _ in range(4)])
    assert len(certificate.windows) == 3
    assert certificate.contended == []
    assert certificate.violations == []
    assert not certificate.holds


def test_expired_claims_and_poison_are_grants_like_others() -> None:
    with bench() as domain:
        domain.policy(50)
        now = datetime.now(UTC)
        old = now - timedelta(seconds=LEASE + 100)
        domain.insert("expired", 5, claimed_at=old, claim_attempts=1, tenant_admitted_at=old)
        domain.queued("poison", 5, claim_attempts=5)
        domain.queued("plain", 5)
        certificate = certified(lambda: [claim(domain) for _ in range(9)])
    assert certificate.violations == []
    assert {window.scope for window in certificate.windows} == {"expired", "poison", "plain"}


def test_demand_over_many_laps_is_judged_in_the_order_of_the_visits(domain: Bench) -> None:
    certificate = certified(lambda: [claim(domain, 40), claim(domain, 1), claim(domain, 1)])
    assert certificate.violations == []


def test_cap_edits_and_debt_are_no_overshoot(domain: Bench) -> None:
    def play() -> None:
        claim(domain, 20)
        domain.db.execute("UPDATE tenantfair_policy SET max_active = 3")
        claim(domain, 20)
        claim(domain, 20)

    certificate = certified(play)
    assert certificate.violations == []
    assert certificate.ineligible[Reason.POLICY] >= 1
    assert certificate.peaks["target"].admitted <= 50


def test_peak_is_the_most_admitted_against_the_cap_of_the_time(domain: Bench) -> None:
    domain.override("target", 3)
    certificate = certified(lambda: [claim(domain, 16) for _ in range(3)])
    assert certificate.violations == []
    assert (certificate.peaks["target"].admitted, certificate.peaks["target"].cap) == (3, 3)
