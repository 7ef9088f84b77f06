"""A run as the framework's `TaskResult`."""

from __future__ import annotations

from typing import Any

from tenantfair.claim.base import Lease
from tenantfair.compat import AnyTask, AnyTaskResult, TaskError, TaskResult, TaskResultStatus, copy_task


def from_lease(task: AnyTask, lease: Lease) -> AnyTaskResult:
    """Return the RUNNING result of a leased run, made from the lease alone."""
    return TaskResult(
        task=task if task.queue_name == lease.queue_name else copy_task(task, queue_name=lease.queue_name),
        id=str(lease.run_id),
        status=TaskResultStatus.RUNNING,
        enqueued_at=lease.enqueued_at,
        started_at=lease.started_at,
        finished_at=None,
        last_attempted_at=lease.claimed_at,
        args=lease.args,
        kwargs=lease.kwargs,
        backend=lease.backend,
        errors=task_errors(lease.errors),
        worker_ids=list(lease.worker_ids),
    )


def task_errors(records: list[Any]) -> list[TaskError]:
    """Return stored error records as the framework's objects; what does not look like one is left out."""
    return [
        TaskError(exception_class_path=record["exception_class_path"], traceback=record["traceback"])
        for record in records
        if isinstance(record, dict) and {"exception_class_path", "traceback"} <= record.keys()
    ]


def change(result: AnyTaskResult, **values: Any) -> None:
    """Set fields of a result, whose class is frozen for everybody but backends."""
    for name, value in values.items():
        object.__setattr__(result, name, value)
