"""One process with many dispatchers, told by its input what to do; it answers with counts, as JSON lines.

start      start all, and answer when each has polled
wake       request a poll of each, and answer when each has polled again
stop       end all, answer, and end
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import django

_LONGEST_SECONDS = 120.0


class Crowd:
    """Dispatchers with one place each; what they are granted, they hold."""

    def __init__(self, size: int) -> None:
        from tenantfair.claim.base import Lease
        from tenantfair.signals import claim_observed
        from tenantfair.worker.database import WorkerConnections
        from tenantfair.worker.dispatcher import Dispatcher

        self.results: Counter[str] = Counter()
        self.launched: list[str] = []
        self.polls = [0] * size
        self._changed = threading.Condition()
        claim_observed.connect(self._observe)
        connections_of = WorkerConnections("default", "crowd")
        connections_of.probe()
        self._held: list[list[Lease]] = [[] for _ in range(size)]

        def launch(place: int, leases: Sequence[Lease]) -> int:
            self._held[place] += leases
            self.launched += [str(lease.run_id) for lease in leases]
            return len(leases)

        self.dispatchers = [
            Dispatcher(
                connections_of=connections_of,
                free=lambda place=place: 1 - len(self._held[place]),
                busy=lambda place=place: bool(self._held[place]),
                launch=lambda leases, _, place=place: launch(place, leases),
                prepare=lambda: None,
                interval=3600.0,
            )
            for place in range(size)
        ]
        for place, dispatcher in enumerate(self.dispatchers):
            self._count_polls(place, dispatcher)
        self._threads = [threading.Thread(target=one.run, daemon=True) for one in self.dispatchers]

    def _count_polls(self, place: int, dispatcher: Any) -> None:
        poll = dispatcher._poll_safely

        def counted() -> None:
            poll()
            with self._changed:
                self.polls[place] += 1
                self._changed.notify_all()

        dispatcher._poll_safely = counted

    def _observe(self, *, result: str, **_: Any) -> None:
        self.results[result] += 1

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
        self._until_polled([1] * len(self.polls))

    def wake(self) -> None:
        wanted = [count + 1 for count in self.polls]
        for dispatcher in self.dispatchers:
            dispatcher.request()
        self._until_polled(wanted)

    def stop(self) -> None:
        for dispatcher in self.dispatchers:
            dispatcher.stop()
        deadline = time.monotonic() + _LONGEST_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _until_polled(self, wanted: list[int]) -> None:
        with self._changed:
            if not self._changed.wait_for(
                lambda: all(have >= want for have, want in zip(self.polls, wanted, strict=True)),
                timeout=_LONGEST_SECONDS,
            ):
                raise RuntimeError(f"{sum(self.polls)} polls, {sum(wanted)} wanted")


def main() -> None:
    django.setup()
    crowd = Crowd(int(sys.argv[1]))
    for line in sys.stdin:
        getattr(crowd, line.strip())()
        answer = {"results": crowd.results, "launched": crowd.launched, "polls": sum(crowd.polls)}
        print(json.dumps(answer), flush=True)
        if line.strip() == "stop":
            return


if __name__ == "__main__":
    main()
