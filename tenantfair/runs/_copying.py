"""Writing many new runs at once by COPY, the cheapest way into a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from django.db import IntegrityError, connections

from tenantfair.exceptions import RunExists
from tenantfair.runs.new import Columns
from tenantfair.sql import load

# One statement's rows: the more, the cheaper each; but a statement has to end before the host's time-out.
_STATEMENT_ROWS: Final = 5_000
# Rows that are formatted while the server takes in those before them.
_CHUNK_ROWS: Final = 250

_TAKEN: Final = "tenantfair_run_run_id_key"
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def copy(alias: str, rows: Sequence[Columns]) -> None:
    """Insert `rows` in their order, due from one reading of the database clock.

    Runs in the caller's transaction and breaks it when an id is taken.
    """
    connection = connections[alias]
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp() AT TIME ZONE 'UTC'")
        now: datetime = cursor.fetchone()[0]
        for first in range(0, len(rows), _STATEMENT_ROWS):
            with connection.wrap_database_errors, cursor.copy(load("copy_runs")) as stream:
                for start in range(first, min(first + _STATEMENT_ROWS, len(rows)), _CHUNK_ROWS):
                    stream.write(_lines(rows[start : start + _CHUNK_ROWS], now))


@contextmanager
def duplicates_as_run_exists() -> Iterator[None]:
    """Turn the database's refusal of an id that is taken into `RunExists`."""
    try:
        yield
    except IntegrityError as error:
        found = getattr(error.__cause__, "diag", None)
        if found is None or found.constraint_name != _TAKEN:
            raise
        taken = _UUID.search(found.message_detail or "")
        if taken is None:
            raise
        raise RunExists(UUID(taken[0])) from error


def _lines(rows: Sequence[Columns], now: datetime) -> str:
    """Return `rows` in COPY's text format.

    Only backslashes need escaping: what `NewRun` lets through has no tab and no line end, and JSON text
    spells them with a backslash. No value is empty, so an empty field can stand for NULL.
    """
    stamp = f"{now.isoformat()}Z"
    lines = [
        f"{run_id.hex}\t{tenant or ''}\t{path}\t{args}\t{kwargs}\t{queue}\t{backend}\t{limit}\t"
        f"{stamp if after is None is delay else _due(now, after, delay)}\t{stamp}\t{stamp}\n"
        for run_id, tenant, path, args, kwargs, queue, backend, limit, after, delay in rows
    ]
    return "".join(lines).replace("\\", "\\\\")


def _due(now: datetime, after: datetime | None, delay: timedelta | None) -> str:
    if after is None:
        after = (now + (delay or timedelta(0))).replace(tzinfo=UTC)
    return after.isoformat()
