"""Storing outcomes beside what goes wrong: held counts, refusals, sessions and backends that fail."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.db import OperationalError, connection

from tenantfair import runs
from tenantfair.models import Run
from tenantfair.runs import Completed, Settlement
from tenantfair.worker import EXIT_DRAINED, Worker, completer
from tests.factories import claimed_lease, policy_in_force, run_in
from tests.rows import sessions
from tests.test_worker_batches import Storing
from tests.worker_parts import GATES, NEVER, logging_that_raises, running, store, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def domain() -> None:
    policy_in_force()


@pytest.fixture
def storing(monkeypatch: pytest.MonkeyPatch) -> Storing:
    return Storing(monkeypatch, places=2)


def before_settling(monkeypatch: pytest.MonkeyPatch, act: Callable[[list[Any]], None]) -> None:
    """Have `act` called with the leases of each batch, in the completer's thread, before it is stored."""
    settle = runs.settle

    def acting(outcomes: Any, **options: Any) -> Settlement:
        act([outcome.lease for outcome in outcomes])
        return settle(outcomes, **options)

    monkeypatch.setattr(runs, "settle", acting)


def states() -> dict[str | None, str]:
    return {run.tenant_id: runs.get(run.run_id).state for run in Run.objects.all()}


def test_a_held_count_keeps_only_its_own_tenants_outcomes_waiting() -> None:
    """A host's transaction that has folded holds the count of its tenant until it ends."""
    for name in ("held", "neighbour"):
        run_in("queued", task_path="tests.worker_tasks.meet", args=[name], tenant_id=name)
    with sessions() as connect, running(Worker(interval=0.05, concurrency=2)) as code:
        for name in ("held", "neighbour"):
            GATES.wait(f"{name} started")
        host = connect()
        host.execute("BEGIN")
        host.execute(
            "INSERT INTO tenantfair_run (tenant_id, task_path, status) VALUES ('held', 'x', 'waiting')"
        )
        host.execute("SELECT tenantfair_fold()")
        GATES["held"].set()
        GATES["neighbour"].set()
        until(lambda: states()["neighbour"] == "completed", "the neighbour's outcome is stored")
        for tenant in ("a", "b", "c"):
            run_in("queued", task_path="tests.worker_tasks.thread_name", args=[], tenant_id=tenant)
        until(lambda: {*states().values()} == {"completed", "claimed"}, "other tenants go on")
        assert states()["held"] == "claimed"
        host.execute("ROLLBACK")
        until(lambda: states()["held"] == "completed", "the outcome is stored")

    assert code.result(timeout=5) == EXIT_DRAINED


def test_of_blocked_outcomes_one_of_a_tenant_is_tried_alone(
    storing: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a held count costs one short wait at a time, however many outcomes wait for it."""
    monkeypatch.setattr(completer, "_LONGEST_PAUSE", 0.0)
    settle = runs.settle
    batches: list[int] = []
    held = True

    def blocked(outcomes: Any, **options: Any) -> Settlement:
        batches.append(len(outcomes))
        if held:
            found = frozenset(outcome.lease.run_id for outcome in outcomes)
            return Settlement(frozenset(), busy=found, blocked=found)
        return settle(outcomes, **options)

    monkeypatch.setattr(runs, "settle", blocked)
    holdings = storing.take(2)
    monkeypatch.setattr(completer, "_GATHER_SECONDS", NEVER)
    monkeypatch.setattr(completer, "_SUCCESSION_SECONDS", NEVER)
    with storing.running():
        for holding in holdings:
            storing.end(holding)
        until(lambda: len(batches) >= 5, "the outcomes are tried again and again")
        assert storing.holdings.free == 2
        held = False
        until(lambda: len(storing.holdings) == 0, "both are stored")

    assert batches[0] == 2
    assert set(batches[1:]) == {1}


def test_an_outcome_of_a_blocked_tenant_waits_with_those_before_it_and_spoils_no_batch(
    storing: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completer, "backoff", lambda tries, longest: NEVER)
    settle = runs.settle
    tried: list[set[str | None]] = []

    def blocked(outcomes: Any, **options: Any) -> Settlement:
        tried.append({outcome.lease.tenant_id for outcome in outcomes})
        if "held" not in tried[-1]:
            return settle(outcomes, **options)
        found = frozenset(outcome.lease.run_id for outcome in outcomes)
        return Settlement(frozenset(), busy=found, blocked=found)

    monkeypatch.setattr(runs, "settle", blocked)
    first, second, neighbour = [
        storing.holdings.take(claimed_lease(tenant_id=name)) for name in ("held", "held", "neighbour")
    ]
    with storing.running():
        storing.end(first)
        until(lambda: any(pending.blocked for pending in storing.completer._queue), "the first is blocked")
        storing.end(second)
        assert not second.occupies
        storing.end(neighbour)
        until(lambda: len(storing.holdings) == 2, "the neighbour's outcome is stored")

    assert tried == [{"held"}, {"neighbour"}]


def test_a_tenant_whose_outcomes_are_blocked_takes_turns_with_the_others(
    storing: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completer, "_LONGEST_PAUSE", 0.0)
    settle = runs.settle
    turns: list[str | None] = []

    def blocked(outcomes: Any, **options: Any) -> Settlement:
        turns.append(outcomes[0].lease.tenant_id)
        if turns[-1] == "held":
            found = frozenset(outcome.lease.run_id for outcome in outcomes)
            return Settlement(frozenset(), busy=found, blocked=found)
        return settle(outcomes, **options)

    monkeypatch.setattr(runs, "settle", blocked)
    held, *others = [storing.holdings.take(claimed_lease(tenant_id=name)) for name in ("held", "a", "b")]
    with storing.running():
        storing.end(held)
        until(lambda: len(turns) >= 3, "the blocked outcome is tried all the time")
        for other in others:
            storing.end(other)
        until(lambda: len(storing.holdings) == 1, "the others are stored all the same")


def test_an_outcome_that_fails_gives_its_place_back(
    storing: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, neighbour = storing.take(2)

    def fail(leases: list[Any]) -> None:
        connection.ensure_connection()
        if failing.lease in leases:
            raise OperationalError("not now")

    before_settling(monkeypatch, fail)
    with storing.running():
        storing.end(failing)
        storing.end(neighbour)
        until(lambda: storing.holdings.free == 2, "both places are free")
        until(lambda: len(storing.holdings) == 1, "the neighbour's outcome is stored")

    assert runs.get(failing.lease.run_id).state == "claimed"
    assert runs.get(neighbour.lease.run_id).state == "completed"


def test_a_session_that_has_become_read_only_is_replaced_at_once(
    storing: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a primary that has become a standby."""
    monkeypatch.setattr(completer, "_FAILURES_PER_SESSION", 1_000_000)
    tries: list[int] = []

    def demote(leases: list[Any]) -> None:
        tries.append(1)
        if len(tries) == 1:
            with connection.cursor() as cursor:
                cursor.execute("SET default_transaction_read_only = on")

    before_settling(monkeypatch, demote)
    (only,) = storing.take(1)
    with storing.running():
        storing.end(only)
        until(lambda: len(storing.holdings) == 0, "the outcome is stored")

    assert (Run.objects.get().status, len(tries)) == ("completed", 2)


def test_a_session_that_fails_again_and_again_is_replaced(
    storing: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt: list[int] = []

    def fail_in_the_first_session(leases: list[Any]) -> None:
        connection.ensure_connection()
        spoilt.append(connection.connection.info.backend_pid)
        if spoilt[-1] == spoilt[0]:
            raise OperationalError("this session does not like you")

    before_settling(monkeypatch, fail_in_the_first_session)
    (only,) = storing.take(1)
    with storing.running():
        storing.end(only)
        until(lambda: len(storing.holdings) == 0, "the outcome is stored")

    assert len(set(spoilt)) == 2


def test_what_a_hosts_backend_raises_while_it_connects_fails_no_run(
    storing: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that fetches a token for each new session."""

    class NoCredentials(Exception):
        pass

    tries: list[int] = []

    def refuse(leases: list[Any]) -> None:
        tries.append(len(leases))
        if len(tries) < 4:
            connection.close()
            raise NoCredentials("the token service is away")

    before_settling(monkeypatch, refuse)
    (only,) = storing.take(1)
    with storing.running():
        storing.end(only)
        until(lambda: len(storing.holdings) == 0, "the outcome is stored")

    assert Run.objects.get().status == "completed"


def test_no_exception_ends_the_completer(
    storing: Storing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def report(event: str, **fields: Any) -> None:
        raise RuntimeError("an observer, not guarded here")

    monkeypatch.setattr(storing.completer, "_report", report)
    first, second = storing.take(2)
    with caplog.at_level(logging.CRITICAL, "tenantfair.worker"), storing.running():
        storing.end(first)
        until(lambda: storing.holdings.free == 1, "the first outcome is stored")
        storing.end(second)
        until(lambda: len(storing.holdings) == 0, "the second one too")

    assert set(Run.objects.values_list("status", flat=True)) == {"completed"}
    assert {record.event for record in caplog.records} == {"completer_failed"}


def test_a_neighbour_is_stored_though_one_outcome_cannot_be_sent(
    storing: Storing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is raised: the batch is tried one by one."""
    monkeypatch.setattr(completer, "_GATHER_SECONDS", NEVER)
    monkeypatch.setattr(completer, "_SUCCESSION_SECONDS", NEVER)
    bad, good = storing.take(2)

    def refuse(leases: list[Any]) -> None:
        connection.ensure_connection()
        if bad.lease in leases:
            raise OverflowError

    before_settling(monkeypatch, refuse)
    with storing.running():
        storing.completer.put(bad, Completed(bad.lease, 1), 0.0)
        storing.completer.put(good, Completed(good.lease, 1), 0.0)
        until(lambda: len(storing.holdings) == 1, "the neighbour's outcome is stored")

    assert runs.get(good.lease.run_id).state == "completed"


@pytest.mark.parametrize("event", ["outcome_failed", "fence_lost", "run_settled"])
def test_nothing_that_logging_raises_ends_the_completer_or_keeps_a_lease(
    event: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, logger="tenantfair.worker")
    lease = claimed_lease()
    if event == "fence_lost":
        Run.objects.update(claim_token=uuid4())
    if event == "outcome_failed":
        settle, failures = runs.settle, iter([OperationalError("away")])

        def fail_once(outcomes: Any, **options: Any) -> Settlement:
            for failure in failures:
                raise failure
            return settle(outcomes, **options)

        monkeypatch.setattr(runs, "settle", fail_once)
    with logging_that_raises("tenantfair.worker"):
        store(Completed(lease, 1))
