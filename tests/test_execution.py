"""One lease becomes one outcome, whatever the task does. No worker runs here, and mostly no database."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction

from tenantfair import claim, metrics, policy, runs
from tenantfair.claim.base import Lease
from tenantfair.compat import AnyTaskResult, TaskContext, signals
from tenantfair.exceptions import InvalidPayload, StaleClaim
from tenantfair.execution import LeaseMonitor, RunContext, UnknownTask, execute, resolve
from tenantfair.execution.context import Attempt
from tenantfair.runs import UNSET, Abandoned, Completed, Failed, Released, Retry, Snoozed, Waiting, Yielded
from tests import tasks_for_tests as tasks
from tests.factories import policy_in_force
from tests.worker_parts import logging_that_raises

PAST = datetime(2020, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def lease_on(task: Any, *args: Any, kwargs: Any = None, **changes: Any) -> Lease:
    """A first start of `task`, a task object or a path, as a claim would hand it over."""
    values: dict[str, Any] = {
        "run_id": uuid.uuid4(),
        "claim_token": uuid.uuid4(),
        "claimed_at": PAST + HOUR,
        "attempt": 1,
        "checkpoint_seq": 0,
        "tenant_id": "acme",
        "task_path": task if isinstance(task, str) else task.module_path,
        "args": list(args),
        "kwargs": {} if kwargs is None else kwargs,
        "state": None,
        "signals": [],
        "failures": 0,
        "retry_limit": 3,
        "abandons": 0,
        "queue_name": "default",
        "backend": "default",
        "enqueued_at": PAST,
        "started_at": PAST + HOUR,
        "errors": [],
        "worker_ids": ["worker-1"],
        "work_class": "queued_ready",
        "eligible_at": PAST,
    }
    return Lease(**(values | changes))


def context_lease(*steps: Any, task: Any = tasks.with_context, **changes: Any) -> Lease:
    return lease_on(task, *[[name, arguments] for name, arguments in steps], **changes)


@contextmanager
def receiving(*receivers: tuple[Any, Any]) -> Iterator[None]:
    for signal, receiver in receivers:
        signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        for signal, receiver in receivers:
            signal.disconnect(receiver)


@pytest.fixture
def told() -> Iterator[list[tuple[str, AnyTaskResult, str]]]:
    """What receivers of the framework's signals hear: the signal, the result, its status at that moment."""
    heard: list[tuple[str, AnyTaskResult, str]] = []

    def started(task_result: AnyTaskResult, **kwargs: Any) -> None:
        heard.append(("started", task_result, task_result.status))

    def finished(task_result: AnyTaskResult, **kwargs: Any) -> None:
        heard.append(("finished", task_result, task_result.status))

    with receiving((signals.task_started, started), (signals.task_finished, finished)):
        yield heard


def heard(told: list[tuple[str, AnyTaskResult, str]]) -> list[tuple[str, str]]:
    return [(signal, str(status)) for signal, _, status in told]


def assert_storable(record: Any, limit: int = 10_000) -> None:
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    assert len(text.encode()) <= 2 * limit
    assert "\\u0000" not in text
    assert set(record) == {"exception_class_path", "traceback"}


class TestCalling:
    @pytest.mark.parametrize("task", [tasks.add, tasks.add_async])
    def test_a_returned_value_completes_the_run(self, task: Any) -> None:
        lease = lease_on(task, 2, kwargs={"right": 3})

        assert execute(lease) == Completed(lease, 5)

    def test_the_result_is_what_json_makes_of_it(self) -> None:
        assert execute(lease_on(tasks.echo, 1, kwargs={"a": [2]})).result == [[1], {"a": [2]}]
        assert execute(lease_on(tasks.pair, 1, 2)).result == [1, {"2": 1}]

    def test_a_synchronous_task_runs_in_the_calling_thread(self) -> None:
        assert execute(lease_on(tasks.where)).result[1] == threading.get_ident()

    def test_synchronous_parts_of_a_coroutine_run_in_the_calling_thread(self) -> None:
        assert execute(lease_on(tasks.where_async)).result[1] == threading.get_ident()

    @pytest.mark.django_db
    def test_a_coroutine_shares_the_database_connection_of_the_calling_thread(self) -> None:
        runs.enqueue(tasks.add, args=[1], tenant_id="acme")

        assert execute(lease_on(tasks.count_runs_async)).result == 1

    @pytest.mark.parametrize("task", [tasks.where, tasks.where_async])
    @pytest.mark.parametrize("tenant_id", ["acme", None])
    def test_the_tenant_of_the_run_is_current_in_the_task(self, task: Any, tenant_id: str | None) -> None:
        assert execute(lease_on(task, tenant_id=tenant_id)).result[0] == tenant_id

    def test_the_tenant_of_the_caller_does_not_reach_the_task(self) -> None:
        from tenantfair.tenants import current_tenant, tenant

        with tenant("caller"):
            assert execute(lease_on(tasks.where, tenant_id=None)).result[0] is None
            assert current_tenant() == "caller"

    def test_a_decorator_may_add_arguments_of_its_own(self) -> None:
        assert execute(lease_on(tasks.decorated, "given")).result == "added given"


class TestRaising:
    @pytest.mark.parametrize("task", [tasks.raise_named, tasks.raise_named_async])
    @pytest.mark.parametrize("name", tasks.RAISED)
    def test_whatever_a_task_raises_is_one_failed_attempt_with_a_storable_error(
        self, task: Any, name: str
    ) -> None:
        lease = lease_on(task, name)

        outcome = execute(lease)

        assert isinstance(outcome, Retry)
        assert (outcome.lease, outcome.delay) == (lease, None)
        assert_storable(outcome.error)

    @pytest.mark.parametrize("name", tasks.RAISED)
    def test_the_error_is_the_tasks_own_whatever_class_it_is(self, name: str) -> None:
        error = execute(lease_on(tasks.raise_named, name)).error

        assert error["exception_class_path"].endswith(f".{type(tasks.RAISED[name]).__name__}")

    def test_endless_recursion_is_one_failed_attempt(self) -> None:
        outcome = execute(lease_on(tasks.recurse))

        assert isinstance(outcome, Retry)
        assert outcome.error["exception_class_path"] == "builtins.RecursionError"

    def test_the_error_names_the_class_and_the_line(self) -> None:
        error = execute(lease_on(tasks.fail, "because")).error

        assert error["exception_class_path"] == "builtins.ValueError"
        assert "tasks_for_tests.py" in error["traceback"]
        assert "because" in error["traceback"]

    def test_an_error_that_cannot_be_described_is_still_one_failed_attempt(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(error: BaseException) -> None:
            raise MemoryError

        monkeypatch.setattr("tenantfair.payloads.error_record", broken)
        lease = lease_on(tasks.fail)

        outcome = execute(lease)

        assert isinstance(outcome, Retry)
        assert outcome.lease == lease
        assert_storable(outcome.error)

    @pytest.mark.parametrize("name", ["ValueError", "hostile"])
    def test_nothing_that_logging_raises_leaves_an_attempt(self, name: str) -> None:
        """A host's filter, or the class of the task's own exception when its traceback is told."""
        lease = lease_on(tasks.raise_hostile if name == "hostile" else tasks.fail)

        outcome: Any = None
        spoilt = logging_that_raises("tenantfair.execution") if name == "ValueError" else nullcontext()
        with suppress(BaseException), spoilt:  # the hostile one would end whoever reports the failure, too
            outcome = execute(lease)

        assert isinstance(outcome, Retry)
        assert outcome.lease == lease
        assert_storable(outcome.error)

    def test_the_tasks_own_error_is_stored_whatever_logging_raises(self) -> None:
        with logging_that_raises("tenantfair.execution"):
            outcome = execute(lease_on(tasks.fail, "because"))

        assert "because" in outcome.error["traceback"]

    def test_an_unknown_task_is_abandoned_whatever_logging_raises(self) -> None:
        with logging_that_raises("tenantfair.execution"):
            assert isinstance(execute(lease_on("tests.tasks_for_tests.no_such_task")), Abandoned)


class TestResults:
    @pytest.mark.parametrize("name", tasks.UNSTORABLE)
    def test_a_result_that_cannot_be_stored_fails_the_run_at_its_first_attempt(self, name: str) -> None:
        lease = lease_on(tasks.return_unstorable, name)

        outcome = execute(lease)

        assert isinstance(outcome, Failed)
        assert outcome.lease == lease
        assert_storable(outcome.error)

    def test_the_reason_says_that_it_was_the_result(self) -> None:
        error = execute(lease_on(tasks.return_unstorable, "nan")).error

        assert error["exception_class_path"] == "tenantfair.exceptions.InvalidPayload"
        assert "result" in error["traceback"]


class TestUnrunnable:
    """A host that cannot run a task gives it back; a call that can never work ends the run."""

    MODULES = {
        "unparsable": "def broken(:\n",
        "exiting": "import sys\nsys.exit(3)\n",
        "interrupted": "raise KeyboardInterrupt\n",
        "failing": "raise ValueError('a\\0b' + chr(0xD800) + 'x' * 100_000)\n",
        "unprintable": "from tests.tasks_for_tests import Unprintable\nraise Unprintable\n",
        "importing": "import no_such_module_anywhere\n",
        "unknown_queue": "from tenantfair.compat import task\n@task(queue_name='gone')\ndef broken(): pass\n",
    }

    @pytest.fixture
    def modules(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, text in self.MODULES.items():
            (tmp_path / f"{name}_module.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))

    @pytest.mark.usefixtures("modules")
    @pytest.mark.parametrize("name", MODULES)
    def test_a_module_that_cannot_be_imported_abandons_the_run(self, name: str) -> None:
        lease = lease_on(f"{name}_module.broken")

        outcome = execute(lease)

        assert isinstance(outcome, Abandoned)
        assert outcome.lease == lease
        assert f"{name}_module.broken" in outcome.reason
        assert len(outcome.reason.encode()) <= 1024
        assert "\0" not in outcome.reason

    @pytest.mark.parametrize(
        "path",
        [
            "tests.tasks_for_tests.no_such_task",
            "tests.tasks_for_tests.not_a_task",
            "tests.tasks_for_tests.add.func",
            "tests.tasks_for_tests",
            "tests.no_such_module.task",
            "os.system",
            "builtins.eval",
            "add",
            "",
            ".",
            "tests..add",
            "tests.tasks_for_tests.add\0",
            "tests/tasks_for_tests.add",
        ],
    )
    def test_a_path_that_names_no_task_abandons_the_run(self, path: str) -> None:
        assert isinstance(execute(lease_on(path)), Abandoned)

    def test_a_backend_alias_that_this_host_does_not_have_abandons_the_run(self) -> None:
        outcome = execute(lease_on(tasks.add, 1, backend="elsewhere"))

        assert isinstance(outcome, Abandoned)
        assert "elsewhere" in outcome.reason

    @pytest.mark.parametrize(
        ("allowed", "runs_it"),
        [
            (["tests.tasks_for_tests"], True),
            (["tests"], True),
            (["test"], False),
            (["tests.tasks"], False),
            ([], False),
            (None, True),
        ],
    )
    def test_only_modules_within_task_modules_are_imported(
        self, settings: Any, allowed: list[str] | None, runs_it: bool
    ) -> None:
        settings.TENANTFAIR = {**settings.TENANTFAIR, "TASK_MODULES": allowed}

        assert isinstance(execute(lease_on(tasks.add, 1)), Completed if runs_it else Abandoned)

    def test_a_queue_that_settings_no_longer_name_runs_all_the_same(self) -> None:
        assert execute(lease_on(tasks.add, 1, queue_name="gone")).result == 2

    @pytest.mark.parametrize(
        ("args", "kwargs"),
        [
            ({"left": 1}, {}),
            ("12", {}),
            (None, {}),
            ([1], []),
            ([1], None),
            ([1], "right"),
            ([], {}),
            ([1, 2, 3], {}),
            ([1], {"left": 2}),
            ([1], {"unknown": 2}),
        ],
    )
    def test_stored_arguments_that_do_not_fit_fail_the_run_without_a_call(
        self, told: list[Any], args: Any, kwargs: Any
    ) -> None:
        outcome = execute(lease_on(tasks.add)._replace(args=args, kwargs=kwargs))

        assert isinstance(outcome, Failed)
        assert outcome.error["exception_class_path"] == "builtins.TypeError"
        assert heard(told) == [("finished", "FAILED")]

    def test_the_context_counts_as_the_first_argument(self) -> None:
        assert isinstance(execute(lease_on(tasks.attempt_number)), Completed)
        assert isinstance(execute(lease_on(tasks.attempt_number, "one too many")), Failed)

    def test_one_batch_with_five_bad_runs_leaves_the_good_ones_alone(
        self, modules: None, told: list[Any]
    ) -> None:
        leases = [
            lease_on("tests.tasks_for_tests.no_such_task"),
            lease_on("unparsable_module.task"),
            lease_on("exiting_module.task"),
            lease_on(tasks.add, args={"left": 1}),
            lease_on(tasks.add, 1, 2, 3),
            *[lease_on(tasks.add, number) for number in (6, 7, 8)],
        ]

        outcomes = [execute(lease) for lease in leases]

        assert [type(outcome) for outcome in outcomes] == [Abandoned] * 3 + [Failed] * 2 + [Completed] * 3
        assert [outcome.result for outcome in outcomes[5:]] == [7, 8, 9]

    def test_resolve_binds_the_task_to_the_alias_of_the_run(self) -> None:
        found = resolve("tests.tasks_for_tests.add", "default")

        assert found == tasks.add
        assert found is not tasks.add
        with pytest.raises(UnknownTask):
            resolve("tests.tasks_for_tests.not_a_task", "default")


class TestSignals:
    """The framework's signals, sent with a result that is made from the lease alone."""

    def test_a_run_that_completes_is_started_and_finished(self, told: list[Any]) -> None:
        lease = lease_on(tasks.add, 2)

        execute(lease)

        assert heard(told) == [("started", "RUNNING"), ("finished", "SUCCESSFUL")]
        result = told[0][1]
        assert (result.id, result.task, result.backend) == (str(lease.run_id), tasks.add, "default")
        assert (result.args, result.kwargs, result.return_value) == ([2], {}, 3)
        assert (result.enqueued_at, result.started_at, result.last_attempted_at) == (
            PAST,
            PAST + HOUR,
            PAST + HOUR,
        )
        assert (result.worker_ids, result.attempts, result.errors) == (["worker-1"], 1, [])
        assert result.finished_at is not None

    def test_the_sender_is_the_class_of_the_backend(self) -> None:
        senders: list[Any] = []
        with receiving((signals.task_finished, lambda sender, **kwargs: senders.append(sender))):
            execute(lease_on(tasks.add, 2))

        assert [sender.__name__ for sender in senders] == ["TenantFairBackend"]

    @pytest.mark.parametrize(("failures", "ends"), [(0, False), (2, False), (3, True)])
    def test_finished_is_sent_for_the_last_failure_only(
        self, told: list[Any], failures: int, ends: bool
    ) -> None:
        outcome = execute(lease_on(tasks.fail, failures=failures, retry_limit=3))

        assert isinstance(outcome, Retry)
        assert heard(told) == [("started", "RUNNING"), *([("finished", "FAILED")] if ends else [])]

    def test_a_result_that_cannot_be_stored_finishes_as_failed(self, told: list[Any]) -> None:
        execute(lease_on(tasks.return_unstorable, "set"))

        assert heard(told) == [("started", "RUNNING"), ("finished", "FAILED")]
        assert told[1][1].errors[0].exception_class is InvalidPayload

    def test_finished_is_sent_while_the_error_is_being_handled(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        execute(lease_on(tasks.fail, failures=3))

        (logged,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert logged.name in {"django.tasks", "django_tasks"}
        assert logged.exc_info is not None
        assert logged.exc_info[0] is ValueError

    def test_a_failure_that_will_be_retried_is_logged_with_its_traceback(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        lease = lease_on(tasks.fail)

        execute(lease, worker_id="worker-1")

        (logged,) = [record for record in caplog.records if record.name == "tenantfair.execution"]
        assert (logged.event, logged.run_id, logged.worker_id) == (
            "attempt_failed",
            str(lease.run_id),
            "worker-1",
        )
        assert logged.exc_info is not None
        assert "acme" not in logged.getMessage()

    @pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt()])
    @pytest.mark.parametrize("signal", ["task_started", "task_finished"])
    def test_a_receiver_that_raises_loses_no_run(self, signal: str, error: BaseException) -> None:
        def receiver(**kwargs: Any) -> None:
            raise error

        with receiving((getattr(signals, signal), receiver)):
            assert execute(lease_on(tasks.add, 2)).result == 3
            assert isinstance(execute(lease_on(tasks.fail, failures=3)), Retry)

    def test_a_lost_run_sends_nothing(self, told: list[Any]) -> None:
        monitor = LeaseMonitor()

        with receiving((signals.task_started, lambda **_: monitor.lost.set())):
            assert isinstance(execute(lease_on(tasks.add, 2), monitor=monitor), Completed)

        assert [signal for signal, _, _ in told] == ["started"]

    def test_a_run_known_to_be_lost_is_not_called(self, told: list[Any]) -> None:
        monitor = LeaseMonitor()
        monitor.lost.set()
        lease = lease_on(tasks.add, 2)

        assert execute(lease, monitor=monitor) == Released(lease, started=False)
        assert told == []

    @pytest.mark.parametrize("task", [tasks.snooze_in_a_task_group, tasks.snooze_in_nested_groups])
    def test_an_end_in_a_group_of_its_own_is_an_end(self, task: Any) -> None:
        assert isinstance(execute(lease_on(task)), Snoozed)

    def test_an_end_among_errors_is_a_failure(self) -> None:
        assert isinstance(execute(lease_on(tasks.snooze_in_nested_groups, True)), Retry)

    @pytest.mark.parametrize("ending", [("wait", {}), ("yield_", {}), ("snooze", {"delay": 60})])
    def test_an_attempt_that_goes_on_later_is_not_finished(self, told: list[Any], ending: Any) -> None:
        execute(context_lease(ending))

        assert heard(told) == [("started", "RUNNING")]

    def test_earlier_errors_come_along(self, told: list[Any]) -> None:
        earlier = {"exception_class_path": "builtins.KeyError", "traceback": "..."}

        execute(lease_on(tasks.fail, failures=3, errors=[earlier, "not a record", None]))

        assert [error.exception_class for error in told[-1][1].errors] == [KeyError, ValueError]


class TestContext:
    def test_it_is_the_frameworks_context_with_the_run_in_it(self) -> None:
        lease = lease_on(tasks.attempt_number, worker_ids=["a", "b"], state={"page": 3})

        outcome = execute(lease)

        assert outcome.result == [str(lease.run_id), str(lease.run_id), 2, "acme", {"page": 3}]
        assert issubclass(RunContext, TaskContext)

    @pytest.mark.parametrize(
        ("step", "expected"),
        [
            (("yield_", {}), Yielded),
            (("yield_", {"state": None}), lambda lease: Yielded(lease, state=None)),
            (("wait", {"state": [1]}), lambda lease: Waiting(lease, state=[1])),
            (("wait", {}), lambda lease: Waiting(lease, state=UNSET)),
            (("snooze", {"delay": 60}), lambda lease: Snoozed(lease, delay=timedelta(seconds=60))),
            (
                ("snooze", {"delay": 0, "state": "s"}),
                lambda lease: Snoozed(lease, delay=timedelta(0), state="s"),
            ),
        ],
    )
    @pytest.mark.parametrize("task", [tasks.with_context, tasks.with_context_swallowing])
    def test_an_attempt_can_end_without_finishing(self, task: Any, step: Any, expected: Any) -> None:
        lease = context_lease(step, task=task)

        assert execute(lease) == expected(lease)

    def test_a_snooze_can_name_its_time(self) -> None:
        until = datetime(2999, 1, 1, tzinfo=UTC)

        outcome = execute(lease_on(tasks.snooze_until, until.isoformat()))

        assert (outcome.until, outcome.delay) == (until, None)

    @pytest.mark.parametrize(
        "until", ["2999-01-01T00:00:00", "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"]
    )
    def test_a_time_that_cannot_be_stored_is_refused_where_it_is_named(self, until: str) -> None:
        outcome = execute(lease_on(tasks.snooze_until, until))

        assert isinstance(outcome, Retry)
        assert outcome.error["exception_class_path"] == "tenantfair.exceptions.InvalidRun"

    @pytest.mark.parametrize("arguments", [{}, {"delay": -1}, {"delay": 10**9 * 86_000}])
    def test_a_snooze_takes_one_time_in_range(self, arguments: Any) -> None:
        assert isinstance(execute(context_lease(("snooze", arguments))), Retry)

    @pytest.mark.parametrize("step", ["checkpoint", "yield_", "wait"])
    def test_state_that_cannot_be_stored_is_refused_where_it_is_saved(self, step: str) -> None:
        outcome = execute(lease_on(tasks.save_nan, step))

        assert outcome.result == "refused"

    def test_signals_that_were_looked_at_go_with_the_wait(self) -> None:
        looked = context_lease(("signals", {}), ("wait", {}), signals=["a", "b"])
        unseen = context_lease(("wait", {}), signals=["a", "b"])

        assert execute(looked).consumed == 2
        assert execute(unseen).consumed == 0

    def test_signals_stay_over_a_yield(self) -> None:
        assert execute(context_lease(("signals", {}), ("yield_", {}), signals=["a"])).consumed == 0

    def test_ownership_and_draining_are_what_the_worker_knows(self) -> None:
        monitor = LeaseMonitor()
        owner, drain = context_lease(("still_owner", {})), context_lease(("should_yield", {}))
        seen = [execute(owner, monitor=monitor).result, execute(drain, monitor=monitor).result]
        monitor.draining.set()
        seen += [execute(owner, monitor=monitor).result, execute(drain, monitor=monitor).result]
        monitor.draining.clear()
        for lease in (owner, drain):
            monitor.lost.clear()
            with receiving((signals.task_started, lambda **_: monitor.lost.set())):
                seen.append(execute(lease, monitor=monitor).result)

        assert seen == [True, False, True, True, False, True]


@pytest.mark.django_db
class TestCheckpoints:
    @pytest.fixture
    def claimed(self) -> Any:
        """Enqueue a task for "acme" and claim it."""
        policy.synchronize()

        def enqueue_and_claim(task: Any, *args: Any) -> Lease:
            runs.enqueue(task, args=args, tenant_id="acme")
            (lease,) = claim.claim_due(1, allow_in_transaction=True).leases
            return lease

        return enqueue_and_claim

    @pytest.fixture
    def committed(self) -> Any:
        """As `claimed`, for tests whose transactions are real."""
        policy_in_force()

        def enqueue_and_claim(task: Any, *args: Any) -> Lease:
            runs.enqueue(task, args=args, tenant_id="acme")
            return claim.claim_due(1).leases[0]

        return enqueue_and_claim

    def test_the_next_attempt_finds_what_was_saved(self, claimed: Any) -> None:
        lease = claimed(tasks.with_context, ["checkpoint", {"state": {"page": 1}}], ["state", {}])

        outcome = execute(lease)

        assert outcome.result == {"page": 1}
        assert outcome.lease.checkpoint_seq == lease.checkpoint_seq + 1
        assert runs.get(lease.run_id).saved_state == {"page": 1}

    def test_the_outcome_follows_the_checkpoints_before_it(self, claimed: Any) -> None:
        lease = claimed(
            tasks.with_context, *[["checkpoint", {"state": n}] for n in range(3)], ["yield_", {"state": 9}]
        )

        outcome = execute(lease)

        assert runs.finish([outcome]) == {lease.run_id}
        assert runs.get(lease.run_id).saved_state == 9

    @pytest.mark.django_db(transaction=True)
    def test_an_attempt_that_ends_in_a_block_keeps_its_fence_and_loses_the_blocks_checkpoint(
        self, committed: Any
    ) -> None:
        lease = committed(tasks.checkpoint_and_snooze_in_a_block)

        outcome = execute(lease)

        assert outcome.lease.checkpoint_seq == lease.checkpoint_seq
        assert runs.finish([outcome]) == {lease.run_id}
        assert runs.get(lease.run_id).saved_state == "snoozed"

    @pytest.mark.django_db(transaction=True)
    def test_a_checkpoint_holds_though_a_hook_of_the_hosts_raised_after_the_commit(
        self, committed: Any
    ) -> None:
        lease = committed(tasks.checkpoint_behind_a_hook_that_raises)

        outcome = execute(lease)

        assert outcome.result == "saved"
        assert runs.finish([outcome]) == {lease.run_id}
        assert runs.get(lease.run_id).saved_state == "saved again"

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("around", [nullcontext, transaction.atomic], ids=["blocks", "savepoints"])
    def test_a_checkpoint_follows_one_that_was_rolled_back(self, committed: Any, around: Any) -> None:
        lease = committed(tasks.add)
        attempt = Attempt(lease, using=None, monitor=LeaseMonitor())

        with around():
            for state in ("lost", "kept"):
                with suppress(ValueError), transaction.atomic():
                    attempt.save(state)
                    if state == "lost":
                        raise ValueError

        assert attempt.lease.checkpoint_seq == lease.checkpoint_seq + 1
        assert (attempt.lease.state, runs.get(lease.run_id).saved_state) == ("kept", "kept")

    @pytest.mark.django_db(transaction=True)
    def test_an_outcome_of_a_coroutine_follows_such_a_checkpoint(self, committed: Any) -> None:
        """A coroutine cannot ask the database which one was the last; whoever stores its outcome can."""
        lease = committed(tasks.snooze_behind_a_hook_that_raises)

        outcome = execute(lease)

        assert outcome.lease.checkpoint_seq == lease.checkpoint_seq + 1
        assert runs.finish([outcome]) == {lease.run_id}
        assert runs.get(lease.run_id).saved_state == "saved"

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize(("seconds", "renewed"), [(3599, True), (0, False)])
    def test_a_block_that_lasts_longer_than_a_heartbeat_leaves_a_fresh_lease(
        self, committed: Any, monkeypatch: pytest.MonkeyPatch, seconds: int, renewed: bool
    ) -> None:
        now = iter([0, seconds])
        monkeypatch.setattr("tenantfair.execution.context.time", SimpleNamespace(monotonic=now.__next__))
        lease = committed(tasks.with_context_in_a_block, ["checkpoint", {"state": 1}])
        beats: list[UUID] = []
        heartbeat = runs.heartbeat

        def beat(leases: Any, **options: Any) -> Any:
            beats.extend(held := heartbeat(leases, **options))
            return held

        monkeypatch.setattr(runs, "heartbeat", beat)
        execute(lease)

        assert beats == [lease.run_id] * renewed

    def test_a_refused_checkpoint_is_counted(self, claimed: Any) -> None:
        lease = claimed(tasks.with_context_swallowing, ["checkpoint", {"state": 1}])
        runs.interrupt(lease.run_id)
        metrics.reset()

        execute(lease)

        key = ("tenantfair_fences_lost_total", (("operation", "checkpoint"),))
        assert metrics.snapshot()[key] == 1
        metrics.reset()

    def test_a_coroutine_saves_state_too(self, claimed: Any) -> None:
        lease = claimed(tasks.with_context_async, "saved")

        assert isinstance(execute(lease), Snoozed)
        assert runs.get(lease.run_id).saved_state == "saved"

    def test_the_task_learns_that_its_run_is_no_longer_its_own(self, claimed: Any) -> None:
        lease = claimed(tasks.with_context_swallowing, ["checkpoint", {"state": 1}])
        runs.interrupt(lease.run_id)

        assert execute(lease).result == f"swallowed {StaleClaim.__name__}"
        assert runs.get(lease.run_id).saved_state is None

    def test_a_rolled_back_checkpoint_is_not_saved_and_its_failure_counts(self, claimed: Any) -> None:
        lease = claimed(tasks.checkpoint_and_roll_back)

        outcome = execute(lease)

        assert runs.finish([outcome]) == {lease.run_id}
        assert (runs.get(lease.run_id).saved_state, runs.get(lease.run_id).failures) == (None, 1)

    @pytest.mark.parametrize("name", tasks.RAISED)
    def test_every_error_can_be_stored(self, claimed: Any, name: str) -> None:
        lease = claimed(tasks.raise_named, name)

        assert runs.finish([execute(lease)]) == {lease.run_id}
        assert runs.get(lease.run_id).failures == 1

    @pytest.mark.parametrize("name", tasks.UNSTORABLE)
    def test_a_result_that_cannot_be_stored_leaves_a_failed_run_with_a_reason(
        self, claimed: Any, name: str
    ) -> None:
        lease = claimed(tasks.return_unstorable, name)

        assert runs.finish([execute(lease)]) == {lease.run_id}
        view = runs.get(lease.run_id)
        assert (view.state, view.claimed_at, view.tenant_admitted_at) == ("failed", None, None)
        assert len(view.errors) == 1
