"""How a busy worker shares statements: outcomes that come together, places that become free together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from django.db import connection

from tenantfair import claim, metrics, runs
from tenantfair.execution import LeaseMonitor
from tenantfair.models import Run
from tenantfair.runs import Completed, Outcome, Settlement
from tenantfair.worker import calls, completer, dispatcher, executor
from tenantfair.worker.completer import Completer
from tenantfair.worker.database import WorkerConnections
from tenantfair.worker.executor import Executor
from tenantfair.worker.holdings import Holding, Holdings
from tests.factories import claimed_lease, policy_in_force, run_in
from tests.threads import LONGEST_WAIT_SECONDS, in_django_thread
from tests.worker_parts import NEVER, Bench, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def domain() -> None:
    policy_in_force()


class Storing:
    """A completer in a thread of its own, and the sizes of the batches that it stores."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, places: int) -> None:
        self.sizes: list[int] = []
        self.connections_of = WorkerConnections("default", "stores")
        self.connections_of.probe()
        self.holdings = Holdings(places=places)
        self.completer = Completer(
            connections_of=self.connections_of, holdings=self.holdings, worker_id="stores"
        )
        settle = runs.settle

        def counted(outcomes: Any, **options: Any) -> Settlement:
            self.sizes.append(len(outcomes))
            return settle(outcomes, **options)

        monkeypatch.setattr(runs, "settle", counted)

    @contextmanager
    def running(self) -> Iterator[None]:
        ended = in_django_thread(self.completer.run)
        try:
            yield
        finally:
            self.completer.stop()
            ended.result(timeout=LONGEST_WAIT_SECONDS)

    def take(self, number: int) -> list[Holding]:
        return [self.holdings.take(claimed_lease()) for _ in range(number)]

    def end(self, holding: Holding) -> None:
        self.completer.put(holding, Completed(holding.lease, None), 0.0)


def test_no_more_give_their_place_back_than_there_are_places() -> None:
    """While nothing can be stored: some of them wait already, and then all tasks end together."""
    holdings = Holdings(places=3)
    for holding in holdings.take_all(claimed_lease() for _ in range(3))[:2]:
        holdings.vacate(holding)
    more = holdings.take_all(claimed_lease() for _ in range(2))
    for holding in more:
        holdings.vacate(holding)

    assert (holdings.free, len(holdings)) == (1, 5)


def test_the_outcome_of_the_only_task_is_stored_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completer, "_GATHER_SECONDS", NEVER)
    monkeypatch.setattr(completer, "_SUCCESSION_SECONDS", NEVER)
    storing = Storing(monkeypatch, places=1)
    (only,) = storing.take(1)

    with storing.running():
        storing.end(only)
        until(lambda: len(storing.holdings) == 0, "the outcome is stored")

    assert Run.objects.get().status == "completed"


def test_outcomes_that_come_together_share_a_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    """With as much patience as can be: what ends the wait is the end of the last running task."""
    monkeypatch.setattr(completer, "_GATHER_SECONDS", NEVER)
    monkeypatch.setattr(completer, "_SUCCESSION_SECONDS", NEVER)
    storing = Storing(monkeypatch, places=8)
    held = storing.take(8)

    with storing.running():
        for holding in held:
            storing.end(holding)
        until(lambda: len(storing.holdings) == 0, "all outcomes are stored")

    assert storing.sizes == [8]


def test_no_outcome_waits_for_a_task_that_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    storing = Storing(monkeypatch, places=2)
    ended, runs_on = storing.take(2)

    with storing.running():
        storing.end(ended)
        until(lambda: storing.holdings.free == 1, "the first outcome is stored")
        assert not runs_on.ended

        storing.end(runs_on)
        until(lambda: len(storing.holdings) == 0, "the second one too")


def test_a_lost_run_does_not_keep_the_outcomes_of_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is an end like any other for those that wait for the last running task."""
    monkeypatch.setattr(completer, "_GATHER_SECONDS", NEVER)
    monkeypatch.setattr(completer, "_SUCCESSION_SECONDS", NEVER)
    storing = Storing(monkeypatch, places=2)
    kept, lost = storing.take(2)
    lost.monitor.lost.set()

    with storing.running():
        storing.end(kept)
        storing.end(lost)
        until(lambda: len(storing.holdings) == 0, "both are gone")

    assert storing.sizes == [1]


def test_a_session_that_loses_its_statements_is_replaced_and_prepares_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As when a pooler comes in between after the worker's start."""
    storing = Storing(monkeypatch, places=2)
    first, second = storing.take(2)
    settle = runs.settle
    thresholds: list[int | None] = []

    def forget(outcomes: Any, **options: Any) -> Settlement:
        connection.ensure_connection()
        # Behind the driver's back, which would take notice of it.
        connection.connection.pgconn.exec_(b"DEALLOCATE ALL")
        thresholds.append(connection.connection.prepare_threshold)
        return settle(outcomes, **options)

    monkeypatch.setattr(runs, "settle", forget)
    with storing.running():
        storing.end(first)
        until(lambda: storing.holdings.free == 1, "the first outcome is stored")
        storing.end(second)
        until(lambda: len(storing.holdings) == 0, "the second one too")

    assert set(Run.objects.values_list("status", flat=True)) == {"completed"}
    assert thresholds == [5, 5, None]


def test_mixed_batches_and_batches_of_completed_runs_are_stored_alike() -> None:
    """The statement for completed runs writes what the one for all outcomes writes."""
    leases = [claimed_lease(args=[number]) for number in range(4)]
    kinds: list[Outcome] = [Completed(lease, {"n": number}) for number, lease in enumerate(leases)]

    assert runs.finish(kinds[:2]) == {lease.run_id for lease in leases[:2]}
    mixed = [kinds[2], kinds[3], runs.Failed(claimed_lease(), {"exception_class_path": "x", "traceback": ""})]
    assert len(runs.finish(mixed)) == 3

    columns = [field.name for field in Run._meta.fields if field.name not in {"id", "run_id", "args"}]
    times = {"enqueued_at", "started_at", "last_attempted_at", "finished_at", "updated_at", "result"}
    rows = [
        {name: getattr(row, name) for name in columns if name not in times}
        for row in Run.objects.filter(status="completed").order_by("id")
    ]
    assert len(rows) == 4
    assert all(row == rows[0] for row in rows)
    assert [row.result for row in Run.objects.filter(status="completed").order_by("id")] == [
        {"n": number} for number in range(4)
    ]


class Asking:
    """Counts the questions whether anything is due."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        ask = claim.due_work_exists

        def counted(**options: Any) -> bool:
            self.times += 1
            return ask(**options)

        monkeypatch.setattr(claim, "due_work_exists", counted)


def test_after_a_filled_call_freed_places_are_claimed_for_without_asking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "_MORE_SECONDS", NEVER)
    asking = Asking(monkeypatch)
    for _ in range(4):
        run_in("queued")

    with Bench(places=2) as bench:
        bench.until_launched(2)
        bench.exit_one()
        bench.until_launched(3)
        bench.exit_one()
        bench.until_launched(4)

    assert bench.demands == [2, 1, 1]
    assert asking.times == 1


def test_after_a_call_that_was_not_filled_a_poll_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_MORE_SECONDS", NEVER)
    asking = Asking(monkeypatch)
    run_in("queued")

    with Bench(places=2) as bench:
        bench.until_launched(1)
        until(lambda: bench.dispatcher._latest > 0.0, "the poll ends")
        called = len(bench.demands)
        bench.dispatcher.request()
        until(lambda: asking.times == 2, "a further poll asks")

    assert len(bench.demands) == called


def test_a_filled_call_of_long_ago_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_MORE_SECONDS", 0.0)
    asking = Asking(monkeypatch)
    for _ in range(2):
        run_in("queued")

    with Bench(places=1) as bench:
        bench.until_launched(1)
        bench.exit_one()
        bench.until_launched(2)

    assert asking.times == 2


def test_places_whose_outcome_is_being_stored_are_claimed_for_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "_MORE_SECONDS", NEVER)
    monkeypatch.setattr(dispatcher, "_GATHER_SECONDS", NEVER)
    for _ in range(4):
        run_in("queued")
    soon = [0]

    with Bench(places=2, soon=lambda: soon[0]) as bench:
        bench.until_launched(2)
        soon[0] = 1
        bench.exit_one()
        soon[0] = 0
        bench.exit_one()
        bench.until_launched(4)

    assert bench.demands == [2, 2]


def test_stop_ends_the_wait_for_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_MORE_SECONDS", NEVER)
    monkeypatch.setattr(dispatcher, "_GATHER_SECONDS", NEVER)
    for _ in range(3):
        run_in("queued")
    soon = [0]

    with Bench(places=2, soon=lambda: soon[0]) as bench:
        bench.until_launched(2)
        soon[0] = 1
        bench.exit_one()

    assert bench.demands == [2]


def test_the_dispatchers_of_one_process_ask_and_claim_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = Asking(monkeypatch)
    run_in("queued")
    metrics.reset()

    with ExitStack() as somebody_elses_turn:
        somebody_elses_turn.enter_context(calls._turns["default"])
        with Bench(places=1) as bench:
            until(metrics.snapshot, "a poll begins")
            assert (asking.times, bench.demands) == (0, [])
            somebody_elses_turn.close()
            bench.until_launched(1)

    assert (asking.times, bench.demands) == (1, [1])


def holding() -> Holding:
    return Holding(lease=claimed_lease(), monitor=LeaseMonitor())


def test_tasks_that_wait_for_each_other_all_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One idle thread at a time is woken, yet each lease has a thread of its own."""
    meeting = threading.Barrier(8, timeout=LONGEST_WAIT_SECONDS)
    ended = threading.Semaphore(0)

    def meet(lease: Any, **_: Any) -> Outcome:
        meeting.wait()
        return Completed(lease, None)

    monkeypatch.setattr(executor, "execute", meet)
    runner = Executor(using="default", worker_id="meets", on_outcome=lambda *_: ended.release())

    for _ in range(3):
        for _ in range(8):
            runner.launch(holding())
        for _ in range(8):
            assert ended.acquire(timeout=LONGEST_WAIT_SECONDS)

    assert not meeting.broken
    assert runner.stop(LONGEST_WAIT_SECONDS)
    assert len(runner._threads) == 8


def test_a_lease_is_taken_up_though_all_but_one_thread_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    begun: list[Any] = []
    ended = threading.Semaphore(0)

    def execute(lease: Any, **_: Any) -> Outcome:
        begun.append(lease.run_id)
        if len(begun) <= 3:
            assert gate.wait(LONGEST_WAIT_SECONDS)
        return Completed(lease, None)

    monkeypatch.setattr(executor, "execute", execute)
    runner = Executor(using="default", worker_id="busy", on_outcome=lambda *_: ended.release())

    for _ in range(3):
        runner.launch(holding())
    until(lambda: len(begun) == 3, "three tasks run")
    for _ in range(5):
        runner.launch(holding())
        assert ended.acquire(timeout=LONGEST_WAIT_SECONDS), "a short task runs beside the long ones"
    gate.set()

    assert runner.stop(LONGEST_WAIT_SECONDS)
    assert len(begun) == 8


def test_what_no_thread_has_taken_up_can_be_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Executor(using="default", worker_id="drains", on_outcome=lambda *_: None)
    monkeypatch.setattr(runner, "_run_unstarted", lambda: None)
    launched = [holding() for _ in range(3)]
    for one in launched:
        runner.launch(one)

    assert runner.take_unstarted() == launched
    assert runner.take_unstarted() == []
    assert runner.stop(LONGEST_WAIT_SECONDS)
