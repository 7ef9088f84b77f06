"""W4: 10,000 tenants at their cap of one stand in front of ten that are free."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.benchmarks import seeds, site
from tests.benchmarks.bench import Bench
from tests.benchmarks.claimers import (
    FACADE,
    FLOOR,
    OWN_FLOOR,
    WALKING,
    Claim,
    claimer,
    finisher,
    rehearse,
    walker,
)
from tests.benchmarks.rows import at_most, make_row
from tests.benchmarks.server import Connection, connect

CROWD, BACKLOG, FREE = 10_000, 5, 10

_CLAIMS = 15
_MOST_CALLS = 2_000
_FIRST_MS = {32: 150.0, 1_024: 50.0}
_TABLES = "'tenantfair_partition', 'tenantfair_schedule', 'tenantfair_run', 'tenantfair_pending'"


@dataclass(frozen=True, slots=True)
class Granted:
    first_ms: float
    median_ms: float
    calls: int
    over_cap: int


@dataclass(frozen=True, slots=True)
class Idle:
    """An idle call: rows written in our tables but the policy's, and bytes of WAL."""

    rows: int
    wal: float


def prepare(variant: str, url: str, budget: int) -> Callable[[], tuple[Granted, Idle]]:
    """Run in a client process: fifteen grants at demand one, then idle calls."""
    if variant == FACADE:
        site.use(url)
        from tenantfair import policy

        policy.put_scan_budget(budget)
        rehearse(url)
    walk = walker(variant, url, 1, most_calls=_MOST_CALLS)
    claim, finish = claimer(variant, url, 1), finisher(variant, url)

    def measure() -> tuple[Granted, Idle]:
        times: list[float] = []
        most_calls = over_cap = 0
        for _ in range(_CLAIMS):
            start = time.perf_counter()
            calls, found = walk()
            times.append(time.perf_counter() - start)
            most_calls = max(most_calls, calls)
            over_cap += sum(not str(tenant).startswith("f") for tenant, _ in found)
            finish([handle for _, handle in found])
        granted = Granted(times[0] * 1e3, statistics.median(times) * 1e3, most_calls, over_cap)
        return granted, _idle(claim, url) if variant == FACADE else Idle(0, 0)

    return measure


def _idle(claim: Claim, url: str) -> Idle:
    with connect(url) as watching:
        watching.execute(
            "UPDATE tenantfair_run SET wake_at = now() + interval '1 day'"
            " WHERE tenant_id LIKE 'f%' AND wake_at IS NOT NULL",
            prepare=False,
        )
        before, places, found = _written(watching), [], []
        for _ in range(9):
            places.append(_wal(watching))
            found += claim() or []
        places.append(_wal(watching))
        assert not found
        rows = _written(watching) - before
    return Idle(rows, statistics.median([later - earlier for earlier, later in itertools.pairwise(places)]))


def _wal(session: Connection) -> float:
    return float(session.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()[0])


def _written(session: Connection) -> int:
    from django.db import connection

    # A session keeps its counts to itself for up to ten seconds unless told otherwise.
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
    session.execute("SELECT pg_stat_force_next_flush()")
    session.execute("SELECT pg_stat_clear_snapshot()")
    return session.execute(
        f"SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables WHERE relname IN ({_TABLES})"
    ).fetchone()[0]


def run_w4(bench: Bench) -> None:
    template = seeds.make(bench.databases, "seed_w4", _groups(), _occupy)
    for budget, first_ms in _FIRST_MS.items():
        bench.say(f"W4: S = {budget}")
        samples = []
        for _ in range(bench.rounds):
            sample = {}
            for variant in (FLOOR, OWN_FLOOR, FACADE):
                with bench.databases.copy(template) as name:
                    call = {"variant": variant, "url": bench.databases.url(name), "budget": budget}
                    (sample[variant],) = bench.clients.run(prepare, [call])
            samples.append(sample)
        granted = [{name: found for name, (found, _) in sample.items()} for sample in samples]
        first = [{name: found.first_ms for name, found in sample.items()} for sample in granted]
        median = [{name: found.median_ms for name, found in sample.items()} for sample in granted]
        over = [{FACADE: float(sample[FACADE].over_cap)} for sample in granted]
        rows = [{FACADE: float(sample[FACADE][1].rows)} for sample in samples]
        wal = [{FACADE: sample[FACADE][1].wal} for sample in samples]
        common = {"demand": 1, "through": f"{WALKING}, runs.finish()"}
        calls = f"{granted[0][FACADE].calls} calls for the slowest grant"
        case = f"10,000 capped, S = {budget:,}"
        bench.add(
            make_row(
                "W4",
                f"{case}: first grant",
                first,
                FACADE,
                unit="ms",
                target=at_most(first_ms),
                note=calls,
                **common,
            ),
            make_row("W4", f"{case}: median grant", median, FACADE, unit="ms", **common),
            make_row("W4", f"{case}: over the cap", over, FACADE, unit="runs", target=at_most(0), **common),
            make_row(
                "W4",
                f"{case}: rows an idle call writes",
                rows,
                FACADE,
                unit="rows",
                target=at_most(0),
                note="besides the policy row's cursor",
                **common,
            ),
            make_row("W4", f"{case}: WAL of an idle call", wal, FACADE, unit="bytes", **common),
        )
    bench.databases.drop(template)


def _groups() -> seeds.Groups:
    crowd = [(f"c{number}", BACKLOG + 1) for number in range(CROWD)]
    return crowd + [(f"f{number}", BACKLOG) for number in range(FREE)]


def _occupy(connection: Connection) -> None:
    """One run of each crowded tenant is claimed, and the default cap is one."""
    connection.execute(
        """
        UPDATE tenantfair_run SET
            wake_at = NULL, claim_token = gen_random_uuid(), claimed_at = now() + interval '1 day',
            tenant_admitted_at = now(), claim_attempts = 1
        WHERE id IN (SELECT min(id) FROM tenantfair_run WHERE tenant_id LIKE 'c%' GROUP BY scope_key)
    """,
        prepare=False,
    )
    # The floors know no caps: theirs is the same table without those who may not run.
    connection.execute("UPDATE job SET state = 2 WHERE tenant LIKE 'c%'", prepare=False)
    connection.execute("UPDATE tenantfair_policy SET max_active = 1", prepare=False)
