"""W7: 100,000 tenants of whom ten have work; the others wait for a time that is far away."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.benchmarks import seeds, site
from tests.benchmarks.bench import Bench
from tests.benchmarks.claimers import FACADE, FLOOR, OWN_FLOOR, WALKING, rehearse, walker
from tests.benchmarks.end_to_end import worker_process
from tests.benchmarks.rows import at_most, make_row
from tests.benchmarks.server import Connection, connect

TENANTS, AWAKE, BUDGET = 100_000, 10, 4_096

_FIRST_MS = 400.0
_OF_A_CORE = 1.0
_SETTLING_SECONDS = 5
_WATCHED_SECONDS = 15
_MOST_CALLS = 5_000


def run_w7(bench: Bench) -> None:
    template = seeds.make(bench.databases, "seed_w7", seeds.many_tenants(TENANTS, 1), _put_to_sleep)
    samples = []
    for _ in range(bench.rounds):
        bench.say("W7: a first grant")
        sample = {}
        for variant in (FLOOR, OWN_FLOOR, FACADE):
            with bench.databases.copy(template) as name:
                sample[variant] = _first_grant_ms(variant, bench.databases.url(name))
                site.leave()
        samples.append(sample)
    bench.add(
        make_row(
            "W7",
            f"100,000 dormant, S = {BUDGET:,}: first grant",
            samples,
            FACADE,
            unit="ms",
            demand=1,
            target=at_most(_FIRST_MS),
            through=WALKING,
        )
    )
    with bench.databases.copy(template) as name:
        url = bench.databases.url(name)
        with connect(url) as session:
            session.execute("UPDATE tenantfair_run SET wake_at = now() + interval '1 day'")
        bench.databases.settle(name)
        bench.say("W7: an idle worker")
        share = _idle_share(url)
    bench.add(
        make_row(
            "W7",
            "100,000 dormant: an idle worker",
            [{FACADE: share}],
            FACADE,
            unit="% of a core",
            target=at_most(_OF_A_CORE),
            through="tenantfair_worker",
            note="the worker's processes and their database sessions together",
        )
    )
    bench.databases.drop(template)


def _put_to_sleep(connection: Connection) -> None:
    later = "now() + interval '1 day'"
    awake = [f"t{TENANTS - 1 - place}" for place in range(AWAKE)]
    connection.execute(f"UPDATE job SET run_at = {later} WHERE tenant <> ALL (%s)", [awake])
    connection.execute(f"UPDATE tenantfair_run SET wake_at = {later} WHERE tenant_id <> ALL (%s)", [awake])
    connection.execute("UPDATE tenantfair_policy SET scan_budget = %s", [BUDGET])


def _first_grant_ms(variant: str, url: str) -> float:
    if variant == FACADE:
        rehearse(url)
    walk = walker(variant, url, 1, most_calls=_MOST_CALLS)
    start = time.perf_counter()
    _, found = walk()
    if not found:
        raise RuntimeError("no call was granted anything")
    return (time.perf_counter() - start) * 1e3


def _idle_share(url: str) -> float:
    with worker_process(url) as process, connect(url) as watching:
        # Its start is not what is measured: idling is, over a span of wall time.
        time.sleep(_SETTLING_SECONDS)
        before, start = _cpu_seconds(process.pid, watching), time.monotonic()
        time.sleep(_WATCHED_SECONDS)
        after = _cpu_seconds(process.pid, watching)
        if process.poll() is not None:
            raise RuntimeError(f"the worker ended with {process.returncode}")
    return 100 * (after - before) / (time.monotonic() - start)


def _cpu_seconds(pid: int, watching: Connection) -> float:
    sessions = watching.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
    ).fetchall()
    return sum(_cpu_of(one) for one in [*_family(pid), *(row[0] for row in sessions)])


def _family(pid: int) -> list[int]:
    """The process and all below it."""
    children = [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return [pid, *(one for child in children for one in _family(child))]


def _cpu_of(pid: int) -> float:
    # The name in brackets may hold spaces; what follows it is fixed.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
