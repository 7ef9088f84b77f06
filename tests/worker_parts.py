"""A worker, or its dispatcher alone, in threads of the test's own process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from tenantfair.claim.base import Lease
from tenantfair.runs import Outcome
from tenantfair.signals import claim_observed
from tenantfair.worker import Worker
from tenantfair.worker.completer import Completer
from tenantfair.worker.database import WorkerConnections
from tenantfair.worker.dispatcher import Dispatcher
from tenantfair.worker.holdings import Holdings
from tests.threads import LONGEST_WAIT_SECONDS, in_django_thread

# Long enough that whatever a test sees happen was asked for, and not the timer's doing.
NEVER = 3600.0


def until(condition: Callable[[], Any], what: str) -> Any:
    """Return the first true value of `condition()`."""
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.005)
    return found


@contextmanager
def running(worker: Worker) -> Iterator[Future[int]]:
    """Run `worker` in a thread; the future is its exit code. It is stopped at the end of the block."""
    code = in_django_thread(worker.run)
    try:
        yield code
    finally:
        worker.stop()
        assert worker.finished.wait(LONGEST_WAIT_SECONDS)


def run_until_idle(**options: Any) -> int:
    """Run a worker in this thread until nothing is due; return its exit code."""
    return Worker(until_idle=True, **{"listen": False, "interval": 0.05, **options}).run()


def store(outcome: Outcome, worker_id: str = "stores") -> None:
    """Store `outcome` as a worker does, and return once the worker is done with its lease."""
    connections_of = WorkerConnections("default", worker_id)
    connections_of.probe()
    holdings = Holdings(places=1)
    completer = Completer(connections_of=connections_of, holdings=holdings, worker_id=worker_id)
    completer.put(holdings.take(outcome.lease), outcome, 0.0)
    ended = in_django_thread(completer.run)
    try:
        until(lambda: len(holdings) == 0, "the outcome is settled")
    finally:
        completer.stop()
        ended.result(timeout=LONGEST_WAIT_SECONDS)


@contextmanager
def logging_that_raises(name: str) -> Iterator[None]:
    """Let each record of logger `name` be met by a host's filter that wants what only web requests have."""

    def spoil(record: logging.LogRecord) -> bool:
        raise SystemExit("a record without a request")

    logging.getLogger(name).addFilter(spoil)
    try:
        yield
    finally:
        logging.getLogger(name).removeFilter(spoil)


class Bench:
    """A dispatcher with `places` places whose launches the test sees, and ends, one by one."""

    def __init__(self, *, places: int, interval: float = NEVER, **options: Any) -> None:
        self.places = places
        self.live: list[Lease] = []
        self.launched: list[Lease] = []
        self.demands: list[int] = []
        self.results: list[str] = []
        self.dispatcher = Dispatcher(
            connections_of=WorkerConnections("default", "bench"),
            free=lambda: self.places - len(self.live),
            busy=lambda: bool(self.live),
            launch=self._launch,
            prepare=lambda: None,
            interval=interval,
            **options,
        )

    def _launch(self, leases: Sequence[Lease], asked_at: float) -> int:
        self.live += leases
        self.launched += leases
        return len(leases)

    def _observe(self, *, demand: int, result: str, **_: Any) -> None:
        self.demands.append(demand)
        self.results.append(result)

    @property
    def ended(self) -> bool:
        """Whether the dispatcher's thread has ended."""
        return self._ended.done()

    def exit_one(self) -> None:
        """Let one live task end: its place is free, and the dispatcher is told."""
        self.live.pop()
        self.dispatcher.request()

    def until_launched(self, count: int) -> None:
        until(lambda: len(self.launched) >= count, f"{count} leases are launched")

    def __enter__(self) -> Bench:
        claim_observed.connect(self._observe)
        self._ended = in_django_thread(self.dispatcher.run)
        return self

    def __exit__(self, *_: object) -> None:
        self.dispatcher.stop()
        self._ended.result(timeout=LONGEST_WAIT_SECONDS)
        claim_observed.disconnect(self._observe)


class Gates:
    """Named events that tasks of the test's own process wait at and signal."""

    def __init__(self) -> None:
        self._events: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> threading.Event:
        with self._lock:
            return self._events.setdefault(name, threading.Event())

    def wait(self, name: str) -> None:
        assert self[name].wait(LONGEST_WAIT_SECONDS), f"nobody opened {name}"


GATES = Gates()
