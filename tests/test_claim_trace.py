"""What a call says of itself: epochs, the trace, the call row, leases, and the signal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from tenantfair.claim import Lease, Poisoned, claim_due
from tenantfair.claim.base import Answer
from tenantfair.claim.tenant_fair import TenantFair
from tenantfair.exceptions import ClaimUnavailable, SchemaMismatch, TenantFairError
from tenantfair.models import Run
from tenantfair.sql import load
from tests.claim_support import MAX_ATTEMPTS, NOW, Bench, at, bench, claims_observed

pytestmark = pytest.mark.django_db

POISONED = {"claim_attempts": MAX_ATTEMPTS}


@pytest.fixture
def domain(db: None) -> Iterator[Bench]:
    with bench() as found:
        yield found


@pytest.fixture
def observed() -> Iterator[list[dict[str, Any]]]:
    with claims_observed() as seen:
        yield seen


def a_little_of_everything(domain: Bench) -> None:
    domain.policy(cap=3)
    domain.queued("a", 9)
    domain.waiting("b")
    domain.ready("c", 2)
    domain.ready("c", **POISONED)
    domain.expired("d", 2)
    domain.expired("d", **POISONED)
    domain.queued("d", **POISONED)
    domain.claimed("e", 3)
    domain.queued("e")
    domain.queued("")


@pytest.mark.conformance(99)
@pytest.mark.parametrize("rows", [1, 8])
def test_grant_of_any_size_is_one_step_of_the_epoch(domain: Bench, rows: int) -> None:
    domain.queued("a", rows)
    assert len(domain.claim(8).outcomes) == rows
    assert domain.epoch("a") == 1


@pytest.mark.conformance(99)
def test_every_grant_of_a_call_is_a_step_and_nothing_else_is(domain: Bench) -> None:
    domain.policy(cap=12)
    domain.queued("a", 13)
    head = domain.queued("b")[0]
    domain.queued("c")
    domain.waiting("d")
    holders = [domain.locking_runs(head), domain.locking_partition("c")]
    found = domain.claim(100)
    assert {"grant", "cap_debt_denial", "lock_miss", "partition_lock_skip", "empty_page"} == set(
        found.dispositions
    )
    for holder in holders:
        holder.rollback()
    assert {scope: domain.epoch(scope) for scope in "abcd"} == {"a": 2, "b": 0, "c": 0, "d": 0}
    assert sum(row.epoch_delta for row in found.inspections) == 2


@pytest.mark.conformance(100)
def test_trace_adds_inspections_and_changes_nothing(domain: Bench) -> None:
    def happened(trace: bool) -> tuple[list[Any], list[Any]]:
        with domain.db.transaction(force_rollback=True):
            found = domain.claim(12, trace=trace)
            unlike = {"claim_token", "call_token", "transaction_id"}
            told = [
                {name: value for name, value in row._asdict().items() if name not in unlike}
                for row in [*found.outcomes, found.call]
            ]
            left = domain.db.execute(
                "SELECT id, status, wake_at, claimed_at, tenant_admitted_at, claim_attempts, worker_ids"
                " FROM tenantfair_run ORDER BY id"
            ).fetchall()
            kept = domain.db.execute("SELECT * FROM tenantfair_partition ORDER BY 1").fetchall()
            assert bool(found.inspections) == trace
            return told, [left, [row[:4] for row in kept], domain.cursor()]

    a_little_of_everything(domain)
    assert happened(True) == happened(False)


@pytest.mark.conformance(101)
def test_rows_of_a_call_agree_with_each_other(domain: Bench) -> None:
    a_little_of_everything(domain)
    found = domain.claim(12)
    xid = domain.db.execute("SELECT xmin::text::bigint FROM tenantfair_policy").fetchone()[0]
    assert {(row.call_token, row.demand) for row in found.rows} == {(found.call.call_token, 12)}
    assert {row.transaction_id & 0xFFFFFFFF for row in found.rows} == {xid}
    visits = {row.visit_ordinal: row for row in found.inspections}
    assert list(visits) == list(range(1, len(visits) + 1))
    assert Counter(row.visit_ordinal for row in found.outcomes) == {
        visit: row.outcome_count for visit, row in visits.items() if row.outcome_count
    }
    for row in found.outcomes:
        visit = visits[row.visit_ordinal]
        for name in ("cursor_before", "cursor_after", "ring_position", "scope_key"):
            assert getattr(row, name) == getattr(visit, name)
    by_visit: dict[int, list[int]] = {}
    for row in found.outcomes:
        by_visit.setdefault(row.visit_ordinal, []).append(row.outcome_ordinal)
    assert all(ordinals == list(range(1, len(ordinals) + 1)) for ordinals in by_visit.values())
    call = found.call
    assert (call.inspections, call.outcome_count) == (len(visits), len(found.outcomes))
    assert found.denials == Counter(
        row.disposition for row in found.inspections if row.disposition != "grant"
    )
    assert (call.cursor_before, call.cursor_after) == (
        found.inspections[0].cursor_before,
        found.inspections[-1].cursor_after,
    )


@pytest.mark.conformance(102)
@pytest.mark.django_db(transaction=True)
def test_lease_carries_all_that_a_start_needs(domain: Bench) -> None:
    run = Run.objects.get(
        id=domain.queued(
            "acme",
            task_path="shop.tasks.book",
            checkpoint_seq=4,
            claim_attempts=2,
            failures=1,
            retry_limit=7,
            claim_abandons=3,
            queue_name="slow",
            backend="other",
        )[0]
    )
    Run.objects.filter(id=run.id).update(
        args=[1, "zwei"],
        kwargs={"drei": None},
        state={"page": 3},
        pending_signals=["go"],
        worker_ids=["before"],
    )
    with connection.cursor() as cursor:
        cursor.execute("SET application_name = 'worker 7'")
    (lease,) = claim_due(1, now=NOW).leases
    with connection.cursor() as cursor:
        cursor.execute("RESET application_name")
    run.refresh_from_db()
    assert lease == Lease(
        run_id=run.run_id,
        claim_token=run.claim_token,
        claimed_at=NOW,
        attempt=3,
        checkpoint_seq=4,
        tenant_id="acme",
        task_path="shop.tasks.book",
        args=[1, "zwei"],
        kwargs={"drei": None},
        state={"page": 3},
        signals=["go"],
        failures=1,
        retry_limit=7,
        abandons=3,
        queue_name="slow",
        backend="other",
        enqueued_at=run.enqueued_at,
        started_at=NOW,
        errors=[],
        worker_ids=["before", "worker 7"],
        work_class="queued_ready",
        eligible_at=at(-100),
    )
    assert (run.claimed_by, run.claim_attempts, run.last_attempted_at) == ("worker 7", 3, NOW)
    assert str(lease.claim_token) not in repr(lease)


@pytest.mark.conformance(102)
@pytest.mark.django_db(transaction=True)
def test_tenantless_run_has_no_tenant_and_poison_has_no_token(domain: Bench) -> None:
    domain.queued("")
    domain.queued("", **POISONED)
    batch = claim_due(5, now=NOW)
    assert [lease.tenant_id for lease in batch.leases] == [None]
    assert [type(each) for each in batch.poisoned] == [Poisoned]
    assert (batch.poisoned[0].poisoned_at, batch.poisoned[0].poison_reason) == (
        NOW,
        "max_claim_attempts_exceeded",
    )


@pytest.mark.conformance(102)
@pytest.mark.django_db(transaction=True)
def test_only_the_last_32_workers_of_a_run_are_kept(domain: Bench) -> None:
    run = Run.objects.get(id=domain.queued("a")[0])
    Run.objects.filter(id=run.id).update(worker_ids=[str(number) for number in range(32)])
    (lease,) = claim_due(1, now=NOW).leases
    assert lease.worker_ids[:-1] == [str(number) for number in range(1, 32)]
    assert len(lease.worker_ids) == 32


@pytest.mark.conformance(103)
@pytest.mark.django_db(transaction=True)
def test_nothing_due_is_an_empty_batch(domain: Bench) -> None:
    batch = claim_due(5)
    assert (batch.leases, batch.poisoned, batch.call.inspections, batch.call.outcomes) == ([], [], 0, 0)
    domain.waiting("a")
    batch = claim_due(5)
    assert (batch.leases, batch.call.inspections, batch.call.denials["empty_page"]) == ([], 32, 32)
    assert batch.call.after > batch.call.before


@pytest.mark.conformance(103)
@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        (["row_kind"], []),
        (["row_kind"], [("surprise",)]),
        (["row_kind"], [("outcome",)]),
        (["row_kind", "claim_token"], [("outcome",)]),
        ([], [()]),
    ],
)
def test_rows_of_another_shape_are_never_an_empty_batch(columns: list[str], rows: list[tuple[str]]) -> None:
    with pytest.raises(SchemaMismatch, match="migrate tenantfair"):
        TenantFair().decode(Answer(columns, rows), demand=1)


@pytest.mark.conformance(103)
@pytest.mark.django_db(transaction=True)
def test_unavailable_policy_is_one_error_with_a_reason(domain: Bench) -> None:
    domain.pristine()
    with pytest.raises(ClaimUnavailable) as refusal:
        claim_due(1)
    assert isinstance(refusal.value, TenantFairError)
    assert (refusal.value.reason, refusal.value.phase) == ("not_initialized", None)


@pytest.mark.conformance(172)
@pytest.mark.django_db(transaction=True)
def test_contention_is_told_with_its_phase(domain: Bench, observed: list[dict[str, Any]]) -> None:
    domain.queued("a")
    holder = domain.locking_policy()
    with pytest.raises(ClaimUnavailable) as refusal:
        claim_due(1)
    assert (refusal.value.reason, refusal.value.phase) == ("lock_contention", "policy_cursor")
    holder.rollback()
    claim_due(1)
    assert [(sent["result"], sent["phase"]) for sent in observed] == [
        ("lock_contention", "policy_cursor"),
        ("ok", None),
    ]


@pytest.mark.conformance(173)
@pytest.mark.django_db(transaction=True)
def test_outcomes_are_told_apart_and_nobody_is_named(domain: Bench, observed: list[dict[str, Any]]) -> None:
    domain.policy(cap=100)
    for make, shape in [
        (domain.queued, {}),
        (domain.ready, {}),
        (domain.expired, {}),
        (domain.ready, POISONED),
        (domain.queued, POISONED),
    ]:
        make("secret", task_path="tests.secret", **shape)
    assert len(claim_due(9, now=NOW).leases) == 3
    (sent,) = observed
    assert sent["outcomes"] == {
        "promotion": 1,
        "reacquire": 1,
        "steal": 1,
        "admitted_poison": 1,
        "queued_poison": 1,
    }
    # A receiver may ask for a kind that did not come.
    assert sent["outcomes"]["another"] == 0
    assert (sent["result"], sent["demand"], sent["engine"]) == ("ok", 9, "tenant_fair")
    assert sent["claim_attempts"] == 1 + 1 + 2
    assert "secret" not in repr(
        {name: value for name, value in sent.items() if name not in ("signal", "sender")}
    )


@pytest.mark.conformance(103)
@pytest.mark.django_db(transaction=True)
def test_function_without_a_column_that_is_read_is_another_version(
    domain: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = load("claim").replace("claimed.eligible_at", "claimed.no_such_column")
    monkeypatch.setattr("tenantfair.claim.tenant_fair.load", lambda name: text)

    with pytest.raises(SchemaMismatch, match="no_such_column"):
        claim_due(1)
