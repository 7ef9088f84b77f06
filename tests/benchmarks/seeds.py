"""Fills a database with the same jobs twice: in the floor's one-index table and in the run table."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.benchmarks import site
from tests.benchmarks.server import Connection, Databases, connect

EMPTY = "seed_empty"

# Tenants in the order of their jobs, each with how many it has.
Groups = Iterable[tuple[str, int]]


def make_empty(databases: Databases) -> str:
    """Make the template that all others are copied from: migrated, its engine switched on."""
    databases.create(EMPTY)
    site.use(databases.url(EMPTY))
    from django.core.management import call_command

    from tenantfair import policy

    call_command("migrate", verbosity=0)
    policy.synchronize()
    site.leave()
    with connect(databases.url(EMPTY)) as connection:
        connection.execute("""
            CREATE TABLE job (
                id bigint PRIMARY KEY, tenant text NOT NULL, state smallint NOT NULL DEFAULT 0,
                run_at timestamptz NOT NULL DEFAULT now(), claimed_at timestamptz, token uuid, payload text
            )
        """)
        connection.execute("CREATE INDEX job_ready ON job (run_at, id) WHERE state = 0")
    databases.settle(EMPTY)
    return EMPTY


def make(
    databases: Databases, name: str, groups: Groups, more: Callable[[Connection], None] | None = None
) -> str:
    """Make a template with the ready jobs of `groups` in both tables, changed further by `more`."""
    databases.create(name, EMPTY)
    with connect(databases.url(name)) as connection:
        fill(connection, groups)
        if more is not None:
            more(connection)
    databases.settle(name)
    return name


def fill(connection: Connection, groups: Groups) -> None:
    connection.execute("CREATE TEMPORARY TABLE wanted (place bigserial, tenant text, n integer)")
    with connection.cursor().copy("COPY wanted (tenant, n) FROM STDIN") as copy:
        for group in groups:
            copy.write_row(group)
    connection.execute("""
        INSERT INTO job (id, tenant, run_at, payload)
        SELECT row_number() OVER (ORDER BY place, n), tenant, '2026-01-01', 'x'
        FROM (SELECT place, tenant, generate_series(1, n) AS n FROM wanted) AS each
    """)
    connection.execute("""
        INSERT INTO tenantfair_run (tenant_id, task_path, wake_at)
        SELECT tenant, 'tests.benchmarks.tasks.started_at', '2026-01-01'
        FROM (SELECT place, tenant, generate_series(1, n) AS n FROM wanted) AS each
        ORDER BY place, n
    """)
    connection.execute("DROP TABLE wanted")


def one_tenant(jobs: int = 20_000) -> Groups:
    return [("t0", jobs)]


def many_tenants(tenants: int = 2_000, each: int = 50) -> Groups:
    return [(f"t{number}", each) for number in range(tenants)]


def hot_tenant(jobs: int = 100_000, small: int = 200, each: int = 5) -> Groups:
    return [("hot", jobs), *((f"s{number}", each) for number in range(small))]
