"""Tells `claim_observed` what a claim call came to, in aggregates only."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from types import TracebackType
from typing import Final, Self

from tenantfair.claim.base import Call, ClaimBatch, Engine
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
    """Sends `claim_observed` when its block ends, whatever ends it; errors pass through.

    `batch` is what the call returned, None until it has. `earlier` are the calls before it, if one exchange
    made several: each is told by itself, and all have the same share of the time.
    """

    __slots__ = ("_demand", "_engine", "_started", "_using", "batch", "earlier")

    def __init__(self, *, using: str, engine: Engine, demand: int) -> None:
        self._using = using
        self._engine = engine
        self._demand = demand
        self.batch: ClaimBatch | None = None
        self.earlier: Sequence[Call] = ()

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        refusal = error if isinstance(error, ClaimUnavailable) else None
        batch = self.batch
        duration = (time.monotonic() - self._started) / (len(self.earlier) + 1)
        for call in self.earlier:
            self._send(duration, inspections=call.inspections, denials=dict(call.denials))
        self._send(
            duration,
            result=refusal.reason if refusal else "error" if error else "ok",
            phase=refusal.phase if refusal else None,
            inspections=batch.call.inspections if batch else 0,
            denials=dict(batch.call.denials) if batch else {},
            outcomes=_kinds(batch) if batch else None,
            claim_attempts=sum(map(_attempt, batch.leases)) if batch else 0,
        )

    def _send(
        self,
        duration: float,
        *,
        inspections: int,
        denials: dict[str, int],
        result: str = "ok",
        phase: str | None = None,
        outcomes: Counter[str] | None = None,
        claim_attempts: int = 0,
    ) -> None:
        claim_observed.send_robust(
            sender=type(self._engine),
            using=self._using,
            engine=self._engine.name,
            result=result,
            phase=phase,
            demand=self._demand,
            duration=duration,
            inspections=inspections,
            outcomes=Counter() if outcomes is None else outcomes,
            denials=denials,
            claim_attempts=claim_attempts,
        )


def _kinds(batch: ClaimBatch) -> Counter[str]:
    kinds: Counter[str] = Counter()
    for words, runs in ((_LEASED, batch.leases), (_POISONED, batch.poisoned)):
        for run in runs:
            kinds[words[run.work_class]] += 1
    return kinds
