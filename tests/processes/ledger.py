"""A record of what tasks did, in a file that no transaction and no server crash can take back.

Each line is one append of a JSON object: which run of which tenant started or ended in which process, at
which time of the machine's monotonic clock.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "PROCESS_LEDGER"


@contextmanager
def execution(context: Any) -> Iterator[None]:
    """Tell the start of a task's body and its end, however it ends; only a process that dies tells no end."""
    _write("start", context)
    try:
        yield
    finally:
        _write("end", context, owner=context.still_owner())


def _write(event: str, context: Any, **facts: Any) -> None:
    """Append one line; a single write to a file opened for appending is never torn."""
    line = {
        "event": event,
        "run": str(context.run_id),
        "tenant": context.tenant_id,
        "pid": os.getpid(),
        "attempt": context.attempt,
        "at": time.monotonic(),
        **facts,
    }
    handle = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, (json.dumps(line) + "\n").encode())
    finally:
        os.close(handle)


@dataclass(frozen=True)
class Execution:
    """One start of one run; `ended` is None when the process did not live to see its end."""

    run: str
    tenant: str | None
    pid: int
    started: float
    ended: float | None


class Ledger:
    """What has been written so far."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def events(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["event"] == event]

    def executions(self) -> list[Execution]:
        """Pair each start with the end that the same process wrote for the same attempt at the run."""
        ends = {_attempt(line): line["at"] for line in self.events("end")}
        return [
            Execution(line["run"], line["tenant"], line["pid"], line["at"], ends.get(_attempt(line)))
            for line in self.events("start")
        ]

    def most_at_once(self, *, gone: dict[int, float] | None = None) -> dict[str | None, int]:
        """Return, by tenant, how many executions ran at the same time at most.

        `gone` says when a process was killed or stopped: what it had not ended by then counts no longer.
        """
        changes: dict[str | None, list[tuple[float, int]]] = defaultdict(list)
        for execution in self.executions():
            lost = (gone or {}).get(execution.pid, float("inf"))
            until = min(lost, execution.ended if execution.ended is not None else float("inf"))
            changes[execution.tenant] += [(execution.started, 1), (until, -1)]
        most: dict[str | None, int] = {}
        for tenant, moves in changes.items():
            running = 0
            for _, change in sorted(moves):
                running += change
                most[tenant] = max(most.get(tenant, 0), running)
        return most


def _attempt(line: dict[str, Any]) -> tuple[str, int, int]:
    return line["run"], line["pid"], line["attempt"]
