"""A bench for the claim function: rows in every state, raw calls at chosen times, other sessions.

Everything speaks plain SQL over connections of its own, so a lock held by "somebody else" is held by somebody
else. Times are seconds relative to `NOW`, the time that a call is told it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from django.db import connection
from psycopg import sql
from psycopg.rows import namedtuple_row

from tenantfair.signals import claim_observed
from tenantfair.sql import install, load
from tests.rows import LOCKED_HERE, in_background, result

Session = psycopg.Connection[Any]

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEASE = 60
MAX_ATTEMPTS = 5
SHIPPED = load("tenantfair_claim.v1")

# Test-only: says that it was reached, then waits until nobody holds the gate. Polls, because the claim's own
# lock_timeout would end a lock wait after 250 ms.
_BARRIER = """
CREATE OR REPLACE FUNCTION tests_barrier() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(7301);
    WHILE NOT pg_try_advisory_xact_lock_shared(7302) LOOP
        PERFORM pg_sleep(0.002);
    END LOOP;
    RETURN true;
END $$
"""
# Test-only: tells the client how long a lock is waited for from here on. A notice outlives the subtransaction
# of a wait that is given up.
_TELLING = """
CREATE OR REPLACE FUNCTION tests_tell_patience() RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE NOTICE '%', current_setting('lock_timeout');
    RETURN true;
END $$
"""
_ARRIVED = (
    f"SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 7301 AND {LOCKED_HERE})"
)
_ADMITTED = "SELECT id FROM tenantfair_run WHERE scope_key = %s AND tenant_admitted_at IS NOT NULL ORDER BY 1"
_LONGEST_WAIT_SECONDS = 20


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def connect(**parameters: Any) -> Session:
    """Return a new autocommit session on the test database."""
    found = connection.get_connection_params()
    for django_only in ("pool", "context", "cursor_factory", "prepare_threshold"):
        found.pop(django_only, None)
    session = psycopg.connect(**(found | parameters), autocommit=True, row_factory=namedtuple_row)
    session.execute(f"SET lock_timeout = '{_LONGEST_WAIT_SECONDS}s'")
    return session


class Claimed:
    """The rows of one call, sorted by kind."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = rows
        self.outcomes = sorted(self._of("outcome"), key=lambda row: (row.visit_ordinal, row.outcome_ordinal))
        self.inspections = sorted(self._of("inspection"), key=lambda row: row.visit_ordinal)
        self.call = next(iter(self._of("call")), None)
        self.error = next(iter(self._of("error")), None)

    def _of(self, kind: str) -> list[Any]:
        return [row for row in self.rows if row.row_kind == kind]

    @property
    def scopes(self) -> list[str]:
        """The scope of every outcome, in order."""
        return [row.scope_key for row in self.outcomes]

    @property
    def classes(self) -> list[str]:
        return [row.work_class for row in self.outcomes]

    @property
    def leases(self) -> list[Any]:
        return [row for row in self.outcomes if row.claim_token is not None]

    @property
    def poisoned(self) -> list[Any]:
        return [row for row in self.outcomes if row.claim_token is None]

    @property
    def dispositions(self) -> list[str]:
        """The disposition of every inspection, in order; needs the trace."""
        return [row.disposition for row in self.inspections]

    @property
    def visited(self) -> list[str]:
        return [row.scope_key for row in self.inspections]

    @property
    def denials(self) -> dict[str, int]:
        """The reasons of the call row that happened at all."""
        return {reason: n for reason, n in self.call.denials.items() if n}


class Bench:
    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.db = self.session()

    # Sessions

    def session(self, **parameters: Any) -> Session:
        session = connect(**parameters)
        self._stack.callback(session.close)
        return session

    def holding(self, statement: str, parameters: Sequence[Any] = ()) -> Session:
        """Return a session with an open transaction that has run `statement`; `rollback()` lets go."""
        session = self.session()
        session.execute("BEGIN")
        session.execute(statement, parameters)
        return session

    def locking_runs(self, *ids: int, strength: str = "UPDATE") -> Session:
        return self.holding(f"SELECT FROM tenantfair_run WHERE id = ANY (%s) FOR {strength}", [list(ids)])

    def locking_partition(self, scope: str, strength: str = "UPDATE") -> Session:
        return self.holding(f"SELECT FROM tenantfair_partition WHERE scope_key = %s FOR {strength}", [scope])

    def locking_policy(self) -> Session:
        return self.holding("SELECT FROM tenantfair_policy FOR UPDATE")

    # Rows

    def policy(
        self, cap: int = 10, *, budget: int = 32, cursor: int = 0, laps: int = 0, fruitless: int = 0
    ) -> None:
        """Put the domain into mode tenant_fair."""
        self.db.execute(
            """
            UPDATE tenantfair_policy SET
                admission_mode = 'tenant_fair', max_active = %s, configured_max_active = 1,
                policy_version = 1, initialized_at = now(),
                scan_budget = %s, scan_ring_position = %s, scan_laps = %s, scan_fruitless = %s
            """,
            [cap, budget, cursor, laps, fruitless],
        )

    @contextmanager
    def any_budget(self) -> Iterator[None]:
        """Let the policy hold budgets below the least: small ones reach the end of a call more often."""
        (rules,) = self.db.execute(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'tenantfair_policy_shape'"
        ).fetchone()
        self.db.execute("ALTER TABLE tenantfair_policy DROP CONSTRAINT tenantfair_policy_shape")
        yield
        self.db.execute("UPDATE tenantfair_policy SET scan_budget = 32")
        self.db.execute(f"ALTER TABLE tenantfair_policy ADD CONSTRAINT tenantfair_policy_shape {rules}")

    def pristine(self) -> None:
        """Put the policy row back as the migration left it."""
        self.db.execute("DELETE FROM tenantfair_policy")
        self.db.execute("INSERT INTO tenantfair_policy (id) VALUES (1)")

    def override(self, scope: str, cap: int | None) -> None:
        self.db.execute(
            """
            INSERT INTO tenantfair_partition (scope_key, max_active) VALUES (%s, %s)
            ON CONFLICT (scope_key) DO UPDATE SET max_active = excluded.max_active
            """,
            [scope, cap],
        )

    def queued(self, scope: str, n: int = 1, *, wake: float = -100, **columns: Any) -> list[int]:
        return self.insert(scope, n, wake_at=at(wake), **columns)

    def ready(self, scope: str, n: int = 1, *, wake: float = -100, **columns: Any) -> list[int]:
        return self.insert(scope, n, wake_at=at(wake), tenant_admitted_at=at(-5000), **columns)

    def claimed(self, scope: str, n: int = 1, *, since: float = -10, **columns: Any) -> list[int]:
        """Live claims; `since` before -LEASE makes them expired."""
        shape = {"claim_attempts": 1, "tenant_admitted_at": at(-5000)} | columns
        return self.insert(scope, n, claimed_at=at(since), **shape)

    def expired(self, scope: str, n: int = 1, *, since: float = -LEASE - 100, **columns: Any) -> list[int]:
        return self.claimed(scope, n, since=since, **columns)

    def waiting(self, scope: str, n: int = 1) -> list[int]:
        return self.insert(scope, n, status="waiting")

    def poisoned(self, scope: str, n: int = 1) -> list[int]:
        return self.insert(scope, n, poisoned_at=at(-5), poison_reason="test")

    def insert(self, scope: str, n: int = 1, **columns: Any) -> list[int]:
        """Insert `n` equal runs of a scope in one committed statement and return their ids in order."""
        values = {"tenant_id": scope or None, "task_path": "tests.task", **columns}
        token = sql.SQL("gen_random_uuid()") if columns.get("claimed_at") else sql.SQL("NULL")
        statement = sql.SQL(
            "INSERT INTO tenantfair_run (claim_token, {columns}) SELECT {token}, {values}"
            " FROM generate_series(1, {n}) RETURNING id"
        ).format(
            columns=sql.SQL(", ").join(map(sql.Identifier, values)),
            token=token,
            values=sql.SQL(", ").join(map(sql.Literal, values.values())),
            n=sql.Literal(n),
        )
        return [row.id for row in self.db.execute(statement).fetchall()]

    def change(self, *ids: int, by: Session | None = None, **columns: Any) -> None:
        assignments = sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(name), sql.Literal(value))
            for name, value in columns.items()
        )
        (by or self.db).execute(
            sql.SQL("UPDATE tenantfair_run SET {} WHERE id = ANY ({})").format(
                assignments, sql.Literal(list(ids))
            )
        )

    def release(self, *ids: int, wake: float = -100) -> None:
        """As a holder gives a started run back at once: the marker stays."""
        self.change(*ids, claim_token=None, claimed_at=None, claimed_by=None, wake_at=at(wake))

    def park(self, *ids: int) -> None:
        """As a holder schedules a run for later: the marker goes."""
        self.change(*ids, claim_token=None, claimed_at=None, wake_at=at(3600), tenant_admitted_at=None)

    def finish(self, *ids: int) -> None:
        gone = dict.fromkeys(["claim_token", "claimed_at", "wake_at", "tenant_admitted_at"])
        self.change(*ids, status="completed", finished_at=at(0), **gone)

    # Calls

    def claim(
        self,
        demand: int = 1,
        *,
        by: Session | None = None,
        now: datetime = NOW,
        cutoff: datetime | None = None,
        attempts: int = MAX_ATTEMPTS,
        preference: str | None = None,
        trace: bool = True,
        function: str = "tenantfair_claim",
    ) -> Claimed:
        """Call the function with a cutoff one lease before `now`, unless told otherwise."""
        rows = (by or self.db).execute(
            sql.SQL("SELECT * FROM {}(%s, %s, %s, %s, %s, %s)").format(sql.Identifier(function)),
            [now, cutoff or now - timedelta(seconds=LEASE), demand, attempts, preference, trace],
        )
        return Claimed(rows.fetchall())

    # What is there

    def run(self, run: int) -> Any:
        return self.db.execute("SELECT * FROM tenantfair_run WHERE id = %s", [run]).fetchone()

    def cursor(self) -> tuple[int, int]:
        return tuple(
            self.db.execute("SELECT scan_laps, scan_ring_position FROM tenantfair_policy").fetchone()
        )

    def position(self, scope: str) -> int:
        return self.positions()[scope]

    def positions(self) -> dict[str, int]:
        return dict(self.db.execute("SELECT scope_key, ring_position FROM tenantfair_schedule").fetchall())

    def epoch(self, scope: str) -> int:
        found = "SELECT admission_epoch FROM tenantfair_partition WHERE scope_key = %s"
        return int(self.db.execute(found, [scope]).fetchone()[0])

    def admitted(self, scope: str) -> list[int]:
        return [row.id for row in self.db.execute(_ADMITTED, [scope]).fetchall()]

    def ids(self, rows: Sequence[Any]) -> list[int]:
        """The internal ids of outcome rows, in their order."""
        found = "SELECT run_id, id FROM tenantfair_run WHERE run_id = ANY (%s)"
        by_run = dict(self.db.execute(found, [[row.run_id for row in rows]]).fetchall())
        return [by_run[row.run_id] for row in rows]

    def everything(self) -> list[Any]:
        """All rows of all tables, to compare before and after."""
        tables = ("policy", "partition", "schedule", "run")
        return [
            self.db.execute(
                sql.SQL("SELECT * FROM {} ORDER BY 1").format(sql.Identifier(f"tenantfair_{table}"))
            ).fetchall()
            for table in tables
        ]

    # A claim that stops on its way

    def function(self, name: str, text: str) -> str:
        """Install an altered copy of the claim function under another name, until the bench is cleared."""
        self.db.execute(_BARRIER)
        self.db.execute(_TELLING)
        self.db.execute(install_as(name, text))
        self._stack.callback(connect_and_drop, name)
        return name

    def while_stopped(
        self, between: Callable[[], Any], function: str, demand: int = 1, *, by: Session | None = None
    ) -> Claimed:
        """Make a call of a function with a barrier, and do `between` while it stands there."""
        gate = Gate(self)
        caller = by or self.session()
        call = in_background(lambda: self.claim(demand, by=caller, function=function))
        gate.await_arrival()
        between()
        gate.open()
        return result(call)


class Gate:
    """Closed from the start: whoever calls `tests_barrier()` stops there until it is opened."""

    def __init__(self, bench: Bench) -> None:
        self._session = bench.session()
        self._session.execute("SELECT pg_advisory_lock(7302)")

    def await_arrival(self) -> None:
        deadline = time.monotonic() + _LONGEST_WAIT_SECONDS
        while not self.somebody_came():
            assert time.monotonic() < deadline, "nobody came"
            time.sleep(0.002)

    def somebody_came(self) -> bool:
        return bool(self._session.execute(_ARRIVED).fetchone()[0])

    def open(self) -> None:
        self._session.execute("SELECT pg_advisory_unlock(7302)")


def install_as(name: str, text: str) -> str:
    """The statements that install `text`, a version of the shipped function, under another name."""
    return install("tenantfair_claim.v1").replace(
        SHIPPED, text.replace("FUNCTION tenantfair_claim(", f"FUNCTION {name}(")
    )


def connect_and_drop(name: str) -> None:
    with connect() as session:
        session.execute(sql.SQL("DROP FUNCTION {}").format(sql.Identifier(name)))


def inserted(text: str, addition: str, *, after: str = "", before: str = "") -> str:
    """Return `text` with `addition` next to the one line that is `after`, or that begins with `before`.

    Without the addition it is `text` again, so what is tested is the shipped function and one line more.
    """
    lines = text.splitlines(keepends=True)
    (place,) = (
        index + bool(after)
        for index, line in enumerate(lines)
        if (after and line.strip() == after) or (before and line.strip().startswith(before))
    )
    changed = "".join([*lines[:place], f"{addition}\n", *lines[place:]])
    assert changed.replace(f"{addition}\n", "") == text
    return changed


def stopping_before_locks() -> str:
    """The shipped function with a barrier between reading rows and locking them, each time."""
    text = inserted(
        SHIPPED,
        "            CROSS JOIN LATERAL (SELECT tests_barrier() WHERE (head IS NULL) IS NOT NULL) AS barrier",
        after=") AS head ON head.wake_at <= p_now",
    )
    text = inserted(
        text,
        "            CROSS JOIN LATERAL (SELECT tests_barrier() WHERE page.id IS NOT NULL) AS barrier",
        after=") AS page",
    )
    return inserted(text, "                PERFORM tests_barrier();", before="SELECT array_agg(locked.id)")


def telling_its_patience(text: str = SHIPPED) -> str:
    """The shipped function, which tells the lock_timeout in force where it waits: at the door, at the row."""
    text = inserted(
        text, "                PERFORM tests_tell_patience();", before="PERFORM pg_advisory_xact_lock(v_door)"
    )
    return inserted(
        text,
        "                    CROSS JOIN LATERAL (SELECT tests_tell_patience() WHERE policy.id >= 1) AS told",
        before="WHERE policy.id >= 1 ORDER BY policy.id DESC LIMIT 1 FOR NO KEY UPDATE;",
    )


def clear(session: Session) -> None:
    """Leave the domain as a fresh install has it, but for the next ids and ring positions."""
    session.execute("DELETE FROM tenantfair_run")
    session.execute("DELETE FROM tenantfair_partition")
    session.execute("DELETE FROM tenantfair_policy")
    session.execute("INSERT INTO tenantfair_policy (id) VALUES (1)")


@contextmanager
def bench() -> Iterator[Bench]:
    """Yield an empty domain in mode tenant_fair with a cap of 10, and clear it afterwards."""
    with ExitStack() as stack:
        found = Bench(stack)
        clear(found.db)
        found.policy()
        yield found
    with connect() as session:
        clear(session)


@contextmanager
def claims_observed() -> Iterator[list[dict[str, Any]]]:
    """Yield what `claim_observed` sends until the block ends, one mapping for each call."""
    seen: list[dict[str, Any]] = []
    claim_observed.connect(receiver := lambda **sent: seen.append(sent))
    try:
        yield seen
    finally:
        claim_observed.disconnect(receiver)
