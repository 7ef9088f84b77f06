"""Bulk: 50,000 runs of one tenant in, finished and deleted; and one by one in one transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from tests.benchmarks import seeds
from tests.benchmarks.bench import Bench
from tests.benchmarks.rows import FLOOR, OWN_FLOOR, make_row
from tests.benchmarks.rows import at_most as most
from tests.benchmarks.server import Connection, connect

TRIGGERS = "triggers"
SIZES = (5_000, 50_000)

_STEPS = ("in", "finished", "deleted")
_WHOLE = 1.5
_SINGLES = 2.0

_JOB: Mapping[str, str] = {
    "in": "INSERT INTO job (id, tenant, payload) SELECT n, 't0', 'x' FROM generate_series(1, {n}) AS n",
    "finished": "UPDATE job SET state = 2",
    "deleted": "DELETE FROM job",
    "one": "INSERT INTO job (id, tenant, payload) VALUES (%s, 't0', 'x')",
    "finish one": "UPDATE job SET state = 2 WHERE id = %s",
}
_RUN: Mapping[str, str] = {
    "in": "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at)"
    " SELECT 't0', 'bulk', now() FROM generate_series(1, {n})",
    "finished": "UPDATE tenantfair_run SET status = 'completed', wake_at = NULL, finished_at = now()",
    "deleted": "DELETE FROM tenantfair_run",
    "one": "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at, retry_limit)"
    " VALUES ('t0', 'bulk', now(), least(3, %s))",
    "finish one": "UPDATE tenantfair_run SET status = 'completed', wake_at = NULL, finished_at = now()"
    " WHERE id = (SELECT min(id) + %s - 1 FROM tenantfair_run)",
}


def run_bulk(bench: Bench) -> None:
    for size in SIZES:
        bench.say(f"bulk: {size:,} in one statement")
        samples = _alternated(bench, lambda session, statements, size=size: _whole(session, statements, size))
        for step in _STEPS:
            found = [{name: times[step] for name, times in sample.items()} for sample in samples]
            bench.add(
                make_row(
                    "bulk",
                    f"{size:,} {step}",
                    found,
                    TRIGGERS,
                    unit="ms",
                    target=most(_WHOLE, "own_ratio") if size == SIZES[-1] else None,
                    through="one SQL statement",
                )
            )
    number = 2_000 if bench.quick else 10_000
    bench.say(f"bulk: {number:,} one by one")
    samples = _alternated(bench, lambda session, statements: _one_by_one(session, statements, number))
    for step in ("in", "finished"):
        found = [{name: times[step] for name, times in sample.items()} for sample in samples]
        bench.add(
            make_row(
                "bulk",
                f"{number:,} one by one {step}",
                found,
                TRIGGERS,
                unit="ms",
                target=most(_SINGLES, "own_ratio"),
                through="SQL statements in one transaction",
            )
        )


Measure = Callable[[Connection, Mapping[str, str]], Mapping[str, float]]


def _alternated(bench: Bench, measure: Measure) -> list[dict[str, Mapping[str, float]]]:
    samples = []
    for _ in range(bench.rounds):
        sample = {}
        for variant in (FLOOR, OWN_FLOOR, TRIGGERS):
            with bench.databases.copy(seeds.EMPTY) as name, connect(bench.databases.url(name)) as session:
                if variant == OWN_FLOOR:
                    session.execute("ALTER TABLE tenantfair_run DISABLE TRIGGER USER")
                sample[variant] = measure(session, _JOB if variant == FLOOR else _RUN)
        samples.append(sample)
    return samples


def _whole(session: Connection, statements: Mapping[str, str], size: int) -> dict[str, float]:
    times = {}
    for step in _STEPS:
        start = time.perf_counter()
        session.execute(statements[step].format(n=size), prepare=False)
        times[step] = (time.perf_counter() - start) * 1e3
    return times


def _one_by_one(session: Connection, statements: Mapping[str, str], number: int) -> dict[str, float]:
    times = {}
    for step, statement in (("in", "one"), ("finished", "finish one")):
        start = time.perf_counter()
        with session.transaction():
            for place in range(1, number + 1):
                session.execute(statements[statement], [place])
        times[step] = (time.perf_counter() - start) * 1e3
    return times
