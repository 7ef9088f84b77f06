"""`manage.py replay PATH`: a real job log, under both engines."""

import os
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from example_project.engines import LEGACY, TENANT_FAIR, Engine
from example_project.processes import ChildFailed, Stopped, stoppable
from example_project.replay.printing import about, table
from example_project.replay.run import Pace, Replayed, replay
from example_project.replay.swf import Log, UnreadableLog, read_log
from example_project.report import verdict_lines

# Much faster, and the waits would be those for the worker's own doings.
_JOBS_A_SECOND = 50
_SECONDS = 20


class Command(BaseCommand):
    """Makes the log's users tenants, compresses its time, and compares."""

    help = "Replay a job log in Standard Workload Format (plain or .gz) under TenantFair and under Legacy."
    # They may ask the database, and this command works in databases of its own only.
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("path", type=Path, help="the log")
        parser.add_argument("--limit", type=_whole, metavar="N", help="replay the first N jobs only")
        pace = parser.add_mutually_exclusive_group()
        pace.add_argument("--speed", type=_positive, metavar="X", help="let X seconds of the log pass in one")
        pace.add_argument(
            "--seconds",
            type=_positive,
            metavar="S",
            help=f"submit all jobs within S seconds ({_SECONDS}, or one for every {_JOBS_A_SECOND} jobs)",
        )
        parser.add_argument(
            "--concurrency", type=_whole, default=4, metavar="N", help="threads of the worker (%(default)s)"
        )
        parser.add_argument(
            "--cap", type=_whole, default=2, metavar="N", help="runs of one tenant at a time (%(default)s)"
        )

    def handle(self, *args: Any, path: Path, limit: int | None, **options: Any) -> None:
        try:
            log = read_log(path, limit)
        except UnreadableLog as error:
            raise CommandError(str(error)) from error
        for number, reason in log.problems:
            self.stderr.write(f"line {number} skipped: {reason}")
        pace = Pace(_speed(log, options["speed"], options["seconds"]), options["concurrency"], options["cap"])
        self.stdout.write(about(path.name, log, pace))
        try:
            with stoppable():
                results = [self._replay(engine, log, pace) for engine in (LEGACY, TENANT_FAIR)]
        except ChildFailed as error:
            raise CommandError(str(error)) from error
        except Stopped as stop:
            raise SystemExit(stop.code) from stop
        self.stdout.write("\n" + table(*results))
        self._judge(results)

    def _replay(self, engine: Engine, log: Log, pace: Pace) -> Replayed:
        self.stdout.write(f"{engine.name} ...")
        self.stdout.flush()
        return replay(engine, log.jobs, pace, os.environ["DATABASE_URL"])

    def _judge(self, results: Iterable[Replayed]) -> None:
        """Print what became of the promises; `CommandError` when one was broken or a job is missing."""
        broken = []
        for result in results:
            if result.unfinished:
                broken.append(f"{result.unfinished} jobs did not complete under {result.engine.name}")
            if result.verdict is not None:
                self.stdout.write("\n" + "\n".join(verdict_lines(result.verdict)))
                broken += [f"over its cap: {line}" for line in result.verdict.over_cap]
                broken += [f"above its bound: {window.scope}" for window in result.verdict.breaches]
        if broken:
            raise CommandError("; ".join(broken))


def _speed(log: Log, speed: float | None, seconds: float | None) -> float:
    """How many seconds of the log pass in one."""
    span = log.jobs[-1].submit - log.jobs[0].submit
    longest = max(job.run for job in log.jobs)
    return speed or max(span, longest) / (seconds or max(_SECONDS, len(log.jobs) / _JOBS_A_SECOND)) or 1.0


def _whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ArgumentTypeError("must be 1 or more")
    return number


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ArgumentTypeError("must be more than 0")
    return number
