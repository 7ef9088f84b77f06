"""Tells `claim_observed` what a claim call came to, in aggregates only."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tenantfair.claim.base import ClaimBatch, Engine, Lease, Poisoned
from tenantfair.exceptions import ClaimUnavailable
from tenantfair.signals import claim_observed


@dataclass(slots=True)
class Observation:
    """What the call returned, None until it has."""

    batch: ClaimBatch | None = None


@contextmanager
def observed(*, using: str, engine: Engine, demand: int) -> Iterator[Observation]:
    """Send one `claim_observed` when the block ends, whatever ends it; errors pass through."""
    observation = Observation()
    started = time.monotonic()
    result, phase = "error", None
    try:
        yield observation
        result = "ok"
    except ClaimUnavailable as refusal:
        result, phase = refusal.reason, refusal.phase
        raise
    finally:
        batch = observation.batch
        claim_observed.send_robust(
            sender=type(engine),
            using=using,
            engine=engine.name,
            result=result,
            phase=phase,
            demand=demand,
            duration=time.monotonic() - started,
            inspections=batch.call.inspections if batch else 0,
            outcomes=_kinds(batch) if batch else Counter(),
            denials=dict(batch.call.denials) if batch else {},
            claim_attempts=sum(lease.attempt for lease in batch.leases) if batch else 0,
        )


def _kinds(batch: ClaimBatch) -> Counter[str]:
    outcomes: list[Lease | Poisoned] = [*batch.leases, *batch.poisoned]
    return Counter(map(_kind, outcomes))


def _kind(outcome: Lease | Poisoned) -> str:
    if isinstance(outcome, Poisoned):
        return "queued_poison" if outcome.work_class == "queued_ready" else "admitted_poison"
    return {"admitted_ready": "reacquire", "queued_ready": "promotion", "expired": "steal"}[
        outcome.work_class
    ]
