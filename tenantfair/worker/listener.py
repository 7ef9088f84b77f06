"""Wakes the dispatcher when workers are notified; the worker is complete without it.

LISTEN belongs to a session, so it has a connection of its own that no pool and no other thread ever sees. It
is tried first: behind a pooler LISTEN succeeds and nothing ever arrives, which is said once, and then polling
alone carries the worker. The trial has a channel of its own, since what has been asked of a pooler's session
stays with whoever gets it next; for the same reason there are few more. They are for a server that was only
slow, as while many workers start together.
"""

from __future__ import annotations

import logging
import random
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import psycopg
from psycopg import sql

from tenantfair import metrics
from tenantfair.logs import log_safely
from tenantfair.wakeups import CHANNEL_SQL
from tenantfair.worker.backoff import backoff

logger = logging.getLogger("tenantfair.worker")

_TRIAL_STEP_SECONDS: Final = 0.25
_TRIAL_SECONDS: Final = 5.0
# How long it is left at polling after each trial in turn that nothing came of; then for good.
_DEAF_SECONDS: Final = (60.0, 600.0, 3600.0)
_LONGEST_BACKOFF: Final = 30.0


class Listener:
    """Calls `on_wakeup` for each notification of the domain whose payload is empty.

    `params` returns what `psycopg.connect` needs for a session that is not pooled.
    """

    def __init__(
        self, *, params: Callable[[], Mapping[str, Any]], on_wakeup: Callable[[], None], worker_id: str
    ) -> None:
        self._params = params
        self._on_wakeup = on_wakeup
        self._worker_id = worker_id
        self._stopping = threading.Event()
        # Whoever waits for a notification waits for the end of this, too.
        self._alarm: socket.socket | None = None
        self._failures = 0
        self._deaf_trials = 0
        # Set once notifications have been seen to arrive; cleared while they do not.
        self.hears = threading.Event()

    def stop(self) -> None:
        """Let `run()` end."""
        self._stopping.set()
        alarm = self._alarm
        if alarm is not None:
            with suppress(OSError):  # it has ended just now
                alarm.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        """Listen until `stop()`, connecting again whenever the connection is lost."""
        self._alarm, ears = socket.socketpair()
        with self._alarm, ears:
            self._listen_again_and_again(ears)

    def _listen_again_and_again(self, ears: socket.socket) -> None:
        while not self._stopping.is_set():
            try:
                if not self._listen(ears) and not self._try_later():
                    return
            # The top of the thread's loop: whatever it is may have passed next time.
            except Exception as error:
                self._lost(error)
                self._stopping.wait(backoff(self._failures, longest=_LONGEST_BACKOFF))
            finally:
                self.hears.clear()

    def _listen(self, ears: socket.socket) -> bool:
        """Listen on one connection until `stop()`; False when nothing arrives on it."""
        with psycopg.connect(**{**self._params(), "autocommit": True}) as connection:
            row = connection.execute(CHANNEL_SQL).fetchone()
            if row is None or row[0] is None:
                raise psycopg.OperationalError("the search path leads to no run table")
            if not self._hears(connection):
                return False
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(row[0])))
            self._failures = self._deaf_trials = 0
            self.hears.set()
            # Whatever was sent while nobody listened.
            self._on_wakeup()
            with selectors.DefaultSelector() as selector:
                selector.register(connection, selectors.EVENT_READ)
                selector.register(ears, selectors.EVENT_READ)
                # What had come before the first wait is one with the wake-up above.
                while not self._stopping.is_set():
                    selector.select()
                    self._hear(connection)
        return True

    def _try_later(self) -> bool:
        """Wait for the next trial; False when there is none."""
        if self._deaf_trials == len(_DEAF_SECONDS):
            return False
        pause = _DEAF_SECONDS[self._deaf_trials]
        self._deaf_trials += 1
        self._stopping.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
        return True

    def _hear(self, connection: psycopg.Connection[Any]) -> None:
        """Take what has arrived, without waiting: any number of notifications are one wake-up."""
        if any(notification.payload == "" for notification in list(connection.notifies(timeout=0))):
            metrics.increment("tenantfair_worker_events_total", event="wakeup")
            self._on_wakeup()

    def _hears(self, connection: psycopg.Connection[Any]) -> bool:
        """Return whether a notification reaches this connection while it is idle, as real ones have to."""
        channel = f"tenantfair_trial_{secrets.token_hex(8)}"
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        # Sent from elsewhere: one's own would come with the statement's answer, through any pooler.
        with psycopg.connect(**{**self._params(), "autocommit": True}) as elsewhere:
            elsewhere.execute("SELECT pg_notify(%s::text, '')", [channel])
        deadline = time.monotonic() + _TRIAL_SECONDS
        while not self._stopping.is_set() and time.monotonic() < deadline:
            # The generator has the connection to itself until it is used up.
            heard = list(connection.notifies(timeout=_TRIAL_STEP_SECONDS, stop_after=1))
            if channel in {notification.channel for notification in heard}:
                connection.execute(sql.SQL("UNLISTEN {}").format(sql.Identifier(channel)))
                return True
        if not self._stopping.is_set() and self._deaf_trials == 0:
            log_safely(
                logger,
                logging.WARNING,
                "Notifications do not arrive, as behind a pooler in transaction mode; polling goes on."
                " TENANTFAIR['LISTEN_DATABASE'] can name an alias with a direct connection",
                extra={"event": "listener_deaf", "worker_id": self._worker_id},
            )
        return False

    def _lost(self, error: Exception) -> None:
        self._failures += 1
        metrics.increment("tenantfair_worker_events_total", event="listener_lost")
        expected = isinstance(error, psycopg.Error)
        log_safely(
            logger,
            logging.WARNING if expected else logging.ERROR,
            "Not listening, polling goes on: %s",
            str(error).strip() if expected else type(error).__name__,
            exc_info=None if expected else error,
            extra={"event": "listener_lost", "worker_id": self._worker_id},
        )
