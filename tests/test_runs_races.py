"""Two sessions at one run: one winner, bounded waits, and nothing shared with a stranger's transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connection, connections, transaction

from tenantfair import payloads, runs
from tenantfair.claim.base import ClaimBatch, Lease
from tenantfair.exceptions import RunBusy, RunExists, RunNotActive, StaleClaim
from tenantfair.models import Partition, Run, Schedule
from tenantfair.runs import NewRun, _statements, finishing
from tests import serial
from tests.factories import LONG_AGO, claim, claimed_lease, lease_of, policy_in_force, run_in, snapshot
from tests.rows import Session, assert_exact, result, sessions
from tests.tasks_for_tests import add
from tests.threads import all_at_once, in_django_thread, until_someone_waits_for

pytestmark = pytest.mark.django_db(transaction=True)

ERROR = {"exception_class_path": "builtins.ValueError", "traceback": "ValueError: no"}


@pytest.fixture
def other() -> Iterator[Session]:
    """A stranger's session with an open transaction, rolled back at the end."""
    with sessions() as connect:
        session = connect()
        session.execute("BEGIN")
        yield session


@pytest.fixture
def observer() -> Iterator[Session]:
    with sessions() as connect:
        yield connect()


def hold(session: Session, run_id: UUID, strength: str = "FOR UPDATE") -> None:
    session.execute(f"SELECT FROM tenantfair_run WHERE run_id = %s {strength}", [run_id])


@pytest.mark.conformance(105)
def test_a_rollback_leaves_neither_run_nor_partition(observer: Session) -> None:
    with transaction.atomic():
        runs.enqueue(add, tenant_id="acme")
        runs.enqueue_many([NewRun(task=add, tenant_id="other")] * 3)
        transaction.set_rollback(True)
    assert (Run.objects.count(), Partition.objects.count(), Schedule.objects.count()) == (0, 0, 0)
    assert_exact(observer)


def test_a_run_is_seen_if_and_only_if_its_transaction_commits(observer: Session) -> None:
    with transaction.atomic():
        run_id = runs.enqueue(add, tenant_id="acme")
        assert observer.execute("SELECT count(*) FROM tenantfair_run").fetchone() == (0,)
        assert runs.get(run_id).state == "queued"
    assert observer.execute("SELECT run_id FROM tenantfair_run").fetchone() == (run_id,)
    assert_exact(observer)


def test_a_duplicate_leaves_the_callers_transaction_to_commit(observer: Session) -> None:
    taken = runs.enqueue(add, tenant_id="acme")
    with transaction.atomic():
        runs.enqueue(add, tenant_id="first")
        with pytest.raises(RunExists):
            runs.enqueue(add, tenant_id="acme", run_id=taken)
        with pytest.raises(RunExists):
            runs.enqueue_many(
                [NewRun(task=add, tenant_id="new"), NewRun(task=add, tenant_id="new", run_id=taken)]
            )
        runs.enqueue(add, tenant_id="last")
    assert sorted(Partition.objects.values_list("scope_key", flat=True)) == ["acme", "first", "last"]
    assert_exact(observer)


@pytest.mark.parametrize(
    "enqueue",
    [
        lambda run_id: runs.enqueue(add, tenant_id="acme", run_id=run_id),
        lambda run_id: runs.enqueue_many([NewRun(task=add, tenant_id="acme", run_id=run_id)])[0],
    ],
    ids=["one", "many"],
)
def test_of_two_sessions_with_one_id_one_wins(enqueue: Callable[[UUID], UUID]) -> None:
    run_id = UUID(int=1)
    outcomes = all_at_once([lambda: enqueue(run_id)] * 4)
    assert sorted(str(type(outcome).__name__) for outcome in outcomes) == ["RunExists"] * 3 + ["UUID"]
    assert Schedule.objects.get().unfinished_count == 1


@pytest.mark.conformance(107)
def test_enqueue_does_not_wait_for_a_grant_in_its_scope(other: Session) -> None:
    run_id = runs.enqueue(add, tenant_id="acme")
    other.execute("UPDATE tenantfair_partition SET admission_epoch = admission_epoch + 1")
    hold(other, run_id)
    assert isinstance(result(in_django_thread(lambda: runs.enqueue(add, tenant_id="acme"))), UUID)


@pytest.mark.conformance(108)
def test_enqueue_does_not_wait_for_an_administrator_but_its_commit_does(
    other: Session, observer: Session
) -> None:
    other.execute(
        "INSERT INTO tenantfair_partition (scope_key, max_active, partition_version) VALUES ('acme', 9, 12)"
    )
    inserted = []

    def enqueue() -> UUID:
        with transaction.atomic():
            inserted.append(runs.enqueue(add, tenant_id="acme"))
        return inserted[0]

    enqueuing = in_django_thread(enqueue)
    until_someone_waits_for(other, observer)
    assert len(inserted) == 1
    other.execute("COMMIT")
    result(enqueuing)
    partition = Partition.objects.get()
    assert (partition.max_active, partition.partition_version) == (9, 12)
    assert Schedule.objects.get().unfinished_count == 1


def test_an_open_enqueue_delays_nobody_of_its_tenant(other: Session) -> None:
    policy_in_force()
    leases = [claimed_lease() for _ in range(2)]
    other.execute("INSERT INTO tenantfair_run (tenant_id, task_path, wake_at) VALUES ('acme', 'x', now())")
    assert runs.heartbeat(leases) == {lease.run_id for lease in leases}
    assert runs.finish([runs.Completed(lease, 1) for lease in leases]) == {lease.run_id for lease in leases}
    assert runs.cancel(runs.enqueue(add, tenant_id="acme")).state == "cancelled"


OUTSIDE: dict[str, Callable[[UUID], Any]] = {
    "cancel": runs.cancel,
    "interrupt": runs.interrupt,
    "signal": lambda run_id: runs.signal(run_id, 1),
    "retry": runs.retry,
}


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a transaction"])
@pytest.mark.parametrize("operation", OUTSIDE.values(), ids=OUTSIDE.keys())
def test_a_locked_row_is_busy_and_stays_as_it_is(
    operation: Callable[[UUID], Any], inside: bool, other: Session
) -> None:
    run = run_in("claimed")
    before = snapshot(run)
    hold(other, run.run_id, "FOR NO KEY UPDATE")
    if inside:
        with transaction.atomic():
            with pytest.raises(RunBusy):
                operation(run.run_id)
            runs.enqueue(add, tenant_id="acme")
        assert Run.objects.count() == 2
    else:
        with pytest.raises(RunBusy) as raised:
            operation(run.run_id)
        assert raised.value.run_id == run.run_id
    assert snapshot(run) == before
    other.execute("ROLLBACK")
    operation(run.run_id)


def test_a_lower_lock_timeout_of_the_caller_is_obeyed(other: Session) -> None:
    run = run_in("claimed")
    hold(other, run.run_id)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '1ms'")
        with pytest.raises(RunBusy):
            runs.cancel(run.run_id)
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("1ms",)


def test_a_foreign_key_that_points_at_a_run_locks_nobody_out(other: Session) -> None:
    lease = claimed_lease()
    hold(other, lease.run_id, "FOR KEY SHARE")
    assert runs.heartbeat([lease]) == {lease.run_id}
    assert runs.checkpoint(lease, 1) == 1
    assert runs.signal(lease.run_id, 1).state == "claimed"
    assert runs.interrupt(lease.run_id).state == "queued"


@pytest.mark.parametrize(
    "make",
    [lambda lease: runs.Completed(lease, 1), lambda lease: runs.Failed(lease, ERROR), runs.Waiting],
    ids=["completed", "failed", "waiting"],
)
def test_a_foreign_key_that_points_at_a_run_holds_no_outcome_up(
    make: Callable[[Lease], runs.Outcome], other: Session
) -> None:
    lease = claimed_lease()
    hold(other, lease.run_id, "FOR KEY SHARE")
    assert runs.settle([make(lease)]).accepted == {lease.run_id}


def test_heartbeats_pass_a_locked_row_by_and_count_it_as_held(other: Session) -> None:
    locked, free = claimed_lease(), claimed_lease()
    hold(other, locked.run_id)
    assert runs.heartbeat([locked, free]) == {locked.run_id, free.run_id}
    assert Run.objects.get(run_id=locked.run_id).claimed_at == LONG_AGO
    assert Run.objects.get(run_id=free.run_id).claimed_at != LONG_AGO


def test_a_locked_row_strands_no_neighbour_and_is_busy_not_lost(other: Session) -> None:
    locked, free, lost = claimed_lease(), claimed_lease(), claimed_lease()
    runs.cancel(lost.run_id)
    hold(other, locked.run_id)
    batch = [runs.Completed(lease, 1) for lease in (locked, free, lost)]
    settled = runs.settle(batch)
    assert (settled.accepted, settled.busy) == ({free.run_id}, {locked.run_id})
    other.execute("ROLLBACK")
    settled = runs.settle(batch)
    assert (settled.accepted, settled.busy) == ({locked.run_id}, set())


def test_a_locked_row_of_a_mixed_batch_strands_no_neighbour_either(other: Session) -> None:
    locked, free, lost = claimed_lease(), claimed_lease(), claimed_lease()
    runs.cancel(lost.run_id)
    hold(other, locked.run_id)
    settled = runs.settle([runs.Failed(locked, ERROR), runs.Yielded(free), runs.Completed(lost, 1)])
    assert (settled.accepted, settled.busy) == ({free.run_id}, {locked.run_id})


def test_finish_comes_back_to_a_locked_row(other: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    locked, free = claimed_lease(), claimed_lease()
    hold(other, locked.run_id)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        assert runs.get(free.run_id).state == "completed"
        pauses.append(seconds)
        other.execute("ROLLBACK")

    monkeypatch.setattr(finishing.time, "sleep", pause)
    batch = [runs.Completed(lease, 1) for lease in (locked, free)]
    assert runs.finish(batch) == {locked.run_id, free.run_id}
    assert len(pauses) == 1


def test_finish_gives_a_row_up_that_stays_locked(other: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finishing, "_BUSY_SECONDS", 0)
    lease = claimed_lease()
    hold(other, lease.run_id)
    assert runs.finish([runs.Completed(lease, 1)]) == set()


def hold_count(session: Session, tenant: str) -> None:
    """Move the count of a tenant, fold at once, and so hold it: as `policy.inspect` in a transaction does."""
    session.execute(
        "INSERT INTO tenantfair_run (tenant_id, task_path, status) VALUES (%s, 'x', 'waiting')", [tenant]
    )
    session.execute("SELECT tenantfair_fold()")


@pytest.mark.parametrize(
    "make",
    [lambda lease: runs.Completed(lease, 1), lambda lease: runs.Failed(lease, ERROR)],
    ids=["completed", "failed"],
)
def test_a_held_count_strands_no_other_tenant_and_makes_its_own_busy(
    make: Callable[[Lease], runs.Outcome], other: Session
) -> None:
    held = [claimed_lease(tenant_id="held") for _ in range(2)]
    free = [claimed_lease(tenant_id=tenant) for tenant in ("a", "b")]
    hold_count(other, "held")
    batch = [make(lease) for lease in (held[0], free[0], held[1], free[1])]
    settled = result(in_django_thread(lambda: runs.settle(batch)))
    assert settled.accepted == {lease.run_id for lease in free}
    assert settled.busy == settled.blocked == {lease.run_id for lease in held}
    other.execute("ROLLBACK")
    settled = runs.settle(batch)
    assert (settled.accepted, settled.busy) == ({lease.run_id for lease in held}, set())


def test_the_last_resort_waits_for_no_held_count_either(
    other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "encode", lambda value, what: '"\\u0000"')
    lease = claimed_lease(tenant_id="held")
    hold_count(other, "held")
    settled = result(in_django_thread(lambda: runs.settle([runs.Completed(lease, 1)])))
    assert settled.blocked == {lease.run_id}
    other.execute("ROLLBACK")
    assert runs.finish([runs.Completed(lease, 1)]) == {lease.run_id}
    assert runs.get(lease.run_id).state == "failed"


def test_the_last_resort_waits_for_no_locked_row(other: Session) -> None:
    lease = claimed_lease()
    hold(other, lease.run_id)
    params = {"run_id": lease.run_id, "claim_token": lease.claim_token, "bounded": True}
    found = result(in_django_thread(lambda: _statements.rows("default", finishing.load("fail_run"), params)))
    assert found == [(lease.run_id, False, False)]
    assert runs.get(lease.run_id).state == "claimed"


def test_finish_tries_what_was_blocked_one_by_one(other: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that a trigger of the host's waits for may be about one run of many."""
    monkeypatch.setattr(finishing, "_BUSY_SECONDS", 1.0)
    leases = [claimed_lease(args=[number]) for number in range(3)]
    other.execute("SELECT pg_advisory_xact_lock(4712)")
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_advisory_xact_lock(4712); RETURN NEW; END $$;"
            " CREATE TRIGGER gate BEFORE UPDATE ON tenantfair_run FOR EACH ROW"
            " WHEN (NEW.args = '[1]') EXECUTE FUNCTION gate()"
        )
    try:
        accepted = result(
            in_django_thread(lambda: runs.finish([runs.Completed(found, 1) for found in leases]))
        )
    finally:
        other.execute("ROLLBACK")
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION gate() CASCADE")
    assert accepted == {leases[0].run_id, leases[2].run_id}


def test_finish_stores_what_is_free_before_it_tries_what_is_blocked(
    other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finishing, "_BUSY_SECONDS", 1.0)
    blocked = [claimed_lease(tenant_id="held") for _ in range(8)]
    locked = claimed_lease(tenant_id="free")
    hold_count(other, "held")
    settle = finishing.settle

    with sessions() as connect:
        stranger = connect()
        hold(stranger, locked.run_id)

        def free_after_the_first(*arguments: Any, **options: Any) -> finishing.Settlement:
            found = settle(*arguments, **options)
            stranger.execute("ROLLBACK")
            return found

        monkeypatch.setattr(finishing, "settle", free_after_the_first)
        outcomes = [runs.Completed(lease, 1) for lease in (*blocked, locked)]
        assert result(in_django_thread(lambda: runs.finish(outcomes))) == {locked.run_id}


def test_what_is_stored_is_told_though_a_later_part_of_the_batch_fails(
    other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its fence would be gone at the next try, and the outcome taken for a lost one."""
    leases = [claimed_lease(tenant_id=tenant) for tenant in ("free", "held")]
    hold_count(other, "held")
    store = finishing._store

    def fail_alone(alias: str, name: str, params: Any) -> finishing.Settlement:
        if leases[1].run_id.hex in params["run_id"] and leases[0].run_id.hex not in params["run_id"]:
            raise OperationalError("the statement took too long")
        return store(alias, name, params)

    monkeypatch.setattr(finishing, "_store", fail_alone)
    outcomes = [runs.Completed(lease, 1) for lease in leases]

    found = result(in_django_thread(lambda: runs.settle(outcomes)))

    assert (found.accepted, found.busy) == ({leases[0].run_id}, {leases[1].run_id})


@pytest.mark.parametrize("kind", [runs.Yielded, lambda lease: runs.Completed(lease, 1)])
def test_an_outcome_leaves_the_lock_timeout_of_the_callers_transaction(kind: Any) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '7s'")
        assert runs.finish([kind(lease := claimed_lease())]) == {lease.run_id}
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("7s",)


@pytest.mark.parametrize("state", ["queued", "claimed"])
def test_a_cancel_of_a_tenant_whose_count_is_held_is_busy(state: str, other: Session) -> None:
    run = run_in(state, tenant_id="held")
    before = snapshot(run)
    hold_count(other, "held")
    with pytest.raises(RunBusy):
        result(in_django_thread(lambda: runs.cancel(run.run_id)))
    assert snapshot(run) == before
    other.execute("ROLLBACK")
    assert runs.cancel(run.run_id).state == "cancelled"


@pytest.mark.conformance(120)
@pytest.mark.parametrize("commits", [True, False])
def test_a_cancel_that_comes_first_wins_if_it_commits(commits: bool, other: Session) -> None:
    lease = claimed_lease()
    with transaction.atomic():
        runs.cancel(lease.run_id)
        settled = result(in_django_thread(lambda: runs.settle([runs.Completed(lease, 1)])))
        assert settled.busy == {lease.run_id}
        assert result(in_django_thread(lambda: runs.heartbeat([lease]))) == {lease.run_id}
        transaction.set_rollback(not commits)
    assert runs.finish([runs.Completed(lease, 1)]) == (set() if commits else {lease.run_id})
    assert runs.get(lease.run_id).state == ("cancelled" if commits else "completed")
    assert Schedule.objects.get().unfinished_count == 0


def test_a_finish_that_comes_first_wins_over_a_waiting_cancel(other: Session, observer: Session) -> None:
    run = run_in("claimed")
    hold(other, run.run_id)
    cancelling = in_django_thread(lambda: runs.cancel(run.run_id))
    until_someone_waits_for(other, observer)
    other.execute(
        "UPDATE tenantfair_run SET status = 'completed', claim_token = NULL, claimed_at = NULL,"
        " tenant_admitted_at = NULL, finished_at = now() WHERE run_id = %s",
        [run.run_id],
    )
    other.execute("COMMIT")
    with pytest.raises(RunNotActive):
        result(cancelling)


RIVALS: dict[str, Callable[[Any], Any]] = {
    "complete": lambda lease: runs.finish([runs.Completed(lease, 1)]),
    "retry": lambda lease: runs.finish([runs.Retry(lease, ERROR, timedelta(0))]),
    "cancel": lambda lease: runs.cancel(lease.run_id),
    "interrupt": lambda lease: runs.interrupt(lease.run_id),
    "steal": lambda lease: claim(),
    "checkpoint": lambda lease: runs.checkpoint(lease, 1),
    "heartbeat": lambda lease: runs.heartbeat([lease]),
    "signal": lambda lease: runs.signal(lease.run_id, 1),
}


def told(outcome: Any) -> Any:
    """What a rival answered, in the words of `tests/serial.py`."""
    match outcome:
        case StaleClaim():
            return False
        case RunNotActive():
            return serial.NOT_ACTIVE
        case runs.RunView(state=state):
            return state
        case ClaimBatch(leases=leases):
            return next((lease.claim_token for lease in leases), None)
        case Exception():
            raise outcome
    return bool(outcome)


def row_of(run_id: UUID) -> dict[str, Any]:
    run = Run.objects.get(run_id=run_id)
    return {
        "state": runs.state_of(run),
        "token": run.claim_token,
        "admitted": run.tenant_admitted_at is not None,
        "attempts": run.claim_attempts,
        "abandons": run.claim_abandons,
        "failures": run.failures,
        "seq": run.checkpoint_seq,
        "saved": run.state,
        "result": run.result,
        "signals": run.pending_signals,
        "finished": run.finished_at is not None,
    }


@pytest.mark.conformance(118, 120)
def test_rivals_at_one_run_leave_one_consistent_state(observer: Session) -> None:
    """One that they leave one after the other, in some order in which each gets the answer that it got."""
    policy_in_force(max_active=1)
    for _ in range(8):
        lease = lease_of(run_in("claimed"))
        outcomes = all_at_once([partial(rival, lease) for rival in RIVALS.values()])
        answers = {
            name: told(outcome)
            for name, outcome in zip(RIVALS, outcomes, strict=True)
            if not isinstance(outcome, RunBusy)
        }
        row = row_of(lease.run_id)
        before = serial.claimed_run(lease.claim_token, retry_limit=lease.retry_limit)
        assert serial.explained(before, lease._replace(run_id=serial.RUN), answers, row), (answers, row)
        assert_exact(observer)
        Run.objects.all().delete()


def insisting(work: Callable[[], Any]) -> Callable[[], Any]:
    """Do `work` again while the run is busy: on a slow machine a rival may take longer than 250 ms."""

    def insist() -> Any:
        while True:
            with suppress(RunBusy):
                return work()

    return insist


@pytest.mark.conformance(176)
def test_of_an_abandon_and_a_steal_exactly_one_takes_effect(observer: Session) -> None:
    policy_in_force(max_active=1)
    for _ in range(10):
        lease = lease_of(run_in("claimed", claimed_at=LONG_AGO))
        abandoned, stolen = all_at_once([partial(runs.finish, [runs.Abandoned(lease, "x")]), claim])
        assert [bool(abandoned), bool(stolen.leases)].count(True) == 1
        assert runs.get(lease.run_id).state == ("scheduled" if abandoned else "claimed")
        assert_exact(observer)
        Run.objects.all().delete()


@pytest.mark.conformance(176)
def test_of_two_that_end_a_claim_exactly_one_takes_effect(observer: Session) -> None:
    """A completion against a cancel; an abandon against a steal and two cancels are told of beside."""
    for _ in range(10):
        lease = claimed_lease()
        completed, cancelled = all_at_once(
            [partial(runs.finish, [runs.Completed(lease, 1)]), insisting(partial(runs.cancel, lease.run_id))]
        )
        found = runs.get(lease.run_id)
        if completed:
            assert found.state == "completed"
            assert isinstance(cancelled, RunNotActive)
        else:
            assert cancelled == found
            assert found.state == "cancelled"
        assert_exact(observer)
        Run.objects.all().delete()


@pytest.mark.conformance(176)
def test_of_two_cancels_one_takes_effect_and_both_return_what_it_left(observer: Session) -> None:
    """Equal views have equal times: the second wrote nothing."""
    for _ in range(10):
        run_id = run_in("claimed").run_id
        first, second = all_at_once([insisting(partial(runs.cancel, run_id))] * 2)
        found = runs.get(run_id)
        assert (first, second) == (found, found)
        assert found.state == "cancelled"
        assert found.finished_at == found.updated_at
        assert_exact(observer)
        Run.objects.all().delete()


def test_finish_and_heartbeat_of_the_same_runs_never_deadlock() -> None:
    leases = [claimed_lease(tenant_id=f"t{number % 2}") for number in range(40)]

    def beat(order: int) -> Callable[[], None]:
        def work() -> None:
            for _ in range(10):
                runs.heartbeat(leases[::order])

        return work

    def end() -> set[UUID]:
        return runs.finish([runs.Yielded(lease) for lease in leases])

    outcomes = all_at_once([beat(1), beat(-1), end])
    assert outcomes[2] == {lease.run_id for lease in leases}


def test_a_wait_sees_the_signal_that_was_committed_while_it_locked(
    other: Session, observer: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is read again once locked. SKIP LOCKED is taken out, to hold the statement in that very gap."""
    lease = claimed_lease()
    real = finishing.load
    monkeypatch.setattr(finishing, "load", lambda name: real(name).replace("SKIP LOCKED", ""))
    other.execute("UPDATE tenantfair_run SET pending_signals = '[1, 2]' WHERE run_id = %s", [lease.run_id])
    waiting = in_django_thread(lambda: runs.settle([runs.Waiting(lease, consumed=1, state="s")]))
    until_someone_waits_for(other, observer)
    other.execute("COMMIT")
    assert result(waiting).accepted == {lease.run_id}
    run = Run.objects.get(run_id=lease.run_id)
    assert (run.status, run.pending_signals, run.state) == ("running", [2], "s")


@pytest.mark.parametrize("slip", ["data", "text"])
def test_bad_values_outside_a_transaction_spoil_only_their_run(
    slip: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = '"\\u0000"' if slip == "data" else "\ud800"
    monkeypatch.setattr(payloads, "encode", lambda value, what: bad if value == "bad" else "1")
    leases = [claimed_lease() for _ in range(3)]
    batch = [
        runs.Completed(lease, value) for lease, value in zip(leases, ["good", "bad", "good"], strict=True)
    ]
    assert runs.finish(batch) == {lease.run_id for lease in leases}
    assert [runs.get(lease.run_id).state for lease in leases] == ["completed", "failed", "completed"]


@pytest.mark.conformance(119)
def test_a_checkpoint_that_fails_in_its_transaction_leaves_everything_as_it_was(observer: Session) -> None:
    lease = claimed_lease()
    before = snapshot(lease.run_id)
    with transaction.atomic():
        runs.checkpoint(lease, {"lost": True})
        transaction.set_rollback(True)
    assert snapshot(lease.run_id) == before
    assert_exact(observer)
    assert runs.checkpoint(lease, {"kept": True}) == 1


@pytest.mark.conformance(119)
def test_an_outcome_that_is_rolled_back_leaves_everything_as_it_was(observer: Session) -> None:
    lease = claimed_lease()
    before = snapshot(lease.run_id)
    with transaction.atomic():
        assert runs.finish([runs.Completed(lease, 1)]) == {lease.run_id}
        transaction.set_rollback(True)
    assert snapshot(lease.run_id) == before
    assert_exact(observer)
    assert runs.finish([runs.Completed(lease, 1)]) == {lease.run_id}


class Refusing:
    """Fails the first statements with an SQLSTATE, as the server might, and lets the others through."""

    def __init__(self, sqlstate: str, times: int) -> None:
        self.sqlstate = sqlstate
        self.left = times

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if self.left and "claim_token" in sql:
            self.left -= 1
            sql, params = (
                "DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '" + self.sqlstate + "'; END $$",
                None,
            )
        return execute(sql, params, many, context)


@pytest.mark.parametrize("sqlstate", [_statements.SERIALIZATION_FAILURE, _statements.DEADLOCK_DETECTED])
def test_serialization_failures_and_deadlocks_are_tried_again(sqlstate: str) -> None:
    lease = claimed_lease()
    for work, expected in (
        (lambda: runs.heartbeat([lease]), {lease.run_id}),
        (lambda: runs.checkpoint(lease, 1), 1),
        (lambda: runs.finish([runs.Completed(lease, 1)]), {lease.run_id}),
    ):
        with connection.execute_wrapper(Refusing(sqlstate, 3)):
            assert work() == expected


def test_trying_again_is_bounded_and_left_to_the_caller_in_a_transaction() -> None:
    lease = claimed_lease()
    endless = Refusing(_statements.DEADLOCK_DETECTED, 1_000)
    with connection.execute_wrapper(endless), pytest.raises(OperationalError):
        runs.finish([runs.Completed(lease, 1)])
    assert 1_000 - endless.left == 8
    once = Refusing(_statements.DEADLOCK_DETECTED, 1)
    with transaction.atomic(), connection.execute_wrapper(once), pytest.raises(OperationalError):
        runs.finish([runs.Completed(lease, 1)])
    assert runs.get(lease.run_id).state == "claimed"


def test_a_lost_connection_is_raised_and_the_same_batch_works_later(observer: Session) -> None:
    lease = claimed_lease()
    observer.execute("SELECT pg_terminate_backend(%s)", [connection.connection.info.backend_pid])
    with pytest.raises(OperationalError):
        runs.finish([runs.Completed(lease, 1)])
    connections["default"].close()
    assert runs.finish([runs.Completed(lease, 1)]) == {lease.run_id}
