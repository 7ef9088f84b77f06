"""A session under test: a thread with a Django connection of its own that stops where the stage says.

The operation is the package's own function. Before each statement of it that names a table of ours the thread
waits for the stage, and so it does in the gates inside the functions and before COMMIT.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from django.db import connections, transaction
from django.db.utils import load_backend

from tenantfair.sql import load

DEADLINE_SECONDS = 5.0
COMMIT, ROLLBACK, TERMINATE = "commit", "rollback", "terminate"

# The longest lock wait of an operation from outside is 250 ms; under test it lasts until the other's turn.
_BOUND = load("bound_lock_wait")
_PATIENT_BOUND = _BOUND.replace("ELSE '250ms'", "ELSE '1h'")
assert _PATIENT_BOUND != _BOUND


_here = threading.local()


def stop_here(point: str) -> None:
    """Let the session of the calling thread stop, where no statement of Django's cursors tells of itself."""
    _here.actor._stop(point)


class Aborted(Exception):
    """The stage wants this session's transaction rolled back here."""


@dataclass(frozen=True)
class Event:
    """A session came to a gate, with the gate's number when it is one inside a function; or it ended."""

    letter: str
    point: str
    number: int | None = None


@dataclass
class Job:
    """One operation in one transaction. `points` are the gates inside functions at which it stops."""

    work: Callable[[], Any]
    points: str
    autocommit: bool = False
    result: Any = None
    error: BaseException | None = None
    committed: bool = False
    # The stage rolled it back, or tried to.
    is_aborted: bool = False


@dataclass
class Actor:
    """`letter` is its name; `events` is where the stage listens."""

    letter: str
    database: str
    events: SimpleQueue[Event]
    pid: int = 0
    _jobs: SimpleQueue[Job | None] = field(default_factory=SimpleQueue)
    _go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    _abort: str = ""
    _points: str = ""
    _raw: Any = None
    _is_over: bool = False

    def __post_init__(self) -> None:
        self.index = "ABC".index(self.letter)
        self._thread = threading.Thread(target=self._run, name=f"actor {self.letter}", daemon=True)
        self._thread.start()

    # What the stage calls

    def start(self, job: Job) -> None:
        self._jobs.put(job)

    def go_on(self, *, abort: str = "") -> None:
        """Let the session pass a gate of its client, or roll back there, or find that its backend has
        ended.
        """
        self._abort = abort
        self._go.release()

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join(DEADLINE_SECONDS)

    # The thread

    def _run(self) -> None:
        engine = load_backend(connections.settings["default"]["ENGINE"])
        connections["default"] = engine.DatabaseWrapper(
            {**connections.settings["default"], "NAME": self.database}, "default"
        )
        self._connection = connections["default"]
        _here.actor = self
        try:
            while (job := self._jobs.get()) is not None:
                self._perform(job)
                self.events.put(Event(self.letter, "done"))
        finally:
            if self._raw is not None:
                self._socket.close()
            self._connection.close()

    def _perform(self, job: Job) -> None:
        try:
            self._connect(job.points)
            with self._connection.execute_wrapper(self._before_statement):
                if job.autocommit:
                    job.result = job.work()
                else:
                    with transaction.atomic():
                        job.result = job.work()
                        self._stop("end")
            job.committed = True
        except BaseException as error:
            job.error = error
            self._after_error()

    def _connect(self, points: str) -> None:
        self._connection.ensure_connection()
        raw = self._connection.connection
        # Django may have connected again by itself, when it could not roll back.
        if raw is not self._raw:
            self._raw = raw
            self._is_over = False
            raw.add_notice_handler(self._noticed)
            self.pid = raw.info.backend_pid
            self._socket = socket.socket(fileno=os.dup(raw.fileno()))
            raw.execute("SELECT set_config('tests.session', %s, false)", [str(self.index)])
            # Deadlocks are found at once; none is expected but where tables are truncated.
            raw.execute("SET deadlock_timeout = '50ms'")
            self._points = ""
        if points != self._points:
            raw.execute("SELECT set_config('tests.gates', %s, false)", [points])
            self._points = points

    def _noticed(self, diagnostic: Any) -> None:
        if (message := diagnostic.message_primary).startswith("gate "):
            _, point, number = message.split()
            self.events.put(Event(self.letter, point, int(number)))

    def _before_statement(self, execute: Any, sql: Any, params: Any, many: bool, context: Any) -> Any:
        if sql == _BOUND:
            sql = _PATIENT_BOUND
        elif "tenantfair_" in sql and not sql.startswith(("SAVEPOINT", "RELEASE", "ROLLBACK")):
            self._stop(_verb(sql))
        return execute(sql, params, many, context)

    def _stop(self, point: str) -> None:
        self.events.put(Event(self.letter, point))
        self._go.acquire()
        if self._abort == TERMINATE:
            self._await_end()
        if self._abort:
            raise Aborted

    def _after_error(self) -> None:
        """Return only once a backend that has been ended is gone."""
        if self._connection.connection is self._raw and not (self._raw.broken or self._is_over):
            return
        self._await_end()
        self._socket.close()
        if self._connection.connection is self._raw:
            self._connection.close()

    def _await_end(self) -> None:
        """Read to the end of the stream, which comes when the backend has let go of everything."""
        self._socket.settimeout(DEADLINE_SECONDS)
        with contextlib.suppress(ConnectionError):
            while self._socket.recv(65536):
                pass
        # Where no transaction was open yet, nothing else tells.
        self._is_over = True


def _verb(sql: str) -> str:
    """Return a short name of a statement: its first keyword in lower case."""
    for line in sql.splitlines():
        bare = line.split("--")[0].split()
        if bare:
            return bare[0].lower()
    return "statement"
