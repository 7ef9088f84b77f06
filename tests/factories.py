"""Rows in every state, for tests that start in the middle of a run's life."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import factory
from django.db import connection
from django.utils import timezone

from tenantfair.claim import claim_due
from tenantfair.claim.base import ClaimBatch, Lease
from tenantfair.models import Policy, Run
from tenantfair.runs.views import DatabaseClock

STATES = (
    "queued",
    "ready",
    "claimed",
    "scheduled",
    "waiting",
    "poisoned",
    "completed",
    "failed",
    "cancelled",
)
FINISHED = ("completed", "failed", "cancelled")
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class RunFactory(factory.django.DjangoModelFactory):
    """A run of tenant `acme`, queued unless a trait named like another state says otherwise."""

    class Meta:
        model = Run

    tenant_id = "acme"
    task_path = "tests.tasks_for_tests.add"
    args = factory.LazyFunction(lambda: [1])
    wake_at = factory.LazyFunction(lambda: timezone.now() - timedelta(minutes=1))

    class Params:
        queued = factory.Trait()
        ready = factory.Trait(tenant_admitted_at=factory.LazyFunction(timezone.now))
        claimed = factory.Trait(
            wake_at=None,
            tenant_admitted_at=LONG_AGO,
            claim_token=factory.LazyFunction(uuid.uuid4),
            claimed_at=LONG_AGO,
            claimed_by="somebody",
            claim_attempts=1,
            worker_ids=["somebody"],
            started_at=LONG_AGO,
            last_attempted_at=LONG_AGO,
        )
        scheduled = factory.Trait(wake_at=factory.LazyFunction(lambda: timezone.now() + timedelta(days=1)))
        waiting = factory.Trait(status="waiting", wake_at=None)
        poisoned = factory.Trait(wake_at=None, poisoned_at=LONG_AGO, poison_reason="test")
        completed = factory.Trait(status="completed", wake_at=None, finished_at=LONG_AGO, result=7)
        failed = factory.Trait(status="failed", wake_at=None, finished_at=LONG_AGO, failures=4)
        cancelled = factory.Trait(status="cancelled", wake_at=None, finished_at=LONG_AGO)


def run_in(state: str, /, **columns: Any) -> Run:
    """Create a run in `state`."""
    return RunFactory(**{state: True}, **columns)


def lease_of(run: Run, **changes: Any) -> Lease:
    """Return the lease of a claimed row, as a claim would have returned it."""
    values = {
        "run_id": run.run_id,
        "claim_token": run.claim_token,
        "claimed_at": run.claimed_at,
        "attempt": run.claim_attempts,
        "checkpoint_seq": run.checkpoint_seq,
        "tenant_id": run.tenant_id,
        "task_path": run.task_path,
        "args": run.args,
        "kwargs": run.kwargs,
        "state": run.state,
        "signals": run.pending_signals,
        "failures": run.failures,
        "retry_limit": run.retry_limit,
        "abandons": run.claim_abandons,
        "queue_name": run.queue_name,
        "backend": run.backend,
        "enqueued_at": run.enqueued_at,
        "started_at": run.started_at,
        "errors": run.errors,
        "worker_ids": run.worker_ids,
        "work_class": "queued_ready",
        "eligible_at": LONG_AGO,
    }
    return Lease(**{**values, **changes})


def claimed_lease(**columns: Any) -> Lease:
    """Create a claimed run and return its lease."""
    return lease_of(RunFactory(claimed=True, **columns))


def policy_in_force(**columns: Any) -> Policy:
    """Put the domain into mode tenant_fair with a cap of 10, or as `columns` say."""
    values = {
        "admission_mode": "tenant_fair",
        "max_active": 10,
        "configured_max_active": 10,
        "policy_version": 1,
        "initialized_at": DatabaseClock(),
        **columns,
    }
    policy, _ = Policy.objects.update_or_create(id=1, defaults=values)
    return policy


def claim(demand: int = 1, **options: Any) -> ClaimBatch:
    """Claim inside a test's own transaction."""
    return claim_due(demand, allow_in_transaction=connection.in_atomic_block, **options)


def snapshot(run: Run | uuid.UUID) -> dict[str, Any]:
    """Return every stored column of one row, to compare byte for byte."""
    run_id = run.run_id if isinstance(run, Run) else run
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT to_jsonb(run), ctid::text FROM tenantfair_run AS run WHERE run_id = %s", [run_id]
        )
        columns, version = cursor.fetchone()
    # A new row version is a write, even one that changes no column.
    return {**json.loads(columns), "row version": version}
