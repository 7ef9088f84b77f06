"""`python -m example_project.demo`: the same load on a queue that knows no tenants, and on tenantfair.

One noisy customer uploads thousands of statements, then twenty quiet ones upload a few each; two worker
processes book them. Ends with 0 only if no customer ever had more runs admitted than its cap, enough windows
could be judged, and in none of them was a customer passed over more often than the bound allows.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from example_project.database import load_sql, server
from example_project.engines import LEGACY, TENANT_FAIR, Engine, Site, site
from example_project.judge import Verdict, judge
from example_project.postgres import PostgresError
from example_project.processes import ChildFailed, Stopped, pause, stoppable
from example_project.record import Record
from example_project.report import Served, comparison, served, verdict_lines

THREADS = 8
LOOK_SECONDS = 0.1
PROGRESS_SECONDS = 1.0


@dataclass(frozen=True)
class Load:
    """Who uploads how many statements, how they are worked on, and how many windows must be judged."""

    noisy: int
    quiet: int
    each: int
    workers: int
    cap: int
    windows: int

    @property
    def total(self) -> int:
        return self.noisy + self.quiet * self.each


@dataclass(frozen=True)
class Shown:
    """What one engine made of the load. `customers` are the quiet ones."""

    record: Record
    customers: dict[str, Served]
    completed: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code of the process."""
    load = _parse(arguments)
    try:
        with stoppable(), server() as server_url:
            return run(load, server_url)
    except Stopped as stop:
        print("\nStopped; the workers and the databases are gone.")
        return stop.code
    except (ChildFailed, PostgresError) as error:
        print(error, file=sys.stderr)
        return 1


def run(load: Load, server_url: str) -> int:
    """Show both engines under `load`; return 0 if the promises were kept, else 1."""
    print(
        f"One noisy customer uploads {load.noisy:,} statements, then {load.quiet} quiet ones"
        f" {load.each} each.\n"
        f"Then {load.workers} worker processes with {THREADS} threads each book them. TenantFair admits\n"
        f"at most {load.cap} runs of a customer at a time.",
        flush=True,
    )
    legacy = _show(LEGACY, load, server_url)
    fair = _show(TENANT_FAIR, load, server_url)
    print("\nWhat each quiet customer waited for, counted from the first run that started:\n")
    print(
        comparison((LEGACY.name, TENANT_FAIR.name), legacy.customers, fair.customers, load.each), end="\n\n"
    )
    verdict = judge(fair.record)
    print("\n".join(verdict_lines(verdict)))
    failed = list(failures(load, verdict, {LEGACY.name: legacy.completed, TENANT_FAIR.name: fair.completed}))
    print("\n" + ("\n".join(failed) or "Both promises kept."))
    return 1 if failed else 0


def failures(load: Load, verdict: Verdict, completed: Mapping[str, int]) -> Iterator[str]:
    """Yield what keeps the demo from ending well; `completed` is how many runs of each engine did."""
    for engine, count in completed.items():
        if count != load.total:
            yield f"FAILED: {count:,} of {load.total:,} runs completed under {engine}."
    if verdict.over_cap:
        yield "FAILED: a cap was exceeded."
    if verdict.breaches:
        yield "FAILED: a tenant was passed over more often than the bound allows."
    if len(verdict.contended) < load.windows:
        yield f"FAILED: {len(verdict.contended)} eligible windows with competitors, not {load.windows}."


def _show(engine: Engine, load: Load, server_url: str) -> Shown:
    with site(server_url, engine, purpose="demo", cap=load.cap) as place:
        place.manage("load", f"--noisy={load.noisy}", f"--quiet={load.quiet}", f"--each={load.each}")
        print(f"\n{engine.name}", flush=True)
        with place.working(processes=load.workers, threads=THREADS):
            _watch(place, load)
        with place.connection() as connection:
            rows = connection.execute(load_sql("demo_outcomes")).fetchall()
        record = place.record()
    waits = served(record, {run_id: slug for run_id, slug, _ in rows})
    del waits["noisy"]
    return Shown(record, waits, sum(completed for *_, completed in rows))


def _watch(place: Site, load: Load) -> None:
    """Print how far the customers are until all is done; `ChildFailed` when a worker ends before."""
    began = shown = time.monotonic()
    with place.connection() as connection:
        unfinished = load.total
        while unfinished:
            pause(LOOK_SECONDS, *place.workers)
            (unfinished,) = connection.execute(load_sql("unfinished")).fetchone()
            now = time.monotonic()
            if unfinished and now - shown < PROGRESS_SECONDS:
                continue
            shown = now
            noisy, quiet = connection.execute(load_sql("demo_progress")).fetchone()
            print(
                f"  {now - began:5.1f} s   noisy {noisy:>6,} of {load.noisy:,}"
                f"   quiet {quiet:>4,} of {load.quiet * load.each:,}",
                flush=True,
            )


def _parse(arguments: Sequence[str] | None) -> Load:
    parser = argparse.ArgumentParser(
        prog="python -m example_project.demo", description=__doc__.split("\n\n")[1]
    )
    for name, default, what in (
        ("noisy", 5000, "uploads of the noisy customer"),
        ("quiet", 20, "how many quiet customers"),
        ("each", 3, "uploads of each quiet customer"),
        ("workers", 2, "worker processes"),
        ("cap", 8, "runs of one customer at a time"),
        ("windows", 20, "eligible windows that must be judged"),
    ):
        parser.add_argument(
            f"--{name}", type=_positive, default=default, metavar="N", help=f"{what} (%(default)s)"
        )
    return Load(**vars(parser.parse_args(arguments)))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
