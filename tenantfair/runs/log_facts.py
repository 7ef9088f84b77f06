"""The facts that log records about one run carry in `extra`, under names that do not change."""

from __future__ import annotations

from typing import Any

from tenantfair.claim.base import Lease, Poisoned
from tenantfair.conf import get_settings


def about(event: str, run: Lease | Poisoned, worker_id: str | None = None) -> dict[str, Any]:
    """Return what a record about one run carries; its tenant only where `LOG_TENANTS` allows it."""
    facts: dict[str, Any] = {
        "event": event,
        "run_id": str(run.run_id),
        "task": run.task_path,
        "worker_id": worker_id,
    }
    if isinstance(run, Lease):
        facts["attempt"] = run.attempt
    return facts | {"tenant": run.tenant_id} if get_settings().log_tenants else facts
