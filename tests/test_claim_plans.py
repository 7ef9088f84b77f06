"""Plans: claim and idle check touch a bounded number of pages, whatever tables and statistics hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from psycopg import sql

from tenantfair.sql import load
from tests.claim_support import MAX_ATTEMPTS, NOW, Bench, Session, at, bench

pytestmark = pytest.mark.django_db

IDLE_CHECK = load("due_work_exists").replace("clock_timestamp()", f"timestamptz '{NOW.isoformat()}'")
ROWS = 50_000
PER_INSPECTION, PER_OUTCOME = 12, 60
# Where expired or poisoned rows are in sight, all 16 candidates of a page are locked and rechecked.
PER_CAREFUL_INSPECTION = 160
# A full scope's admitted rows are counted, up to its cap of 10.
PER_FULL_INSPECTION = 40
# It looks at up to 64 scopes.
PER_IDLE_CHECK = 64 * PER_FULL_INSPECTION
# The policy row, the door and what a call costs when it finds nothing.
PER_CALL = 60
TABLES = ("policy", "partition", "schedule", "run", "pending")

DUE = "timestamptz '2026-01-01' - n * interval '1 s'"
FINISHED = {"status": "'completed'", "finished_at": "now()"}
QUEUED = {"wake_at": DUE}
FUTURE = {"wake_at": "timestamptz '2026-01-01' + n * interval '1 s'"}
READY = {"wake_at": DUE, "tenant_admitted_at": "timestamptz '2025-12-01'"}
EXPIRED = {
    "claim_token": "gen_random_uuid()",
    "claimed_at": "timestamptz '2025-12-31' - n * interval '1 s'",
    "tenant_admitted_at": "timestamptz '2025-12-01'",
}
LIVE = EXPIRED | {"claimed_at": "timestamptz '2026-01-01'"}
SPENT = {"claim_attempts": "CASE WHEN n % 3 = 0 THEN 5 ELSE 1 END"}


@dataclass(frozen=True)
class Shape:
    fill: Callable[[Bench], None]
    cap: int = 10
    outcomes: tuple[int, int, int] = (1, 8, 50)
    per_inspection: int = PER_INSPECTION


def fill(bench: Bench, tenant: str, columns: dict[str, str], rows: int) -> None:
    values = {"tenant_id": tenant, "task_path": "'t'", **columns}
    bench.db.execute(
        f"INSERT INTO tenantfair_run ({', '.join(values)})"
        f" SELECT {', '.join(values.values())} FROM generate_series(1, {rows}) AS n"
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


def idle_scopes(bench: Bench) -> None:
    fill(bench, "'t' || n", QUEUED, ROWS // 10)
    bench.db.execute("DELETE FROM tenantfair_run")
    for number in range(10):
        bench.queued(f"t{ROWS // 10 - number}", 9)


def deep_queue(bench: Bench) -> None:
    fill(bench, "'a'", QUEUED, ROWS)


def deep_debt(bench: Bench) -> None:
    fill(bench, "'a'", READY, ROWS)
    fill(bench, "'a'", QUEUED, 100)


def deep_expiry(bench: Bench) -> None:
    fill(bench, "'t' || n % 10", EXPIRED | SPENT, ROWS // 2)
    fill(bench, "'t' || n % 10", QUEUED, 1000)


def deep_poison(bench: Bench) -> None:
    fill(bench, "'t' || n % 10", QUEUED | SPENT, ROWS // 2)


def live_claims_and_full_queues(bench: Bench) -> None:
    fill(bench, "'t' || n % 50", LIVE, ROWS // 5)
    fill(bench, "'t' || n % 50", QUEUED, ROWS)


SHAPES = {
    "finished": Shape(finished_and_ten_due, outcomes=(1, 8, 10)),
    "future": Shape(future_and_one_due, outcomes=(1, 1, 1)),
    "many tenants": Shape(many_tenants),
    "at the cap": Shape(deep_queue_at_the_cap, outcomes=(0, 0, 0)),
    "deep queue": Shape(deep_queue, cap=2147483647),
    "idle scopes": Shape(idle_scopes),
    "deep debt": Shape(deep_debt),
    "live claims": Shape(live_claims_and_full_queues, outcomes=(0, 0, 0), per_inspection=PER_FULL_INSPECTION),
    "deep expiry": Shape(deep_expiry, per_inspection=PER_CAREFUL_INSPECTION),
    "deep poison": Shape(deep_poison, per_inspection=PER_CAREFUL_INSPECTION),
}


@pytest.fixture
def domain(db: None) -> Iterator[Bench]:
    with bench() as found:
        for table in TABLES:
            found.db.execute(f"ALTER TABLE tenantfair_{table} SET (autovacuum_enabled = off)")
        # What an earlier test left behind would be read too.
        found.db.execute(
            "TRUNCATE tenantfair_run, tenantfair_schedule, tenantfair_partition, tenantfair_pending"
        )
        analyze(found)
        yield found
        found.db.execute(
            "TRUNCATE tenantfair_run, tenantfair_schedule, tenantfair_partition, tenantfair_pending"
        )
        for table in TABLES:
            found.db.execute(f"ALTER TABLE tenantfair_{table} RESET (autovacuum_enabled)")
        analyze(found)


def analyze(bench: Bench) -> None:
    for table in TABLES:
        bench.db.execute(f"VACUUM ANALYZE tenantfair_{table}")


@pytest.mark.parametrize("shape", SHAPES)
def test_pages_touched_are_bounded_by_inspections_and_outcomes(domain: Bench, shape: str) -> None:
    """In a session that planned on tiny tables, in a new one with their statistics, in one with true ones."""
    kind = SHAPES[shape]
    domain.policy(cap=kind.cap)
    old_plans = domain.session()
    use_every_statement(domain, old_plans)
    kind.fill(domain)
    assert_bounded(old_plans, kind, "plans of tiny tables")
    assert_bounded(domain.session(), kind, "statistics of tiny tables")
    analyze(domain)
    assert_bounded(domain.session(), kind, "true statistics")
    assert_bounded(old_plans, kind, "true statistics, old session")


def use_every_statement(bench: Bench, caller: Session) -> None:
    """Make the session plan all that the function can do, on a handful of rows that are gone afterwards."""
    bench.queued("a")
    analyze(bench)
    for scope in ("a", "b", "c"):
        bench.queued(scope, 2)
        bench.ready(scope)
    bench.queued("b", claim_attempts=MAX_ATTEMPTS)
    bench.expired("c")
    locked = bench.queued("d")
    bench.queued("d")
    holder = bench.locking_runs(*locked)
    for demand in (1, 2, 50):
        with caller.transaction(force_rollback=True):
            bench.claim(demand, by=caller)
    holder.rollback()
    bench.db.execute("DELETE FROM tenantfair_run")


def assert_bounded(caller: Session, shape: Shape, session: str) -> None:
    assert pages(caller, sql.SQL(IDLE_CHECK)) <= PER_IDLE_CHECK, session
    for demand, outcomes in zip((1, 8, 50), shape.outcomes, strict=True):
        touched, inspections, granted = measured(caller, demand)
        assert granted == outcomes
        allowed = PER_CALL + shape.per_inspection * inspections + PER_OUTCOME * granted
        assert touched <= allowed, f"{session}, demand {demand}: {touched} > {allowed}, {inspections} visits"


def measured(caller: Session, demand: int) -> tuple[int, int, int]:
    """Pages touched by a call that is rolled back, its inspections and outcomes; no table is read through."""
    call = sql.SQL("SELECT * FROM tenantfair_claim({}, {}, {}, 5, NULL, false)").format(NOW, at(-60), demand)
    # Once to have every plan at hand: making them reads catalogs.
    with caller.transaction(force_rollback=True):
        rows = caller.execute(call).fetchall()
    told = next(row for row in rows if row.row_kind == "call")
    with caller.transaction(force_rollback=True):
        before = sequential_scans(caller)
        touched = pages(caller, call)
        assert sequential_scans(caller) == before
    return touched, told.inspections, told.outcome_count


def pages(caller: Session, statement: sql.Composable) -> int:
    """The pages one statement touches."""
    plan = caller.execute(sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {}").format(statement)).fetchone()[
        0
    ]
    node = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
    return int(node["Shared Hit Blocks"] + node["Shared Read Blocks"])


def sequential_scans(caller: Session) -> dict[str, int]:
    found = caller.execute(
        "SELECT relname, seq_scan FROM pg_stat_xact_user_tables WHERE relname LIKE 'tenantfair%'"
    )
    return dict(found.fetchall())
