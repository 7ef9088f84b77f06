"""`drain()` runs what is due, within a test's transaction or outside of one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import TestCase

from tenantfair import policy, runs
from tenantfair.backend import for_tenant
from tenantfair.models import Run
from tenantfair.runs import Abandoned, Completed, Failed, Retry, Waiting
from tenantfair.testing import drain
from tests import tasks_for_tests as tasks


def enqueue(task: Any, *args: Any, tenant: str = "acme", **options: Any) -> Any:
    return runs.enqueue(task, args=args, tenant_id=tenant, **options)


class InATestCase(TestCase):
    """As a host writes its tests."""

    def test_runs_what_was_enqueued_in_the_tests_transaction(self) -> None:
        result = for_tenant(tasks.add, "acme").enqueue(1, right=2)

        assert [type(outcome) for outcome in drain()] == [Completed]

        result.refresh()
        assert (result.return_value, result.attempts) == (3, 1)
        assert drain() == []

    def test_durable_blocks_work_in_tasks(self) -> None:
        for_tenant(tasks.in_a_durable_block, "acme").enqueue()

        assert [type(outcome) for outcome in drain()] == [Completed]

    def test_leaves_the_transaction_open(self) -> None:
        enqueue(tasks.add, 1)
        drain()

        assert connection.in_atomic_block
        assert connection.connection is not None


@pytest.mark.django_db
class TestDrain:
    def test_it_goes_on_until_nothing_is_due(self) -> None:
        enqueue(tasks.three_steps)
        enqueue(tasks.fail, retry_limit=0)
        enqueue(tasks.add, 1, run_after=timedelta(hours=1))

        outcomes = drain()

        assert sorted(type(outcome).__name__ for outcome in outcomes) == [
            "Completed",
            "Retry",
            "Snoozed",
            "Yielded",
        ]
        assert sorted(Run.objects.values_list("status", flat=True)) == ["completed", "failed", "running"]

    def test_runs_that_tasks_enqueue_are_run_for_the_same_tenant(self) -> None:
        enqueue(tasks.enqueue_another)
        enqueue(tasks.enqueue_another, "other")

        assert len(drain()) == 4
        assert sorted(
            Run.objects.filter(task_path=tasks.echo.module_path).values_list("tenant_id", flat=True)
        ) == [
            "acme",
            "other",
        ]

    def test_a_signal_wakes_what_waits(self) -> None:
        run_id = enqueue(tasks.approval)
        assert [type(outcome) for outcome in drain()] == [Waiting]
        assert runs.get(run_id).state == "waiting"

        runs.signal(run_id, {"by": "someone"})

        assert [type(outcome) for outcome in drain()] == [Completed]
        assert runs.get(run_id).result == ["asked", [{"by": "someone"}]]

    def test_a_signal_before_the_wait_is_not_lost(self) -> None:
        run_id = enqueue(tasks.approval)
        runs.signal(run_id, 1)

        assert [type(outcome) for outcome in drain()] == [Completed]
        assert runs.get(run_id).result == [None, [1]]

    def test_every_tenant_is_served_on_a_ring_of_many_scopes_without_work(self) -> None:
        for number in range(70):
            enqueue(tasks.add, 1, tenant=f"dormant-{number}", run_after=timedelta(hours=1))
        enqueue(tasks.add, 1, tenant="last")

        assert [outcome.lease.tenant_id for outcome in drain()] == ["last"]

    def test_the_cap_of_the_tenant_holds(self) -> None:
        policy.synchronize()
        policy.put_override("acme", 1)
        for _ in range(3):
            enqueue(tasks.add, 1)

        assert len(drain()) == 3

    @pytest.mark.parametrize("task", [tasks.break_the_transaction, tasks.break_a_constraint])
    def test_a_task_that_breaks_the_transaction_leaves_the_test_usable(self, task: Any) -> None:
        run_id = enqueue(task, retry_limit=0)
        enqueue(tasks.add, 1)

        assert [type(outcome) for outcome in drain()] == [Retry, Completed]
        assert runs.get(run_id).state == "failed"

    def test_a_coroutine_sees_what_the_test_wrote(self) -> None:
        enqueue(tasks.count_runs_async)

        (outcome,) = drain()

        assert outcome.result == 1

    def test_what_never_ends_is_an_error(self) -> None:
        enqueue(tasks.for_ever)

        with pytest.raises(RuntimeError, match="for_ever"):
            drain(limit=5)

    def test_every_kind_of_bad_run_gets_its_own_outcome(self) -> None:
        bad = [enqueue(tasks.add, 1) for _ in range(3)]
        Run.objects.filter(run_id=bad[0]).update(task_path="tests.tasks_for_tests.gone")
        Run.objects.filter(run_id=bad[1]).update(args={"left": 1})
        Run.objects.filter(run_id=bad[2]).update(kwargs=[1])
        good = [enqueue(tasks.add, number) for number in range(3)]

        outcomes = drain()

        assert [type(outcome) for outcome in outcomes] == [
            Abandoned,
            Failed,
            Failed,
            Completed,
            Completed,
            Completed,
        ]
        assert [runs.get(run_id).state for run_id in bad + good] == ["scheduled", "failed", "failed"] + [
            "completed"
        ] * 3
        assert (runs.get(bad[0]).claim_attempts, runs.get(bad[0]).claim_abandons) == (0, 1)


@pytest.mark.django_db(transaction=True)
def test_outside_a_transaction_everything_commits() -> None:
    run_id = enqueue(tasks.add, 1)

    drain()

    assert not transaction.get_connection().in_atomic_block
    assert runs.get(run_id).state == "completed"
