"""Pages of a table that may have millions of rows: no full count, no deep offset."""

from __future__ import annotations

from functools import cached_property
from math import ceil
from typing import Any, Final

from django.core.paginator import Paginator
from django.db import connections
from django.db.models import QuerySet

# How many rows the pages of one list reach. It bounds both the count and the offset of the last page.
DEPTH: Final = 2_000


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # not subscriptable at run time on Django 5.2
    """Counts and pages the first `DEPTH` rows of a queryset, in its own order.

    `count` is exact up to `DEPTH`. Where there are more rows and no filter, it is PostgreSQL's estimate. The
    order stays in the counting query, so that the index that pages the list counts it too.
    """

    object_list: QuerySet[Any]

    @cached_property
    def estimate(self) -> int | None:
        """The planner's idea of the whole table's size, or None where it is of no use.

        That is so in a filtered list, and in a short one: after many rows were deleted or added it is wrong
        until the next ANALYZE.
        """
        query = self.object_list.query
        if not self.is_capped or query.where or query.is_sliced or query.combinator:
            return None
        with connections[self.object_list.db].cursor() as cursor:
            cursor.execute(
                "SELECT reltuples::bigint FROM pg_class WHERE oid = %s::regclass",
                [self.object_list.model._meta.db_table],
            )
            found = int(cursor.fetchone()[0])
        return found if found > DEPTH else None

    @cached_property
    def reachable(self) -> int:
        """How many rows the pages hold together; `DEPTH + 1` is never exceeded."""
        return self.object_list.values("pk")[: DEPTH + 1].count()

    @property
    def is_capped(self) -> bool:
        """Whether there are more rows than the pages reach."""
        return self.reachable > DEPTH

    @cached_property
    def count(self) -> int:
        return self.estimate or min(self.reachable, DEPTH)

    @cached_property
    def num_pages(self) -> int:
        return max(1, ceil(min(self.count, DEPTH) / self.per_page))

    def page(self, number: int | str) -> Any:
        """Return one page; the last one ends at `DEPTH` even where `count` is larger."""
        number = self.validate_number(number)
        start = (number - 1) * self.per_page
        rows = self.object_list[start : min(start + self.per_page, DEPTH)]
        return self._get_page(rows, number, self)  # type: ignore[attr-defined]  # Django's documented hook
