"""Cancel, interrupt, signal and retry, for a run in every state."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from tenantfair import runs
from tenantfair.exceptions import InvalidPayload, InvalidRun, RunNotActive, RunNotFound
from tenantfair.models import Run, Schedule
from tenantfair.runs import RunView
from tenantfair.runs.views import database_now
from tenantfair.sql import load
from tests.factories import (
    FINISHED,
    LONG_AGO,
    STATES,
    RunFactory,
    claim,
    lease_of,
    policy_in_force,
    run_in,
    snapshot,
)
from tests.tasks_for_tests import add
from tests.test_payloads import UNSTORABLE

pytestmark = pytest.mark.django_db

ERROR = {"exception_class_path": "builtins.ValueError", "traceback": "ValueError: no"}
OPERATIONS: dict[str, Callable[..., RunView]] = {
    "cancel": runs.cancel,
    "interrupt": runs.interrupt,
    "signal": lambda run_id, **options: runs.signal(run_id, {"n": 1}, **options),
    "retry": runs.retry,
}
UNCHANGED, REFUSED = "unchanged", "refused"
# What each operation makes of each state.
TABLE: dict[str, dict[str, str]] = {
    "cancel": {
        **dict.fromkeys(STATES, "cancelled"),
        "cancelled": UNCHANGED,
        "completed": REFUSED,
        "failed": REFUSED,
    },
    "interrupt": {
        "queued": UNCHANGED,
        "ready": UNCHANGED,
        "claimed": "queued",
        "scheduled": "queued",
        "waiting": "queued",
        "poisoned": REFUSED,
        **dict.fromkeys(FINISHED, REFUSED),
    },
    "signal": {
        **{state: state for state in STATES},
        "waiting": "queued",
        **dict.fromkeys(FINISHED, REFUSED),
    },
    "retry": {
        **dict.fromkeys(STATES, UNCHANGED),
        "poisoned": "queued",
        "failed": "queued",
        "completed": REFUSED,
        "cancelled": REFUSED,
    },
}
CASES = [(name, state, outcome) for name, row in TABLE.items() for state, outcome in row.items()]


@pytest.mark.conformance(112, 116, 117, 120)
@pytest.mark.parametrize(("operation", "state", "outcome"), CASES)
def test_every_operation_in_every_state(operation: str, state: str, outcome: str) -> None:
    run = run_in(state, claim_abandons=2, failures=1)
    before = snapshot(run)
    if outcome == REFUSED:
        with pytest.raises(RunNotActive) as raised:
            OPERATIONS[operation](run.run_id)
        assert (raised.value.run_id, raised.value.state) == (run.run_id, state)
        assert snapshot(run) == before
        return
    view = OPERATIONS[operation](run.run_id)
    assert view == runs.get(run.run_id)
    if outcome == UNCHANGED:
        assert snapshot(run) == before
        assert view.state == state
    else:
        assert view.state == outcome
        assert snapshot(run) != before


@pytest.mark.parametrize("state", [state for state in STATES if state not in FINISHED])
def test_cancelling_frees_everything_and_counts_down(state: str) -> None:
    run = run_in(state)
    before = database_now("default")
    view = runs.cancel(run.run_id)
    assert view.finished_at is not None
    assert before <= view.finished_at == view.updated_at
    row = Run.objects.get(pk=run.pk)
    assert (row.claim_token, row.claimed_at, row.wake_at, row.tenant_admitted_at) == (None, None, None, None)
    assert (row.poisoned_at, row.poison_reason) == (None, None)
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    assert [schedule.unfinished_count for schedule in Schedule.objects.all()] in ([], [0])


@pytest.mark.conformance(112)
@pytest.mark.parametrize("state", ["claimed", "scheduled", "waiting"])
def test_an_interrupted_run_is_due_now_without_its_place(state: str) -> None:
    run = run_in(state, claim_abandons=2)
    before = database_now("default")
    view = runs.interrupt(run.run_id)
    assert view.wake_at is not None
    assert before <= view.wake_at <= database_now("default")
    assert (view.tenant_admitted_at, view.claimed_at, view.claim_attempts, view.claim_abandons) == (
        None,
        None,
        0,
        0,
    )


@pytest.mark.conformance(112)
def test_a_signal_never_revokes_and_keeps_the_place() -> None:
    run = run_in("claimed")
    view = runs.signal(run.run_id, 1)
    assert (view.state, view.tenant_admitted_at, view.pending_signals) == ("claimed", LONG_AGO, [1])
    assert runs.finish([runs.Completed(lease_of(run), 1)]) == {run.run_id}


def test_signals_are_kept_in_order_and_delivered_with_the_claim() -> None:
    policy_in_force()
    run_id = runs.enqueue(add, tenant_id="acme")
    for payload in ({"n": 1}, [1.5e16], None):
        runs.signal(run_id, payload)
    (lease,) = claim().leases
    assert lease.signals == [{"n": 1}, [1.5e16], None]
    assert isinstance(lease.signals[1][0], float)
    runs.signal(run_id, "late")
    runs.finish([runs.Waiting(lease, consumed=len(lease.signals))])
    (lease,) = claim().leases
    assert lease.signals == ["late"]
    runs.finish([runs.Waiting(lease, consumed=1)])
    assert runs.get(run_id).state == "waiting"
    assert runs.signal(run_id, "wake").state == "queued"
    assert claim().leases[0].signals == ["wake"]


@pytest.mark.conformance(117)
@pytest.mark.parametrize("operation", [runs.interrupt, lambda run_id: runs.signal(run_id, 1)])
def test_a_woken_run_queues_for_a_slot_like_any_other(operation: Callable[[uuid.UUID], RunView]) -> None:
    policy_in_force(max_active=1)
    first = runs.enqueue(add, tenant_id="acme")
    (lease,) = claim().leases
    woken = run_in("waiting")
    operation(woken.run_id)
    assert claim(5).leases == []
    runs.finish([runs.Completed(lease, 1)])
    assert [lease.run_id for lease in claim(5).leases] == [woken.run_id]
    assert first != woken.run_id


def test_pending_signals_are_bounded_in_number() -> None:
    run = run_in("claimed", pending_signals=[0] * 999)
    runs.signal(run.run_id, 1)
    before = snapshot(run)
    with pytest.raises(InvalidPayload, match="1000 signals"):
        runs.signal(run.run_id, 2)
    assert snapshot(run) == before


def test_pending_signals_are_bounded_in_bytes() -> None:
    run = run_in("queued")
    runs.signal(run.run_id, "x" * 200_000)
    with pytest.raises(InvalidPayload, match="together"):
        runs.signal(run.run_id, "x" * 100_000)
    assert len(runs.get(run.run_id).pending_signals) == 1


@pytest.mark.parametrize("value", UNSTORABLE.values(), ids=UNSTORABLE.keys())
def test_an_unstorable_signal_is_refused(value: object) -> None:
    run = run_in("waiting")
    before = snapshot(run)
    with pytest.raises(InvalidPayload, match="signal"):
        runs.signal(run.run_id, value)
    assert snapshot(run) == before


@pytest.mark.conformance(116)
@pytest.mark.parametrize("state", ["poisoned", "failed"])
def test_a_retried_run_starts_over_at_the_end_of_the_queue(state: str) -> None:
    run = run_in(
        state, claim_attempts=5, claim_abandons=3, failures=4, errors=[ERROR], state=None, checkpoint_seq=2
    )
    before = database_now("default")
    view = runs.retry(run.run_id)
    assert (view.claim_attempts, view.claim_abandons, view.failures, view.checkpoint_seq) == (0, 0, 0, 2)
    assert (view.poisoned_at, view.poison_reason, view.finished_at, view.tenant_admitted_at) == (
        None,
        None,
        None,
        None,
    )
    assert view.wake_at is not None
    assert before <= view.wake_at
    assert view.errors == [ERROR]


@pytest.mark.conformance(116)
def test_a_failed_run_whose_partition_is_gone_can_be_retried() -> None:
    run = run_in("failed")
    view = runs.retry(run.run_id)
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    assert view.state == "queued"
    assert Schedule.objects.get().unfinished_count == 1


def test_a_run_poisoned_by_a_claim_is_retried_whole() -> None:
    policy_in_force(max_attempts=1)
    run_id = runs.enqueue(add, tenant_id="acme")
    (lease,) = claim().leases
    runs.finish([runs.Released(lease, started=True)])
    assert [poisoned.run_id for poisoned in claim().poisoned] == [run_id]
    assert runs.get(run_id).state == "poisoned"
    assert runs.retry(run_id).state == "queued"
    assert claim().leases[0].attempt == 1


@pytest.mark.parametrize("operation", [*OPERATIONS.values(), runs.get], ids=[*OPERATIONS, "get"])
def test_ids_that_name_no_run(operation: Callable[..., Any]) -> None:
    unknown = uuid.uuid4()
    with transaction.atomic():
        with pytest.raises(RunNotFound) as raised:
            operation(unknown)
        assert raised.value.run_id == unknown
        for wrong in ("", "one", 1, None, b"x"):
            with pytest.raises(InvalidRun):
                operation(wrong)
    run = run_in("claimed")
    assert operation(str(run.run_id)).run_id == run.run_id


@pytest.mark.parametrize(
    ("asked", "in_force"),
    [("0", "250ms"), ("1ms", "1ms"), ("100ms", "100ms"), ("250ms", "250ms"), ("5s", "250ms")],
)
def test_a_lock_is_waited_for_as_long_as_the_caller_would_and_250_ms_at_most(
    asked: str, in_force: str
) -> None:
    with connection.cursor() as cursor, transaction.atomic():
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [asked])
        cursor.execute(load("bound_lock_wait"))
        assert cursor.fetchone()[0] == asked
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == (in_force,)


@pytest.mark.parametrize("before", ["0", "100ms", "250ms", "5s", "1min", "1h", "1d"])
@pytest.mark.parametrize("state", ["claimed", "completed", None])
def test_the_callers_lock_timeout_is_restored(before: str, state: str | None) -> None:
    run_id = uuid.uuid4() if state is None else run_in(state).run_id
    with connection.cursor() as cursor, transaction.atomic():
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [before])
        try:
            runs.cancel(run_id)
        except (RunNotActive, RunNotFound):
            assert state != "claimed"
        cursor.execute("SELECT current_setting('lock_timeout')")
        assert cursor.fetchone() == (before,)


def test_views_tell_the_state_never_the_token() -> None:
    run = run_in(
        "claimed", args=["secret"], kwargs={"k": "secret"}, state="secret", pending_signals=["secret"]
    )
    view = runs.get(run.run_id)
    assert view.saved_state == "secret"
    assert "secret" not in repr(view)
    assert str(run.claim_token) not in repr(view)
    assert not hasattr(view, "claim_token")
    assert not hasattr(view, "status")


@pytest.mark.parametrize("state", STATES)
def test_the_state_is_derived_alike_everywhere(state: str) -> None:
    run = run_in(state)
    assert runs.get(run.run_id).state == state
    assert runs.state_of(Run.objects.get(pk=run.pk)) == state
    assert Run.objects.annotate(shown=runs.STATE_EXPRESSION).get(pk=run.pk).shown == state
    assert list(Run.objects.alias(shown=runs.STATE_EXPRESSION).filter(shown=state)) == [run]


def test_the_state_goes_by_the_clock_not_by_the_transaction() -> None:
    run = RunFactory(wake_at=database_now("default"))
    with connection.cursor() as cursor:
        cursor.execute("SELECT now() < %s", [run.wake_at])
        assert cursor.fetchone() == (True,)
    assert runs.get(run.run_id).state == runs.state_of(run) == "queued"
    run = RunFactory(wake_at=database_now("default") + timedelta(hours=1), tenant_admitted_at=LONG_AGO)
    assert runs.get(run.run_id).state == runs.state_of(run) == "scheduled"
