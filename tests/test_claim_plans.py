"""Plans: a claim touches a bounded number of pages, whatever the tables hold and whatever the statistics say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from psycopg import sql

from tenantfair.sql import load
from tests.claim_support import NOW, Bench, Session, at, bench

pytestmark = pytest.mark.django_db

ROWS = 50_000
PER_INSPECTION, PER_OUTCOME = 12, 60
# The policy row, the door and what a call costs when it finds nothing.
PER_CALL = 60
TABLES = ("policy", "partition", "schedule", "run", "pending")

FINISHED = "'completed', NULL::timestamptz, NULL::timestamptz, now()"
QUEUED = "'running', timestamptz '2026-01-01' - n * interval '1 s', NULL::timestamptz, NULL::timestamptz"
FUTURE = "'running', timestamptz '2026-01-01' + n * interval '1 s', NULL::timestamptz, NULL::timestamptz"
READY = "'running', timestamptz '2026-01-01' - n * interval '1 s', timestamptz '2025-12-01', NULL::timestamptz"


@dataclass(frozen=True)
class Shape:
    fill: Callable[[Bench], None]
    cap: int = 10
    outcomes: tuple[int, int, int] = (1, 8, 50)


def fill(bench: Bench, tenant: str, shape: str, rows: int) -> None:
    bench.db.execute(
        "INSERT INTO tenantfair_run (tenant_id, task_path, status, wake_at, tenant_admitted_at, finished_at)"
        f" SELECT {tenant}, 't', {shape} FROM generate_series(1, {rows}) AS n"
    )


def finished_and_ten_due(bench: Bench) -> None:
    fill(bench, "'t' || n % 10", FINISHED, ROWS)
    fill(bench, "'t' || n % 10", QUEUED, 10)


def future_and_one_due(bench: Bench) -> None:
    fill(bench, "'future'", FUTURE, ROWS)
    fill(bench, "'due'", QUEUED, 1)


def many_tenants(bench: Bench) -> None:
    fill(bench, "'t' || n % 2000", QUEUED, ROWS)


def deep_queue_at_the_cap(bench: Bench) -> None:
    bench.claimed("a", 10)
    fill(bench, "'a'", QUEUED, ROWS)


def deep_queue(bench: Bench) -> None:
    fill(bench, "'a'", QUEUED, ROWS)


def deep_debt(bench: Bench) -> None:
    fill(bench, "'a'", READY, ROWS)
    fill(bench, "'a'", QUEUED, 100)


SHAPES = {
    "finished": Shape(finished_and_ten_due, outcomes=(1, 8, 10)),
    "future": Shape(future_and_one_due, outcomes=(1, 1, 1)),
    "many tenants": Shape(many_tenants),
    "at the cap": Shape(deep_queue_at_the_cap, outcomes=(0, 0, 0)),
    "deep queue": Shape(deep_queue, cap=2147483647),
    "deep debt": Shape(deep_debt),
}


@pytest.fixture
def domain(db: None) -> Iterator[Bench]:
    with bench() as found:
        for table in TABLES:
            found.db.execute(f"ALTER TABLE tenantfair_{table} SET (autovacuum_enabled = off)")
        # What an earlier test left behind would be read too.
        found.db.execute("TRUNCATE tenantfair_run, tenantfair_schedule, tenantfair_partition, tenantfair_pending")
        analyze(found)
        yield found
        found.db.execute("TRUNCATE tenantfair_run, tenantfair_schedule, tenantfair_partition, tenantfair_pending")
        for table in TABLES:
            found.db.execute(f"ALTER TABLE tenantfair_{table} RESET (autovacuum_enabled)")
        analyze(found)


def analyze(bench: Bench) -> None:
    for table in TABLES:
        bench.db.execute(f"VACUUM ANALYZE tenantfair_{table}")


@pytest.mark.parametrize("shape", SHAPES)
def test_pages_touched_are_bounded_by_inspections_and_outcomes(domain: Bench, shape: str) -> None:
    """First with the statistics of empty tables, then with fresh ones."""
    kind = SHAPES[shape]
    domain.policy(cap=kind.cap)
    kind.fill(domain)
    for statistics in ("of empty tables", "fresh"):
        if statistics == "fresh":
            analyze(domain)
        caller = domain.session()
        for demand, outcomes in zip((1, 8, 50), kind.outcomes, strict=True):
            touched, inspections, granted = measured(caller, demand)
            assert granted == outcomes
            allowed = PER_CALL + PER_INSPECTION * inspections + PER_OUTCOME * granted
            assert touched <= allowed, f"{statistics}, demand {demand}: {touched} > {allowed}, {inspections} visits"


def measured(caller: Session, demand: int) -> tuple[int, int, int]:
    """Pages touched by one call that is rolled back, its inspections and its outcomes; no table is read through."""
    call = sql.SQL("SELECT * FROM tenantfair_claim({}, {}, {}, 5, NULL, false)").format(NOW, at(-60), demand)
    # Once to have every plan at hand: making them reads catalogs.
    with caller.transaction(force_rollback=True):
        rows = caller.execute(call).fetchall()
    with caller.transaction(force_rollback=True):
        before = sequential_scans(caller)
        plan = caller.execute(sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ") + call).fetchone()[0]
        assert sequential_scans(caller) == before
    plan = json.loads(plan) if isinstance(plan, str) else plan
    told = next(row for row in rows if row.row_kind == "call")
    node = plan[0]["Plan"]
    return node["Shared Hit Blocks"] + node["Shared Read Blocks"], told.inspections, told.outcome_count


def sequential_scans(caller: Session) -> dict[str, int]:
    found = caller.execute("SELECT relname, seq_scan FROM pg_stat_xact_user_tables WHERE relname LIKE 'tenantfair%'")
    return dict(found.fetchall())
