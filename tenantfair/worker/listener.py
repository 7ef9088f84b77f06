"""Wakes the dispatcher when workers are notified; the worker is complete without it.

LISTEN belongs to a session, so it has a connection of its own that no pool and no other thread ever sees. It
is tried first: behind a pooler LISTEN succeeds and nothing ever arrives, which is said once, and then polling
alone carries the worker. The trial has a channel of its own, since what has been asked of a pooler's session
stays with whoever gets it next.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import psycopg
from psycopg import sql

from tenantfair import metrics
from tenantfair.wakeups import CHANNEL_SQL
from tenantfair.worker.backoff import backoff

logger = logging.getLogger("tenantfair.worker")

_WAIT_SECONDS: Final = 0.25
_TRIAL_SECONDS: Final = 5.0
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
        self._failures = 0
        # Set once notifications have been seen to arrive; cleared while they do not.
        self.hears = threading.Event()

    def stop(self) -> None:
        """Let `run()` end, within a quarter of a second."""
        self._stopping.set()

    def run(self) -> None:
        """Listen until `stop()`, connecting again whenever the connection is lost."""
        while not self._stopping.is_set():
            try:
                if not self._listen():
                    return
            except psycopg.Error as error:
                self._lost(error)
                self._stopping.wait(backoff(self._failures, longest=_LONGEST_BACKOFF))
            finally:
                self.hears.clear()

    def _listen(self) -> bool:
        """Listen on one connection; False when there is no use in another."""
        with psycopg.connect(**{**self._params(), "autocommit": True}) as connection:
            row = connection.execute(CHANNEL_SQL).fetchone()
            if row is None or row[0] is None:
                raise psycopg.OperationalError("the search path leads to no run table")
            if not self._hears(connection):
                return False
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(row[0])))
            self._failures = 0
            self.hears.set()
            # Whatever was sent while nobody listened.
            self._on_wakeup()
            while not self._stopping.is_set():
                for notification in connection.notifies(timeout=_WAIT_SECONDS, stop_after=1):
                    if notification.payload == "":
                        metrics.increment("tenantfair_worker_events_total", event="wakeup")
                        self._on_wakeup()
        return False

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
            heard = list(connection.notifies(timeout=_WAIT_SECONDS, stop_after=1))
            if channel in {notification.channel for notification in heard}:
                connection.execute(sql.SQL("UNLISTEN {}").format(sql.Identifier(channel)))
                return True
        if not self._stopping.is_set():
            logger.warning(
                "Notifications do not arrive, as behind a pooler in transaction mode; polling goes on."
                " TENANTFAIR['LISTEN_DATABASE'] can name an alias with a direct connection",
                extra={"event": "listener_deaf", "worker_id": self._worker_id},
            )
        return False

    def _lost(self, error: psycopg.Error) -> None:
        self._failures += 1
        metrics.increment("tenantfair_worker_events_total", event="listener_lost")
        logger.warning(
            "Not listening, polling goes on: %s",
            str(error).strip(),
            extra={"event": "listener_lost", "worker_id": self._worker_id},
        )
