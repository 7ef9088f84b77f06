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
    """Return once the test has opened the gate: it then has a writer, and a byte for each who comes."""
    with Path(gate).open("rb", buffering=0) as opened:
        assert opened.read(1)


@task(takes_context=True)
def quick(context: Any) -> int:
    with ledger.execution(context):
        return os.getpid()


@task(takes_context=True)
def hold(context: Any, gate: str) -> int:
    with ledger.execution(context):
        pass_gate(gate)
    return os.getpid()


@task(takes_context=True)
async def hold_async(context: Any, gate: str) -> int:
    with ledger.execution(context):
        pass_gate(gate)
    return os.getpid()


@task(takes_context=True)
def compute(context: Any, seconds: float) -> int:
    """Compute in Python, which passes the interpreter's lock around."""
    with ledger.execution(context):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            sum(range(1000))
    return os.getpid()


@task(takes_context=True)
def keep_interpreter(context: Any, seconds: float) -> int:
    """Compute in one C call that never lets another thread of the process run."""
    began = time.monotonic()
    sum(range(5_000_000))
    items = int(5_000_000 * seconds / (time.monotonic() - began))
    with ledger.execution(context):
        sum(range(items))
    return os.getpid()


@task(takes_context=True)
def give_way(context: Any, gate: str) -> int:
    """Yield at the first gate when the worker drains; run to the end in the next attempt."""
    with ledger.execution(context):
        if context.state is None:
            pass_gate(gate)
            if context.should_yield():
                context.yield_(state="gave way")
    return os.getpid()


@task(takes_context=True)
def die(context: Any) -> None:
    with ledger.execution(context):
        os.kill(os.getpid(), signal.SIGKILL)
