"""The front door: enqueuing through the framework's tasks, and reading results back."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import IntegrityError, connection, transaction
from django.test import TestCase, override_settings
from django.test.utils import CaptureQueriesContext

from tenantfair import runs
from tenantfair.backend import TenantFairBackend, for_tenant
from tenantfair.compat import (
    DEFAULT_TASK_BACKEND_ALIAS,
    AnyTaskResult,
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    register_checks,
    signals,
    task,
    task_backends,
)
from tenantfair.exceptions import InvalidPayload, InvalidRun
from tenantfair.models import Run
from tenantfair.runs import NewRun
from tenantfair.tenants import tenant
from tenantfair.testing import drain
from tests import tasks_for_tests as tasks
from tests.domains import scratch_domain
from tests.rows import sessions

BACKEND = "tenantfair.backend.TenantFairBackend"
PAST = datetime(2020, 1, 1, tzinfo=UTC)
FUTURE = datetime(2999, 1, 1, tzinfo=UTC)


def with_backends(**backends: dict[str, Any]) -> Any:
    return override_settings(
        TASKS={alias: {"BACKEND": BACKEND, **params} for alias, params in backends.items()}
    )


@pytest.fixture(autouse=True)
def acme() -> Iterator[None]:
    """Every run of these tests is for "acme"."""
    with tenant("acme"):
        yield


@pytest.mark.django_db
class TestEnqueue:
    @pytest.mark.parametrize("task", [tasks.add, tasks.add_async])
    def test_it_creates_a_run_and_returns_its_ready_result(self, task: Any) -> None:
        result = task.enqueue(1, right=2)

        view = runs.get(result.id)
        assert (view.task_path, view.args, view.kwargs) == (task.module_path, [1], {"right": 2})
        assert (view.state, view.queue_name, view.backend) == ("queued", "default", "default")
        assert (result.status, result.is_finished, result.attempts) == (TaskResultStatus.READY, False, 0)
        assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
        assert (result.errors, result.worker_ids) == ([], [])
        assert result.enqueued_at == view.enqueued_at

    def test_the_same_from_a_coroutine(self) -> None:
        result = async_to_sync(tasks.add.aenqueue)(1)

        assert async_to_sync(tasks.add.aget_result)(result.id) == result

    def test_tuples_come_back_as_lists(self) -> None:
        result = tasks.echo.enqueue((1, 2), key=(3,))

        assert (result.args, result.kwargs) == ([[1, 2]], {"key": [3]})
        assert (runs.get(result.id).args, runs.get(result.id).kwargs) == ([[1, 2]], {"key": [3]})

    def test_a_time_is_kept_to_the_microsecond(self) -> None:
        result = tasks.add.using(run_after=FUTURE.replace(microsecond=7)).enqueue(1)

        assert (runs.get(result.id).state, runs.get(result.id).wake_at) == (
            "scheduled",
            FUTURE.replace(microsecond=7),
        )

    def test_a_timedelta_counts_from_the_enqueue_by_the_clock_of_the_database(self) -> None:
        later: Any = tasks.add.using(run_after=timedelta(hours=1))

        first, second = later.enqueue(1), later.using(queue_name="default").enqueue(1)

        for result in (first, second):
            view = runs.get(result.id)
            assert view.wake_at is not None
            assert timedelta(minutes=59) < view.wake_at - view.enqueued_at < timedelta(minutes=61)

    @pytest.mark.parametrize("invalid", [datetime(2999, 1, 1), timedelta(days=10**6), timedelta(hours=-1)])
    def test_a_time_that_cannot_be_stored_is_an_invalid_task(self, invalid: Any) -> None:
        with pytest.raises(InvalidTask, match="run_after"):
            tasks.add.using(run_after=invalid).enqueue(1)

    @pytest.mark.parametrize("priority", [-1, 1, 100])
    def test_priority_is_refused_by_the_flag_of_the_backend(self, priority: int) -> None:
        with pytest.raises(InvalidTask, match="priority"):
            tasks.add.using(priority=priority)

    def test_a_queue_is_checked_when_named_and_again_when_used(self) -> None:
        with with_backends(default={"QUEUES": ["default", "slow"]}):
            slow = tasks.add.using(queue_name="slow")
            assert runs.get(slow.enqueue(1).id).queue_name == "slow"
            with pytest.raises(InvalidTask, match="fast"):
                tasks.add.using(queue_name="fast")
        with pytest.raises(InvalidTask, match="slow"):
            slow.enqueue(1)

    @pytest.mark.parametrize("argument", [datetime.now(UTC), uuid.uuid4(), {1}, object()])
    def test_arguments_that_json_does_not_know_are_the_frameworks_type_error(self, argument: Any) -> None:
        with pytest.raises(TypeError, match="Unsupported type"):
            tasks.echo.enqueue(argument)
        assert not Run.objects.exists()

    @pytest.mark.conformance(105)
    @pytest.mark.parametrize(
        "argument",
        [
            math.nan,
            math.inf,
            "a\0",
            {"a\0": 1},
            "\ud800",
            b"\xff",
            tasks.nested(100),
            tasks.nested(20_000),
            "x" * 300_000,
        ],
        ids=["nan", "infinity", "NUL", "NUL in a key", "surrogate", "bytes", "deep", "deeper", "large"],
    )
    def test_arguments_that_cannot_be_stored_are_refused_and_nothing_is_written(self, argument: Any) -> None:
        with pytest.raises(InvalidPayload):
            tasks.echo.enqueue(argument)
        with pytest.raises(InvalidPayload):
            tasks.echo.enqueue(key=argument)
        assert not Run.objects.exists()

    @pytest.mark.conformance(105)
    def test_a_task_that_no_worker_could_find_is_refused(self) -> None:
        hidden: Any = task()(tasks.not_a_task)

        with pytest.raises(InvalidTask, match="not_a_task"):
            hidden.enqueue()
        assert not Run.objects.exists()

    def test_it_costs_one_statement(self) -> None:
        with CaptureQueriesContext(connection) as queries:
            tasks.add.enqueue(1)

        assert len(queries) == 1

    def test_a_plain_task_of_another_backend_can_be_moved_in(self) -> None:
        with override_settings(
            TASKS={
                "default": {"BACKEND": f"{Task.__module__.split('.base')[0]}.backends.dummy.DummyBackend"},
                "fair": {"BACKEND": BACKEND},
            }
        ):
            result = tasks.add.using(backend="fair").enqueue(1)
            assert runs.get(result.id).backend == "fair"
            (outcome,) = drain()

        assert outcome.result == 2


@pytest.mark.django_db(transaction=True)
class TestOptionsOfTheApi:
    def test_the_options_of_a_tasks_backend_hold_for_its_runs(self) -> None:
        with scratch_domain("tf_backend") as alias:
            options = {"retry_limit": 7, "database": alias}
            with with_backends(default={}, gpu={"OPTIONS": options}):
                task = tasks.fail.using(backend="gpu")
                one = runs.enqueue(task, tenant_id="acme")
                (many,) = runs.enqueue_many([NewRun(task=task, tenant_id="acme")])
                told = runs.enqueue(task, tenant_id="acme", retry_limit=1, using="default")

                assert [runs.get(each, using=alias).retry_limit for each in (one, many)] == [7, 7]
                assert runs.get(told).retry_limit == 1
                assert Run.objects.count() == 1
                assert task.get_backend().get_result(str(one)).id == str(one)

    def test_runs_of_several_databases_are_not_enqueued_together(self) -> None:
        with scratch_domain("tf_backend") as alias:
            with with_backends(default={}, gpu={"OPTIONS": {"database": alias}}):
                both = [
                    NewRun(task=tasks.add.using(backend=name), tenant_id="acme")
                    for name in ("default", "gpu")
                ]
                with pytest.raises(InvalidRun, match=f"default, {alias}"):
                    runs.enqueue_many(both)
                assert (Run.objects.count(), Run.objects.using(alias).count()) == (0, 0)

                runs.enqueue_many(both, using=alias)

            assert (Run.objects.count(), Run.objects.using(alias).count()) == (0, 2)


@pytest.mark.django_db
class TestOptions:
    def test_a_retry_limit_of_the_alias(self) -> None:
        with with_backends(default={"OPTIONS": {"retry_limit": 0}}):
            assert runs.get(tasks.fail.enqueue().id).retry_limit == 0

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            (None, "mapping"),
            ({"unknown": 1}, "unknown"),
            ({"tenant": "no.such.callable"}, "tenant"),
            ({"tenant": 7}, "tenant"),
            ({"retry_limit": -1}, "retry_limit"),
            ({"retry_limit": True}, "retry_limit"),
            ({"retry_limit": "3"}, "retry_limit"),
            ({"retry_limit": 32_768}, "retry_limit"),
            ({"database": "no_such_alias"}, "database"),
            ({"database": ["default"]}, "database"),
        ],
    )
    def test_what_cannot_work_is_a_finding_of_the_check_and_an_error_at_enqueue(
        self, options: Any, named: str
    ) -> None:
        with with_backends(default={"OPTIONS": options}):
            (finding,) = task_backends["default"].check()
            with pytest.raises(InvalidTaskBackend, match=named):
                tasks.add.enqueue(1)

        assert finding.id == "tenantfair.E101"
        assert named in finding.msg

    def test_the_check_finds_nothing_wrong_without_asking_the_database(self) -> None:
        valid = {"tenant": "tests.test_backend.named_tenant", "retry_limit": 3, "database": "default"}
        with with_backends(default={"OPTIONS": valid}), CaptureQueriesContext(connection) as queries:
            assert task_backends["default"].check() == []
            assert len(queries) == 0

    def test_manage_py_check_reports_it(self) -> None:
        from django.core.checks import run_checks

        register_checks()
        with with_backends(default={"OPTIONS": {"unknown": 1}}):
            assert "tenantfair.E101" in [finding.id for finding in run_checks()]


def named_tenant() -> str:
    return "named"


class InTransactions(TestCase):
    """Enqueuing is part of the caller's transaction."""

    def setUp(self) -> None:
        self.enterContext(tenant("acme"))

    def test_a_rolled_back_savepoint_leaves_nothing(self) -> None:
        with transaction.atomic():
            result = tasks.add.enqueue(1)
            transaction.set_rollback(True)

        with pytest.raises(TaskResultDoesNotExist):
            tasks.add.get_result(result.id)

    def test_nothing_waits_for_on_commit(self) -> None:
        with self.captureOnCommitCallbacks() as callbacks:
            result = tasks.add.enqueue(1)

        assert Run.objects.filter(run_id=result.id).exists()
        assert [call for call in callbacks if "tenantfair.backend" in str(call)] == []

    def test_a_refused_enqueue_leaves_the_transaction_usable(self) -> None:
        for refused in (lambda: tasks.echo.enqueue("a\0"), lambda: for_tenant(tasks.echo, " a").enqueue()):
            with pytest.raises((InvalidPayload, InvalidTask)):
                refused()

        assert Run.objects.count() == 0

    def test_durable_blocks_may_enqueue(self) -> None:
        with transaction.atomic(durable=True):
            result = tasks.add.enqueue(1)

        assert tasks.add.get_result(result.id) == result


@transaction.atomic
def enqueue_and_raise() -> None:
    tasks.fail.call(tasks.add.enqueue(1).id)


@transaction.atomic
def enqueue_and_break_a_constraint() -> None:
    tasks.add.enqueue(1)
    tasks.break_a_constraint.call()


@pytest.mark.django_db(transaction=True)
class TestVisibility:
    """What others see, on a second connection."""

    def test_a_run_is_visible_if_and_only_if_its_transaction_commits(self) -> None:
        with sessions() as another:
            other = another()

            def seen() -> int:
                return other.execute("SELECT count(*) FROM tenantfair_run").fetchone()[0]

            with transaction.atomic():
                tasks.add.enqueue(1)
                before_commit = seen()
            after_commit = seen()
            with pytest.raises(ValueError, match="-"):
                enqueue_and_raise()

            assert (before_commit, after_commit, seen()) == (0, 1, 1)

    def test_a_later_error_of_the_caller_takes_the_run_back(self) -> None:
        with pytest.raises(IntegrityError):
            enqueue_and_break_a_constraint()

        assert not Run.objects.exists()


@pytest.mark.django_db
class TestResults:
    @pytest.mark.parametrize(
        ("columns", "status"),
        [
            ({}, "READY"),
            ({"wake_at": FUTURE}, "READY"),
            ({"tenant_admitted_at": PAST}, "READY"),
            ({"status": "waiting", "wake_at": None}, "READY"),
            ({"wake_at": None, "claim_token": uuid.uuid4(), "claimed_at": PAST}, "RUNNING"),
            ({"status": "completed", "wake_at": None, "finished_at": PAST}, "SUCCESSFUL"),
            ({"status": "failed", "wake_at": None, "finished_at": PAST}, "FAILED"),
            ({"status": "cancelled", "wake_at": None, "finished_at": PAST}, "FAILED"),
            ({"wake_at": None, "poisoned_at": PAST, "poison_reason": "test"}, "FAILED"),
        ],
        ids=[
            "queued",
            "scheduled",
            "ready",
            "waiting",
            "claimed",
            "completed",
            "failed",
            "cancelled",
            "poisoned",
        ],
    )
    def test_every_state_has_its_status(self, columns: dict[str, Any], status: str) -> None:
        result = tasks.add.enqueue(1)
        Run.objects.filter(run_id=result.id).update(**columns)

        result.refresh()

        assert result.status == status
        assert result.finished_at == (PAST if result.is_finished else None)

    def test_a_completed_run_has_its_value(self) -> None:
        result = tasks.add.enqueue(1)
        drain()

        result.refresh()

        assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 2, 1)
        assert None not in (result.started_at, result.last_attempted_at, result.finished_at)

    def test_a_failed_run_has_its_errors_and_no_value(self) -> None:
        result = for_tenant(tasks.fail, "acme").enqueue("because")
        Run.objects.filter(run_id=result.id).update(retry_limit=0)
        drain()

        result.refresh()

        assert [error.exception_class for error in result.errors] == [ValueError]
        assert "because" in result.errors[0].traceback
        with pytest.raises(ValueError, match="Task failed"):
            _ = result.return_value

    def test_a_run_that_failed_once_is_ready_again_with_its_error(self) -> None:
        result = tasks.fail.enqueue()
        drain()

        result.refresh()

        assert result.status == TaskResultStatus.READY
        assert result.errors[0].exception_class is ValueError

    @pytest.mark.parametrize("missing", ["123", "", "no uuid", str(uuid.uuid4())])
    def test_an_id_of_no_run_does_not_exist(self, missing: str) -> None:
        with pytest.raises(TaskResultDoesNotExist):
            tasks.add.get_result(missing)

    def test_the_result_of_another_task_is_a_mismatch(self) -> None:
        result = tasks.add.enqueue(1)

        with pytest.raises(TaskResultMismatch):
            tasks.echo.get_result(result.id)

    def test_the_result_of_a_task_that_is_gone_is_a_mismatch(self) -> None:
        result = tasks.add.enqueue(1)
        Run.objects.filter(run_id=result.id).update(task_path="tests.gone.task")

        with pytest.raises(TaskResultMismatch, match=r"tests\.gone\.task"):
            tasks.add.get_result(result.id)

    def test_a_run_of_the_facade_has_a_result_too(self) -> None:
        run_id = runs.enqueue(tasks.add, args=[1], tenant_id="acme")

        assert tasks.add.get_result(str(run_id)).status == TaskResultStatus.READY

    def test_flags_say_what_the_backend_can(self) -> None:
        backend = task_backends[DEFAULT_TASK_BACKEND_ALIAS]

        assert isinstance(backend, TenantFairBackend)
        assert (backend.supports_defer, backend.supports_async_task, backend.supports_get_result) == (
            True,
            True,
            True,
        )
        assert not backend.supports_priority


@pytest.mark.django_db
class TestEnqueuedSignal:
    @pytest.fixture
    def told(self) -> Iterator[list[Any]]:
        heard: list[Any] = []

        def receiver(sender: Any, task_result: AnyTaskResult, **kwargs: Any) -> None:
            heard.append((sender, task_result.id, Run.objects.filter(run_id=task_result.id).exists()))

        signals.task_enqueued.connect(receiver)
        yield heard
        signals.task_enqueued.disconnect(receiver)

    def test_it_is_sent_once_the_run_is_written_in_the_callers_transaction(self, told: list[Any]) -> None:
        with transaction.atomic():
            result = tasks.add.enqueue(1)
            assert told == [(TenantFairBackend, result.id, True)]

    def test_a_refused_enqueue_sends_nothing(self, told: list[Any]) -> None:
        with pytest.raises(InvalidPayload):
            tasks.echo.enqueue("a\0")

        assert told == []

    def test_a_receiver_that_raises_does_not_take_the_id_from_the_caller(self) -> None:
        def receiver(**kwargs: Any) -> None:
            raise ValueError("no")

        signals.task_enqueued.connect(receiver)
        try:
            assert Run.objects.filter(run_id=tasks.add.enqueue(1).id).exists()
        finally:
            signals.task_enqueued.disconnect(receiver)
