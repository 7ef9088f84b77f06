"""`python -m tests.certify.cost`: what a recording costs claims, finishes and enqueues, in counts.

Statements are made with and without the triggers in turns, on the database that DATABASE_URL names, which
must be migrated and empty, by a server on this machine. Reported per statement: CPU time of the server
process, buffers touched by the plan and, in a claim, by its triggers, bytes of WAL.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

ROUNDS, BATCH = 5, 60


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    from tenantfair.certify import clean, triggers
    from tests.claim_support import bench

    figures: dict[tuple[str, bool], list[tuple[float, float, float]]] = {}
    with bench() as domain:
        domain.policy(1000)
        for number in range(20):
            domain.queued(f"scope-{number:02}", 2000)
        domain.db.execute("ANALYZE")
        session = domain.session()
        works: dict[str, Callable[[], str]] = {
            "claim of 1": lambda: claiming(1),
            "claim of 8": lambda: claiming(8),
            "finish of 8": lambda: FINISHING,
            "enqueue of 1": lambda: enqueuing(1),
            "enqueue of 1000": lambda: enqueuing(1000),
        }
        for _ in range(ROUNDS):
            for recording in (False, True):
                if recording:
                    until = datetime.now(UTC) + timedelta(seconds=600)
                    triggers.begin("default", until)
                    triggers.put_on("default", triggers.Unstoppable(), until=until, most=10**9)
                for name, work in works.items():
                    number = 3 if "1000" in name else BATCH
                    figures.setdefault((name, recording), []).append(cost(session, work, number))
                clean()
        for name in works:
            off, on = (
                [median(column) for column in zip(*figures[name, recording], strict=True)]
                for recording in (False, True)
            )
            print(
                f"{name:16} CPU {off[0]:7.0f} -> {on[0]:7.0f} us   buffers {off[1]:6.0f} -> {on[1]:6.0f}"
                f"   WAL {off[2]:8.0f} -> {on[2]:8.0f} bytes"
            )


def claiming(demand: int) -> str:
    return (
        "SELECT * FROM tenantfair_claim(clock_timestamp(), clock_timestamp() - interval '1 minute',"
        f" {demand}, 5, NULL, false)"
    )


FINISHING = (
    "UPDATE tenantfair_run SET status = 'completed', finished_at = now(), claim_token = NULL,"
    " claimed_at = NULL, tenant_admitted_at = NULL WHERE id IN"
    " (SELECT id FROM tenantfair_run WHERE claim_token IS NOT NULL LIMIT 8)"
)


def enqueuing(number: int) -> str:
    return (
        "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at)"
        f" SELECT 'scope-01', 'tests.task', now() FROM generate_series(1, {number})"
    )


def cost(session: Any, work: Callable[[], str], number: int) -> tuple[float, float, float]:
    """Microseconds of CPU, buffers and bytes of WAL of one statement, on the average."""
    (pid,) = session.execute("SELECT pg_backend_pid()").fetchone()
    buffers = wal = 0
    before = cpu(pid)
    for _ in range(number):
        (plan,) = session.execute(f"EXPLAIN (ANALYZE, BUFFERS, WAL, FORMAT json) {work()}").fetchone()
        plan = plan if isinstance(plan, list) else json.loads(plan)
        top = plan[0]["Plan"]
        buffers += top["Shared Hit Blocks"] + top["Shared Read Blocks"]
        wal += top["WAL Bytes"]
    return (cpu(pid) - before) / number / 1000, buffers / number, wal / number


def cpu(pid: int) -> int:
    """Nanoseconds that a process has run."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


if __name__ == "__main__":
    main()
