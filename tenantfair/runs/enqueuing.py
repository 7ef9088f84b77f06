"""Creating runs, inside the caller's transaction when there is one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import connections, transaction

from tenantfair import wakeups
from tenantfair.exceptions import RunExists
from tenantfair.runs import _arguments
from tenantfair.runs.new import Columns, NewRun, Preparation, Tenantless
from tenantfair.sql import load

# One statement's rows and rough bytes; larger ones were no faster.
_BATCH_ROWS: Final = 1_000
_BATCH_BYTES: Final = 8 * 1024 * 1024
_COLUMNS: Final = tuple(field.name for field in fields(Columns))


def enqueue(
    task: Any,
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    tenant_id: str | Tenantless | None = None,
    run_id: UUID | str | None = None,
    run_after: datetime | timedelta | None = None,
    queue_name: str | None = None,
    retry_limit: int | None = None,
    using: str | None = None,
) -> UUID:
    """Create one run of `task` and return its id.

    It takes part in the caller's transaction: others see it if and only if that commits. Raises
    `InvalidTenant`, `InvalidPayload` or `InvalidRun` before anything is written, and `RunExists` when
    `run_id` is taken; the caller's transaction stays usable in every case.
    """
    new = NewRun(
        task=task,
        args=args,
        kwargs=kwargs,
        tenant_id=tenant_id,
        run_id=run_id,
        run_after=run_after,
        queue_name=queue_name,
        retry_limit=retry_limit,
    )
    return create(new, using=using)[0]


def create(new: NewRun, *, using: str | None = None) -> tuple[UUID, datetime]:
    """Do what `enqueue` does, and return the run's id and the time it was enqueued at."""
    alias = _arguments.database(using)
    columns = Preparation().columns(new)
    enqueued_at = _insert(alias, [columns])[columns.run_id]
    wakeups.request(alias, due=[columns.run_after or columns.delay])
    return columns.run_id, enqueued_at


def enqueue_many(runs: Iterable[NewRun], *, using: str | None = None) -> list[UUID]:
    """Create all of `runs` or none of them, and return their ids in the same order.

    All are checked before the first is written. `RunExists` names one id that is taken or given twice.
    """
    preparation = Preparation()
    prepared = [preparation.columns(new) for new in runs]
    seen: set[UUID] = set()
    for columns in prepared:
        if columns.run_id in seen:
            raise RunExists(columns.run_id)
        seen.add(columns.run_id)
    alias = _arguments.database(using)
    if prepared:
        with transaction.atomic(using=alias):
            for batch in _batches(prepared):
                _insert(alias, batch)
            wakeups.request(alias, due=[columns.run_after or columns.delay for columns in prepared])
    return [columns.run_id for columns in prepared]


def _batches(prepared: Sequence[Columns]) -> Iterator[list[Columns]]:
    batch: list[Columns] = []
    size = 0
    for columns in prepared:
        if batch and (len(batch) == _BATCH_ROWS or size + columns.size > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(columns)
        size += columns.size
    yield batch


def _insert(alias: str, batch: Sequence[Columns]) -> dict[UUID, datetime]:
    params = {name: [getattr(columns, name) for columns in batch] for name in _COLUMNS}
    with connections[alias].cursor() as cursor:
        cursor.execute(load("enqueue_runs"), params)
        inserted: dict[UUID, datetime] = dict(cursor.fetchall())
    for columns in batch:
        if columns.run_id not in inserted:
            raise RunExists(columns.run_id)
    return inserted
