"""Keeps the leases of running work alive: all of them in one statement, four times per lease.

A thread of its own on a connection of its own, so neither a task nor the storing of outcomes can hold it up.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

from django.db import Error, connections

from tenantfair import metrics, policy, runs
from tenantfair.runs.log_facts import about
from tenantfair.worker.backoff import backoff
from tenantfair.worker.database import WorkerConnections
from tenantfair.worker.holdings import Holding, Holdings

logger = logging.getLogger("tenantfair.worker")

_LONGEST_STATEMENT: Final = 1000
_BEATS_PER_LEASE: Final = 4


class Heartbeat:
    """Renews every `interval` seconds, a little earlier at random.

    When another worker's start has shortened the domain's lease, it renews at least four times per that.
    `on_renewed` is told, after each renewal of everything there was to renew, when that began: what has been
    claimed since then is not renewed yet.
    """

    def __init__(
        self,
        *,
        connections_of: WorkerConnections,
        holdings: Holdings,
        interval: float,
        worker_id: str,
        on_renewed: Callable[[float], None] = lambda began: None,
    ) -> None:
        self._connections = connections_of
        self._holdings = holdings
        self._longest_interval = self._interval = interval
        self._worker_id = worker_id
        self._on_renewed = on_renewed
        self._stopping = threading.Event()
        self._failures = 0
        self.beat = time.monotonic()

    def run(self) -> None:
        """Renew until `stop()`."""
        with self._connections.own():
            while not self._stopping.wait(self._pause()):
                self.beat = time.monotonic()
                self.renew()

    def stop(self) -> None:
        """Let `run()` end."""
        self._stopping.set()

    def _pause(self) -> float:
        if self._failures:
            return backoff(self._failures, longest=self._interval)
        return random.uniform(0.8, 1.0) * self._interval  # noqa: S311 - jitter

    def renew(self) -> None:
        """Renew every lease held now, and mark those that are no longer this worker's."""
        began = time.monotonic()
        try:
            for batch in _batches(self._holdings.to_renew()):
                self._renew(batch)
            lease_seconds = policy.get_default(using=self._connections.alias).lease_seconds
        except Error as error:
            self._failures += 1
            metrics.increment("tenantfair_worker_events_total", event="heartbeat_error")
            logger.warning(
                "Leases were not renewed: %s",
                str(error).strip(),
                extra={"event": "heartbeat_failed", "worker_id": self._worker_id},
            )
            connections[self._connections.alias].close()
        else:
            self._failures = 0
            self._interval = min(self._longest_interval, lease_seconds / _BEATS_PER_LEASE)
            self._on_renewed(began)

    def _renew(self, batch: Mapping[UUID, Holding]) -> None:
        ours = runs.heartbeat([holding.lease for holding in batch.values()], using=self._connections.alias)
        for run_id, holding in batch.items():
            # An ended task's fence goes when its outcome is stored; who stores it learns whether it held.
            if run_id not in ours and not holding.ended:
                self._lose(holding)

    def _lose(self, holding: Holding) -> None:
        holding.monitor.lost.set()
        metrics.increment("tenantfair_fences_lost_total", operation="heartbeat")
        logger.warning(
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
