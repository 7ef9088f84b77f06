"""The facts that log records of a worker carry in `extra`, under names that do not change."""

from __future__ import annotations

from typing import Any

from tenantfair.claim.base import Lease
from tenantfair.conf import get_settings


def about(event: str, lease: Lease, worker_id: str) -> dict[str, Any]:
    """Return what a record about one run carries; its tenant only where `LOG_TENANTS` allows it."""
    facts = {
        "event": event,
        "run_id": str(lease.run_id),
        "task": lease.task_path,
        "attempt": lease.attempt,
        "worker_id": worker_id,
    }
    return facts | {"tenant": lease.tenant_id} if get_settings().log_tenants else facts
