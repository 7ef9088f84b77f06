"""Telling workers, after commit, that there may be work. A hint and nothing more: workers poll anyway.

`request()` is what an enqueue calls. A thread of this process, started when first needed, sends
`NOTIFY` on a connection of its own: never in the host's transaction, the payload always empty, at most one
every 50 ms for each database. A wake-up that cannot be sent is forgotten. `TENANTFAIR["LISTEN"] = False`
turns all of it off.

The channel belongs to the domain: `tenantfair_` and the object id of its run table.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
from django.db import connections, transaction
from django.utils import timezone

from tenantfair.conf import get_settings
from tenantfair.logs import log_safely

__all__ = ["CHANNEL_SQL", "request"]

logger = logging.getLogger("tenantfair.wakeups")

# NULL where the search path leads to no run table.
CHANNEL_SQL: Final = "SELECT 'tenantfair_' || to_regclass('tenantfair_run')::oid::text"

# Nothing is stored, so nobody waits for the disk.
_NOTIFY_SQL: Final = (
    "SELECT set_config('synchronous_commit', 'off', true),"
    " pg_notify('tenantfair_' || to_regclass('tenantfair_run')::oid::text, '')"
    " WHERE to_regclass('tenantfair_run') IS NOT NULL"
)
_SPACING_SECONDS: Final = 0.05
_AFTER_FAILURE_SECONDS: Final = 1.0
# Short, so that an idle process holds no connection; a test database can then be dropped at once.
_LINGER_SECONDS: Final = 1.0
_EXIT_SECONDS: Final = 1.0


Due = datetime | timedelta | None


def request(using: str | None = None, *, due: Iterable[Due] = (None,)) -> None:
    """Wake the workers of `using` once the current transaction commits, or now when there is none.

    `due` says when each piece of the work is: at a time, after a delay, or at once. Nobody is woken for work
    that is not due yet at the commit, nor for what a savepoint rolls back. A failure to send is never seen.
    """
    settings = get_settings()
    if not settings.listen:
        return
    alias = using or settings.database
    connection = connections[alias]
    soonest = min(map(_seconds_until, due), default=None)
    if soonest is None:
        return
    moment = time.monotonic() + soonest
    if connection.in_atomic_block:
        # One hint serves the enqueues of a savepoint and of those inside it, so a loop of them stays cheap.
        if connection.run_on_commit:
            savepoints, hint = connection.run_on_commit[-1][:2]
            here = set(connection.savepoint_ids)
            if isinstance(hint, _Hint) and (savepoints == here or (savepoints < here and hint.due <= moment)):
                hint.due = min(hint.due, moment)
                return
    elif not connection.get_autocommit():
        return  # nobody tells when such a transaction commits
    transaction.on_commit(_Hint(alias, moment), using=alias, robust=True)


def _seconds_until(due: Due) -> float:
    if due is None:
        return 0.0
    if isinstance(due, timedelta):
        return due.total_seconds()
    now = datetime.now(UTC) if timezone.is_aware(due) else datetime.now()
    return (due - now).total_seconds()


class _Hint:
    """What one transaction, or one savepoint of it, asks for; called at its commit."""

    def __init__(self, alias: str, due: float) -> None:
        self.alias = alias
        self.due = due

    def __call__(self) -> None:
        if time.monotonic() >= self.due:
            _sender.wake(self.alias)


class _Sender:
    """The thread that sends. While one wake-up is on its way, any number of further ones become one."""

    def __init__(self) -> None:
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._changed = threading.Condition()
        self._wanted: set[str] = set()
        self._sending = False
        self._thread: threading.Thread | None = None

    def wake(self, alias: str) -> None:
        """Ask for a wake-up and return at once."""
        with self._changed:
            self._wanted.add(alias)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="tenantfair-wakeups", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the system has no thread, or the interpreter is ending
                    self._wanted.clear()
                    return
                self._thread = thread
            self._changed.notify_all()

    def flush(self, seconds: float = _EXIT_SECONDS) -> bool:
        """Wait for what has been asked for; False when it took longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._wanted and not self._sending, timeout=seconds)

    def _run(self) -> None:
        open_connections: dict[str, psycopg.Connection[Any]] = {}
        try:
            while (aliases := self._next()) is not None:
                pause = _SPACING_SECONDS
                for alias in aliases:
                    if not _send(alias, open_connections):
                        pause = _AFTER_FAILURE_SECONDS
                with self._changed:
                    self._sending = False
                    self._changed.notify_all()
                time.sleep(pause)
        finally:
            for connection in open_connections.values():
                connection.close()

    def _next(self) -> set[str] | None:
        """Return the databases to wake; None, to end the thread, once nothing was asked for in a while."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._wanted, timeout=_LINGER_SECONDS):
                self._thread = None
                return None
            aliases, self._wanted, self._sending = self._wanted, set(), True
            return aliases


def _send(alias: str, open_connections: dict[str, psycopg.Connection[Any]]) -> bool:
    try:
        if alias not in open_connections:
            params = {"connect_timeout": 5, **connections[alias].get_connection_params()}
            open_connections[alias] = psycopg.connect(**params, autocommit=True)
        open_connections[alias].execute(_NOTIFY_SQL)
    except Exception:  # polling finds the work; no failure here may matter
        log_safely(
            logger, logging.DEBUG, "a wake-up was not sent", exc_info=True, extra={"event": "wakeup_failed"}
        )
        if (broken := open_connections.pop(alias, None)) is not None:
            broken.close()
        return False
    return True


_sender: Final = _Sender()
atexit.register(_sender.flush)
if hasattr(os, "register_at_fork"):
    # A child has none of its parent's threads.
    os.register_at_fork(after_in_child=_sender._start_afresh)
