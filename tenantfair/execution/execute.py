"""One lease, run to its outcome.

Nothing that a task does leaves `execute()` as an exception, and nothing here reads the database: a lease
carries all that a start needs. Storing the outcome and closing connections are the worker's business.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import Context
from dataclasses import replace
from functools import lru_cache
from inspect import Signature, signature
from typing import Any

from django.dispatch import Signal
from django.utils import timezone

from tenantfair import payloads
from tenantfair.claim.base import Lease
from tenantfair.compat import AnyTask, TaskResultStatus, signals, task_backends
from tenantfair.execution import results
from tenantfair.execution.context import Attempt, AttemptEnded, LeaseMonitor, RunContext
from tenantfair.execution.resolve import UnknownTask, resolve
from tenantfair.logs import log_safely
from tenantfair.runs import Abandoned, Completed, Failed, Outcome, Released, Retry
from tenantfair.runs.log_facts import about
from tenantfair.tenants import tenant

logger = logging.getLogger("tenantfair.execution")

# For when even describing an error fails: a constant cannot.
_UNDESCRIBED = {
    "exception_class_path": "tenantfair.exceptions.TenantFairError",
    "traceback": "the attempt failed, and its error could not be described",
}


def execute(
    lease: Lease,
    *,
    using: str | None = None,
    worker_id: str | None = None,
    monitor: LeaseMonitor | None = None,
) -> Outcome:
    """Run a lease in this thread and return what became of it; never raises for what the task does.

    - A task that this host cannot find: `Abandoned`.
    - Stored arguments that are no list and mapping, or do not fit the task: `Failed`, without a call.
    - The task raises, `SystemExit` and `KeyboardInterrupt` included: `Retry`.
    - It returns what JSON or PostgreSQL cannot hold: `Failed`, for a second attempt would end the same.
    - The run is known to be somebody else's before it begins: `Released`, without a call.
    - It ends through its context: `Snoozed`, `Waiting` or `Yielded`. Otherwise `Completed`.

    Coroutines run on an event loop of their own, with synchronous parts back in this thread. Each attempt
    starts in an empty `contextvars` context in which the run's tenant is current, so what it enqueues belongs
    to the same tenant unless it says otherwise. The framework's `task_started` is sent before the call, its
    `task_finished` once the run has ended: not for an attempt that will be followed by another.
    """
    attempt = Attempt(lease, using=using, monitor=monitor or LeaseMonitor())
    try:
        task = resolve(lease.task_path, lease.backend, lease.queue_name)
        return Context().run(_Execution(task, attempt, worker_id).outcome)
    except UnknownTask as error:
        log_safely(
            logger,
            logging.WARNING,
            "Run %s abandoned: %s",
            lease.run_id,
            error.reason,
            extra=about("run_abandoned", lease, worker_id),
        )
        return Abandoned(lease, error.reason)
    except BaseException:  # the last resort: no run may take its worker along
        log_safely(
            logger,
            logging.CRITICAL,
            "Run %s: the attempt could not be accounted for",
            lease.run_id,
            exc_info=True,
            extra=about("run_unaccounted", lease, worker_id),
        )
        return Retry(attempt.lease, dict(_UNDESCRIBED), None)


class _Execution:
    """The steps of one attempt."""

    def __init__(self, task: AnyTask, attempt: Attempt, worker_id: str | None) -> None:
        self.task = task
        self.attempt = attempt
        self.worker_id = worker_id
        self.sender = type(task_backends[attempt.lease.backend])
        self.result = results.from_lease(task, attempt.lease)

    def outcome(self) -> Outcome:
        try:
            positional, named = self._arguments()
        except TypeError as error:
            return self._fail(error)
        if self.attempt.monitor.lost.is_set():
            return Released(self.attempt.lease, started=False)
        self._send(signals.task_started)
        try:
            value = self._call(positional, named)
        except BaseException as error:  # whatever a task raises is one failed attempt
            if (ended := _ended_by(error)) is None:
                return self._retry(error)
            # The lease as it is now: a block that was left by this has taken its checkpoints back.
            return replace(ended.outcome, lease=self.attempt.lease)
        try:
            value = payloads.normalize(value, what="result")
        except BaseException as error:  # a value's own code runs here, and may raise anything
            return self._fail(error)
        results.change(
            self.result, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now(), _return_value=value
        )
        self._send(signals.task_finished)
        return Completed(self.attempt.lease, value)

    def _call(self, positional: list[Any], named: dict[str, Any]) -> Any:
        """Call the task. A child process that it forks and that comes out of it ends here, unnoticed.

        The child has neither the worker's other threads nor connections of its own: whatever it did on would
        be done on the sessions of this process.
        """
        process = os.getpid()
        try:
            with _current_tenant(self.attempt.lease):
                return self.task.call(*positional, **named)
        finally:
            if os.getpid() != process:
                os._exit(_exit_status(sys.exception()))

    def _arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the call's arguments; TypeError when the stored ones do not fit the task's signature.

        A decorated function is taken by its own signature, not by that of what it wraps: the decorator may
        add arguments.
        """
        positional, named = self.result.args, self.result.kwargs
        if not isinstance(positional, list) or not isinstance(named, dict):
            raise TypeError("the stored arguments are not a list and a mapping")
        if self.task.takes_context:
            positional = [RunContext(task_result=self.result, running=self.attempt), *positional]
        _signature_of(self.task.func).bind(*positional, **named)
        return positional, named

    def _fail(self, error: BaseException) -> Outcome:
        """End the run as failed; call it while `error` is being handled."""
        record = payloads.error_record(error)
        self._finish_failed(record)
        return Failed(self.attempt.lease, record)

    def _retry(self, error: BaseException) -> Outcome:
        """Count one failure, which may be the run's last; call it while `error` is being handled."""
        lease, record = self.attempt.lease, payloads.error_record(error)
        if lease.failures + 1 > lease.retry_limit:
            self._finish_failed(record)
        else:
            log_safely(
                logger,
                logging.WARNING,
                "Run %s: attempt failed, failure %d of %d allowed",
                lease.run_id,
                lease.failures + 1,
                lease.retry_limit,
                exc_info=True,
                extra=about("attempt_failed", lease, self.worker_id),
            )
        return Retry(lease, record, None)

    def _finish_failed(self, record: dict[str, str]) -> None:
        results.change(
            self.result,
            status=TaskResultStatus.FAILED,
            finished_at=timezone.now(),
            errors=[*self.result.errors, *results.task_errors([record])],
        )
        self._send(signals.task_finished)

    def _send(self, signal: Signal) -> None:
        """Tell the receivers, unless the run is known to be somebody else's; none of them can harm it."""
        if self.attempt.monitor.lost.is_set():
            return
        try:
            signal.send_robust(sender=self.sender, task_result=self.result)
        except BaseException:  # send_robust lets SystemExit and its like pass
            log_safely(
                logger,
                logging.ERROR,
                "Run %s: a signal receiver left by a base exception",
                self.attempt.lease.run_id,
                exc_info=True,
                extra=about("receiver_left", self.attempt.lease, self.worker_id),
            )


@lru_cache(maxsize=1000)
def _signature_of(function: Callable[..., Any]) -> Signature:
    return signature(function, follow_wrapped=False)


def _ended_by(error: BaseException) -> AttemptEnded | None:
    """Return the end of the attempt, also one that comes in a group alone, as out of a `TaskGroup`."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, AttemptEnded) else None


def _current_tenant(lease: Lease) -> Any:
    return nullcontext() if lease.tenant_id is None else tenant(lease.tenant_id)


def _exit_status(error: BaseException | None) -> int:
    """Return what an interpreter that ended by `error` would exit with."""
    status = error.code if isinstance(error, SystemExit) else error
    return status & 0xFF if isinstance(status, int) else int(status is not None)
