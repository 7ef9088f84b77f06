"""`python -m tests.proof`: run parts of the proof and print what they came to."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence

import psycopg
from psycopg import sql

from example_project.postgres import PrivateServer
from tests.proof import build, evidence, table
from tests.proof.build import ROOT
from tests.proof.parts import PARTS
from tests.proof.record import Row
from tests.proof.runner import Runner

FOLDER = ROOT / ".proof"
OPTIONS: dict[str, str | int] = {"max_connections": 300, "autovacuum_naptime": "10s", "max_wal_size": "4GB"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the process's exit code."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.write_evidence:
        print(f"written: {evidence.write(FOLDER)}")
        return 0
    chosen = [PARTS[name] for name in options.part or PARTS if options.part or _belongs(name, options.quick)]
    started = time.monotonic()
    is_cut = False
    digest = build.digest()
    with PrivateServer(options=OPTIONS) as server:
        runner = Runner(
            FOLDER / "quick" if options.quick else FOLDER,
            build.name(server.version),
            build.facts(server.version),
            lambda part: _database(server, part),
            options.quick,
            _say,
            lambda: build.digest() == digest,
        )
        for part in chosen:
            if options.fresh or options.quick:
                runner.store(part).forget()
            elif options.retry:
                runner.store(part).forget(failed_only=True)
        try:
            results = runner.run(chosen)
        except KeyboardInterrupt:
            is_cut = True
            results = [runner.result(part) for part in chosen]
    failures = table.failures(results)
    print(f"\n{table.text(results)}\n")
    print(f"{failures} violations; {table.clock(time.monotonic() - started)}; {build.name(server.version)}")
    if is_cut:
        print("interrupted: the next run goes on from here" if not options.quick else "interrupted")
        return 130
    return 1 if failures else 0


def _belongs(name: str, quick: bool) -> bool:
    return PARTS[name].in_quick or not quick


def _database(server: PrivateServer, part: str) -> str:
    """Make an empty database for a part."""
    with psycopg.connect(server.dsn, autocommit=True) as session:
        session.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(f"proof_{part}")))
    return server.url(f"proof_{part}")


def _say(row: Row) -> None:
    number = "not run" if row.not_run else f"{row.done:,}" + (f" of {row.of:,}" if row.of is not None else "")
    failed = f"  {row.failures} FAILED" if row.failures else ""
    note = f"  {row.note}" if row.note else ""
    print(f"{row.part:<11} {row.unit}: {number} in {row.seconds:.1f} s{failed}{note}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a sample of each part but the mutants")
    parser.add_argument("--part", nargs="+", choices=PARTS, help="run these parts only")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results of the chosen parts")
    parser.add_argument("--retry", action="store_true", help="run again what failed")
    parser.add_argument(
        "--write-evidence", action="store_true", help="write the figures of docs/evidence.md, run nothing"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
