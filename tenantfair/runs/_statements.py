"""Running one statement so that nobody else's transaction suffers from its failure."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeVar

from django.db import Error, OperationalError, connections, transaction

from tenantfair import prepared

T = TypeVar("T")

SERIALIZATION_FAILURE: Final = "40001"
DEADLOCK_DETECTED: Final = "40P01"
LOCK_NOT_AVAILABLE: Final = "55P03"

_TRIES: Final = 8
_LONGEST_PAUSE: Final = 0.2


def sqlstate(error: Error) -> str | None:
    """Return the SQLSTATE behind a Django database error, or None when the server sent none."""
    return getattr(error.__cause__, "sqlstate", None)


def in_transaction(alias: str) -> bool:
    """Return whether the caller has a transaction open on `alias`."""
    return not connections[alias].get_autocommit()


def rows(alias: str, sql: str, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Run one statement and return its rows.

    In an open transaction it runs behind a savepoint, so an error leaves the transaction usable;
    otherwise it commits by itself.
    """
    with _guard(alias), connections[alias].cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())


def prepared_rows(alias: str, sql: str, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """As `rows()`, for a statement that workers send all the time."""
    with _guard(alias):
        return prepared.fetch(connections[alias], sql, params)[1]


def _guard(alias: str) -> AbstractContextManager[object]:
    return transaction.atomic(using=alias) if in_transaction(alias) else nullcontext()


def retried(alias: str, work: Callable[[], T]) -> T:
    """Return `work()`, tried again a few times after a serialization failure or a deadlock.

    Only outside a transaction: within one, the whole transaction must be repeated, which is the caller's.
    """
    for attempt in range(1, _TRIES):
        try:
            return work()
        except OperationalError as error:
            transient = sqlstate(error) in {SERIALIZATION_FAILURE, DEADLOCK_DETECTED}
            if not transient or in_transaction(alias):
                raise
        time.sleep(random.uniform(0, min(_LONGEST_PAUSE, 0.005 * 2**attempt)))  # noqa: S311 - jitter
    return work()
