"""A record of what tasks did, in a file that no transaction and no server crash can take back.

Each line is one append of a JSON object: which run of which tenant started or ended in which process, at
which time of the machine's monotonic clock.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "PROCESS_LEDGER"


def write(event: str, run_id: object, tenant: str | None, **facts: Any) -> None:
    """Append one line; a single write to a file opened for appending is never torn."""
    line = {
        "event": event,
        "run": str(run_id),
        "tenant": tenant,
        "pid": os.getpid(),
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
        """Pair each start with the end that the same process wrote for the same run."""
        lines = self.lines()
        found = []
        for place, line in enumerate(lines):
            if line["event"] == "start":
                key = (line["run"], line["pid"])
                ends = (each for each in lines[place + 1 :] if (each["run"], each["pid"]) == key)
                ended = next((each["at"] for each in ends if each["event"] == "end"), None)
                found.append(Execution(line["run"], line["tenant"], line["pid"], line["at"], ended))
        return found

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
