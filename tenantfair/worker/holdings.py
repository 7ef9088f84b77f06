"""The leases this worker holds, from their claim to the moment their outcome is settled or their fence lost.

A holding occupies one of the worker's places from launch until its task has ended and its outcome was
tried to be stored. It is renewed until the outcome is settled, which may be later when a row is locked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
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
        self._running = 0
        self._rows = list(range(2 * places)) if write_place else []

    def take(self, lease: Lease) -> Holding:
        """Hold `lease` and occupy a place with it."""
        return self.take_all([lease])[0]

    def take_all(self, leases: Iterable[Lease]) -> list[Holding]:
        """Hold each of `leases` and occupy a place with it."""
        taken = [Holding(lease=lease, monitor=LeaseMonitor(draining=self.draining)) for lease in leases]
        with self._changed:
            for holding in taken:
                self._held[holding.lease.claim_token] = holding
                if self._rows and self._write_place is not None:
                    holding.place = self._rows.pop()
                    self._write_place(holding.place, holding.lease)
            self._occupied += len(taken)
            self._running += len(taken)
        return taken

    def end(self, holding: Holding) -> int:
        """Note that the task of `holding` has ended, and return how many others have not."""
        with self._changed:
            self._running -= not holding.ended
            holding.ended = True
            return self._running

    def vacate(self, holding: Holding) -> None:
        """Free the place of a holding that is still to be settled.

        Not while as many are without one as there are places: when nothing can be stored, no more is begun.
        """
        with self._changed:
            freed = len(self._held) - self._occupied < self._places and self._vacate(holding)
        if freed:
            self._on_freed()

    def drop(self, *settled: Holding) -> None:
        """Forget holdings that are settled or lost, and free their places."""
        freed = False
        with self._changed:
            for holding in settled:
                self._held.pop(holding.lease.claim_token, None)
                if holding.place is not None and self._write_place is not None:
                    self._write_place(holding.place, None)
                    self._rows.append(holding.place)
                    holding.place = None
                freed = self._vacate(holding) or freed
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

    @property
    def running(self) -> int:
        """How many holdings have a task that has not ended."""
        return self._running

    @property
    def settling(self) -> int:
        """How many places will be free as soon as an outcome has been stored."""
        with self._changed:
            return self._occupied - self._running

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
