"""From a lease to its outcome: finding the task, calling it, naming what became of it."""

from __future__ import annotations

from tenantfair.execution.context import AttemptEnded, LeaseMonitor, RunContext
from tenantfair.execution.execute import execute
from tenantfair.execution.resolve import UnknownTask, resolve
from tenantfair.execution.results import change, from_lease, task_errors

__all__ = [
    "AttemptEnded",
    "LeaseMonitor",
    "RunContext",
    "UnknownTask",
    "change",
    "execute",
    "from_lease",
    "resolve",
    "task_errors",
]
