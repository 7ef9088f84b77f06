"""W6: 5,000 runs that do nothing through a worker process with eight places; then single ones, idle."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import LiteralString

from tests.benchmarks import seeds, site
from tests.benchmarks.bench import Bench
from tests.benchmarks.claimers import FLOOR_CLAIM, FLOOR_FINISH, OWN_FLOOR_CLAIM, OWN_FLOOR_FINISH
from tests.benchmarks.rows import FLOOR, OWN_FLOOR, at_least, at_most, make_row, percentile
from tests.benchmarks.server import Connection, connect

OURS = "worker"
RUNS, PLACES = 5_000, 8
SINGLES, APART_SECONDS = 200, 0.1

_HALF = 0.5
_PER_SECOND = 2_000
_P50_MS, _P99_MS = 5.0, 15.0
_LONGEST_SECONDS = 60
_BATCH = 1_000

_FLOOR_INSERT = "INSERT INTO job (id, tenant, payload) SELECT n, 't0', '{}' FROM unnest(%s::bigint[]) AS n"
_OWN_INSERT = """
    INSERT INTO tenantfair_run (run_id, tenant_id, task_path, args, kwargs, wake_at)
    SELECT gen_random_uuid(), 't0', 'bare', '[]', '{}', now() FROM unnest(%s::bigint[])
"""


@contextmanager
def worker_process(url: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run one `tenantfair_worker` on `url`; it is drained, or killed, when the block ends."""
    command = [
        sys.executable,
        "-m",
        "django",
        "tenantfair_worker",
        "--no-reload",
        "--verbosity",
        "0",
        *options,
    ]
    environment = os.environ | {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": site.SETTINGS}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run_w6(bench: Bench) -> None:
    through = {"enqueue": "runs.enqueue_many()", "drain": "tenantfair_worker", "single": "runs.enqueue()"}
    samples = []
    for _ in range(bench.rounds):
        bench.say("W6: a round")
        samples.append({FLOOR: _floor(bench, FLOOR), OWN_FLOOR: _floor(bench, OWN_FLOOR), OURS: _ours(bench)})

    def of(figure: str) -> list[dict[str, float]]:
        return [
            {name: found[figure] for name, found in sample.items() if figure in found} for sample in samples
        ]

    start = "enqueue to start, idle"
    bench.add(
        make_row(
            "W6",
            "bulk enqueue of 5,000",
            of("enqueue"),
            OURS,
            unit="runs/s",
            target=at_least(_HALF, "own_ratio"),
            through=through["enqueue"],
        ),
        make_row(
            "W6",
            "5,000 drained, 8 places",
            of("drain"),
            OURS,
            unit="runs/s",
            target=at_least(_PER_SECOND, "value"),
            demand=PLACES,
            through=through["drain"],
            note="the floors claim and complete eight at a time, and run nothing",
        ),
        make_row(
            "W6",
            f"{start}, p50",
            of("p50"),
            OURS,
            unit="ms",
            target=at_most(_P50_MS),
            demand=1,
            through=through["drain"],
            note="the floors insert and claim in one session",
        ),
        make_row(
            "W6",
            f"{start}, p99",
            of("p99"),
            OURS,
            unit="ms",
            target=at_most(_P99_MS),
            demand=1,
            through=through["drain"],
        ),
        make_row("W6", "single enqueue, p50", of("single"), OURS, unit="ms", through=through["single"]),
    )


def _floor(bench: Bench, variant: str) -> dict[str, float]:
    """The same work by the simplest statements, in one session."""
    insert, claim, finish = (
        (_FLOOR_INSERT, FLOOR_CLAIM, FLOOR_FINISH)
        if variant == FLOOR
        else (_OWN_INSERT, OWN_FLOOR_CLAIM, OWN_FLOOR_FINISH)
    )
    with bench.databases.copy(seeds.EMPTY) as name, connect(bench.databases.url(name)) as session:
        if variant == OWN_FLOOR:
            session.execute("ALTER TABLE tenantfair_run DISABLE TRIGGER USER")
        start = time.perf_counter()
        with session.transaction():
            for first in range(0, RUNS, _BATCH):
                session.execute(insert, [list(range(first, first + _BATCH))])
        enqueue = RUNS / (time.perf_counter() - start)
        start = time.perf_counter()
        while found := session.execute(claim, [PLACES]).fetchall():
            session.execute(finish, [[row[1] for row in found]])
        drain = RUNS / (time.perf_counter() - start)
        singles, starts = [], []
        for place in range(SINGLES):
            start = time.perf_counter()
            session.execute(insert, [[RUNS + place]])
            singles.append(time.perf_counter() - start)
            session.execute(claim, [1])
            starts.append(time.perf_counter() - start)
    return _figures(enqueue, drain, singles, starts)


def _ours(bench: Bench) -> dict[str, float]:
    with bench.databases.copy(seeds.EMPTY) as name:
        url = bench.databases.url(name)
        site.use(url)
        from tenantfair import runs
        from tests.benchmarks.tasks import started_after, started_at

        wanted = [runs.NewRun(task=started_at, tenant_id="t0") for _ in range(RUNS)]
        start = time.perf_counter()
        runs.enqueue_many(wanted)
        enqueue = RUNS / (time.perf_counter() - start)
        bench.databases.settle(name)
        with worker_process(url, "--concurrency", str(PLACES)), connect(url) as watching:
            _until_finished(watching, RUNS)
            moments = _results(watching, "started_at")
            drain = (RUNS - 1) / (max(moments) - min(moments))
            # The worker must be idle, past its last poll of the drain: what follows measures waking it.
            time.sleep(2)
            singles = []
            for _ in range(SINGLES):
                start = time.perf_counter()
                runs.enqueue(started_after, args=[time.time()], tenant_id="t0")
                singles.append(time.perf_counter() - start)
                # The workload says so: single enqueues at a fixed distance, each to an idle worker.
                time.sleep(max(0.0, APART_SECONDS - singles[-1]))
            _until_finished(watching, RUNS + SINGLES)
            starts = _results(watching, "started_after")
        site.leave()
    return _figures(enqueue, drain, singles, starts)


def _figures(enqueue: float, drain: float, singles: list[float], starts: list[float]) -> dict[str, float]:
    return {
        "enqueue": enqueue,
        "drain": drain,
        "single": statistics.median(singles) * 1e3,
        "p50": percentile(starts, 0.5) * 1e3,
        "p99": percentile(starts, 0.99) * 1e3,
    }


def _until_finished(watching: Connection, number: int) -> None:
    deadline = time.monotonic() + _LONGEST_SECONDS
    while _one(watching, "SELECT count(*) FROM tenantfair_run WHERE finished_at IS NOT NULL") < number:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the worker had not finished {number:,} runs after {_LONGEST_SECONDS} s")
        time.sleep(0.2)  # a poll, so that watching takes nothing from what is watched


def _one(watching: Connection, statement: LiteralString) -> int:
    return watching.execute(statement).fetchone()[0]


def _results(watching: Connection, task: str) -> list[float]:
    found = watching.execute(
        "SELECT (result #>> '{}')::float FROM tenantfair_run WHERE task_path = %s AND status = 'completed'",
        [f"tests.benchmarks.tasks.{task}"],
    ).fetchall()
    return [row[0] for row in found]
