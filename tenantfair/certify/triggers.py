"""Putting a recording's triggers on busy tables and taking them off again, without anybody waiting for long.

Both need a lock that keeps writers out. It is asked for in short tries, each in a transaction of its own that
holds no other lock: whoever comes while one try waits, waits with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

from django.db import OperationalError, ProgrammingError, connections, transaction
from psycopg.errors import DeadlockDetected, DuplicateTable, LockNotAvailable

from tenantfair.certify.errors import RecordingFailed, RecordingLeft, RecordingNotAllowed
from tenantfair.sql import install, load

# The most contested first: a try that fails has changed nothing yet.
TABLES: Final = ("tenantfair_run", "tenantfair_schedule", "tenantfair_partition", "tenantfair_policy")
# Below the 250 ms that a claim waits for a lock, so that no claim fails by it.
LOCK_TIMEOUT_MS: Final = 100
PATIENCE_SECONDS: Final = 20.0
# Longer, for what is left behind has to be removed by hand.
PATIENCE_AT_THE_END_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.2


class Stop(Protocol):
    """How a recording learns that it should end: once to end early, twice to give up at once."""

    count: int

    def wait(self, seconds: float) -> None:
        """Return after so many seconds, or as soon as there is a request."""


class Unstoppable:
    """Never asks for an end."""

    count = 0

    def wait(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)


class Left(NamedTuple):
    """A recording that is there: its deadline, None when that is lost, and whether it still records."""

    until: datetime | None
    records: bool


def left(alias: str) -> Left | None:
    """Return what is there of a recording, or None."""
    rows = execute(alias, load("certify_left"))
    return Left(*rows[0]) if rows else None


def require_rights(alias: str) -> None:
    """Raise `RecordingNotAllowed` unless the role owns the tables and may create objects beside them."""
    ((owns, creates),) = execute(alias, load("certify_rights"))
    if not (owns and creates):
        raise RecordingNotAllowed(
            "a recording puts triggers on the tables of tenantfair: use the role that owns them and may"
            " create objects in their schema"
        )


def begin(alias: str, until: datetime) -> None:
    """Make the journal and the functions that write into it, and note the deadline.

    Raises `RecordingFailed` when somebody else has just done so.
    """
    try:
        with _transaction(alias, certify_until=until.isoformat()):
            execute(alias, install("certify_install"))
    except ProgrammingError as error:
        if isinstance(error.__cause__, DuplicateTable):
            raise RecordingFailed("somebody else has just begun a recording") from error
        raise


def put_on(alias: str, stop: Stop, *, until: datetime, most: int) -> None:
    """Put the triggers on all tables; they write nothing after `until`, nor after `most` statements.

    Raises `RecordingFailed` when a table stays locked.
    """
    settings = {"certify_until": until.isoformat(), "certify_most": str(most)}
    give_up = time.monotonic() + PATIENCE_SECONDS
    for table in TABLES:
        if not _tried(alias, "certify_trigger", stop, give_up, certify_table=table, **settings):
            raise RecordingFailed(
                f"{table} stays locked, by a transaction that has written to it or a vacuum, so no trigger"
                " can be put on it; try again later"
            )


def take_off(alias: str, stop: Stop) -> None:
    """Remove everything that `begin` and `put_on` made; `RecordingLeft` when something stays locked.

    What was recorded is gone even then, but for what transactions that are still open have written.
    """
    give_up = time.monotonic() + PATIENCE_AT_THE_END_SECONDS
    stuck = [
        table
        for table in TABLES
        if not _tried(alias, "certify_untrigger", stop, give_up, certify_table=table)
    ]
    if not stuck and not _tried(alias, "certify_drop", stop, give_up):
        stuck = ["tenantfair_certify_journal"]
    if stuck:
        execute(alias, "DELETE FROM tenantfair_certify_journal")
        raise RecordingLeft(
            f"{', '.join(stuck)} stayed locked, so triggers or tables of the recording are left; they write"
            " nothing after its deadline. Run `manage.py tenantfair_certify --clean` later."
        )


def execute(alias: str, statement: str, parameters: Any = None) -> list[tuple[Any, ...]]:
    """Run one of our statements and return its rows."""
    with connections[alias].cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


@contextmanager
def _transaction(alias: str, **settings: str) -> Iterator[None]:
    """A transaction with settings of ours for the SQL files, and a short patience for locks."""
    with transaction.atomic(using=alias, durable=True):
        named = {f"tenantfair.{name}": value for name, value in settings.items()}
        for name, value in {"lock_timeout": f"{LOCK_TIMEOUT_MS}ms", **named}.items():
            execute(alias, "SELECT set_config(%s, %s, true)", [name, value])
        yield


def _tried(alias: str, name: str, stop: Stop, give_up: float, **settings: str) -> bool:
    """Run a statement again and again until it gets its lock; False when time or patience is over."""
    while True:
        try:
            with _transaction(alias, **settings):
                execute(alias, load(name))
        except OperationalError as error:
            if not isinstance(error.__cause__, (LockNotAvailable, DeadlockDetected)):
                raise
            if stop.count > 1 or time.monotonic() > give_up:
                return False
            stop.wait(_PAUSE_SECONDS)
        else:
            return True
