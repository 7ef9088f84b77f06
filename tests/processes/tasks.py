"""Tasks that worker processes run in tests: they tell the ledger, and wait at gates, which are FIFOs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from tenantfair.compat import task
from tests.processes import ledger


def pass_gate(gate: str) -> None:
    """Return once the test has opened the gate: a FIFO opens when it has a writer and ends with it."""
    with Path(gate).open("rb") as opened:
        opened.read()


@task(takes_context=True)
def quick(context: Any) -> int:
    ledger.write("start", context.run_id, context.tenant_id)
    ledger.write("end", context.run_id, context.tenant_id)
    return os.getpid()


@task(takes_context=True)
def hold(context: Any, gate: str) -> int:
    ledger.write("start", context.run_id, context.tenant_id)
    pass_gate(gate)
    ledger.write("end", context.run_id, context.tenant_id, owner=context.still_owner())
    return os.getpid()


@task(takes_context=True)
async def hold_async(context: Any, gate: str) -> int:
    ledger.write("start", context.run_id, context.tenant_id)
    pass_gate(gate)
    ledger.write("end", context.run_id, context.tenant_id, owner=context.still_owner())
    return os.getpid()


@task(takes_context=True)
def compute(context: Any, seconds: float) -> int:
    """Compute in Python, which passes the interpreter's lock around."""
    ledger.write("start", context.run_id, context.tenant_id)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))
    ledger.write("end", context.run_id, context.tenant_id, owner=context.still_owner())
    return os.getpid()


@task(takes_context=True)
def keep_interpreter(context: Any, seconds: float) -> int:
    """Compute in one C call that never lets another thread of the process run."""
    began = time.monotonic()
    sum(range(5_000_000))
    items = int(5_000_000 * seconds / (time.monotonic() - began))
    ledger.write("start", context.run_id, context.tenant_id)
    sum(range(items))
    ledger.write("end", context.run_id, context.tenant_id, owner=context.still_owner())
    return os.getpid()


@task(takes_context=True)
def give_way(context: Any, gate: str) -> int:
    """Yield at the first gate when the worker drains; run to the end in the next attempt."""
    ledger.write("start", context.run_id, context.tenant_id)
    if context.state is None:
        pass_gate(gate)
        if context.should_yield():
            ledger.write("end", context.run_id, context.tenant_id)
            context.yield_(state="gave way")
    ledger.write("end", context.run_id, context.tenant_id)
    return os.getpid()


@task(takes_context=True)
def die(context: Any) -> None:
    ledger.write("start", context.run_id, context.tenant_id)
    os.kill(os.getpid(), signal.SIGKILL)
