"""Stores outcomes: a thread of its own, on a connection of its own, each outcome fenced on its own.

An outcome is stored at once when no other task runs. Else the thread waits for others to go into the same
statement, as long as they come in quick succession: 0.5 ms after the last one, 2 ms after the first, or when
the last running task has ended, it stores what there is. A failed statement is repeated with the same tokens
until the database has answered: a claim that is still ours is then accepted, any other refused.

Nobody's open transaction keeps outcomes of others waiting. One whose row is locked is tried again among them.
Where a tenant's count is held, one outcome of that tenant is tried alone, in turn with all others, until it
passes; what comes of that tenant meanwhile waits with it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from django.db import Error, connections

from tenantfair import metrics, runs
from tenantfair.logs import log_safely
from tenantfair.runs import Outcome, Retry
from tenantfair.runs.log_facts import about
from tenantfair.worker.backoff import backoff
from tenantfair.worker.database import WorkerConnections
from tenantfair.worker.holdings import Holding, Holdings

logger = logging.getLogger("tenantfair.worker")

_LONGEST_BATCH: Final = 256
_GATHER_SECONDS: Final = 0.002
_SUCCESSION_SECONDS: Final = 0.0005
_LONGEST_PAUSE: Final = 2.0
# What gave the slot back, by outcome; the others keep it.
_RELEASES: Final = {
    "completed": "completed",
    "failed": "failed",
    "retry": "scheduled",
    "snoozed": "scheduled",
    "waiting": "waiting",
    "abandoned": "abandoned",
}
_READ_ONLY: Final = "25006"
# A session that fails again and again is replaced, whatever the driver thinks of it.
_FAILURES_PER_SESSION: Final = 3

Report = Callable[..., None]


@dataclass(eq=False, slots=True)
class _Pending:
    holding: Holding
    outcome: Outcome
    seconds: float
    not_before: float = 0.0
    tries: int = field(default=0)
    blocked: bool = False

    @property
    def tenant_id(self) -> str | None:
        return self.holding.lease.tenant_id


class Completer:
    """Takes outcomes by `put()`; frees the holding's place at the first answer, drops it at the final one.

    `report` is called as `report("run_settled", ...)` for each accepted outcome.
    """

    def __init__(
        self,
        *,
        connections_of: WorkerConnections,
        holdings: Holdings,
        worker_id: str,
        counts_releases: bool = True,
        report: Report = lambda event, **_: None,
    ) -> None:
        self._connections = connections_of
        self._holdings = holdings
        self._worker_id = worker_id
        self._counts_releases = counts_releases
        self._report = report
        self._changed = threading.Condition()
        self._queue: deque[_Pending] = deque()
        # The thread waits for whatever comes first, not for more.
        self._waiting = False
        self._stopping = False
        self._failures = 0
        # Whose turn it is when both are due: a blocked outcome, or all others.
        self._blocked_next = False

    def put(self, holding: Holding, outcome: Outcome, seconds: float) -> None:
        """Store `outcome` of a holding whose task has ended after `seconds`; returns at once.

        One whose fence is known to be lost is dropped instead: that was counted when it was noticed.
        """
        running = self._holdings.end(holding)
        lost = holding.monitor.lost.is_set()
        pending = _Pending(holding, outcome, seconds)
        with self._changed:
            if not lost:
                pending.not_before = self._blocked_until(pending.tenant_id)
                pending.blocked = pending.not_before > 0.0
                self._queue.append(pending)
            if self._waiting or running == 0:
                self._changed.notify()
        if lost:
            self._holdings.drop(holding)
        elif pending.blocked:
            self._holdings.vacate(holding)

    def _blocked_until(self, tenant_id: str | None) -> float:
        """Return until when the outcomes of a tenant wait because one of them was blocked; else 0."""
        now = time.monotonic()
        return max(
            (
                pending.not_before
                for pending in self._queue
                if pending.blocked and pending.not_before > now and pending.tenant_id == tenant_id
            ),
            default=0.0,
        )

    def stop(self) -> None:
        """Let `run()` end; what is still waiting then is left to the end of its lease."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def run(self) -> None:
        """Store outcomes until `stop()`."""
        with self._connections.own():
            while batch := self._next_batch():
                try:
                    self._settle(batch)
                except Exception:  # the last resort: without this thread no outcome is ever stored again
                    self._keep(batch)
                    log_safely(
                        logger,
                        logging.CRITICAL,
                        "The completer failed",
                        exc_info=True,
                        extra={"event": "completer_failed", "worker_id": self._worker_id},
                    )

    def _next_batch(self) -> list[_Pending]:
        """Wait for outcomes that may be tried now; an empty list once stopped.

        No run twice in a batch: two claims of one run have different fences.
        """
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                if any(pending.not_before <= now for pending in self._queue):
                    self._gather()
                    return self._take()
                pause = min((pending.not_before - now for pending in self._queue), default=None)
                self._waiting = True
                self._changed.wait(pause)
                self._waiting = False
            return []

    def _gather(self) -> None:
        """Wait for further outcomes as long as they come in quick succession."""
        deadline = time.monotonic() + _GATHER_SECONDS
        waiting = 0
        while waiting < len(self._queue) < _LONGEST_BATCH and self._holdings.running > 0:
            waiting = len(self._queue)
            left = deadline - time.monotonic()
            if left <= 0 or self._stopping:
                return
            self._changed.wait(min(_SUCCESSION_SECONDS, left))

    def _take(self) -> list[_Pending]:
        """Take a batch of what is due; in turn with it, a blocked outcome alone."""
        now = time.monotonic()
        due = [pending for pending in self._queue if pending.not_before <= now]
        blocked = [pending for pending in due if pending.blocked]
        if blocked and (self._blocked_next or len(blocked) == len(due)):
            self._blocked_next = False
            self._queue.remove(blocked[0])
            return blocked[:1]
        self._blocked_next = True
        batch: dict[UUID, _Pending] = {}
        rest: deque[_Pending] = deque()
        for pending in self._queue:
            run_id = pending.holding.lease.run_id
            takes = pending.not_before <= now and not pending.blocked
            if takes and len(batch) < _LONGEST_BATCH and run_id not in batch:
                batch[run_id] = pending
            else:
                rest.append(pending)
        self._queue = rest
        return list(batch.values())

    def _settle(self, batch: Sequence[_Pending]) -> None:
        alias = self._connections.alias
        try:
            settlement = runs.settle([pending.outcome for pending in batch], using=alias)
        except Exception as error:  # a host's backend may raise what it likes while it connects
            self._fail(batch, error)
            return
        self._failures = 0
        accepted = [pending for pending in batch if pending.holding.lease.run_id in settlement.accepted]
        if accepted:
            self._accept(accepted)
        for pending in batch:
            run_id = pending.holding.lease.run_id
            if run_id in settlement.accepted:
                continue
            if run_id in settlement.busy:
                self._holdings.vacate(pending.holding)
                self._later(pending, backoff(pending.tries, longest=_LONGEST_PAUSE))
            else:
                self._refuse(pending)
        self._spread(batch, settlement.blocked)

    def _spread(self, batch: Sequence[_Pending], blocked: Collection[UUID]) -> None:
        """Let a tenant's blocked outcomes wait as long as the one that was tried, or no longer at all."""
        for pending in batch:
            was_blocked, pending.blocked = pending.blocked, pending.holding.lease.run_id in blocked
            if was_blocked or pending.blocked:
                moment = pending.not_before if pending.blocked else 0.0
                with self._changed:
                    for other in self._queue:
                        if other.blocked and other.tenant_id == pending.tenant_id:
                            other.not_before = moment

    def _fail(self, batch: Sequence[_Pending], error: Exception) -> None:
        """Try again after a while; singly, at once, when the fault may lie in the batch."""
        if isinstance(error, Error) and self._connections.unprepare(error):
            self._settle(batch)
            return
        usable = self._is_usable(error)
        if usable and len(batch) > 1:
            for pending in batch:
                self._settle([pending])
            return
        self._failures += 1
        if not usable or self._failures % _FAILURES_PER_SESSION == 0:
            connections[self._connections.alias].close()
        metrics.increment("tenantfair_worker_events_total", event="outcome_error")
        self._keep(batch)
        log_safely(
            logger,
            logging.WARNING,
            "Outcomes of %d runs were not stored, trying again: %s",
            len(batch),
            str(error).strip(),
            extra={"event": "outcome_failed", "worker_id": self._worker_id},
        )

    def _is_usable(self, error: Exception) -> bool:
        """Return whether the session can store other outcomes, as far as `error` tells."""
        connection = connections[self._connections.alias]
        # After a failover the same name may lead to the new primary.
        if getattr(error.__cause__, "sqlstate", None) == _READ_ONLY:
            return False
        return connection.connection is not None and connection.is_usable()

    def _keep(self, batch: Sequence[_Pending]) -> None:
        """Have what is still to be settled of `batch` tried again after a while, its places free."""
        held = set(self._holdings.to_renew())
        with self._changed:
            queued = set(self._queue)
        pause = backoff(self._failures, longest=_LONGEST_PAUSE)
        for pending in batch:
            if pending.holding not in held:
                self._holdings.drop(pending.holding)
            elif pending not in queued:
                self._holdings.vacate(pending.holding)
                self._later(pending, pause)

    def _later(self, pending: _Pending, pause: float) -> None:
        pending.tries += 1
        pending.not_before = time.monotonic() + pause
        with self._changed:
            self._queue.append(pending)

    def _accept(self, batch: Sequence[_Pending]) -> None:
        words = [_word(pending.outcome) for pending in batch]
        for outcome, number in Counter(words).items():
            metrics.increment("tenantfair_task_outcomes_total", number, outcome=outcome)
            if self._counts_releases and (reason := _RELEASES.get(outcome)) is not None:
                metrics.increment("tenantfair_admission_releases_total", number, reason=reason)
        metrics.increment("tenantfair_task_seconds_total", sum(pending.seconds for pending in batch))
        self._holdings.drop(*(pending.holding for pending in batch))
        if logger.isEnabledFor(logging.DEBUG):
            for pending, outcome in zip(batch, words, strict=True):
                extra = about("run_settled", pending.holding.lease, self._worker_id) | {
                    "duration_ms": round(pending.seconds * 1000)
                }
                log_safely(
                    logger,
                    logging.DEBUG,
                    "Run %s %s",
                    pending.holding.lease.run_id,
                    outcome,
                    extra=extra,
                )
        for pending, outcome in zip(batch, words, strict=True):
            self._report("run_settled", lease=pending.holding.lease, outcome=outcome, seconds=pending.seconds)

    def _refuse(self, pending: _Pending) -> None:
        metrics.increment("tenantfair_fences_lost_total", operation="finish")
        pending.holding.monitor.lost.set()
        self._holdings.drop(pending.holding)
        log_safely(
            logger,
            logging.WARNING,
            "Run %s is no longer this worker's; its result was dropped",
            pending.holding.lease.run_id,
            extra=about("fence_lost", pending.holding.lease, self._worker_id),
        )


def _word(outcome: Outcome) -> str:
    """Return what became of the run, as metrics name it."""
    if isinstance(outcome, Retry) and outcome.lease.failures >= outcome.lease.retry_limit:
        return "failed"
    return type(outcome).__name__.lower()
