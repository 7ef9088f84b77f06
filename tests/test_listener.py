"""Wake-ups: sent after commit, for due work only, heard by workers of the same domain, never needed."""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import connection, transaction
from django.utils import timezone
from psycopg import sql

from tenantfair import runs, wakeups
from tenantfair.backend import for_tenant
from tenantfair.claim.base import Lease
from tenantfair.models import Run
from tenantfair.runs import NewRun
from tenantfair.worker import Worker
from tenantfair.worker.database import WorkerConnections
from tenantfair.worker.listener import Listener
from tests import tasks_for_tests
from tests.domains import scratch_domain
from tests.factories import LONG_AGO, claimed_lease, policy_in_force, run_in
from tests.rows import Session, connect, in_background, sessions
from tests.threads import LONGEST_WAIT_SECONDS
from tests.worker_parts import NEVER, logging_that_raises, running, until

pytestmark = pytest.mark.django_db(transaction=True)

ERROR = {"exception_class_path": "builtins.ValueError", "traceback": "ValueError: no"}


class Ear:
    """A session that listens on the domain's channel."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.channel = session.execute(wakeups.CHANNEL_SQL).fetchone()[0]
        session.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self.channel)))

    def heard(self) -> list[str]:
        """Return what the sender has sent once it has done what was asked of it."""
        assert wakeups._sender.flush(LONGEST_WAIT_SECONDS)
        return self.heard_by_now()

    def heard_by_now(self) -> list[str]:
        """Return what has been sent: what comes before a notification that is sent last."""
        with connect() as last:
            last.execute("SELECT pg_notify(%s::text, 'last')", [self.channel])
        found: list[str] = []
        while "last" not in found:
            more = [notification.payload for notification in self.session.notifies(timeout=5, stop_after=1)]
            assert more, "the last notification never came"
            found += more
        return found[:-1]


@pytest.fixture
def ear() -> Iterator[Ear]:
    with sessions() as another:
        yield Ear(another())


@pytest.fixture(autouse=True)
def quiet_sender() -> Iterator[None]:
    policy_in_force()
    yield
    wakeups._sender.flush(LONGEST_WAIT_SECONDS)


def enqueue(**options: Any) -> None:
    runs.enqueue(for_tenant(tasks_for_tests.add, "acme"), args=[1], **options)


@pytest.mark.conformance(170)
def test_a_commit_with_due_work_is_one_notification_without_content(ear: Ear) -> None:
    with transaction.atomic():
        for _ in range(5):
            enqueue()
        runs.enqueue_many(NewRun(task=tasks_for_tests.add, tenant_id="globex") for _ in range(5))
        assert ear.heard() == []

    assert ear.heard() == [""]


class Pauses:
    """Stands in for the `time` of the sender, whose pauses last until the test ends them."""

    monotonic = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.lengths: list[float] = []
        self._begun = threading.Semaphore(0)
        self._ended = threading.Semaphore(0)

    def sleep(self, seconds: float) -> None:
        self.lengths.append(seconds)
        self._begun.release()
        self._ended.acquire(timeout=LONGEST_WAIT_SECONDS)

    def await_one(self) -> None:
        assert self._begun.acquire(timeout=LONGEST_WAIT_SECONDS), "the sender never paused"

    def end_one(self) -> None:
        self._ended.release()


@pytest.mark.conformance(170)
def test_after_each_wake_up_the_sender_pauses_50_ms_and_sends_what_came_meanwhile_as_one(
    ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(lambda: wakeups._sender._thread is None, "the sender has been idle for a while")
    monkeypatch.setattr(wakeups, "time", pauses := Pauses())

    enqueue()
    pauses.await_one()
    assert ear.heard_by_now() == [""]
    for _ in range(3):
        enqueue()
    assert ear.heard_by_now() == []
    pauses.end_one()
    pauses.await_one()
    assert ear.heard_by_now() == [""]
    pauses.end_one()

    assert pauses.lengths == [0.05, 0.05]


@pytest.mark.conformance(170)
def test_an_enqueue_outside_a_transaction_notifies(ear: Ear) -> None:
    enqueue()

    assert ear.heard() == [""]


DUE_AT_ONCE: dict[str, Callable[[Lease], runs.Outcome]] = {
    "yielded": runs.Yielded,
    "a retry without delay": lambda lease: runs.Retry(lease, ERROR, timedelta(0)),
    "snoozed for no time": lambda lease: runs.Snoozed(lease, delay=timedelta(0)),
    "snoozed until a past time": lambda lease: runs.Snoozed(lease, LONG_AGO),
    "waiting with a signal pending": runs.Waiting,
}
DUE_LATER_OR_NEVER: dict[str, Callable[[Lease], runs.Outcome]] = {
    "completed": lambda lease: runs.Completed(lease, 1),
    "failed": lambda lease: runs.Failed(lease, ERROR),
    "a retry with a delay": lambda lease: runs.Retry(lease, ERROR, timedelta(hours=1)),
    "snoozed": lambda lease: runs.Snoozed(lease, delay=timedelta(hours=1)),
    "snoozed until a later time": lambda lease: runs.Snoozed(lease, timezone.now() + timedelta(hours=1)),
    "waiting": lambda lease: runs.Waiting(lease, consumed=1),
    "released": lambda lease: runs.Released(lease, started=True),
    "returned": lambda lease: runs.Released(lease, started=False),
    "abandoned": lambda lease: runs.Abandoned(lease, "x"),
}


@pytest.mark.conformance(170)
@pytest.mark.parametrize("make", DUE_AT_ONCE.values(), ids=DUE_AT_ONCE.keys())
def test_an_outcome_that_is_due_again_at_once_notifies(
    make: Callable[[Lease], runs.Outcome], ear: Ear
) -> None:
    lease = claimed_lease(pending_signals=["a"])
    with transaction.atomic():
        assert runs.settle([make(lease)]).accepted == {lease.run_id}
        assert ear.heard() == []

    assert ear.heard() == [""]


@pytest.mark.conformance(170)
@pytest.mark.parametrize("make", DUE_LATER_OR_NEVER.values(), ids=DUE_LATER_OR_NEVER.keys())
def test_an_outcome_that_is_not_due_or_given_back_notifies_nobody(
    make: Callable[[Lease], runs.Outcome], ear: Ear
) -> None:
    lease = claimed_lease(pending_signals=["a"])
    assert runs.settle([make(lease)]).accepted == {lease.run_id}

    assert ear.heard() == []


@pytest.mark.conformance(170)
def test_what_is_rolled_back_or_due_later_notifies_nobody(ear: Ear) -> None:
    with transaction.atomic():
        enqueue()
        transaction.set_rollback(True)
    with transaction.atomic():
        with transaction.atomic():
            enqueue()
            transaction.set_rollback(True)
        enqueue(run_after=timedelta(hours=1))
    enqueue(run_after=timezone.now() + timedelta(hours=1))

    assert ear.heard() == []


@pytest.mark.conformance(170)
def test_a_rolled_back_savepoint_takes_only_its_own_wake_up_back(ear: Ear) -> None:
    with transaction.atomic():
        enqueue()
        with transaction.atomic():
            enqueue()
            transaction.set_rollback(True)

    assert ear.heard() == [""]


@pytest.mark.conformance(170)
def test_savepoint_that_is_rolled_back_brings_no_later_work_forward(ear: Ear) -> None:
    with transaction.atomic():
        enqueue(run_after=timedelta(hours=1))
        with transaction.atomic():
            enqueue()
            transaction.set_rollback(True)

    assert ear.heard() == []


@pytest.mark.conformance(170)
@pytest.mark.parametrize("delays", [(0, 3600), (3600, 0)], ids=str)
def test_due_work_is_not_put_off_by_later_work_of_its_transaction(ear: Ear, delays: tuple[int, int]) -> None:
    with transaction.atomic():
        for delay in delays:
            enqueue(run_after=timedelta(seconds=delay))

    assert ear.heard() == [""]


@pytest.mark.conformance(170)
def test_work_that_became_due_during_its_transaction_notifies(ear: Ear) -> None:
    with transaction.atomic():
        enqueue(run_after=timedelta(milliseconds=1))
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(0.01)")

    assert ear.heard() == [""]


def signal(run_id: UUID) -> None:
    runs.signal(run_id, "go")


@pytest.mark.conformance(170)
@pytest.mark.parametrize(
    ("change", "state"),
    [
        *(
            (runs.cancel, state)
            for state in ("queued", "ready", "claimed", "scheduled", "waiting", "poisoned")
        ),
        *((signal, state) for state in ("queued", "ready", "claimed", "scheduled", "poisoned")),
        *((runs.interrupt, state) for state in ("queued", "ready")),
        *((runs.retry, state) for state in ("queued", "claimed", "scheduled", "waiting")),
    ],
)
def test_a_change_that_makes_nothing_due_notifies_nobody(
    ear: Ear, change: Callable[[UUID], Any], state: str
) -> None:
    change(run_in(state).run_id)

    assert ear.heard() == []


@pytest.mark.conformance(170)
@pytest.mark.parametrize(
    ("change", "state"),
    [
        (signal, "waiting"),
        *((runs.interrupt, state) for state in ("claimed", "scheduled", "waiting")),
        *((runs.retry, state) for state in ("poisoned", "failed")),
    ],
)
def test_whatever_makes_a_run_due_now_notifies(ear: Ear, change: Callable[[UUID], Any], state: str) -> None:
    change(run_in(state).run_id)

    assert ear.heard() == [""]


def test_listen_off_sends_nothing(ear: Ear, settings: Any) -> None:
    settings.TENANTFAIR = {**settings.TENANTFAIR, "LISTEN": False}

    enqueue()

    assert ear.heard() == []


def test_a_wake_up_that_cannot_be_sent_harms_no_enqueue(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise psycopg.OperationalError("no")

    monkeypatch.setattr(wakeups.psycopg, "connect", refuse)
    # A connection that the sender still has open from before must not be used.
    until(lambda: wakeups._sender._thread is None, "the sender has been idle for a while")

    enqueue()

    assert wakeups._sender.flush(LONGEST_WAIT_SECONDS)
    assert Run.objects.get().wake_at is not None


@contextmanager
def listening(alias: str = "default") -> Iterator[tuple[Listener, threading.Semaphore]]:
    """Run a listener, and hand out a semaphore that counts wake-ups, the first of which is taken."""
    woken = threading.Semaphore(0)
    connections_of = WorkerConnections(alias, "listening test")
    listener = Listener(
        params=lambda: connections_of.params(alias), on_wakeup=woken.release, worker_id="listening test"
    )
    ended = in_background(listener.run)
    try:
        assert listener.hears.wait(LONGEST_WAIT_SECONDS)
        assert woken.acquire(timeout=LONGEST_WAIT_SECONDS), "a new connection is a wake-up"
        yield listener, woken
    finally:
        listener.stop()
        ended.result(timeout=LONGEST_WAIT_SECONDS)


@pytest.mark.conformance(171)
def test_only_the_domains_own_wake_ups_are_heard() -> None:
    with scratch_domain("neighbour") as neighbour, sessions() as another:
        ear, session = Ear(another()), another()
        with listening() as (_, woken):
            runs.enqueue(tasks_for_tests.add, tenant_id="acme", using=neighbour)
            wakeups.request(neighbour)
            assert wakeups._sender.flush(LONGEST_WAIT_SECONDS)
            session.execute("SELECT pg_notify(%s::text, 'another schema')", [ear.channel])
            session.execute("SELECT pg_notify(%s::text, '')", [ear.channel])
            assert woken.acquire(timeout=LONGEST_WAIT_SECONDS)
            assert not woken.acquire(blocking=False)


@pytest.mark.conformance(171)
@pytest.mark.parametrize(("payload", "wakes"), [("of somebody else's", False), ("", True)])
def test_notification_with_a_payload_is_not_ours(payload: str, wakes: bool) -> None:
    woken = threading.Semaphore(0)
    listener = Listener(params=dict, on_wakeup=woken.release, worker_id="listening test")
    with sessions() as another:
        session, hearing = another(), another()
        hearing.execute("LISTEN tests_payload")
        session.execute("SELECT pg_notify('tests_payload', %s)", [payload])
        select.select([hearing], [], [], LONGEST_WAIT_SECONDS)
        listener._hear(hearing)
    assert woken.acquire(blocking=False) == wakes


@pytest.mark.conformance(171)
def test_a_lost_listener_comes_back_and_wakes_for_what_it_may_have_missed() -> None:
    with listening() as (listener, woken), sessions() as another:
        killed = another().execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'listening test' AND datname = current_database()"
        )
        assert killed.fetchall() == [(True,)]
        assert woken.acquire(timeout=LONGEST_WAIT_SECONDS)
        assert listener.hears.is_set()


@pytest.mark.conformance(171)
def test_a_worker_that_never_listens_still_finds_work_by_polling() -> None:
    with running(Worker(listen=False, interval=0.05, concurrency=1)):
        run = run_in("queued")

        until(lambda: runs.get(run.run_id).state == "completed", "the run completes")


def test_a_worker_is_woken_long_before_its_next_poll() -> None:
    with running(Worker(interval=NEVER, concurrency=1, worker_id="woken")) as code:
        with connect() as observer:
            until(
                lambda: observer.execute(
                    "SELECT FROM pg_stat_activity WHERE application_name = 'woken'"
                    " AND query LIKE 'LISTEN%' AND query NOT LIKE '%trial%' AND datname = current_database()"
                ).fetchall(),
                "the worker listens",
            )
        run_id = runs.enqueue(tasks_for_tests.add, args=[1], tenant_id="acme")

        until(lambda: runs.get(run_id).state == "completed", "the run completes")
        assert not code.done()


class Deafness:
    """Lets nothing come to an idle client, as behind a pooler that shares sessions: LISTEN succeeds there."""

    def __init__(self, *, trials: float) -> None:
        self.trials = trials
        self.tried = 0
        self._hears = Listener._hears

    def hears(self, listener: Listener, session: psycopg.Connection[Any]) -> bool:
        self.tried += 1
        if self.tried > self.trials:
            return self._hears(listener, session)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session, "notifies", lambda **_: iter(()))
            return self._hears(listener, session)


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> Deafness:
    deafness = Deafness(trials=math.inf)

    def hears(listener: Listener, session: psycopg.Connection[Any]) -> bool:
        return deafness.hears(listener, session)

    monkeypatch.setattr(Listener, "_hears", hears)
    monkeypatch.setattr("tenantfair.worker.listener._TRIAL_SECONDS", 0.1)
    monkeypatch.setattr("tenantfair.worker.listener._DEAF_SECONDS", (0.02, 0.02))
    return deafness


def test_a_deaf_listener_says_so_once_tries_again_seldom_and_gives_up(
    deaf: Deafness, caplog: pytest.LogCaptureFixture
) -> None:
    connections_of = WorkerConnections("default", "deaf")
    listener = Listener(
        params=lambda: connections_of.params("default"), on_wakeup=lambda: None, worker_id="deaf"
    )

    listener.run()

    assert [record.event for record in caplog.records] == ["listener_deaf"]
    assert deaf.tried == 3
    assert not listener.hears.is_set()


def test_a_server_that_was_only_slow_is_listened_to_later(deaf: Deafness) -> None:
    deaf.trials = 2

    with listening():
        assert deaf.tried == 3


def test_a_listener_goes_on_after_any_error_and_whatever_logging_does() -> None:
    """As when credentials are fetched from a service that fails in a way of its own."""
    woken = threading.Semaphore(0)
    connections_of = WorkerConnections("default", "goes on")
    errors = iter([RuntimeError("no token"), psycopg.OperationalError("no session")])

    def params() -> Any:
        if (error := next(errors, None)) is not None:
            raise error
        return connections_of.params("default")

    listener = Listener(params=params, on_wakeup=woken.release, worker_id="goes on")
    with logging_that_raises("tenantfair.worker"):
        ended = in_background(listener.run)
        until(lambda: listener.hears.is_set() or ended.done(), "it listens")
        listener.stop()
        ended.result(timeout=LONGEST_WAIT_SECONDS)

    assert woken.acquire(blocking=False)
