"""Leases of running tasks are kept, by the thread and, when that is silent, by the keeper process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction
from psycopg import IsolationLevel

from tenantfair import metrics, runs
from tenantfair.models import Run
from tenantfair.runs.holder import extend
from tenantfair.worker.completer import Completer
from tenantfair.worker.database import WorkerConnections
from tenantfair.worker.heartbeat import Heartbeat
from tenantfair.worker.holdings import Holdings
from tenantfair.worker.keeper import Keeper
from tenantfair.worker.keeper_process import cpu_time
from tests.factories import LONG_AGO, claimed_lease, lease_of, policy_in_force, run_in
from tests.rows import sessions
from tests.threads import LONGEST_WAIT_SECONDS, in_django_thread
from tests.worker_parts import logging_that_raises, until

pytestmark = pytest.mark.django_db(transaction=True)

FAR = datetime(2999, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def counting() -> Iterator[None]:
    policy_in_force()
    metrics.reset()
    yield
    metrics.reset()


def beating(holdings: Holdings, interval: float = 3600) -> Heartbeat:
    return Heartbeat(
        connections_of=WorkerConnections("default", "beats"),
        holdings=holdings,
        interval=interval,
        lease_seconds=60,
        worker_id="beats",
    )


def claimed_at(run_id: object) -> datetime:
    found = Run.objects.get(run_id=run_id).claimed_at
    assert found is not None
    return found


def test_every_lease_held_is_renewed_and_no_other() -> None:
    holdings = Holdings(places=5)
    held = [holdings.take(claimed_lease()) for _ in range(3)]
    somebody_elses = run_in("claimed")

    beating(holdings).renew()

    assert all(claimed_at(holding.lease.run_id) > LONG_AGO for holding in held)
    assert claimed_at(somebody_elses.run_id) == LONG_AGO


def test_a_lost_lease_is_marked_once_and_renewed_no_more(caplog: pytest.LogCaptureFixture) -> None:
    holdings = Holdings(places=5)
    kept, lost = holdings.take(claimed_lease()), holdings.take(claimed_lease())
    Run.objects.filter(run_id=lost.lease.run_id).update(claim_token="11111111-1111-4111-8111-111111111111")
    heartbeat = beating(holdings)

    heartbeat.renew()
    heartbeat.renew()

    assert [holding.monitor.lost.is_set() for holding in (kept, lost)] == [False, True]
    assert [getattr(record, "event", None) for record in caplog.records] == ["fence_lost"]
    assert claimed_at(lost.lease.run_id) == LONG_AGO


def test_an_ended_task_is_not_called_lost_when_its_outcome_is_just_being_stored() -> None:
    holdings = Holdings(places=1)
    holding = holdings.take(claimed_lease())
    Run.objects.update(
        claim_token=None, claimed_at=None, tenant_admitted_at=None, status="completed", finished_at=FAR
    )
    holding.ended = True

    beating(holdings).renew()

    assert not holding.monitor.lost.is_set()


def test_a_run_that_was_lost_and_claimed_again_is_held_twice_and_judged_by_its_tokens() -> None:
    holdings = Holdings(places=2)
    run = run_in("claimed")
    old = holdings.take(lease_of(run))
    Run.objects.update(claim_token="11111111-1111-4111-8111-111111111111")
    new = holdings.take(lease_of(Run.objects.get()))

    beating(holdings).renew()

    assert (old.monitor.lost.is_set(), new.monitor.lost.is_set()) == (True, False)


def test_two_claims_of_one_run_are_settled_each_by_its_own_fence() -> None:
    holdings = Holdings(places=2)
    run = run_in("claimed")
    old = holdings.take(lease_of(run))
    Run.objects.update(claim_token="11111111-1111-4111-8111-111111111111")
    new = holdings.take(lease_of(Run.objects.get()))
    completer = Completer(
        connections_of=WorkerConnections("default", "stores"), holdings=holdings, worker_id="stores"
    )
    for holding, result in ((old, "old"), (new, "new")):
        completer.put(holding, runs.Completed(holding.lease, result), 0.0)

    ended = in_django_thread(completer.run)
    assert holdings.wait_until_empty(10)
    completer.stop()
    ended.result(timeout=10)

    assert runs.get(run.run_id).result == "new"
    assert metrics.snapshot()["tenantfair_fences_lost_total", (("operation", "finish"),)] == 1


def test_a_failed_heartbeat_is_repeated_on_a_new_connection() -> None:
    holdings = Holdings(places=1)
    holding = holdings.take(claimed_lease())
    heartbeat = beating(holdings)
    with connections_own() as own, sessions() as another:
        own.ensure_connection()
        another().execute("SELECT pg_terminate_backend(%s)", [own.connection.info.backend_pid])
        heartbeat._safely(heartbeat.renew)
        assert claimed_at(holding.lease.run_id) == LONG_AGO
        heartbeat._safely(heartbeat.renew)
        assert claimed_at(holding.lease.run_id) > LONG_AGO

    assert metrics.snapshot()["tenantfair_worker_events_total", (("event", "heartbeat_error"),)] == 1


def test_a_lease_that_somebody_locked_is_renewed_soon_after_it_is_free_and_delays_no_other() -> None:
    """Between two beats, of which the next is a quarter of an hour away."""
    policy_in_force(lease_seconds=3600)
    holdings = Holdings(places=2)
    locked, free = (holdings.take(claimed_lease()) for _ in range(2))
    heartbeat = beating(holdings)
    with sessions() as another:
        other = another()
        other.execute("BEGIN")
        other.execute(
            "UPDATE tenantfair_run SET pending_signals = '[1]' WHERE run_id = %s", [locked.lease.run_id]
        )
        heartbeat.renew()
        assert (claimed_at(locked.lease.run_id) == LONG_AGO, claimed_at(free.lease.run_id) > LONG_AGO) == (
            True,
            True,
        )
        ended = in_django_thread(heartbeat.run)
        other.execute("COMMIT")
        until(lambda: claimed_at(locked.lease.run_id) > LONG_AGO, "the lease is renewed")
        heartbeat.stop()
        ended.result(timeout=LONGEST_WAIT_SECONDS)

    assert not locked.monitor.lost.is_set()


def test_what_was_skipped_and_is_held_no_more_is_not_tried_again() -> None:
    holdings = Holdings(places=2)
    gone, kept = (holdings.take(claimed_lease()) for _ in range(2))
    heartbeat = beating(holdings)
    with sessions() as another:
        other = another()
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM tenantfair_run FOR UPDATE")
        heartbeat.renew()
        assert heartbeat._skipped == [gone, kept]
        holdings.drop(gone)
        heartbeat.renew_skipped()
        assert heartbeat._skipped == [kept]
        other.execute("ROLLBACK")

    heartbeat.renew_skipped()
    assert heartbeat._skipped == []
    assert claimed_at(gone.lease.run_id) == LONG_AGO


def test_a_heartbeat_goes_on_after_any_error_and_whatever_logging_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when credentials are fetched from a service that fails in a way of its own."""
    holdings = Holdings(places=1)
    holding = holdings.take(claimed_lease())
    errors = iter([RuntimeError("no token"), OperationalError("no session")])

    def fail_first(leases: Any, **options: Any) -> dict[Any, bool]:
        if (error := next(errors, None)) is not None:
            raise error
        return extend(leases, **options)

    monkeypatch.setattr("tenantfair.worker.heartbeat.extend", fail_first)
    heartbeat = beating(holdings, interval=0.01)
    with logging_that_raises("tenantfair.worker"):
        ended = in_django_thread(heartbeat.run)
        until(lambda: claimed_at(holding.lease.run_id) > LONG_AGO or ended.done(), "the lease is renewed")
        heartbeat.stop()
        ended.result(timeout=LONGEST_WAIT_SECONDS)

    assert claimed_at(holding.lease.run_id) > LONG_AGO


def test_a_heartbeat_is_stamped_by_answers_alone() -> None:
    heartbeat = beating(Holdings(places=1))
    with connections_own() as own, sessions() as another:
        own.ensure_connection()
        another().execute("SELECT pg_terminate_backend(%s)", [own.connection.info.backend_pid])
        heartbeat.beat = 0.0
        heartbeat._safely(heartbeat.renew)
        assert heartbeat.beat == 0.0
        heartbeat._safely(heartbeat.renew)

    assert heartbeat.beat > 0.0


def connections_own() -> Any:
    return WorkerConnections("default", "beats").own()


def test_a_place_is_free_once_its_outcome_was_tried_and_the_lease_is_held_until_it_is_settled() -> None:
    freed: list[int] = []
    holdings = Holdings(places=1, on_freed=lambda: freed.append(1))
    holding = holdings.take(claimed_lease())
    assert holdings.free == 0

    holdings.vacate(holding)
    assert (holdings.free, len(holdings), len(freed)) == (1, 1, 1)
    holdings.drop(holding)
    assert (holdings.free, len(holdings), len(freed)) == (1, 0, 1)


def test_the_shared_table_has_a_row_per_holding_and_clears_it() -> None:
    rows: dict[int, Any] = {}
    holdings = Holdings(places=1, write_place=rows.__setitem__)
    first, second, third = (holdings.take(claimed_lease()) for _ in range(3))

    # Two rows for one place; what does not fit is kept by the thread alone.
    assert sorted(place for place in (first.place, second.place) if place is not None) == [0, 1]
    assert third.place is None
    holdings.drop(first)
    assert sorted(rows.values(), key=lambda lease: lease is not None) == [None, second.lease]


class Worker:
    """A process to be kept for: another Python, which computes or is stopped as the test says."""

    def __enter__(self) -> subprocess.Popen[bytes]:
        self.process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def test_cpu_time_grows_for_a_process_that_computes_and_stands_for_a_stopped_one() -> None:
    with Worker() as process:
        before = cpu_time(process.pid)
        until(lambda: cpu_time(process.pid) != before, "the CPU time grows")
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        stopped = cpu_time(process.pid)

        assert [cpu_time(process.pid) for _ in range(50)] == [stopped] * 50


def test_a_silent_worker_that_computes_has_its_leases_kept() -> None:
    """This process plays the worker that never renews; it is busy, since the test polls."""
    lease = claimed_lease()
    connections_of = WorkerConnections("default", "kept")
    keeper = Keeper(
        places=2, interval=0.1, params=lambda: connections_of.params("default"), worker_id="kept", role=None
    )
    keeper.write_place(1, lease)
    keeper.ensure_running()
    try:
        until(lambda: claimed_at(lease.run_id) > LONG_AGO, "the keeper renews")
        keeper.write_place(1, None)
    finally:
        keeper.stop()


def test_a_keeper_connects_with_the_parameters_that_hold_by_then() -> None:
    """Credentials that last for minutes: those of the start lead nowhere when the keeper first needs some."""
    connections_of = WorkerConnections("default", "rotates")
    fresh = connections_of.params("default")
    given = [{**fresh, "dbname": "no_such_database"}]
    lease = claimed_lease()
    keeper = Keeper(places=2, interval=0.1, params=lambda: given[-1], worker_id="rotates", role=None)
    keeper.ensure_running()
    first = keeper.pid
    try:
        given.append(fresh)
        keeper.write_place(1, lease)

        def renewed() -> bool:
            keeper.ensure_running()
            return claimed_at(lease.run_id) > LONG_AGO

        until(renewed, "the keeper renews")
        assert keeper.pid == first
    finally:
        keeper.stop()


def test_a_keeper_that_does_not_read_is_replaced_and_holds_up_nobody() -> None:
    given = [{"password": "0"}]
    keeper = Keeper(places=1, interval=0.0, params=lambda: given[-1], worker_id="stuck", role=None)
    keeper.ensure_running()
    first = keeper.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    try:

        def replaced() -> bool:
            given.append({"password": str(len(given)) * 10_000})
            keeper.ensure_running()
            return keeper.pid not in {None, first}

        until(replaced, "another keeper runs")
    finally:
        keeper.stop()


def test_parameters_that_cannot_be_made_leave_the_keeper_and_the_worker_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> Any:
        raise RuntimeError("no token")

    keeper = Keeper(places=1, interval=60, params=fail, worker_id="fails", role=None)
    keeper.ensure_running()
    keeper.stop()

    assert [getattr(record, "event", None) for record in caplog.records] == ["keeper_failed"]


def test_a_keeper_that_dies_is_started_again_and_ends_when_told() -> None:
    keeper = Keeper(places=1, interval=60, params=dict, worker_id="dies", role=None)
    try:
        keeper.ensure_running()
        first = keeper.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        until(lambda: keeper.pid is None, "the keeper is seen to be dead")
        keeper.ensure_running()
        assert keeper.pid not in {None, first}
    finally:
        keeper.stop()

    assert keeper.pid is None
    keeper.renewed(0.0)
    keeper.write_place(0, None)


def test_no_password_is_in_the_list_of_processes() -> None:
    keeper = Keeper(
        places=1, interval=60, params=lambda: {"password": "canary"}, worker_id="secret", role=None
    )
    try:
        keeper.ensure_running()
        with (
            open(f"/proc/{keeper.pid}/cmdline") as command,
            open(f"/proc/{keeper.pid}/environ") as environment,
        ):
            assert "canary" not in command.read() + environment.read()
    finally:
        keeper.stop()


def test_the_workers_own_session_is_named_direct_and_read_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    options = connections.settings["default"]["OPTIONS"]
    monkeypatch.setitem(options, "application_name", "the host")
    monkeypatch.setitem(options, "pool", {"min_size": 1})
    given = f"{options.get('options', '')} -c default_transaction_isolation=serializable".strip()
    monkeypatch.setitem(options, "options", given)
    with WorkerConnections("default", "worker nine").own() as own, own.cursor() as cursor:
        assert connections["default"] is own
        assert own.pool is None
        cursor.execute(
            "SELECT current_setting('application_name'), current_setting('transaction_isolation'),"
            " current_setting('idle_in_transaction_session_timeout'),"
            " current_setting('transaction_read_only')"
        )
        assert cursor.fetchone() == ("worker nine", "read committed", "30s", "off")

    assert connections["default"] is not own
    assert own.connection is None


def test_transactions_of_the_workers_own_session_are_read_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        connections.settings["default"]["OPTIONS"], "isolation_level", IsolationLevel.SERIALIZABLE
    )
    sessions_of_ours = WorkerConnections("default", "worker nine")
    with sessions_of_ours.own() as own, transaction.atomic(), own.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        assert cursor.fetchone() == ("read committed",)


def test_a_server_that_refuses_session_options_is_connected_to_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="tenantfair")
    monkeypatch.setattr("tenantfair.worker.database._SERVER_OPTIONS", "-c no_such_setting=1")
    connections_of = WorkerConnections("default", "behind a pooler")

    connections_of.probe()

    with connections_of.own() as own, own.cursor() as cursor:
        cursor.execute("SELECT current_setting('application_name')")
        assert cursor.fetchone() == ("behind a pooler",)
    assert [getattr(record, "event", None) for record in caplog.records] == ["options_refused"]


def test_this_thread_has_its_own_connection_back_afterwards() -> None:
    before = connection.connection
    with connections_own() as own:
        own.ensure_connection()

    assert connections["default"].connection is before
