"""Runs leases in threads, one each; a thread is started when none is idle, and stays.

One idle thread at a time is woken: it takes up a lease, wakes the next while there are others, and begins.
So a thread is always on its way to the next lease, and short tasks are run by few threads, one after the
other, without a switch between threads for each.

A synchronous task runs in its thread, an asynchronous one on an event loop of that thread. The thread's
Django connections are treated after each task as after a request; a transaction that a task left open is
thrown away with its connection.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from django.db import Error, connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import TransactionStatus

from tenantfair.execution import execute
from tenantfair.logs import log_safely
from tenantfair.runs import Outcome, Retry
from tenantfair.runs.log_facts import about
from tenantfair.worker.holdings import Holding

logger = logging.getLogger("tenantfair.worker")

# For when the attempt leaves no outcome at all.
_LOST: Final = {
    "exception_class_path": "tenantfair.exceptions.TenantFairError",
    "traceback": "the attempt ended without an outcome",
}

OnOutcome = Callable[[Holding, Outcome, float], None]


class Executor:
    """Starts holdings in the order of their launch and hands each outcome to `on_outcome`."""

    def __init__(self, *, using: str, worker_id: str, on_outcome: OnOutcome) -> None:
        self._using = using
        self._worker_id = worker_id
        self._on_outcome = on_outcome
        self._lock = threading.Lock()
        self._unstarted: deque[Holding] = deque()
        # What an idle thread waits for: True to look for holdings, False to end.
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()
        # A call is on its way to a thread, which clears this before it looks.
        self._called = False
        self._threads: list[threading.Thread] = []
        # Idle threads less the holdings that wait for one.
        self._spare = 0

    def launch(self, holding: Holding) -> None:
        """Have `holding` run. `RuntimeError` when the system has no thread for it; then nothing has begun."""
        with self._lock:
            if self._spare > 0:
                self._spare -= 1
            else:
                thread = threading.Thread(
                    target=self._work, name=f"tenantfair-task-{len(self._threads) + 1}", daemon=True
                )
                thread.start()
                self._threads.append(thread)
            self._unstarted.append(holding)
        self._call()

    def take_unstarted(self) -> list[Holding]:
        """Return, and forget, the holdings that no thread has taken up yet."""
        taken: list[Holding] = []
        while True:
            try:
                taken.append(self._unstarted.popleft())
            except IndexError:
                return taken

    def stop(self, seconds: float) -> bool:
        """End the threads, each after its task; False when some last longer than `seconds`."""
        with self._lock:
            threads = list(self._threads)
        for _ in threads:
            self._calls.put(False)
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _work(self) -> None:
        try:
            while self._calls.get():
                self._called = False
                self._run_unstarted()
        finally:
            connections.close_all()

    def _call(self) -> None:
        """Have an idle thread look for holdings; each that is added is followed by a call."""
        if not self._called:
            self._called = True
            self._calls.put(True)

    def _run_unstarted(self) -> None:
        while True:
            try:
                holding = self._unstarted.popleft()
            except IndexError:
                return
            if self._unstarted:
                self._call()
            self._run(holding)

    def _run(self, holding: Holding) -> None:
        started = time.monotonic()
        outcome: Outcome = Retry(holding.lease, _LOST)
        try:
            try:
                outcome = execute(
                    holding.lease, using=self._using, worker_id=self._worker_id, monitor=holding.monitor
                )
            finally:
                _tidy_connections()
        except BaseException:  # the last resort: nothing may end this thread with its lease unsettled
            log_safely(
                logger,
                logging.CRITICAL,
                "Run %s: the worker failed around the task",
                holding.lease.run_id,
                exc_info=True,
                extra=about("executor_failed", holding.lease, self._worker_id),
            )
        finally:
            with self._lock:
                self._spare += 1
            self._on_outcome(holding, outcome, time.monotonic() - started)


def _tidy_connections() -> None:
    """Leave each connection of this thread as a request would, and none inside a transaction."""
    reset_queries()
    for connection in connections.all(initialized_only=True):
        try:
            if not _is_in_transaction(connection):
                connection.close_if_unusable_or_obsolete()
                continue
            log_safely(
                logger,
                logging.WARNING,
                "A task has left a transaction open on %r; it is rolled back",
                connection.alias,
                extra={"event": "transaction_left_open"},
            )
            connection.close()
        except Error:
            log_safely(logger, logging.WARNING, "A connection of a task could not be closed", exc_info=True)
        del connections[connection.alias]


def _is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Whether a transaction is open, be it of `atomic()`, of autocommit turned off or of a plain BEGIN."""
    session = connection.connection
    if connection.in_atomic_block or session is None or connection.vendor != "postgresql":
        return connection.in_atomic_block
    # A closed session has the status UNKNOWN, and nothing open.
    return session.info.transaction_status not in {TransactionStatus.IDLE, TransactionStatus.UNKNOWN}
