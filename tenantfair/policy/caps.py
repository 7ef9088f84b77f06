"""Reading and writing the default cap, the overrides and the scan budget."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from django.db import connections, models, transaction
from django.db.models import F
from django.db.models.functions import Coalesce, Now

from tenantfair.conf import get_settings
from tenantfair.exceptions import NotInitialized, StaleVersion
from tenantfair.models import Partition, Policy
from tenantfair.policy.records import (
    DefaultPolicy,
    Mode,
    Override,
    validate_cap,
    validate_scan_budget,
    validate_version,
)
from tenantfair.signals import cap_changed
from tenantfair.sql import load
from tenantfair.tenants import validate_scope

# What a row says that was never written to; also what holds while there is no row.
PRISTINE = DefaultPolicy(
    cap=None,
    version=0,
    configured=None,
    mode="legacy",
    scan_budget=32,
    lease_seconds=60,
    max_attempts=5,
    updated_at=None,
)


def announce(
    sender: type[models.Model], *, using: str, scope_key: str | None, cap: int | None, version: int
) -> None:
    """Send `cap_changed` once the change is committed: at once outside a transaction."""
    send = partial(
        cap_changed.send_robust, sender=sender, using=using, scope_key=scope_key, cap=cap, version=version
    )
    transaction.on_commit(send, using=using)


def describe(row: Policy) -> DefaultPolicy:
    """Return what a stored policy row says."""
    return DefaultPolicy(
        cap=row.max_active,
        version=row.policy_version,
        configured=row.configured_max_active,
        mode=cast(Mode, row.admission_mode),
        scan_budget=row.scan_budget,
        lease_seconds=row.lease_seconds,
        max_attempts=row.max_attempts,
        updated_at=row.updated_at,
    )


def get_default(*, using: str | None = None) -> DefaultPolicy:
    """Return the domain's values; before the first boot `cap` is None and `version` 0."""
    row = Policy.objects.using(using or get_settings().database).filter(id=1).first()
    return PRISTINE if row is None else describe(row)


def _write(alias: str, expected: int | None, **values: Any) -> DefaultPolicy:
    """Update the policy row if its version is the expected one, and return what it says now."""
    policy = Policy.objects.using(alias).filter(id=1)
    matching = policy if expected is None else policy.filter(policy_version=expected)
    if not matching.update(policy_version=F("policy_version") + 1, updated_at=Now(), **values):
        raise StaleVersion(expected or 0, policy.values_list("policy_version", flat=True).first())
    return describe(policy.get())


def put_default(cap: int, *, expected_version: int | None = None, using: str | None = None) -> DefaultPolicy:
    """Set the default cap and return the policy as it is then.

    Allowed before the first boot, which it does not replace: the mode stays, and the next worker start
    writes the configured cap over this one. Lowering the cap revokes nothing. Raises `InvalidCap`,
    `InvalidVersion`, `StaleVersion`.
    """
    validate_cap(cap)
    validate_version(expected_version)
    alias = using or get_settings().database
    with transaction.atomic(using=alias):
        restore_row(alias)
        found = _write(
            alias, expected_version, max_active=cap, initialized_at=Coalesce(F("initialized_at"), Now())
        )
        announce(Policy, using=alias, scope_key=None, cap=cap, version=found.version)
    return found


def put_scan_budget(
    budget: int, *, expected_version: int | None = None, using: str | None = None
) -> DefaultPolicy:
    """Set how many ring positions one claim call may inspect and return the policy as it is then.

    Raises `InvalidScanBudget`, `InvalidVersion`, `NotInitialized`, `StaleVersion`.
    """
    validate_scan_budget(budget)
    validate_version(expected_version)
    alias = using or get_settings().database
    with transaction.atomic(using=alias):
        _require_initialized(alias)
        return _write(alias, expected_version, scan_budget=budget)


def put_override(
    tenant_id: str | None, cap: int, *, expected_version: int | None = None, using: str | None = None
) -> Override:
    """Give one scope its own cap, creating its partition if need be, and return the override.

    Version 0 is expected of a scope without one. Raises `InvalidTenant`, `InvalidCap`, `InvalidVersion`,
    `NotInitialized`, `StaleVersion`; a stale write leaves no partition behind.
    """
    scope_key = validate_scope(tenant_id)
    validate_cap(cap)
    validate_version(expected_version)
    alias = using or get_settings().database
    with transaction.atomic(using=alias):
        _require_initialized(alias)
        if expected_version:
            version = _update_override(alias, scope_key, cap, expected_version)
        else:
            version = _upsert_override(alias, scope_key, cap, expected_version)
        announce(Partition, using=alias, scope_key=scope_key, cap=cap, version=version)
    return Override(scope_key=scope_key, cap=cap, version=version)


def reset_override(
    tenant_id: str | None, *, expected_version: int | None = None, using: str | None = None
) -> Override:
    """Make one scope inherit the default cap again; its partition and ring position stay.

    Raises `InvalidTenant`, `InvalidVersion`, `NotInitialized`, and `StaleVersion` also for a scope that has
    no partition.
    """
    scope_key = validate_scope(tenant_id)
    validate_version(expected_version)
    alias = using or get_settings().database
    with transaction.atomic(using=alias):
        _require_initialized(alias)
        version = _update_override(alias, scope_key, None, expected_version)
        announce(Partition, using=alias, scope_key=scope_key, cap=None, version=version)
    return Override(scope_key=scope_key, cap=None, version=version)


def restore_row(alias: str) -> None:
    """Put back the pristine policy row where there is none; an existing row is neither changed nor locked."""
    with connections[alias].cursor() as cursor:
        cursor.execute(load("restore_policy_row"))


def _require_initialized(alias: str) -> None:
    if not Policy.objects.using(alias).filter(id=1, initialized_at__isnull=False).exists():
        raise NotInitialized


def _update_override(alias: str, scope_key: str, cap: int | None, expected: int | None) -> int:
    partition = Partition.objects.using(alias).filter(scope_key=scope_key)
    matching = partition if expected is None else partition.filter(partition_version=expected)
    changed = matching.update(max_active=cap, partition_version=F("partition_version") + 1, updated_at=Now())
    found = partition.values_list("partition_version", flat=True).first()
    if not changed or found is None:
        raise StaleVersion(expected or 0, found)
    return found


def _upsert_override(alias: str, scope_key: str, cap: int, expected: int | None) -> int:
    with connections[alias].cursor() as cursor:
        cursor.execute(load("put_override"), {"scope_key": scope_key, "cap": cap, "expected": expected})
        row = cursor.fetchone()
    if row is None:
        found = (
            Partition.objects.using(alias)
            .filter(scope_key=scope_key)
            .values_list("partition_version", flat=True)
        )
        raise StaleVersion(expected or 0, found.first())
    return int(row[0])
