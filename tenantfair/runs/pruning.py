"""Deleting finished runs that are old enough, a small committed batch at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, cast

from django.db import IntegrityError, connections, transaction
from django.db.models import DateTimeField, Func, Model, ProtectedError, Q, QuerySet, RestrictedError
from django.db.models.deletion import Collector

from tenantfair.models import Run
from tenantfair.runs import _arguments
from tenantfair.sql import load

_LARGEST_BATCH: Final = 10_000


@dataclass(frozen=True, slots=True)
class PruneResult:
    """How many runs were deleted, and how many stayed because the host's rows refer to them."""

    deleted: int
    protected: int


def prune(
    *,
    older_than: timedelta,
    batch_size: int = 1_000,
    dry_run: bool = False,
    using: str | None = None,
) -> PruneResult:
    """Delete the runs that finished more than `older_than` ago by the database's clock.

    Each batch is a transaction of its own, unless the caller has one open. What the host's models say about
    deletion holds: their CASCADE and SET_NULL are carried out, and a run that PROTECT, RESTRICT or a bare
    foreign key holds back is skipped and counted. Runs that somebody has locked are skipped, uncounted.
    A dry run tries the same statements in transactions that it rolls back, since only the database knows
    every foreign key; signals of deletion are not sent then. Partitions stay.
    """
    _arguments.delay(older_than, what="older_than")
    _arguments.count(batch_size, what="batch_size", low=1, high=_LARGEST_BATCH)
    alias = _arguments.database(using)
    pruning = _Pruning(alias, _utc_now(alias) - older_than, batch_size, dry_run)
    while pruning.step():
        pass
    return PruneResult(pruning.deleted, pruning.protected)


class _Pruning:
    """A walk over the finished runs in the order they finished; every run is met once."""

    def __init__(self, alias: str, before: datetime, batch_size: int, dry_run: bool) -> None:
        self.alias = alias
        self.before = before
        self.batch_size = batch_size
        self.dry_run = dry_run
        self.deleted = 0
        self.protected = 0
        self._passed: tuple[datetime, int] | None = None

    def step(self) -> bool:
        """Work on the next batch; False when there is none."""
        old = Run.objects.using(self.alias).filter(finished_at__lt=self.before)
        if self._passed is not None:
            moment, pk = self._passed
            later = Q(finished_at__gt=moment) | Q(finished_at=moment, pk__gt=pk)
            # The plain bound is what the index can use.
            old = old.filter(later, finished_at__gte=moment)
        page = old.order_by("finished_at", "pk").values_list(_InUtc("finished_at"), "pk")
        found = list(page[: self.batch_size])
        if not found:
            return False
        moment, pk = found[-1]
        self._passed = moment.replace(tzinfo=UTC), pk
        self._delete([pk for _, pk in found])
        return True

    def _delete(self, keys: Sequence[int]) -> None:
        """Delete what may go of `keys`; a batch that is refused is halved until the refused row is alone."""
        try:
            with transaction.atomic(using=self.alias):
                free = Run.objects.using(self.alias).filter(pk__in=keys, finished_at__lt=self.before)
                locked = list(free.select_for_update(skip_locked=True).values_list("pk", flat=True))
                going = Run.objects.using(self.alias).filter(pk__in=locked)
                if self.dry_run:
                    trial = _Trial(using=self.alias)
                    trial.collect(going)
                    trial.delete_unheard()
                else:
                    going.delete()
                # Deferred foreign keys speak here, where it is known which rows they are about.
                with connections[self.alias].cursor() as cursor:
                    cursor.execute(load("check_host_constraints"))
                if self.dry_run:
                    transaction.set_rollback(True, using=self.alias)
        except (ProtectedError, RestrictedError, IntegrityError):
            if len(keys) == 1:
                self.protected += 1
                return
            half = len(keys) // 2
            self._delete(keys[:half])
            self._delete(keys[half:])
        else:
            self.deleted += len(locked)


class _InUtc(Func):
    """A time as clocks in UTC show it: without USE_TZ those of the project's zone show some times twice."""

    template = "%(expressions)s AT TIME ZONE 'UTC'"
    output_field = DateTimeField()


def _utc_now(alias: str) -> datetime:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT clock_timestamp() AT TIME ZONE 'UTC'")
        now: datetime = cursor.fetchone()[0]
    return now.replace(tzinfo=UTC)


class _Trial(Collector):
    """A deletion for a transaction that is rolled back, which the host must not hear of."""

    def delete_unheard(self) -> None:
        """Delete and update what was collected, in the order of `delete()`, and send no signals."""
        self.sort()
        for rows in self.fast_deletes:
            rows._raw_delete(using=self.using)
        for (field, value), batches in self.field_updates.items():
            for found in batches:
                rows = (
                    found
                    if isinstance(found, QuerySet)
                    else self._rows(field.model, cast("Iterable[Model]", found))
                )
                rows.update(**{field.name: value})
        for model, instances in self.data.items():
            self._rows(model, instances)._raw_delete(using=self.using)

    def _rows(self, model: type[Model], instances: Iterable[Model]) -> QuerySet[Model]:
        return model._base_manager.using(self.using).filter(pk__in=[one.pk for one in instances])
