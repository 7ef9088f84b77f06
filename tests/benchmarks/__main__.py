"""`python -m tests.benchmarks`: run the workloads, print the table, write the results and the charts."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from example_project.postgres import PrivateServer
from tests.benchmarks import (
    backlog,
    bulk,
    capped,
    ceiling,
    dormant,
    end_to_end,
    hot,
    peers,
    plots,
    seeds,
    site,
    snapshot,
    strangers,
    table,
)
from tests.benchmarks.bench import Bench
from tests.benchmarks.clients import Clients
from tests.benchmarks.rows import Row
from tests.benchmarks.server import OPTIONS, Databases, versions

RESULTS = Path(__file__).parent / "results"

WORKLOADS: Mapping[str, Callable[[Bench], None]] = {
    "w1": ceiling.run_w1,
    "w2": ceiling.run_w2,
    "w3": hot.run_w3,
    "w4": capped.run_w4,
    "w5": backlog.run_w5,
    "w6": end_to_end.run_w6,
    "w7": dormant.run_w7,
    "w8": strangers.run_w8,
    "w9": snapshot.run_w9,
    "bulk": bulk.run_bulk,
}
QUICK = ("w1", "w2", "w3", "w4", "bulk")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = options.only or (QUICK if options.quick else tuple(WORKLOADS))
    started = time.monotonic()
    path = options.results / "latest.json"
    rows = _measure(options, chosen, path)
    charts = plots.write(rows, options.results)
    print(table.text(rows))
    for row in rows:
        if row.note:
            print(f"{row.workload} {row.case}, demand {row.demand}, {row.clients} clients: {row.note}")
    judged = [row for row in rows if row.met is not None]
    met = sum(bool(row.met) for row in judged)
    print(f"{met} of {len(judged)} targets met; {time.monotonic() - started:.0f} s")
    print("\n".join(str(file) for file in (path, *charts)))
    return 0


def _measure(options: argparse.Namespace, chosen: Sequence[str], path: Path) -> list[Row]:
    """Run the chosen workloads; after each of them the file holds what there is."""
    rows: list[Row] = []
    with PrivateServer(options=OPTIONS) as server:
        os.environ["DJANGO_SETTINGS_MODULE"] = site.SETTINGS
        os.environ["DATABASE_URL"] = server.dsn
        databases = Databases(server)
        facts = versions(server)
        with Clients() as clients:
            bench = Bench(
                databases=databases,
                clients=clients,
                quick=options.quick,
                rounds=options.rounds,
                seconds=options.seconds or (0.4 if options.quick else 3.0),
            )
            try:
                seeds.make_empty(databases)
                work = [WORKLOADS[name] for name in chosen]
                for run in [*work, peers.run_peers] if options.peers else work:
                    run(bench)
                    rows = [replace(row, facts={**row.facts, **facts}) for row in bench.rows]
                    _write(rows, path)
            finally:
                databases.close()
    return rows


def _write(rows: Sequence[Row], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([row.as_dict() for row in rows], indent=1) + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="W1 at demand 8, W2, W3, W4 and bulk, in short cells"
    )
    parser.add_argument("--peers", action="store_true", help="add the peers that TENANTFAIR_PEERS names")
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, help="run these workloads")
    parser.add_argument("--rounds", type=int, default=3, help="alternated rounds of each cell (default: 3)")
    parser.add_argument(
        "--seconds", type=float, help="longest measurement of a cell (default: 3; 0.4 when quick)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for latest.json and the charts")
    return parser


if __name__ == "__main__":
    sys.exit(main())
