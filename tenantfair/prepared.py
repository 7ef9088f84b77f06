"""Running the statements that are sent again and again, such as a claim.

Django's own cursors put the values into the text, so the server parses and plans it anew each time. Here
the server binds them, and prepares the statement where the connection allows it: `prepare_threshold`
None, which is Django's default because of poolers, means never. A worker allows it on its own connections.

All else is as with `connection.cursor()`: errors are Django's, execute wrappers and the query log see the
statement, a connection is made or checked first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self
from uuid import UUID

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from psycopg import Cursor
from psycopg.pq import Format

__all__ = ["fetch", "text_array", "uuid_array"]

_columns: Final[dict[str, list[str]]] = {}
_QUOTED: Final = str.maketrans({'"': r"\"", "\\": r"\\"})


class _PreparingCursor(Cursor[tuple[Any, ...]]):
    """Asks for a prepared statement each time; Django's wrapper has no way to."""

    def execute(
        self, query: Any, params: Any = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> Self:
        return super().execute(query, params, prepare=True if prepare is None else prepare, binary=binary)


def fetch(
    connection: BaseDatabaseWrapper,
    sql: str,
    params: Mapping[str, Any] | None = None,
    *,
    binary: bool = False,
) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
    """Run one statement on `connection` and return the names of its columns and its rows.

    With `binary` the server sends values as they are instead of writing them out, and the driver's own types
    read them, not Django's: times are in the session's time zone, and JSON has to be selected as text.
    """
    connection.validate_thread_sharing()
    connection.validate_no_broken_transaction()
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    with connection.wrap_database_errors:
        # Any, because the type stubs take the driver's connections and cursors for wrappers.
        session: Any = connection.connection
        with _PreparingCursor(session) as cursor:
            cursor.format = Format.BINARY if binary else Format.TEXT
            if connection.execute_wrappers or connection.queries_logged:
                _wrapped(connection, cursor).execute(sql, params)
            else:
                cursor.execute(sql, params)
            # They are written out in the statement, and asking the driver each time is slow.
            if (columns := _columns.get(sql)) is None:
                columns = _columns[sql] = [column.name for column in cursor.description or ()]
            return columns, cursor.fetchall()


def _wrapped(connection: BaseDatabaseWrapper, cursor: Any) -> CursorWrapper:
    """Return the cursor as Django hands it out, which takes as long as a small statement."""
    return (
        connection.make_debug_cursor(cursor) if connection.queries_logged else connection.make_cursor(cursor)
    )


def uuid_array(values: Sequence[UUID]) -> str:
    """Return the text of a `uuid[]`: several times cheaper than to have a list adapted element by element."""
    return "{" + ",".join([value.hex for value in values]) + "}"


def text_array(values: Sequence[str]) -> str:
    """Return the text of a `text[]`."""
    return "{" + ",".join(['"' + value.translate(_QUOTED) + '"' for value in values]) + "}"
