"""Rows and sessions for tests that speak plain SQL to the test database.

Each session is a real connection of its own, so that what one test calls "somebody else" is somebody else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, LiteralString

import psycopg
from django.db import connection
from psycopg import sql

Session = psycopg.Connection[tuple[Any, ...]]

# For pg_locks, which shows those of the whole server: other tests may run beside in databases of their own.
LOCKED_HERE: LiteralString = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"

# The columns that decide a run's state; what a state does not name is null.
STATE_COLUMNS = (
    "status",
    "wake_at",
    "claim_token",
    "claimed_at",
    "tenant_admitted_at",
    "poisoned_at",
    "poison_reason",
    "finished_at",
)
STATES: dict[str, dict[str, LiteralString]] = {
    "queued": {"status": "'running'", "wake_at": "now()"},
    "scheduled": {"status": "'running'", "wake_at": "now() + interval '1 day'"},
    "ready": {"status": "'running'", "wake_at": "now()", "tenant_admitted_at": "now()"},
    "claimed": {
        "status": "'running'",
        "claim_token": "gen_random_uuid()",
        "claimed_at": "now()",
        "tenant_admitted_at": "now()",
    },
    "waiting": {"status": "'waiting'"},
    "poisoned": {"status": "'running'", "poisoned_at": "now()", "poison_reason": "'test'"},
    "completed": {"status": "'completed'", "finished_at": "now()"},
    "failed": {"status": "'failed'", "finished_at": "now()"},
    "cancelled": {"status": "'cancelled'", "finished_at": "now()"},
}
FINISHED = frozenset({"completed", "failed", "cancelled"})

_LONGEST_WAIT_SECONDS = 20


def connect(**parameters: Any) -> Session:
    """Return a new autocommit session on the test database, free of Django's adapters."""
    found = connection.get_connection_params()
    for django_only in ("pool", "context", "cursor_factory", "prepare_threshold"):
        found.pop(django_only, None)
    return psycopg.connect(**(found | parameters), autocommit=True)


@contextmanager
def sessions() -> Iterator[Callable[..., Session]]:
    """Give out sessions and close them all at the end, whatever they hold open."""
    opened: list[Session] = []

    def another(**parameters: Any) -> Session:
        opened.append(connect(**parameters))
        return opened[-1]

    try:
        yield another
    finally:
        for session in opened:
            session.close()


def script(session: Session, *statements: LiteralString) -> None:
    for statement in statements:
        session.execute(statement)


def insert_run(session: Session, tenant: str | None, state: str = "queued", **changes: LiteralString) -> int:
    """Insert one run in `state`, with SQL expressions for the columns of `changes`, and return its id."""
    values = {"task_path": "'tests.task'"} | STATES[state] | changes
    statement = sql.SQL(
        "INSERT INTO tenantfair_run (tenant_id, {columns}) VALUES (%s, {values}) RETURNING id"
    ).format(
        columns=sql.SQL(", ").join(map(sql.Identifier, values)),
        values=sql.SQL(", ").join(map(sql.SQL, values.values())),
    )
    return session.execute(statement, [tenant]).fetchone()[0]


def enqueue(session: Session, tenant: str | None, number: int = 1) -> None:
    """Insert `number` queued runs of one tenant in one statement."""
    session.execute(
        "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at)"
        " SELECT %s, 'tests.task', now() FROM generate_series(1, %s)",
        [tenant, number],
    )


def put_into(session: Session, run: int, state: str) -> None:
    """Move one run to `state` by a plain UPDATE."""
    values = dict.fromkeys(STATE_COLUMNS, "NULL") | STATES[state]
    session.execute(
        sql.SQL("UPDATE tenantfair_run SET {changes} WHERE id = %s").format(
            changes=sql.SQL(", ").join(
                sql.SQL("{} = {}").format(sql.Identifier(column), sql.SQL(value))
                for column, value in values.items()
            )
        ),
        [run],
    )


FINISH_ALL: LiteralString = (
    "UPDATE tenantfair_run SET status = 'completed', wake_at = NULL, finished_at = now()"
)


def counts(session: Session) -> dict[str, int]:
    """Return the unfinished count of every scope that has a ring position, as this session sees it."""
    return dict(session.execute("SELECT scope_key, unfinished_count FROM tenantfair_schedule").fetchall())


def positions(session: Session) -> dict[str, int]:
    return dict(session.execute("SELECT scope_key, ring_position FROM tenantfair_schedule").fetchall())


def assert_exact(session: Session) -> None:
    """Every count equals a recount by status, every unfinished run has its position, no note is left over."""
    wrong = session.execute("""
        SELECT scope_key, schedule.unfinished_count, recount.n
        FROM tenantfair_schedule AS schedule
        FULL JOIN (
            SELECT coalesce(tenant_id, '') AS scope_key, count(*) AS n
            FROM tenantfair_run
            WHERE status IN ('running', 'waiting')
            GROUP BY 1
        ) AS recount USING (scope_key)
        WHERE schedule.unfinished_count IS DISTINCT FROM coalesce(recount.n, 0)
    """).fetchall()
    assert wrong == []
    assert session.execute("SELECT count(*) FROM tenantfair_pending").fetchone() == (0,)


def in_background(work: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Run `work(*arguments)` in a thread of its own; the future carries its result or its exception."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def until_blocked(observer: Session, waiting: Session) -> None:
    """Return once `waiting` waits for another session's lock."""
    deadline = time.monotonic() + _LONGEST_WAIT_SECONDS
    while observer.execute("SELECT pg_blocking_pids(%s) = '{}'", [waiting.info.backend_pid]).fetchone()[0]:
        assert time.monotonic() < deadline, "the session never waited"
        time.sleep(0.01)


def result(future: Future[Any]) -> Any:
    return future.result(timeout=_LONGEST_WAIT_SECONDS)
