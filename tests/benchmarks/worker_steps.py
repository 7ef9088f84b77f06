"""`python -m tests.benchmarks.worker_steps`: where a worker's own CPU time goes, per run, stage by stage.

The stages of a busy worker, one after the other in one thread: full batches of tasks that do nothing, on
sessions such as a worker has. Threads and their switches are left out; the database's time is not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from example_project.postgres import PrivateServer
from tests.benchmarks import seeds, site
from tests.benchmarks.server import OPTIONS, Databases, connect

T = TypeVar("T")

_WARM_UP = 10


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.worker_steps", description=__doc__)
    parser.add_argument("--places", type=int, default=8)
    parser.add_argument("--batches", type=int, default=150)
    options = parser.parse_args(arguments)
    with PrivateServer(options=OPTIONS) as server:
        os.environ["DATABASE_URL"] = server.dsn
        databases = Databases(server)
        try:
            seeds.make_empty(databases)
            runs = options.places * (options.batches + _WARM_UP)
            url = databases.url(seeds.make(databases, "worker_steps", seeds.one_tenant(runs)))
            with connect(url) as session:
                session.execute("UPDATE tenantfair_policy SET max_active = 1000000")
            for line in _profile(url, options.places, options.batches):
                print(line)
        finally:
            site.leave()
            databases.close()
    return 0


class Stopwatch:
    """CPU time of this thread by stage, in microseconds."""

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = {}

    def time(self, stage: str, work: Callable[..., T], *arguments: Any, **named: Any) -> T:
        start = time.thread_time()
        found = work(*arguments, **named)
        self.taken.setdefault(stage, []).append((time.thread_time() - start) * 1e6)
        return found


def _profile(url: str, places: int, batches: int) -> Iterable[str]:
    site.use(url)
    from tenantfair.worker.calls import Calls
    from tenantfair.worker.completer import Completer
    from tenantfair.worker.database import WorkerConnections
    from tenantfair.worker.holdings import Holdings

    connections_of = WorkerConnections("default", "steps")
    connections_of.probe()
    holdings = Holdings(places=places)
    completer = Completer(connections_of=connections_of, holdings=holdings, worker_id="steps")
    watch = Stopwatch()
    with connections_of.own():
        calls = Calls("default")
        for number in range(batches + _WARM_UP):
            if number == _WARM_UP:
                watch.taken.clear()
            _batch(watch, calls, holdings, completer, places)
    per_run = {stage: statistics.median(taken) / places for stage, taken in watch.taken.items()}
    for stage, microseconds in [*per_run.items(), ("together", sum(per_run.values()))]:
        yield f"{stage:<44}{microseconds:8.1f} us per run"


def _batch(watch: Stopwatch, calls: Any, holdings: Any, completer: Any, places: int) -> None:
    from tenantfair.execution import execute
    from tenantfair.worker.executor import _tidy_connections

    batch = watch.time("claim: statement, decoding, metrics", calls.claim, places, asks=True)
    held = watch.time("hold the leases", holdings.take_all, batch.leases)

    def run_all() -> list[Any]:
        return [
            execute(each.lease, using="default", worker_id="steps", monitor=each.monitor) for each in held
        ]

    def tidy_all() -> None:
        for _ in held:
            _tidy_connections()

    def put_all() -> None:
        for each, outcome in zip(held, outcomes, strict=True):
            completer.put(each, outcome, 0.0)

    outcomes = watch.time("run: result, signals and their log, call", run_all)
    watch.time("tidy connections", tidy_all)
    watch.time("hand over the outcomes", put_all)
    pending = watch.time("gather", completer._next_batch)
    watch.time("finish: statement, places, metrics", completer._settle, pending)


if __name__ == "__main__":
    sys.exit(main())
