"""Creating runs, inside the caller's transaction when there is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connections, transaction

from tenantfair import wakeups
from tenantfair.exceptions import RunExists
from tenantfair.runs import _copying
from tenantfair.runs.new import Columns, NewRun, Preparation, Tenantless
from tenantfair.sql import load


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

    It takes part in the caller's transaction: others see it if and only if that commits. Without `using` it
    goes where the task's backend keeps its runs. Raises `InvalidTenant`, `InvalidPayload` or `InvalidRun`
    before anything is written, and `RunExists` when `run_id` is taken; the caller's transaction stays usable
    in every case.
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
    preparation = Preparation()
    columns = preparation.columns(new)
    alias = preparation.database(using)
    enqueued_at = _insert(alias, columns)
    wakeups.request(alias, due=[columns.run_after or columns.delay])
    return columns.run_id, enqueued_at


def enqueue_many(runs: Iterable[NewRun], *, using: str | None = None) -> list[UUID]:
    """Create all of `runs` or none of them, and return their ids in the same order.

    All are checked before the first is written. `RunExists` names one id that is taken or given twice.
    Without `using` all tasks must belong to one database, for there is one transaction; else `InvalidRun`.
    """
    preparation = Preparation()
    prepared = [preparation.columns(new) for new in runs]
    ids = [columns.run_id for columns in prepared]
    if len(set(ids)) < len(ids):
        raise RunExists(Counter(ids).most_common(1)[0][0])
    alias = preparation.database(using)
    if prepared:
        with _copying.duplicates_as_run_exists(), transaction.atomic(using=alias):
            _copying.copy(alias, prepared)
            wakeups.request(alias, due={columns.run_after or columns.delay for columns in prepared})
    return ids


def _insert(alias: str, columns: Columns) -> datetime:
    with connections[alias].cursor() as cursor:
        cursor.execute(load("enqueue_run"), columns._asdict())
        inserted = cursor.fetchone()
    if inserted is None:
        raise RunExists(columns.run_id)
    enqueued_at: datetime = inserted[0]
    return enqueued_at
