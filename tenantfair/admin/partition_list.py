"""The list of partitions: one page of scopes, counted by one statement, and the filter by load."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from tenantfair import policy
from tenantfair.admin.object_ids import quoted_id
from tenantfair.conf import get_settings
from tenantfair.models import Partition
from tenantfair.policy import Inspection
from tenantfair.sql import load


def attach_inspections(partitions: Iterable[Partition]) -> None:
    """Give every partition its caps and counts, all from one statement."""
    found = policy.inspect_many(partition.scope_key for partition in partitions)
    for partition in partitions:
        vars(partition)["inspection"] = found[partition.scope_key]


def inspection_of(partition: Partition) -> Inspection:
    """Return what `attach_inspections` gave this partition."""
    inspection: Inspection = vars(partition)["inspection"]
    return inspection


def full_scopes() -> dict[str, bool]:
    """Return the scopes at or over their cap, most over it first, each with whether it is in debt.

    All of them: callers leave out what a person may not see or did not ask for, so the first so many could be
    none of theirs. There are never more than admitted runs, which workers and caps bound.
    """
    with connections[get_settings().database].cursor() as cursor:
        cursor.execute(load("scopes_by_load"))
        return dict(cursor.fetchall())


class PartitionChangeList(ChangeList):
    """A page of partitions with their inspections and the domain's default."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        attach_inspections(self.result_list)
        self.default = policy.get_default()

    def url_for_result(self, result: Any) -> str:
        page: Any = self.model_admin
        return str(page.url("change", quoted_id(result.scope_key)))


class LoadFilter(admin.SimpleListFilter):
    """Scopes by how full they are; none of the choices counts runs that are not admitted."""

    title = _("load")
    parameter_name = "load"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("unfinished", _("with unfinished runs")),
            ("full", _("at or over the cap")),
            ("debt", _("in debt")),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Partition]) -> QuerySet[Partition]:
        match self.value():
            case None:
                return queryset
            case "unfinished":
                return queryset.filter(schedule__in_ring=True)
            case "full":
                return queryset.filter(pk__in=list(full_scopes()))
            case "debt":
                in_debt = [scope_key for scope_key, debt in full_scopes().items() if debt]
                return queryset.filter(pk__in=in_debt)
            case _:
                raise IncorrectLookupParameters


class CapFilter(admin.SimpleListFilter):
    """Scopes by where their cap comes from."""

    title = _("cap")
    parameter_name = "cap"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("override", _("overridden")), ("default", _("default"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Partition]) -> QuerySet[Partition]:
        if self.value() is None:
            return queryset
        if self.value() not in {"override", "default"}:
            raise IncorrectLookupParameters
        return queryset.filter(max_active__isnull=self.value() == "default")
