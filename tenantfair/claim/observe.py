"""Tells `claim_observed` what a claim call came to, in aggregates only."""

from __future__ import annotations

import time
from collections import Counter
from operator import attrgetter
from types import TracebackType
from typing import Final, Self

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


class Observation:
    """Sends one `claim_observed` when its block ends, whatever ends it; errors pass through.

    `batch` is what the call returned, None until it has.
    """

    __slots__ = ("_demand", "_engine", "_started", "_using", "batch")

    def __init__(self, *, using: str, engine: Engine, demand: int) -> None:
        self._using = using
        self._engine = engine
        self._demand = demand
        self.batch: ClaimBatch | None = None

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        refusal = error if isinstance(error, ClaimUnavailable) else None
        batch = self.batch
        claim_observed.send_robust(
            sender=type(self._engine),
            using=self._using,
            engine=self._engine.name,
            result=refusal.reason if refusal else "error" if error else "ok",
            phase=refusal.phase if refusal else None,
            demand=self._demand,
            duration=time.monotonic() - self._started,
            inspections=batch.call.inspections if batch else 0,
            outcomes=_kinds(batch) if batch else Counter(),
            denials=dict(batch.call.denials) if batch else {},
            claim_attempts=sum(map(_attempt, batch.leases)) if batch else 0,
        )


def _kinds(batch: ClaimBatch) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for words, runs in ((_LEASED, batch.leases), (_POISONED, batch.poisoned)):
        for run in runs:
            kinds[words[run.work_class]] += 1
    return kinds
