"""A PostgreSQL of the test's own with worker processes on it, and a sampler that watches the caps.

Nothing here waits by sleeping for long enough: every wait is for a condition, bounded, and says what it
waited for when it gives up.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg.rows import dict_row

from example_project.postgres import PrivateServer
from tests.processes.ledger import VARIABLE, Ledger

ROOT = Path(__file__).resolve().parent.parent.parent
LONGEST_WAIT_SECONDS = 60.0

_LIVE_SQL = """
    SELECT
        scope_key,
        count(*) FILTER (WHERE claim_token IS NOT NULL),
        count(*) FILTER (WHERE tenant_admitted_at IS NOT NULL),
        (SELECT coalesce(part.max_active, policy.max_active)
         FROM tenantfair_policy AS policy
         LEFT JOIN tenantfair_partition AS part ON part.scope_key = run.scope_key)
    FROM tenantfair_run AS run
    WHERE claim_token IS NOT NULL OR tenant_admitted_at IS NOT NULL
    GROUP BY scope_key
"""


def until(condition: Callable[[], Any], what: str, seconds: float = LONGEST_WAIT_SECONDS) -> Any:
    """Return the first true value of `condition()`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never happened within {seconds:g} s: {what}"
        time.sleep(0.02)
    return found


class WorkerProcess:
    """One `manage.py tenantfair_worker`; its log is a file."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def exit_code(self) -> int:
        try:
            return self.process.wait(timeout=LONGEST_WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker did not end; it said:\n{self.said()}") from None

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def until_said(self, text: str) -> None:
        until(lambda: text in self.said() or self._ended_without(text), f"the worker says {text!r}")

    def _ended_without(self, text: str) -> bool:
        assert self.process.poll() is None or text in self.said(), (
            f"the worker ended; it said:\n{self.said()}"
        )
        return False

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


class Stage:
    """One database, its workers and its ledger."""

    def __init__(self, server: PrivateServer, database: str, folder: Path, **tenantfair: Any) -> None:
        self.server = server
        self.database = database
        self.folder = folder
        self.ledger = Ledger(folder / "ledger")
        self.tenantfair = {
            "DEFAULT_MAX_ACTIVE_RUNS": 2,
            "LEASE_SECONDS": 3,
            "POLL_INTERVAL": 0.25,
            "CONCURRENCY": 4,
            **tenantfair,
        }
        self.workers: list[WorkerProcess] = []
        self._gates: list[Gate] = []

    def environment(self) -> dict[str, str]:
        return os.environ | {
            "DATABASE_URL": self.server.url(self.database),
            "PROCESS_TENANTFAIR": json.dumps(self.tenantfair),
            VARIABLE: str(self.ledger.path),
            "PYTHONPATH": str(ROOT),
        }

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one management command to its end."""
        return subprocess.run(
            self._command(*arguments),
            check=False,
            cwd=ROOT,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=LONGEST_WAIT_SECONDS,
        )

    def start_worker(self, *options: str, ready: bool = True) -> WorkerProcess:
        """Start a worker and return once it claims, or at once when not `ready`."""
        log = self.folder / f"worker-{len(self.workers)}.log"
        with log.open("wb") as said:
            process = subprocess.Popen(
                self._command("tenantfair_worker", *options),
                cwd=ROOT,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        worker = WorkerProcess(process, log)
        self.workers.append(worker)
        if ready:
            worker.until_said(" started on ")
        return worker

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "django", *arguments, "--settings=tests.processes.settings"]

    def connect(self, **arguments: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.server.url(self.database), autocommit=True, **arguments)

    def query(self, sql: Any, *params: Any) -> list[dict[str, Any]]:
        with self.connect(row_factory=dict_row) as connection:
            cursor = connection.execute(sql, params or None)
            # Of no columns psycopg tells no rows, however many there are: such a query could not fail a test.
            assert not sql.lstrip().upper().startswith("SELECT FROM"), "name a column"
            return cursor.fetchall() if cursor.description else []

    def enqueue(self, task: str, *args: Any, tenant: str = "acme", count: int = 1) -> list[str]:
        """Create runs of `tests.processes.tasks.TASK` and return their ids."""
        ids = [str(uuid.uuid4()) for _ in range(count)]
        self.query(
            "INSERT INTO tenantfair_run (run_id, tenant_id, task_path, args, wake_at)"
            " SELECT run_id, %s, %s, %s::jsonb, clock_timestamp() FROM unnest(%s::uuid[]) AS run_id",
            tenant,
            f"tests.processes.tasks.{task}",
            json.dumps(args),
            ids,
        )
        return ids

    def run(self, run_id: str) -> dict[str, Any]:
        (row,) = self.query("SELECT * FROM tenantfair_run WHERE run_id = %s::uuid", run_id)
        return row

    def statuses(self) -> dict[str, int]:
        rows = self.query("SELECT status, count(*) AS n FROM tenantfair_run GROUP BY status")
        return {row["status"]: row["n"] for row in rows}

    def until_started(self, run_id: str, *, times: int = 1) -> list[dict[str, Any]]:
        """Return the lines of the run's starts, once there are `times` of them."""

        def starts() -> list[dict[str, Any]]:
            found = [line for line in self.ledger.events("start") if line["run"] == run_id]
            return found if len(found) >= times else []

        found: list[dict[str, Any]] = until(starts, f"run {run_id} starts {times} times")
        return found

    def until_all(self, status: str) -> None:
        until(lambda: set(self.statuses()) == {status}, f"all runs are {status}")

    def gate(self) -> Gate:
        self._gates.append(Gate(self.folder / f"gate-{len(self._gates)}"))
        return self._gates[-1]

    @contextmanager
    def watched(self) -> Iterator[Sampler]:
        """Sample the caps while the block runs, and judge them at its end."""
        sampler = Sampler(self.connect)
        sampler.start()
        try:
            yield sampler
        finally:
            sampler.stop()
        assert sampler.breaches == []
        assert sampler.samples > 0

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
        for gate in self._gates:
            gate.close()


class Gate:
    """A FIFO that holds every task that comes to it until it is opened, and nobody afterwards.

    It is never put away or replaced: a task that looked for it just then would fail, or wait for good.
    """

    _MOST_COMERS = 4096

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: int | None = None
        os.mkfifo(path)

    def __str__(self) -> str:
        return str(self.path)

    def open(self) -> None:
        if self._writer is None:
            self._writer = os.open(self.path, os.O_RDWR)
            os.write(self._writer, b"." * self._MOST_COMERS)

    def close(self) -> None:
        if self._writer is not None:
            os.close(self._writer)
            self._writer = None


class Sampler(threading.Thread):
    """Reads again and again, each time in one snapshot, how many claims and admissions each scope has."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        super().__init__(name="cap-sampler", daemon=True)
        self._connect = connect
        self._ending = threading.Event()
        self.samples = 0
        self.breaches: list[tuple[Any, ...]] = []

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                with self._connect() as connection:
                    while not self._ending.wait(0.01):
                        rows = connection.execute(_LIVE_SQL).fetchall()
                        self.breaches += [row for row in rows if not row[1] <= row[2] <= row[3]]
                        self.samples += 1
            except psycopg.OperationalError:
                self._ending.wait(0.05)  # the server is down on purpose

    def stop(self) -> Self:
        self._ending.set()
        self.join(timeout=LONGEST_WAIT_SECONDS)
        assert not self.is_alive()
        return self
