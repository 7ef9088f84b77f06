"""The worker's own connections: dedicated, READ COMMITTED, named after the worker.

Each of the worker's service threads has one, installed under the host's alias for that thread alone. Tasks
use the host's connections as they are. What a session needs is asked for at its start, by parameters of the
connection: nothing of ours is ever SET, since behind a pooler that would reach somebody else's transaction.

Where these parameters are taken and no pooler is in between, statements are prepared: they are planned once
in a session, and only as index lookups, so that a plan made while a table was small stays right.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from django.db import Error, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend
from psycopg import IsolationLevel

from tenantfair.logs import log_safely

logger = logging.getLogger("tenantfair.worker")

# A dead peer or a lost network is noticed within about a minute. Hosts that set these keep their own.
_LIVENESS: Final = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 20,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 50_000,
}
# Claims refuse any other isolation level, and a role may have another by default.
_SERVER_OPTIONS: Final = (
    r"-c default_transaction_isolation=read\ committed"
    " -c default_transaction_read_only=off"
    " -c idle_in_transaction_session_timeout=30s"
    # What is prepared is planned once, whatever the statistics say then.
    " -c plan_cache_mode=force_generic_plan"
    " -c enable_seqscan=off -c enable_bitmapscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
    " -c jit=off"
)
# As psycopg has it: for what is not asked to be prepared at its first use.
_PREPARE_THRESHOLD: Final = 5
# A prepared statement is not there, or is there already: the session is not ours alone.
_LOST_STATEMENTS: Final = frozenset({"26000", "42P05"})


class WorkerConnections:
    """Opens the worker's connections to `alias` and, for listening, to others."""

    def __init__(self, alias: str, worker_id: str) -> None:
        self.alias = alias
        self._worker_id = worker_id
        self._with_server_options = True
        self._prepares = False

    def probe(self) -> None:
        """Find out whether the server takes our options at the start of a session, as poolers may not.

        Also whether it is the server itself that answers. Raises `OperationalError` when there is no
        connection either way.
        """
        try:
            self._try()
        except OperationalError as error:
            self._with_server_options = False
            try:
                self._try()
            except OperationalError:
                self._with_server_options = True
                raise error from None
            log_safely(
                logger,
                logging.INFO,
                "The server refuses session options at connect; a pooler is in between",
                extra={"event": "options_refused", "worker_id": self._worker_id},
            )

    def _try(self) -> None:
        connection = self._wrapper(self.alias)
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                (pid,) = cursor.fetchone()
            # A pooler tells its clients a number of its own.
            self._prepares = pid == connection.connection.info.backend_pid
        finally:
            connection.close()

    @contextmanager
    def own(self, *, server_options: str = "") -> Iterator[BaseDatabaseWrapper]:
        """Let `connections[alias]` be the worker's own in this thread; closed at the end.

        `server_options` are asked for besides, where the server takes ours.
        """
        previous = connections[self.alias]
        mine = connections[self.alias] = self._wrapper(self.alias, server_options)
        try:
            yield mine
        finally:
            mine.close()
            connections[self.alias] = previous

    def unprepare(self, error: Error) -> bool:
        """Return whether `error` shows that sessions do not keep what was prepared; then prepare no more.

        This thread's connection is closed in that case: what failed can be tried again.
        """
        mine = connections[self.alias]
        options = mine.settings_dict["OPTIONS"]
        if getattr(error.__cause__, "sqlstate", None) not in _LOST_STATEMENTS:
            return False
        if options.get("prepare_threshold") is None:
            return False
        self._prepares = False
        options["prepare_threshold"] = None
        mine.close()
        return True

    def params(self, alias: str) -> dict[str, Any]:
        """Return what `psycopg.connect` needs for a session of the worker's on `alias`."""
        return dict(self._wrapper(alias).get_connection_params())

    def role(self) -> str | None:
        """Return the role that sessions of the alias assume, if they do."""
        role: str | None = connections[self.alias].settings_dict["OPTIONS"].get("assume_role")
        return role

    def _wrapper(self, alias: str, server_options: str = "") -> BaseDatabaseWrapper:
        settings = dict(connections[alias].settings_dict)
        settings["OPTIONS"] = self._options(settings["OPTIONS"], server_options)
        settings |= {"AUTOCOMMIT": True, "CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": False}
        backend = load_backend(settings["ENGINE"])
        wrapper: BaseDatabaseWrapper = backend.DatabaseWrapper(settings, alias)
        # With DEBUG Django keeps what was executed until a request ends, and no request ends here.
        wrapper.queries_log = deque(maxlen=0)
        return wrapper

    def _options(self, host: Mapping[str, Any], server_options: str) -> dict[str, Any]:
        options = _LIVENESS | dict(host)
        options.pop("pool", None)
        options["isolation_level"] = IsolationLevel.READ_COMMITTED
        options["application_name"] = self._worker_id
        # What a service file says about options cannot be seen here, and ours would replace it.
        if self._with_server_options and "service" not in options:
            given = options.get("options", os.environ.get("PGOPTIONS", ""))
            options["options"] = f"{given} {_SERVER_OPTIONS} {server_options}".strip()
            if self._prepares:
                options.setdefault("prepare_threshold", _PREPARE_THRESHOLD)
        return options
