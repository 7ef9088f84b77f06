"""What a worker does with the runs it claims, in threads of the test's own process."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import HTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, connections

from tenantfair import metrics, runs
from tenantfair.exceptions import ConfigurationError, SchemaMismatch
from tenantfair.models import Run
from tenantfair.worker import EXIT_DRAINED, EXIT_FORCED, Worker, default_worker_id, executor
from tenantfair.worker.completer import Completer
from tenantfair.worker.crew import Crew
from tenantfair.worker.database import WorkerConnections
from tenantfair.worker.dispatcher import Dispatcher
from tenantfair.worker.executor import Executor
from tenantfair.worker.exposition import MetricsServer
from tenantfair.worker.heartbeat import Heartbeat
from tenantfair.worker.holdings import Holdings
from tenantfair.worker.listener import Listener
from tests.factories import claimed_lease, policy_in_force, run_in, snapshot
from tests.rows import Session, sessions
from tests.threads import LONGEST_WAIT_SECONDS, in_django_thread, until_someone_waits_for
from tests.worker_parts import GATES, NEVER, logging_that_raises, run_until_idle, running, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def counting() -> Iterator[None]:
    policy_in_force()
    metrics.reset()
    yield
    metrics.reset()


@pytest.fixture
def other() -> Iterator[Session]:
    with sessions() as another:
        yield another()


@pytest.fixture
def observer() -> Iterator[Session]:
    with sessions() as another:
        yield another()


def queue(name: str, *args: Any, module: str = "worker_tasks", **columns: Any) -> Run:
    return run_in("queued", task_path=f"tests.{module}.{name}", **{"args": list(args), **columns})


def count(name: str, **labels: str) -> float:
    return metrics.snapshot().get((name, tuple(labels.items())), 0)


def test_a_batch_worker_runs_everything_due_and_ends() -> None:
    due = [
        queue("add", 1, module="tasks_for_tests", tenant_id=tenant)
        for tenant in ("a", "b", "c")
        for _ in range(9)
    ]
    later = run_in("scheduled")

    assert run_until_idle(concurrency=4) == EXIT_DRAINED

    assert {runs.get(run.run_id).state for run in due} == {"completed"}
    assert runs.get(later.run_id).state == "scheduled"
    assert count("tenantfair_task_outcomes_total", outcome="completed") == 27
    assert count("tenantfair_admission_releases_total", reason="completed") == 27


def test_what_a_task_enqueues_is_still_run_by_a_batch() -> None:
    queue("enqueue_another", "globex", module="tasks_for_tests", tenant_id="acme")

    run_until_idle()

    assert sorted(Run.objects.values_list("tenant_id", "status")) == [
        ("acme", "completed"),
        ("globex", "completed"),
    ]


def test_a_limit_of_tasks_starts_no_more() -> None:
    for _ in range(5):
        queue("thread_name")

    assert Worker(max_tasks=3, listen=False, concurrency=2).run() == EXIT_DRAINED

    assert Run.objects.filter(status="completed").count() == 3
    assert set(Run.objects.exclude(status="completed").values_list("claim_attempts", flat=True)) == {0}


def test_idle_threads_are_used_again() -> None:
    ids = [queue("thread_name").run_id for _ in range(12)]

    run_until_idle(concurrency=2)

    names = {runs.get(run_id).result for run_id in ids}
    assert names <= {"tenantfair-task-1", "tenantfair-task-2"}


def test_bad_runs_get_outcomes_of_their_own_and_strand_no_neighbour() -> None:
    bad = {
        "unknown": queue("no_such_task", module="tasks_for_tests"),
        "no task": queue("not_a_task", module="tasks_for_tests"),
        "unbindable": queue("add", 1, 2, 3, 4, module="tasks_for_tests"),
        "shape": queue("add", module="tasks_for_tests", args={"not": "a list"}),
        "exit": queue("raise_named", "SystemExit", module="tasks_for_tests"),
        "nan": queue("return_unstorable", "nan", module="tasks_for_tests"),
        "NUL": queue("return_unstorable", "NUL", module="tasks_for_tests"),
        "session": queue("kill_own_session"),
    }
    good = [queue("thread_name") for _ in range(5)]

    run_until_idle(concurrency=13)

    assert {runs.get(run.run_id).state for run in good} == {"completed"}
    states = {name: runs.get(run.run_id).state for name, run in bad.items()}
    assert states == {
        "unknown": "scheduled",
        "no task": "scheduled",
        "unbindable": "failed",
        "shape": "failed",
        "exit": "scheduled",
        "nan": "failed",
        "NUL": "failed",
        "session": "scheduled",
    }
    assert runs.get(bad["unknown"].run_id).claim_attempts == 0
    assert not Run.objects.filter(claim_token__isnull=False).exists()


def test_coroutines_run_and_can_ask_the_database() -> None:
    run = queue("meet_async", "coroutine")
    GATES["coroutine"].set()

    run_until_idle()

    assert runs.get(run.run_id).result == 1


def test_the_worker_has_sessions_of_its_own_and_tasks_have_the_hosts() -> None:
    run = queue("session")

    run_until_idle(worker_id="worker seven")

    view = runs.get(run.run_id)
    assert view.worker_ids == ["worker seven"]
    assert view.result[0] != "worker seven"


def test_a_transaction_that_a_task_leaves_open_is_rolled_back_and_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    first = queue("leave_transaction_open")
    second = queue("session")

    run_until_idle(concurrency=1)

    assert [runs.get(run.run_id).state for run in (first, second)] == ["completed", "completed"]
    assert not Run.objects.filter(tenant_id="left open").exists()
    assert "transaction_left_open" in [getattr(record, "event", None) for record in caplog.records]


def test_no_session_outlives_the_worker(observer: Session) -> None:
    for _ in range(4):
        queue("session")
    mine = set(
        observer.execute("SELECT pid FROM pg_stat_activity WHERE datname = current_database()").fetchall()
    )

    run_until_idle(listen=True)

    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    until(lambda: set(observer.execute(query).fetchall()) <= mine, "all of the worker's sessions are closed")
    assert [thread for thread in threading.enumerate() if thread.name.startswith("tenantfair-task")] == []


def test_a_claim_is_refused_nowhere_though_the_host_wants_another_isolation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The host's alias asks for SERIALIZABLE, its role too, and its OPTIONS name a pool."""
    from psycopg import IsolationLevel

    options = connections.settings["default"]["OPTIONS"]
    monkeypatch.setitem(options, "isolation_level", IsolationLevel.SERIALIZABLE)
    given = f"{options.get('options', '')} -c default_transaction_isolation=serializable".strip()
    monkeypatch.setitem(options, "options", given)
    run = queue("session")

    run_until_idle()

    assert runs.get(run.run_id).result[1] == "serializable"


def test_a_run_that_was_cancelled_while_its_task_runs_stays_cancelled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = queue("meet", "cancelled")
    with running(Worker(interval=NEVER)) as code:
        GATES.wait("cancelled started")
        runs.cancel(run.run_id)
        before = snapshot(run)
        GATES["cancelled"].set()
        until(lambda: count("tenantfair_fences_lost_total", operation="finish"), "the result is refused")

    assert code.result(timeout=5) == EXIT_DRAINED
    assert snapshot(run) == before
    assert [getattr(record, "event", None) for record in caplog.records].count("fence_lost") == 1


def test_a_running_task_learns_from_the_heartbeat_that_its_run_is_lost(settings: Any) -> None:
    settings.TENANTFAIR = {**settings.TENANTFAIR, "LEASE_SECONDS": 1, "HEARTBEAT_INTERVAL": 0.1}
    run = queue("meet", "learns", retry_limit=0)
    with running(Worker(interval=0.05, concurrency=1)):
        GATES.wait("learns started")
        runs.cancel(run.run_id)
        until(lambda: count("tenantfair_fences_lost_total", operation="heartbeat"), "the heartbeat notices")
        GATES["learns"].set()
        # The thread is free again only now.
        after = queue("thread_name")
        until(lambda: runs.get(after.run_id).state == "completed", "the place is used again")

    assert runs.get(run.run_id).state == "cancelled"
    assert count("tenantfair_fences_lost_total", operation="finish") == 0


def test_a_locked_row_keeps_only_its_own_outcome_waiting(other: Session, observer: Session) -> None:
    locked = queue("meet", "locked")
    with running(Worker(interval=0.05, concurrency=1)) as code:
        GATES.wait("locked started")
        other.execute("BEGIN")
        other.execute("SELECT FROM tenantfair_run WHERE run_id = %s FOR UPDATE", [locked.run_id])
        GATES["locked"].set()
        neighbour = queue("thread_name")
        until(
            lambda: runs.get(neighbour.run_id).state == "completed", "the only place is used by the neighbour"
        )
        assert runs.get(locked.run_id).state == "claimed"
        other.execute("ROLLBACK")
        until(lambda: runs.get(locked.run_id).state == "completed", "the outcome is stored")

    assert code.result(timeout=5) == EXIT_DRAINED


def test_an_outcome_survives_the_loss_of_every_session_of_the_worker(other: Session) -> None:
    first = queue("thread_name")
    with running(Worker(interval=0.05, worker_id="loses its sessions")):
        until(lambda: runs.get(first.run_id).state == "completed", "all sessions have been used")
        run = queue("meet", "sessions")
        GATES.wait("sessions started")
        mine = "application_name = 'loses its sessions' AND datname = current_database()"
        query = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {mine}"
        assert len(other.execute(query).fetchall()) >= 3
        GATES["sessions"].set()
        until(lambda: runs.get(run.run_id).state == "completed", "the outcome is stored")
        later = queue("thread_name")
        until(lambda: runs.get(later.run_id).state == "completed", "the worker claims again")


@pytest.mark.conformance(168)
def test_a_claim_in_flight_when_the_worker_stops_is_given_back_unstarted(
    other: Session, observer: Session
) -> None:
    run = queue("thread_name")
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS"
            " $$ BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$;"
            " CREATE TRIGGER gate AFTER UPDATE ON tenantfair_policy EXECUTE FUNCTION gate()"
        )
    try:
        policy_in_force()
        other.execute("SELECT pg_advisory_lock(4711)")
        worker = Worker(interval=NEVER, listen=False)
        with running(worker) as code:
            until_someone_waits_for(other, observer)
            worker.stop()
            other.execute("SELECT pg_advisory_unlock(4711)")
            assert code.result(timeout=30) == EXIT_DRAINED
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION gate() CASCADE")

    view = runs.get(run.run_id)
    assert (view.state, view.claim_attempts, view.worker_ids, view.started_at) == ("ready", 0, [], None)
    assert count("tenantfair_task_outcomes_total", outcome="released") == 1


@pytest.mark.conformance(167)
def test_a_lease_that_cannot_be_started_is_released_and_claimed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good, poisoned = queue("thread_name"), queue("thread_name", claim_attempts=5)
    launch, refusals, reported = Executor.launch, iter([True]), []

    def refuse_once(self: Executor, holding: Any) -> None:
        if next(refusals, False):
            raise RuntimeError("can't start new thread")
        launch(self, holding)

    monkeypatch.setattr(Executor, "launch", refuse_once)

    run_until_idle(concurrency=2, on_event=lambda event, **facts: reported.append(event))

    view = runs.get(good.run_id)
    assert (view.state, len(view.worker_ids)) == ("completed", 1)
    assert runs.get(poisoned.run_id).state == "poisoned"
    assert "run_poisoned" in reported
    assert count("tenantfair_worker_events_total", event="launch_error") == 1


def test_an_attempt_that_leaves_no_outcome_is_one_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when tidying up after a task fails in a way that nobody thought of."""
    outcomes: SimpleQueue[runs.Outcome] = SimpleQueue()
    running = Executor(
        using="default", worker_id="lost", on_outcome=lambda holding, outcome, seconds: outcomes.put(outcome)
    )

    def fail(lease: Any, **options: Any) -> None:
        raise SystemExit("around the task")

    with monkeypatch.context() as patch:
        patch.setattr(executor, "execute", fail)
        running.launch(Holdings(places=1).take(claimed_lease()))
        lost = outcomes.get(timeout=10)
    running.launch(
        Holdings(places=1).take(claimed_lease(task_path="tests.worker_tasks.thread_name", args=[]))
    )
    after = outcomes.get(timeout=10)

    assert isinstance(lost, runs.Retry)
    assert "without an outcome" in lost.error["traceback"]
    assert isinstance(after, runs.Completed)
    assert running.stop(5)


def test_nothing_that_logging_raises_keeps_an_outcome_or_a_thread_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outcomes: SimpleQueue[runs.Outcome] = SimpleQueue()
    running = Executor(
        using="default",
        worker_id="spoilt",
        on_outcome=lambda holding, outcome, seconds: outcomes.put(outcome),
    )

    def fail(lease: Any, **options: Any) -> None:
        raise SystemExit("around the task")

    with monkeypatch.context() as patch, logging_that_raises("tenantfair.worker"):
        patch.setattr(executor, "execute", fail)
        for _ in range(2):
            running.launch(Holdings(places=1).take(claimed_lease()))
            assert isinstance(outcomes.get(timeout=10), runs.Retry)

    assert running.stop(5)
    assert len(running._threads) == 1


@pytest.mark.parametrize("service", [Heartbeat, Completer, Dispatcher, Listener])
def test_a_worker_one_of_whose_threads_has_died_ends_and_says_so(
    service: type, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    test_ends = threading.Event()

    def die(self: Any) -> None:
        raise SystemExit("as a host's database backend may")

    for other_service in (Heartbeat, Completer, Dispatcher, Listener):
        # Who leaves by 1 leaves them where they are.
        monkeypatch.setattr(other_service, "run", lambda self: test_ends.wait(60))
    monkeypatch.setattr(service, "run", die)
    worker = Worker(interval=NEVER)
    code = in_django_thread(worker.run)
    try:
        assert code.result(timeout=LONGEST_WAIT_SECONDS) == EXIT_FORCED
    finally:
        worker.stop()
        worker.stop()
        test_ends.set()
        assert worker.finished.wait(LONGEST_WAIT_SECONDS)

    assert [
        (record.levelname, getattr(record, "event", None)) for record in caplog.records if record.exc_info
    ] == [("CRITICAL", "service_died")]


@pytest.mark.parametrize("service", [Heartbeat, Listener])
def test_a_drained_worker_does_not_wait_for_what_has_nothing_to_lose(
    service: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the listener, or the heartbeat, is still connecting to a server that does not answer."""
    test_ends = threading.Event()
    monkeypatch.setattr("tenantfair.worker.crew._CLOSING_SECONDS", 0.2)
    monkeypatch.setattr(service, "run", lambda self: test_ends.wait(60))
    try:
        assert Worker(interval=0.05, until_idle=True, concurrency=1).run() == EXIT_DRAINED
    finally:
        test_ends.set()


def test_a_worker_that_is_stopped_while_its_start_waits_ends_at_once_with_0(
    other: Session, observer: Session
) -> None:
    other.execute("BEGIN")
    other.execute("LOCK TABLE tenantfair_policy IN ACCESS EXCLUSIVE MODE")
    worker = Worker(listen=False)
    code = in_django_thread(worker.run)
    try:
        until_someone_waits_for(other, observer)
        worker.stop()
        assert code.result(timeout=LONGEST_WAIT_SECONDS) == EXIT_DRAINED
    finally:
        other.execute("ROLLBACK")
        assert worker.finished.wait(LONGEST_WAIT_SECONDS)


def test_a_start_that_waits_for_a_lock_says_so_and_goes_on_once_it_is_free(
    other: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tenantfair.worker._BOOT_OPTIONS", "-c lock_timeout=20ms")
    run = queue("thread_name")
    other.execute("BEGIN")
    other.execute("LOCK TABLE tenantfair_policy IN ACCESS EXCLUSIVE MODE")

    def said() -> list[str]:
        return [
            record.getMessage()
            for record in caplog.records
            if getattr(record, "event", None) == "boot_locked"
        ]

    with running(Worker(listen=False, interval=0.05)):
        until(said, "the worker says what it waits for")
        other.execute("ROLLBACK")
        until(lambda: runs.get(run.run_id).state == "completed", "the worker has started")

    assert "tenantfair_policy" in said()[0]


def test_a_look_at_the_domain_waits_for_no_lock_without_a_bound(
    other: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused claim makes the dispatcher look again, and a drain waits for the dispatcher."""
    monkeypatch.setattr("tenantfair.worker._BOOT_OPTIONS", "-c lock_timeout=20ms")
    other.execute("BEGIN")
    other.execute("LOCK TABLE tenantfair_policy IN ACCESS EXCLUSIVE MODE")

    with pytest.raises(OperationalError, match="lock timeout"):
        Worker()._prepare()


def crew_of(worker: Worker) -> Crew:
    """Return the parts of a worker that has not started."""
    return Crew(
        worker.plan,
        WorkerConnections(worker.plan.using, worker.plan.worker_id),
        prepare=lambda: None,
        on_ended=lambda: None,
        report=lambda event, **_: None,
    )


def test_what_was_claimed_longer_ago_than_the_domains_lease_is_given_back_unstarted() -> None:
    """As after a stop of the process: the lease may have ended, whatever these settings say."""
    policy_in_force(lease_seconds=1)
    lease = claimed_lease(task_path="tests.worker_tasks.thread_name")
    crew = crew_of(Worker(listen=False))
    crew.heartbeat.renew()

    assert crew.launch([lease], time.monotonic() - 2) == 0

    ended = in_django_thread(crew.completer.run)
    until(lambda: runs.get(lease.run_id).state == "ready", "the run is given back")
    crew.completer.stop()
    ended.result(timeout=LONGEST_WAIT_SECONDS)
    crew.close_keeper()
    assert Run.objects.get().claim_attempts == 0


def test_an_observer_that_fails_spoils_nothing(caplog: pytest.LogCaptureFixture) -> None:
    run = queue("thread_name")

    def fail(event: str, **facts: Any) -> None:
        raise ValueError(event)

    assert run_until_idle(on_event=fail) == EXIT_DRAINED
    assert runs.get(run.run_id).state == "completed"
    assert not [record for record in caplog.records if record.levelno == logging.CRITICAL]


def test_the_health_file_is_kept_fresh(tmp_path: Path) -> None:
    file = tmp_path / "health"
    with running(Worker(interval=NEVER, health_file=file)):
        until(file.exists, "the health file appears")
        os.utime(file, (0, 0))
        until(lambda: file.stat().st_mtime > 0, "the health file is touched again")


def test_the_counters_are_served_over_http() -> None:
    metrics.increment("tenantfair_worker_events_total", event="started")
    server = MetricsServer("127.0.0.1", 0)
    server.start()
    try:
        with urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            text = answer.read().decode()
        with pytest.raises(HTTPError, match="404") as missing:
            urlopen(f"http://127.0.0.1:{server.port}/")
        missing.value.close()
    finally:
        server.stop()

    assert 'tenantfair_worker_events_total{event="started"} 1' in text


@pytest.mark.parametrize(("host", "family"), [("0.0.0.0", socket.AF_INET), ("::1", socket.AF_INET6)])
def test_a_host_with_colons_is_one_of_ipv6(
    host: str, family: socket.AddressFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound: list[socket.AddressFamily] = []
    monkeypatch.setattr(HTTPServer, "server_bind", lambda server: bound.append(server.socket.family))
    monkeypatch.setattr(HTTPServer, "server_activate", lambda server: None)

    MetricsServer(host, 9847)._server.server_close()

    assert bound == [family]


@pytest.mark.parametrize(("using", "listens_on"), [("default", "direct"), ("gpu", "gpu")])
def test_the_alias_to_listen_on_leads_to_the_domain_of_the_settings_alone(
    using: str, listens_on: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TENANTFAIR = {**settings.TENANTFAIR, "LISTEN_DATABASE": "direct"}
    for alias in ("direct", "gpu"):
        monkeypatch.setitem(connections.settings, alias, connections.settings["default"])
    asked: list[str] = []
    monkeypatch.setattr(WorkerConnections, "params", lambda self, alias: asked.append(alias))

    crew = crew_of(Worker(using=using))
    assert crew._listener is not None
    crew._listener._params()
    crew.close_keeper()

    assert asked == [listens_on]


def test_one_log_record_names_the_run_and_never_the_tenant(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="tenantfair")
    run = queue("thread_name", tenant_id="secret-tenant")

    run_until_idle(worker_id="logs")

    settled = [record for record in caplog.records if getattr(record, "event", None) == "run_settled"]
    assert [(record.run_id, record.attempt, record.worker_id) for record in settled] == [
        (str(run.run_id), 1, "logs")
    ]
    assert settled[0].duration_ms >= 0
    assert "secret-tenant" not in json.dumps([str(vars(record)) for record in caplog.records])


def test_a_worker_id_fits_into_an_application_name() -> None:
    assert len(default_worker_id()) <= 63
    assert default_worker_id() != default_worker_id()


def test_a_worker_without_a_default_cap_refuses_to_start(settings: Any) -> None:
    settings.TENANTFAIR = {}

    with pytest.raises(ConfigurationError, match="DEFAULT_MAX_ACTIVE_RUNS"):
        run_until_idle()


def test_a_worker_on_an_unknown_schema_refuses_to_start() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TRIGGER tenantfair_run_inserted ON tenantfair_run RENAME TO elsewhere")
    try:
        with pytest.raises(SchemaMismatch, match="tenantfair_run_inserted"):
            run_until_idle()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TRIGGER elsewhere ON tenantfair_run RENAME TO tenantfair_run_inserted")


def test_the_command_runs_a_batch() -> None:
    run = queue("thread_name")

    call_command("tenantfair_worker", batch=True, no_listen=True, concurrency=2, verbosity=0)

    assert runs.get(run.run_id).state == "completed"


@pytest.mark.django_db(transaction=False)
def test_the_command_refuses_to_run_inside_a_test_cases_transaction() -> None:
    with pytest.raises(CommandError, match=r"tenantfair\.testing\.drain") as raised:
        call_command("tenantfair_worker", batch=True, verbosity=0)

    assert raised.value.returncode == 78


def test_the_command_refuses_an_alias_that_does_not_exist() -> None:
    with pytest.raises(CommandError, match="nowhere") as raised:
        call_command("tenantfair_worker", batch=True, database="nowhere")

    assert raised.value.returncode == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--concurrency=0"],
        ["--concurrency=1001"],
        ["--max-tasks=-1"],
        ["--interval=0"],
        ["--interval=nan"],
        ["--drain-timeout=-1"],
        ["--worker-id="],
        ["--worker-id=" + "x" * 64],
        ["--worker-id=ä"],
        ["--metrics-port=0"],
        ["--metrics-port=web"],
    ],
)
def test_the_command_refuses_values_that_cannot_be(arguments: list[str]) -> None:
    with pytest.raises(CommandError):
        call_command("tenantfair_worker", "--batch", *arguments)


def test_the_help_says_why_there_is_no_queue_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        call_command("tenantfair_worker", "--help")

    assert "There is no --queue:" in capsys.readouterr().out
