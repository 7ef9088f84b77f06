"""What a worker start does to the policy, and what puts the policy row back after a flush."""

from __future__ import annotations

from typing import Any

from django.db import connections, transaction
from django.db.models import F
from django.db.models.functions import Coalesce, Now

from tenantfair import schema
from tenantfair.conf import Settings, get_settings, require_default_cap
from tenantfair.exceptions import InactiveEngine
from tenantfair.models import Policy
from tenantfair.policy.caps import announce, describe, get_default, restore_row
from tenantfair.policy.records import SyncResult
from tenantfair.sql import load


def synchronize(using: str | None = None) -> SyncResult:
    """Make the policy what settings ask for; a worker calls this before its first claim.

    A configured cap that differs from the one settings last asked for replaces the default cap, whatever a
    person had set; an unchanged one leaves it alone, reads one row and takes no lock. Lease and attempts
    follow settings. Where `ENGINE` is `tenant_fair`, a legacy domain is switched for good and its healthy
    claims are adopted in the same transaction. Overrides, epochs and the cursor are never touched.

    Raises `ConfigurationError` without a default cap, `SchemaMismatch` before anything is written, and
    `InactiveEngine` when `ENGINE` is `legacy` and the domain is not. A switch that meets a claimed run which
    somebody has locked changes nothing and raises `OperationalError` (55P03); a worker's start tries again.
    """
    settings = get_settings()
    alias = using or settings.database
    fair = settings.engine == "tenant_fair"
    cap = require_default_cap(settings) if fair else None
    schema.verify(alias)
    stored = Policy.objects.using(alias).filter(id=1).first()
    if stored is not None and not _drift(stored, settings, cap):
        return SyncResult(changed=False, switched=False, adopted=0, policy=describe(stored))
    with transaction.atomic(using=alias):
        restore_row(alias)
        locked = Policy.objects.using(alias).select_for_update(no_key=True).get(id=1)
        drift = _drift(locked, settings, cap)
        if not drift:
            return SyncResult(changed=stored is None, switched=False, adopted=0, policy=describe(locked))
        if locked.initialized_at is not None or cap is not None:
            drift |= {"policy_version": F("policy_version") + 1}
        Policy.objects.using(alias).filter(id=1).update(updated_at=Now(), **drift)
        switched = "admission_mode" in drift
        adopted = _adopt(alias) if switched else 0
        policy = get_default(using=alias)
        if policy.cap != locked.max_active:
            announce(Policy, using=alias, scope_key=None, cap=policy.cap, version=policy.version)
    return SyncResult(changed=True, switched=switched, adopted=adopted, policy=policy)


def _drift(row: Policy, settings: Settings, cap: int | None) -> dict[str, Any]:
    """Return the columns to write so that settings hold; `cap` is None for the legacy engine."""
    if cap is None and row.admission_mode != Policy.Mode.LEGACY:
        raise InactiveEngine(row.admission_mode)
    drift: dict[str, Any] = {}
    for column in ("lease_seconds", "max_attempts"):
        if getattr(row, column) != getattr(settings, column):
            drift[column] = getattr(settings, column)
    if cap is not None:
        if row.admission_mode != Policy.Mode.TENANT_FAIR:
            drift["admission_mode"] = Policy.Mode.TENANT_FAIR
        if row.configured_max_active != cap:
            drift["configured_max_active"] = cap
        if row.configured_max_active != cap or row.max_active is None:
            drift["max_active"] = cap
            drift["initialized_at"] = Coalesce(F("initialized_at"), Now())
    return drift


def _adopt(alias: str) -> int:
    """Mark the healthy claims as admitted; waits 250 ms for a row, for nobody can claim meanwhile."""
    with connections[alias].cursor() as cursor:
        cursor.execute(load("bound_lock_wait"))
        before, _ = cursor.fetchone()
        cursor.execute(load("adopt_claims"))
        adopted = int(cursor.rowcount)
        cursor.execute("SELECT set_config('lock_timeout', %s::text, true)", [before])
    return adopted


def restore_policy_row(*, using: str, **_: Any) -> None:
    """Receive `post_migrate`, which `flush` sends too: put the policy row back where the domain has lost it.

    Does nothing where the domain is not installed. Where migrations of this app are turned off, as by
    `--no-migrations` in tests, it first installs what the migrations would have.
    """
    if connections[using].vendor != "postgresql":
        return
    schema.install_unmigrated(using)
    if schema.is_installed(using):
        restore_row(using)
