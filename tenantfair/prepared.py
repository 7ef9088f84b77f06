"""Cursors for the statements that are sent again and again, such as a claim.

Django's own cursors put the values into the text, so the server parses and plans it anew each time. These
let the server bind the values, and prepare the statement where the connection allows it: `prepare_threshold`
None, which is Django's default because of poolers, means never. A worker allows it on its own connections.

All else is as with `connection.cursor()`: errors are Django's, execute wrappers and the query log see the
statement, a connection is made or checked first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from psycopg import Cursor
from psycopg.pq import Format

__all__ = ["cursor", "text_array", "uuid_array"]

_QUOTED = str.maketrans({'"': r"\"", "\\": r"\\"})


class _PreparingCursor(Cursor[tuple[Any, ...]]):
    """Asks for a prepared statement each time; Django's wrapper has no way to."""

    def execute(
        self, query: Any, params: Any = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> Self:
        return super().execute(query, params, prepare=True if prepare is None else prepare, binary=binary)


def cursor(connection: BaseDatabaseWrapper, *, binary: bool = False) -> CursorWrapper:
    """Return a cursor on `connection`; use it as a context manager.

    With `binary` the server sends values as they are instead of writing them out, and the driver's own types
    read them, not Django's: times are in the session's time zone, and JSON has to be selected as text.
    """
    connection.validate_thread_sharing()
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    with connection.wrap_database_errors:
        # Any, because the type stubs take the driver's cursors for wrappers.
        inner: Any = _PreparingCursor(connection.connection)
        inner.format = Format.BINARY if binary else Format.TEXT
    if connection.queries_logged:
        return connection.make_debug_cursor(inner)
    return connection.make_cursor(inner)


def uuid_array(values: Sequence[UUID]) -> str:
    """Return the text of a `uuid[]`: several times cheaper than to have a list adapted element by element."""
    return "{" + ",".join([value.hex for value in values]) + "}"


def text_array(values: Sequence[str]) -> str:
    """Return the text of a `text[]`."""
    return "{" + ",".join(['"' + value.translate(_QUOTED) + '"' for value in values]) + "}"
