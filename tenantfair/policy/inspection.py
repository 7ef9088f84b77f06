"""Looking at scopes: effective caps and exact counts, without a lock and without finished runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from django.db import connections
from django.db.models import Q

from tenantfair.conf import get_settings
from tenantfair.exceptions import InactiveEngine, NotInitialized
from tenantfair.models import Partition
from tenantfair.policy.records import Inspection
from tenantfair.sql import load
from tenantfair.tenants import validate_scope


def inspect(tenant_id: str | None, *, using: str | None = None) -> Inspection:
    """Return one scope's effective cap and counts; a scope nobody has used reads as zeros and is not created.

    Raises `InvalidTenant`, `NotInitialized` before the first boot, and `InactiveEngine` in a legacy domain,
    where caps do not hold; `inspect_many` answers there too. Inside a transaction that has enqueued, the
    transaction's own runs are counted first, which locks their counts until it ends.
    """
    scope_key = validate_scope(tenant_id)
    row = _rows([scope_key], using or get_settings().database)[0]
    if not row.pop("initialized"):
        raise NotInitialized
    if row["mode"] != "tenant_fair":
        raise InactiveEngine(row["mode"])
    return _decode(row)


def inspect_many(scope_keys: Iterable[str], *, using: str | None = None) -> dict[str, Inspection]:
    """Return the inspections of up to a few hundred scopes by scope key, from one statement.

    Never refuses: in a legacy domain `mode` says so, and before the first boot `cap` is None.
    """
    rows = _rows(list(dict.fromkeys(scope_keys)), using or get_settings().database)
    for row in rows:
        del row["initialized"]
    return {row["scope_key"]: _decode(row) for row in rows}


def list_scopes(limit: int, *, using: str | None = None) -> list[str]:
    """Return up to `limit` scope keys in ring order: of scopes with unfinished runs or with an override."""
    scopes = Partition.objects.using(using or get_settings().database).filter(
        Q(schedule__in_ring=True) | Q(max_active__isnull=False)
    )
    return list(scopes.order_by("schedule__ring_position").values_list("scope_key", flat=True)[:limit])


def _rows(scope_keys: list[str], alias: str) -> list[dict[str, Any]]:
    connection = connections[alias]
    with connection.cursor() as cursor:
        if not connection.get_autocommit():
            cursor.execute("SELECT tenantfair_fold() WHERE pg_current_xact_id_if_assigned() IS NOT NULL")
        cursor.execute(load("inspect_scopes"), {"scope_keys": scope_keys})
        columns = [column.name for column in cursor.description or ()]
        return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]


def _decode(row: dict[str, Any]) -> Inspection:
    source: Literal["override", "default"] = "override" if row.pop("overridden") else "default"
    return Inspection(source=source, **row)
