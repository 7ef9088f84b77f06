"""Tells `claim_observed` what a claim call came to, in aggregates only."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from tenantfair.claim.base import ClaimBatch, Engine
from tenantfair.exceptions import ClaimUnavailable
from tenantfair.signals import claim_observed

_LEASED: Final = {"admitted_ready": "reacquire", "queued_ready": "promotion", "expired": "steal"}
_POISONED: Final = {
    "admitted_ready": "admitted_poison",
    "queued_ready": "queued_poison",
    "expired": "admitted_poison",
}
_attempt = attrgetter("attempt")
_work_class = attrgetter("work_class")


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
            claim_attempts=sum(map(_attempt, batch.leases)) if batch else 0,
        )


def _kinds(batch: ClaimBatch) -> Counter[str]:
    kinds = {_LEASED[work]: count for work, count in Counter(map(_work_class, batch.leases)).items()}
    return Counter(kinds) + Counter(_POISONED[run.work_class] for run in batch.poisoned)
