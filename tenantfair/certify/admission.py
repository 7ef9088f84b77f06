"""Who could be granted something, and since when, as far as committed changes tell."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from typing import Final

from tenantfair.certify.record import Held

LONG_AGO: Final = -1


class Times:
    """Times with how many runs each stands for, and the first of them."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._heap: list[int] = []
        self.total = 0

    def add(self, at: int, n: int) -> None:
        """Add n runs, or take away as many as -n. Less than none may stand there for a while."""
        if at not in self._counts:
            heappush(self._heap, at)
        self._counts[at] += n
        self.total += n

    def first(self) -> int | None:
        """Return the first time that runs stand at."""
        while self._heap and not self._counts[self._heap[0]]:
            del self._counts[heappop(self._heap)]
        for at in self._heap[:1]:
            if self._counts[at] > 0:
                return at
        return min((at for at, n in self._counts.items() if n > 0), default=None)


class Scope:
    """The runs of one scope that are queued, admitted or claimed."""

    def __init__(self) -> None:
        self.queued, self.ready, self.claimed = Times(), Times(), Times()

    @property
    def admitted(self) -> int:
        return self.ready.total + self.claimed.total

    def move(self, held: Held, n: int) -> None:
        """Let n more runs, or -n fewer, be in a state."""
        times: Times = getattr(self, held.state)
        times.add(LONG_AGO if held.at is None else held.at, n)

    def grantable_from(self, cap: int, lease: int, admitted: int) -> int | None:
        """Return from which time on a claim may grant something, with `admitted` runs counted; None: never.

        A claim is expired when it is older than the lease.
        """
        claimed = self.claimed.first()
        found = [
            self.ready.first(),
            None if claimed is None else claimed + lease + 1,
            self.queued.first() if admitted < cap else None,
        ]
        return min((at for at in found if at is not None), default=None)
