"""A domain on a real server for the state machine: cleared, read, moved in time, its sessions killed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import pytest
from django.conf import settings
from django.db import OperationalError, connections, transaction
from django.test import override_settings
from psycopg.rows import namedtuple_row

from tests import claim_support

OTHER = "other"
_LONGEST_WAIT_SECONDS = 20

_ROWS = """
    SELECT
        run.*,
        extract(epoch FROM wake_at - clock_timestamp())::float AS wake,
        extract(epoch FROM claimed_at - clock_timestamp())::float AS claimed
    FROM tenantfair_run AS run
    ORDER BY id
"""
_SHIFT = """
    UPDATE tenantfair_run SET
        wake_at = wake_at - %(by)s, claimed_at = claimed_at - %(by)s, finished_at = finished_at - %(by)s,
        tenant_admitted_at = tenant_admitted_at - %(by)s, poisoned_at = poisoned_at - %(by)s,
        enqueued_at = enqueued_at - %(by)s, started_at = started_at - %(by)s,
        last_attempted_at = last_attempted_at - %(by)s, updated_at = updated_at - %(by)s
"""
_CLEAR = """
    TRUNCATE tenantfair_run, tenantfair_schedule, tenantfair_partition, tenantfair_policy, tenantfair_pending;
    INSERT INTO tenantfair_policy (id) VALUES (1)
"""
_PUT_OFF = "UPDATE tenantfair_run SET wake_at = clock_timestamp() + %s * interval '1 s' WHERE run_id = %s"


class Arena:
    """`eye` is a session that sees what has committed, and nothing else."""

    def __init__(self) -> None:
        self.eye = claim_support.connect()

    def clear(self) -> None:
        """Leave the domain as a fresh install has it, whatever a broken build has made of it."""
        self.eye.execute(_CLEAR)

    def rows(self) -> dict[Any, Any]:
        """Return every run by its id, with `wake` and `claimed` in seconds from now."""
        with self.eye.cursor(row_factory=namedtuple_row) as cursor:
            return {row.run_id: row for row in cursor.execute(_ROWS)}

    def row(self, query: str, *parameters: Any) -> Any:
        return self.eye.execute(query, parameters).fetchone()

    def pairs(self, query: str) -> dict[Any, Any]:
        return dict(self.eye.execute(query).fetchall())

    def shift(self, delta: Any) -> None:
        """Move every stored time back, as if that much time had gone by."""
        self.eye.execute(_SHIFT, {"by": delta})

    def put_off(self, run_id: Any, seconds: int, alias: str) -> float:
        """Give a run another wake-up in the alias's transaction; return in how many seconds it was due."""
        with connections[alias].cursor() as cursor:
            cursor.execute(
                "SELECT extract(epoch FROM wake_at - clock_timestamp())::float FROM tenantfair_run"
                " WHERE run_id = %s",
                [run_id],
            )
            (before,) = cursor.fetchone()
            cursor.execute(_PUT_OFF, [seconds, run_id])
        return float(before)

    @contextmanager
    def locked(self, runs: Sequence[int], scopes: Sequence[str]) -> Iterator[None]:
        """Somebody else holds these rows; their session is killed in the end."""
        holder = claim_support.connect()
        try:
            holder.execute("BEGIN")
            holder.execute("SELECT FROM tenantfair_run WHERE id = ANY (%s) FOR UPDATE", [list(runs)])
            holder.execute(
                "SELECT FROM tenantfair_partition WHERE scope_key = ANY (%s) FOR UPDATE", [list(scopes)]
            )
            yield
            self._kill(holder.info.backend_pid)
        finally:
            holder.close()

    @contextmanager
    def killed(self) -> Iterator[None]:
        """A transaction of the alias `OTHER` whose session is killed before it commits."""
        # Opened here: Django's test cases refuse to open an alias that they did not know when they started.
        connections[OTHER].connect()
        with transaction.atomic(using=OTHER):
            yield
            with connections[OTHER].cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                self._kill(cursor.fetchone()[0])
                with pytest.raises(OperationalError):
                    cursor.execute("SELECT 1")
            connections[OTHER].close()

    def _kill(self, pid: int) -> None:
        self.eye.execute("SELECT pg_terminate_backend(%s)", [pid])
        deadline = time.monotonic() + _LONGEST_WAIT_SECONDS
        while self.row("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)", pid)[0]:
            assert time.monotonic() < deadline, f"session {pid} does not end"
            time.sleep(0.001)


@contextmanager
def arena() -> Iterator[Arena]:
    """Open an arena on the default database. No wake-ups are sent meanwhile."""
    quiet = {**settings.TENANTFAIR, "LISTEN": False, "DEFAULT_MAX_ACTIVE_RUNS": 2}
    connections.settings[OTHER] = deepcopy(connections["default"].settings_dict)
    with override_settings(TENANTFAIR=quiet):
        found = Arena()
        try:
            yield found
            found.clear()
        finally:
            found.eye.close()
            connections[OTHER].close()
            del connections[OTHER]
            del connections.settings[OTHER]
