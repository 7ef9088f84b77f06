"""Tasks that faults are done to: they tell the ledger, and one may stop its worker in their middle."""

from __future__ import annotations

import os
from typing import Any

from tenantfair.compat import task
from tests.faults import points
from tests.processes import ledger
from tests.processes.tasks import pass_gate


@task(takes_context=True)
def work(context: Any) -> str:
    """Return who did the work; a point may be inside it."""
    with ledger.execution(context):
        points.reach("in task")
    return str(os.getpid())


@task(takes_context=True)
def hold(context: Any, gate: str) -> str:
    """Wait at a gate."""
    with ledger.execution(context):
        pass_gate(gate)
    return str(os.getpid())


@task(takes_context=True)
def eat(context: Any) -> None:
    """Take half a gigabyte, which is more than its worker is allowed."""
    with ledger.execution(context):
        eaten = [b"x" * 10_000_000 for _ in range(50)]
        assert not eaten, "nobody has minded"
