"""The leases this worker holds, from their claim to the moment their outcome is settled or their fence lost.

A holding occupies one of the worker's places from launch until its task has ended and its outcome was
tried to be stored. It is renewed until the outcome is settled, which may be later when a row is locked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from tenantfair.claim.base import Lease
from tenantfair.execution import LeaseMonitor


@dataclass(eq=False, kw_only=True, slots=True)
class Holding:
    """One lease held here. `place` is its row in the table shared with the keeper, if there is one."""

    lease: Lease
    monitor: LeaseMonitor
    place: int | None = None
    taken_at: float = field(default_factory=time.monotonic)
    occupies: bool = True
    # Its outcome is on its way: the database's answer to that tells whether the fence held.
    ended: bool = False


class Holdings:
    """All holdings of a worker; safe to use from any thread.

    Keyed by claim token, not by run: a worker may claim a run again that it has lost but not yet let go of.
    `on_freed` is called, outside the lock, whenever a place has become free.
    """

    def __init__(
        self,
        *,
        places: int,
        write_place: Callable[[int, Lease | None], None] | None = None,
        on_freed: Callable[[], None] = lambda: None,
    ) -> None:
        self.draining = threading.Event()
        self._places = places
        self._write_place = write_place
        self._on_freed = on_freed
        self._changed = threading.Condition()
        self._held: dict[UUID, Holding] = {}
        self._occupied = 0
        self._rows = list(range(2 * places)) if write_place else []

    def take(self, lease: Lease) -> Holding:
        """Hold `lease` and occupy a place with it."""
        holding = Holding(lease=lease, monitor=LeaseMonitor(draining=self.draining))
        with self._changed:
            self._held[lease.claim_token] = holding
            self._occupied += 1
            if self._rows and self._write_place is not None:
                holding.place = self._rows.pop()
                self._write_place(holding.place, lease)
        return holding

    def vacate(self, holding: Holding) -> None:
        """Free the place of a holding that is still to be settled."""
        with self._changed:
            freed = self._vacate(holding)
        if freed:
            self._on_freed()

    def drop(self, holding: Holding) -> None:
        """Forget a holding that is settled or lost, and free its place."""
        with self._changed:
            self._held.pop(holding.lease.claim_token, None)
            if holding.place is not None and self._write_place is not None:
                self._write_place(holding.place, None)
                self._rows.append(holding.place)
                holding.place = None
            freed = self._vacate(holding)
            self._changed.notify_all()
        if freed:
            self._on_freed()

    def _vacate(self, holding: Holding) -> bool:
        freed, holding.occupies = holding.occupies, False
        self._occupied -= freed
        return freed

    @property
    def free(self) -> int:
        """How many places are free."""
        with self._changed:
            return self._places - self._occupied

    def to_renew(self) -> list[Holding]:
        """Return the holdings whose lease is not known to be lost."""
        with self._changed:
            return [holding for holding in self._held.values() if not holding.monitor.lost.is_set()]

    def __len__(self) -> int:
        with self._changed:
            return len(self._held)

    def wait_until_empty(self, seconds: float) -> bool:
        """Wait for the last holding to go; False when it took longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._held, timeout=seconds)
