"""Looks at the rows again and again while faults happen, each time in one snapshot."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import psycopg

EVERY_SECONDS = 0.25
# A wake-up is due when it is not later than this behind the clock: admission may be a moment ahead of it.
_SLACK = "1 second"

_SCOPES_SQL = """
    SELECT
        scope_key,
        count(*) FILTER (WHERE run.tenant_admitted_at IS NOT NULL) AS admitted,
        count(*) FILTER (WHERE run.claim_token IS NOT NULL) AS claimed,
        max(run.tenant_admitted_at) AS last_admitted_at,
        coalesce(part.max_active, (SELECT policy.max_active FROM tenantfair_policy AS policy)) AS cap,
        count(*) FILTER (WHERE run.status IN ('running', 'waiting')) AS unfinished,
        schedule.unfinished_count,
        schedule.ring_position,
        part.created_at
    FROM tenantfair_run AS run
    FULL JOIN tenantfair_partition AS part USING (scope_key)
    FULL JOIN tenantfair_schedule AS schedule USING (scope_key)
    GROUP BY scope_key, part.max_active, part.created_at, schedule.unfinished_count, schedule.ring_position
"""
_ROWS_SQL = f"""
    SELECT rule, run_id::text
    FROM tenantfair_run AS run
    CROSS JOIN LATERAL (
        VALUES
            ('I2', claim_token IS NOT NULL
                AND (tenant_admitted_at IS NULL OR status <> 'running' OR poisoned_at IS NOT NULL)),
            ('I3', tenant_admitted_at IS NOT NULL
                AND (status <> 'running' OR poisoned_at IS NOT NULL
                    OR (claim_token IS NULL AND wake_at > clock_timestamp() + interval '{_SLACK}'))),
            ('I4', (claim_token IS NULL) <> (claimed_at IS NULL)),
            ('I9', claim_attempts > (SELECT max_attempts FROM tenantfair_policy)),
            ('I10', poisoned_at IS NOT NULL AND (claim_token IS NOT NULL OR tenant_admitted_at IS NOT NULL)),
            ('I10', status IN ('completed', 'failed', 'cancelled')
                AND (claim_token IS NOT NULL OR tenant_admitted_at IS NOT NULL OR finished_at IS NULL))
    ) AS found (rule, is_broken)
    WHERE is_broken
    LIMIT 20
"""
_POLICY_SQL = """
    SELECT
        count(*),
        max(scan_ring_position),
        (SELECT coalesce(max(ring_position), 0) FROM tenantfair_schedule)
    FROM tenantfair_policy
"""


class Checker(threading.Thread):
    """Judges I1-I6 and I8-I10 every quarter of a second, or without a pause by `check()`.

    `lowered` says, by tenant, since when its present cap has certainly been in force; whoever lowers a cap
    takes the entry away before and sets it afterwards. Admissions later than that are no debt.
    """

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        super().__init__(name="soak-checker", daemon=True)
        self._connect = connect
        self._ending = threading.Event()
        # By tenant and when it was made: one that was deleted and comes again gets another place.
        self._positions: dict[tuple[str, Any], int] = {}
        self.lowered: dict[str, float | None] = {}
        self.checks = 0
        self.most: dict[str, int] = {}
        self.found: list[str] = []

    def run(self) -> None:
        while not self._ending.is_set():
            try:
                with self._connect() as connection:
                    while not self._ending.wait(EVERY_SECONDS):
                        self.check(connection)
            except psycopg.OperationalError:
                self._ending.wait(0.05)  # the server is down on purpose

    def stop(self) -> None:
        self._ending.set()
        self.join(30)

    def check(self, connection: psycopg.Connection[Any]) -> None:
        """Judge one snapshot."""
        lowered = dict(self.lowered)
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            scopes = connection.execute(_SCOPES_SQL).fetchall()
            rows = connection.execute(_ROWS_SQL).fetchall()
            policies = connection.execute(_POLICY_SQL).fetchone()
        # A cap that was edited meanwhile may be seen before or after its edit.
        same = {scope: since for scope, since in lowered.items() if self.lowered[scope] == since}
        lowered = {scope: same.get(scope) for scope in self.lowered}
        found = [f"{rule} run {run}" for rule, run in rows]
        for scope in scopes:
            found += self._scope(scope, lowered)
        assert policies is not None
        if policies[0] != 1 or policies[1] > policies[2]:
            found.append(f"I8 {policies}")
        self.found += found
        self.checks += 1

    def _scope(self, row: Any, lowered: Mapping[str, float | None]) -> list[str]:
        scope, admitted, claimed, last_admitted_at, cap, unfinished, counted, position, made_at = row
        found = []
        self.most[scope] = max(self.most.get(scope, 0), claimed)
        if admitted > cap:
            # None: its cap is just being changed, so this snapshot proves nothing.
            since = lowered.get(scope, 0.0)
            if since is not None and last_admitted_at.timestamp() > since:
                found.append(
                    f"I1 scope {scope!r} has {admitted} admitted, the last at {last_admitted_at}, cap {cap}"
                )
        if unfinished != (counted or 0):
            found.append(f"I5 scope {scope!r} counts {counted} unfinished, its rows are {unfinished}")
        if unfinished and position is None:
            found.append(f"I6 scope {scope!r} has work and no place in the ring")
        if (
            position is not None
            and (before := self._positions.setdefault((scope, made_at), position)) != position
        ):
            found.append(f"I7 scope {scope!r} moved from {before} to {position}")
        return found
