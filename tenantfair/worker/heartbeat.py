"""Keeps the leases of running work alive: all of them in one statement, four times per lease.

A thread of its own on a connection of its own, so neither a task nor the storing of outcomes can hold it up.
It waits for no lock either: a row that somebody has locked is tried again every 50 ms until it is free, so
that a lease which has grown old in a long transaction is renewed soon after this has ended.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from django.db import Error, connections

from tenantfair import metrics, policy
from tenantfair.logs import log_safely
from tenantfair.runs.holder import extend
from tenantfair.runs.log_facts import about
from tenantfair.worker.backoff import backoff
from tenantfair.worker.database import WorkerConnections
from tenantfair.worker.holdings import Holding, Holdings

logger = logging.getLogger("tenantfair.worker")

_LONGEST_STATEMENT: Final = 1000
_BEATS_PER_LEASE: Final = 4
_SKIPPED_SECONDS: Final = 0.05


class Heartbeat:
    """Renews every `interval` seconds, a little earlier at random.

    `lease_seconds` is the domain's lease at the start. When another worker's start has shortened it, this
    renews at least four times per that.
    `on_renewed` is told, after each renewal of everything there was to renew, when that began: what has been
    claimed since then is not renewed yet.
    """

    def __init__(
        self,
        *,
        connections_of: WorkerConnections,
        holdings: Holdings,
        interval: float,
        lease_seconds: float,
        worker_id: str,
        on_renewed: Callable[[float], None] = lambda began: None,
    ) -> None:
        self._connections = connections_of
        self._holdings = holdings
        self._longest_interval = self._interval = interval
        # The domain's, as last seen.
        self.lease_seconds = lease_seconds
        self._worker_id = worker_id
        self._on_renewed = on_renewed
        self._stopping = threading.Event()
        self._failures = 0
        # Held, but locked by somebody when they were last to be renewed.
        self._skipped: list[Holding] = []
        self.beat = time.monotonic()

    def run(self) -> None:
        """Renew until `stop()`."""
        with self._connections.own():
            due = time.monotonic() + self._pause()
            while not self._stopping.wait(self._until(due)):
                again = time.monotonic() < due
                self._safely(self.renew_skipped if again else self.renew)
                if self._failures or not again:
                    due = time.monotonic() + self._pause()

    def stop(self) -> None:
        """Let `run()` end."""
        self._stopping.set()

    def _until(self, due: float) -> float:
        left = max(0.0, due - time.monotonic())
        return min(left, _SKIPPED_SECONDS) if self._skipped else left

    def _pause(self) -> float:
        if self._failures:
            return backoff(self._failures, longest=self._interval)
        return random.uniform(0.8, 1.0) * self._interval  # noqa: S311 - jitter

    def renew(self) -> None:
        """Renew every lease held now, and mark those that are no longer this worker's."""
        began = time.monotonic()
        self._extend(self._holdings.to_renew())
        self.lease_seconds = policy.get_default(using=self._connections.alias).lease_seconds
        self._interval = min(self._longest_interval, self.lease_seconds / _BEATS_PER_LEASE)
        self._on_renewed(began)

    def renew_skipped(self) -> None:
        """Renew what is still held of what was locked the last time."""
        skipped = self._skipped
        self._extend([holding for holding in self._holdings.to_renew() if holding in skipped])

    def _safely(self, renew: Callable[[], None]) -> None:
        try:
            renew()
        except Error as error:
            connections[self._connections.alias].close()
            self._failed(logging.WARNING, "Leases were not renewed: %s", str(error).strip())
        except Exception as error:  # the top of the thread's loop: when it ends, the leases of all tasks do
            self._failed(logging.ERROR, "Leases were not renewed: %s", type(error).__name__, exc_info=error)
        else:
            self._failures = 0
            # Stamped by answers alone: what is only tried says nothing about the database.
            self.beat = time.monotonic()

    def _failed(
        self, level: int, message: str, *arguments: object, exc_info: Exception | None = None
    ) -> None:
        self._failures += 1
        self._skipped = []
        metrics.increment("tenantfair_worker_events_total", event="heartbeat_error")
        extra = {"event": "heartbeat_failed", "worker_id": self._worker_id}
        log_safely(logger, level, message, *arguments, exc_info=exc_info, extra=extra)

    def _extend(self, held: Sequence[Holding]) -> None:
        skipped: list[Holding] = []
        for batch in _batches(held):
            leases = [holding.lease for holding in batch.values()]
            ours = extend(leases, using=self._connections.alias)
            for run_id, holding in batch.items():
                if run_id in ours:
                    if not ours[run_id]:
                        skipped.append(holding)
                # An ended task's fence goes when its outcome is stored; who stores it learns whether it held.
                elif not holding.ended:
                    self._lose(holding)
        self._skipped = skipped

    def _lose(self, holding: Holding) -> None:
        holding.monitor.lost.set()
        metrics.increment("tenantfair_fences_lost_total", operation="heartbeat")
        log_safely(
            logger,
            logging.WARNING,
            "Run %s is no longer this worker's; its result will be dropped",
            holding.lease.run_id,
            extra=about("fence_lost", holding.lease, self._worker_id),
        )


def _batches(held: Sequence[Holding]) -> list[dict[UUID, Holding]]:
    """Split into statements that name each run once: a run lost and claimed again is held here twice."""
    batches: list[dict[UUID, Holding]] = []
    for holding in held:
        run_id = holding.lease.run_id
        for batch in batches:
            if run_id not in batch and len(batch) < _LONGEST_STATEMENT:
                batch[run_id] = holding
                break
        else:
            batches.append({run_id: holding})
    return batches
