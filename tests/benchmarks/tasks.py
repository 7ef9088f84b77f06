"""The tasks of the end-to-end workload; what they return tells when they started, by the machine's clock."""

from __future__ import annotations

import time

from tenantfair.compat import task


@task
def started_at() -> float:
    return time.time()


@task
def started_after(enqueued_at: float) -> float:
    """Seconds from the moment just before the enqueue to this one."""
    return time.time() - enqueued_at
