"""Rules that hold in every committed state of a domain, each as one query or one reader.

Knows nothing of the package, and shares no SQL with the doctor. `violations` looks at one snapshot; a
`Watcher` also compares it with the one before, for what no single one can show.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import IsolationLevel, sql
from psycopg.rows import tuple_row

Connection = psycopg.Connection[Any]

INVARIANTS = {
    "I1": "no scope has more runs admitted than its cap, or it is in debt and admits nobody",
    "I2": "a claimed run is admitted, running and not poisoned",
    "I3": "an admitted run is running, not poisoned, and claimed or due",
    "I4": "a claim has a token and a time, and its token is used once, ever",
    "I5": "the count of a scope is that of its unfinished runs",
    "I6": "on the ring are the scopes with unfinished runs, and each of these has its partition and place",
    "I7": "a place on the ring is its scope's alone, for life, and above all older ones",
    "I8": "there is one policy row, and its cursor stands at 0 or where a place was",
    "I9": "nothing is started more often than allowed, and failures fall by a retry only",
    "I10": "poisoned and finished runs hold nothing, and what is final never changes",
    "I11": "saved states are numbered, and the number never falls",
    "I12": "what SQL can read, Python can read",
}

_MOST = 20

# Each returns one text per violation.
_QUERIES: dict[str, LiteralString] = {
    # Debt needs a cap that was changed at least once. Whether it grows, only a watcher sees.
    "I1": """
        SELECT format('%L has %s admitted, cap %s', scope.name, scope.admitted, scope.cap)
        FROM (
            SELECT
                coalesce(run.tenant_id, '') AS name,
                count(*) AS admitted,
                max(coalesce(part.max_active, policy.max_active)) AS cap,
                max(coalesce(part.partition_version, 0)) AS overridden,
                max(policy.policy_version) AS version
            FROM tenantfair_run AS run
            CROSS JOIN tenantfair_policy AS policy
            LEFT JOIN tenantfair_partition AS part ON part.scope_key = coalesce(run.tenant_id, '')
            WHERE run.tenant_admitted_at IS NOT NULL AND policy.admission_mode = 'tenant_fair'
            GROUP BY 1
        ) AS scope
        WHERE scope.admitted > scope.cap AND scope.overridden = 0 AND scope.version <= 1
    """,
    "I2": """
        SELECT format('run %s of %L is claimed, %s', run.id, run.tenant_id, run.status)
        FROM tenantfair_run AS run, tenantfair_policy AS policy
        WHERE run.claim_token IS NOT NULL
            AND (
                run.status <> 'running'
                OR run.poisoned_at IS NOT NULL
                OR run.tenant_admitted_at IS NULL AND policy.admission_mode = 'tenant_fair'
            )
    """,
    # Seconds of slack: a run given back now is due now, by a clock read a little earlier.
    "I3": """
        SELECT format('run %s of %L is admitted, %s until %s', id, tenant_id, status, wake_at)
        FROM tenantfair_run
        WHERE tenant_admitted_at IS NOT NULL
            AND (
                status <> 'running'
                OR poisoned_at IS NOT NULL
                OR claim_token IS NULL AND (wake_at <= clock_timestamp() + interval '5 seconds') IS NOT TRUE
            )
    """,
    "I4": """
        SELECT format('run %s has half a claim', id)
        FROM tenantfair_run
        WHERE num_nonnulls(claim_token, claimed_at) = 1
        UNION ALL
        SELECT format('runs %s share a token', array_agg(id))
        FROM tenantfair_run
        WHERE claim_token IS NOT NULL
        GROUP BY claim_token
        HAVING count(*) > 1
    """,
    "I5": """
        SELECT format('%L counts %s and has %s', coalesce(place.scope, run.scope), place.counted, run.counted)
        FROM (
            SELECT scope_key AS scope, unfinished_count AS counted FROM tenantfair_schedule
        ) AS place
        FULL JOIN (
            SELECT coalesce(tenant_id, '') AS scope, count(*) AS counted
            FROM tenantfair_run
            WHERE status NOT IN ('completed', 'failed', 'cancelled')
            GROUP BY 1
        ) AS run ON run.scope = place.scope
        WHERE coalesce(place.counted, 0) <> coalesce(run.counted, 0)
    """,
    "I6": """
        SELECT format('%L is on the ring: %s, unfinished: %s', member.scope, member.on_ring, member.has_work)
        FROM (
            SELECT
                scope,
                bool_or(kind = 'ring') AS on_ring,
                bool_or(kind = 'run') AS has_work,
                bool_or(kind = 'partition') AS has_partition,
                bool_or(kind IN ('ring', 'place')) AS has_place
            FROM (
                SELECT scope_key AS scope, CASE WHEN in_ring THEN 'ring' ELSE 'place' END AS kind
                FROM tenantfair_schedule
                UNION ALL
                SELECT scope_key, 'partition' FROM tenantfair_partition
                UNION ALL
                SELECT coalesce(tenant_id, ''), 'run' FROM tenantfair_run WHERE finished_at IS NULL
            ) AS thing
            GROUP BY scope
        ) AS member
        WHERE member.on_ring <> member.has_work OR NOT (member.has_partition AND member.has_place)
    """,
    "I7": """
        SELECT format('place %s is that of %s', ring_position, array_agg(scope_key))
        FROM tenantfair_schedule
        GROUP BY ring_position
        HAVING count(*) > 1 OR ring_position < 1
    """,
    "I8": """
        SELECT format('%s policy rows', count(*))
        FROM tenantfair_policy
        HAVING count(*) <> 1 OR min(id) <> 1
        UNION ALL
        SELECT format('the cursor is %s, places go to %s', scan_ring_position, last_value)
        FROM tenantfair_policy, tenantfair_schedule_ring_position_seq
        WHERE scan_ring_position <> 0 AND scan_ring_position NOT BETWEEN 1 AND last_value OR scan_laps < 0
    """,
    "I9": """
        SELECT format('run %s: %s attempts of %s', run.id, run.claim_attempts, policy.max_attempts)
        FROM tenantfair_run AS run, tenantfair_policy AS policy
        WHERE run.claim_attempts > policy.max_attempts AND run.status IN ('running', 'waiting')
            OR least(run.claim_attempts, run.failures, run.claim_abandons) < 0
    """,
    "I10": """
        SELECT format('run %s is %s and holds something, or has no end', id, status)
        FROM tenantfair_run
        WHERE (status <> 'running' OR poisoned_at IS NOT NULL)
            AND num_nonnulls(claim_token, claimed_at, tenant_admitted_at, wake_at) > 0
            OR (status IN ('completed', 'failed', 'cancelled')) <> (finished_at IS NOT NULL)
    """,
    "I11": """
        SELECT format('run %s has state number %s', id, checkpoint_seq)
        FROM tenantfair_run
        WHERE checkpoint_seq < 0 OR checkpoint_seq = 0 AND state IS NOT NULL
    """,
}

_EACH = sql.SQL("(SELECT {}, found.detail FROM ({}) AS found (detail) LIMIT {})")
_ALL = sql.SQL(" UNION ALL ").join(
    _EACH.format(invariant, sql.SQL(query), _MOST) for invariant, query in _QUERIES.items()
)
_TABLES = ("tenantfair_run", "tenantfair_partition", "tenantfair_schedule", "tenantfair_policy")


@dataclass(frozen=True)
class Violation:
    invariant: str
    detail: str


def violations(connection: Connection) -> list[Violation]:
    """Return what is broken in one snapshot of the domain that the search path leads to.

    At most twenty per invariant. `connection` is in autocommit mode and outside any transaction.
    """
    with _snapshot(connection):
        return _broken(connection)


class Watcher:
    """Looks again and again, and remembers: sees what is broken only in the light of the look before.

    Reads every run at each look. Exact unless a run is both retried
    by hand and failed between two.
    """

    def __init__(self) -> None:
        self._runs: dict[int, Any] = {}
        self._places: dict[str, int] = {}
        self._highest = 0
        self._admitted: dict[str, int] = {}
        self._owners: dict[Any, int] = {}
        self._spent: set[Any] = set()
        self._forgives = False

    def look(self, connection: Connection) -> list[Violation]:
        """Return what is broken now, the rules of `violations` included."""
        with _snapshot(connection):
            found = _broken(connection)
            runs = {row[0]: row for row in _rows(connection, _RUNS)}
            places = dict(_rows(connection, "SELECT scope_key, ring_position FROM tenantfair_schedule"))
            scopes = _rows(connection, _SCOPES)
        found += [*self._debts(scopes), *self._tokens(runs), *self._ring(places), *self._changes(runs)]
        self._runs, self._places, self._forgives = runs, places, False
        return found

    def forgive(self) -> None:
        """Let final runs have changed this once: the test itself has moved the times of all of them."""
        self._forgives = True

    def _debts(self, scopes: list[Any]) -> Iterator[Violation]:
        for scope, admitted, cap in scopes:
            if admitted > cap and admitted > self._admitted.get(scope, 0):
                yield Violation("I1", f"{scope!r} went to {admitted} admitted, cap {cap}")
        self._admitted = {scope: admitted for scope, admitted, _ in scopes}

    def _tokens(self, runs: dict[int, Any]) -> Iterator[Violation]:
        now = {row[3]: run for run, row in runs.items() if row[3] is not None}
        for token, run in now.items():
            if self._owners.setdefault(token, run) != run or token in self._spent:
                yield Violation("I4", f"run {run} has a token that was used before")
        self._spent |= self._owners.keys() - now.keys()

    def _ring(self, places: dict[str, int]) -> Iterator[Violation]:
        for scope, place in places.items():
            before = self._places.get(scope)
            if before is not None and before != place:
                yield Violation("I7", f"{scope!r} moved from {before} to {place}")
            elif before is None and place <= self._highest:
                yield Violation("I7", f"{scope!r} is new at {place}, places go to {self._highest}")
        self._highest = max(self._highest, *places.values(), 0)

    def _changes(self, runs: dict[int, Any]) -> Iterator[Violation]:
        for run in runs.keys() & self._runs.keys():
            _, _, _, _, failures, seq, state, content = runs[run]
            _, status_0, was_poisoned, _, failures_0, seq_0, state_0, content_0 = self._runs[run]
            was_stopped = was_poisoned or status_0 == "failed"
            if failures < failures_0 and not (was_stopped and failures == 0):
                yield Violation("I9", f"failures of run {run} fell from {failures_0} to {failures}")
            if status_0 in ("completed", "cancelled") and content != content_0 and not self._forgives:
                yield Violation("I10", f"run {run} was {status_0} and has changed")
            if seq < seq_0 or (state != state_0 and seq == seq_0):
                yield Violation("I11", f"state of run {run}: number {seq_0} became {seq}")


_RUNS: LiteralString = """
    SELECT
        id, status, poisoned_at IS NOT NULL, claim_token, failures, checkpoint_seq,
        md5(state::text), md5(run::text)
    FROM tenantfair_run AS run
"""
_SCOPES: LiteralString = """
    SELECT part.scope_key, count(run.id), max(coalesce(part.max_active, policy.max_active))
    FROM tenantfair_partition AS part
    CROSS JOIN tenantfair_policy AS policy
    LEFT JOIN tenantfair_run AS run
        ON coalesce(run.tenant_id, '') = part.scope_key AND run.tenant_admitted_at IS NOT NULL
    WHERE policy.admission_mode = 'tenant_fair'
    GROUP BY part.scope_key
"""


@contextmanager
def _snapshot(connection: Connection) -> Iterator[None]:
    before = connection.isolation_level, connection.read_only
    connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
    try:
        with connection.transaction():
            yield
    finally:
        connection.isolation_level, connection.read_only = before


def _broken(connection: Connection) -> list[Violation]:
    return [*(Violation(*row) for row in _rows(connection, _ALL)), *_unreadable(connection)]


def _unreadable(connection: Connection) -> Iterator[Violation]:
    """Read everything; only if that fails, row by row."""
    for table in _TABLES:
        everything = sql.SQL("SELECT * FROM {}").format(sql.Identifier(table))
        if _reads(connection, everything):
            continue
        for (place,) in _rows(connection, sql.SQL("SELECT ctid::text FROM {}").format(sql.Identifier(table))):
            if not _reads(connection, everything + sql.SQL(" WHERE ctid = {}::tid").format(place)):
                yield Violation("I12", f"row {place} of {table}")


def _reads(connection: Connection, query: sql.Composed) -> bool:
    try:
        _rows(connection, query)
    except (psycopg.DataError, ValueError, RecursionError):
        return False
    return True


def _rows(connection: Connection, query: LiteralString | sql.Composable) -> list[Any]:
    with connection.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(query).fetchall()
