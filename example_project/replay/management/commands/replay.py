"""`manage.py replay PATH`: a real job log, under both engines."""

import os
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from example_project.engines import LEGACY, TENANT_FAIR
from example_project.processes import ChildFailed, Stopped, stoppable
from example_project.replay.figures import jain, percentile
from example_project.replay.run import Pace, Replayed, replay
from example_project.replay.swf import Log, UnreadableLog, read_log
from example_project.report import verdict_lines

_NOTE = (
    "Note: this log gives no submit times; what stands in their place are start times.\n"
    "The waits below are those of jobs submitted when the originals started."
)

_JAIN = (
    "\nSlowdown is (wait + run) / run. Jain's index of the tenants' slowdowns is 1 when all are slowed down alike,\n"
    "which one queue for all brings about by making everybody wait for the busiest."
)


class Command(BaseCommand):
    """Makes the log's users tenants, compresses its time, and compares."""

    help = "Replay a job log in Standard Workload Format (plain or .gz) under TenantFair and under Legacy."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("path", type=Path, help="the log")
        parser.add_argument("--limit", type=_whole, metavar="N", help="replay the first N jobs only")
        pace = parser.add_mutually_exclusive_group()
        pace.add_argument("--speed", type=_positive, metavar="X", help="let X seconds of the log pass in one")
        pace.add_argument(
            "--seconds",
            type=_positive,
            default=20,
            metavar="S",
            help="submit all jobs within S seconds (%(default)s)",
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
        self.stdout.write(_about(path, log, pace))
        try:
            with stoppable():
                results = [
                    replay(engine, log.jobs, pace, os.environ["DATABASE_URL"])
                    for engine in (LEGACY, TENANT_FAIR)
                ]
        except ChildFailed as error:
            raise CommandError(str(error)) from error
        except Stopped as stop:
            raise SystemExit(stop.code) from stop
        self.stdout.write("\n" + _table(*results))
        self._judge(results)

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


def _about(path: Path, log: Log, pace: Pace) -> str:
    users = len({job.user for job in log.jobs})
    span = log.jobs[-1].submit - log.jobs[0].submit
    load = sum(job.run for job in log.jobs) / span / pace.concurrency if span else float("inf")
    lines = [
        f"{path.name}: {len(log.jobs):,} jobs of {users} users over {span / 3600:,.1f} hours,"
        f" {len(log.problems)} bad lines skipped.",
        f"Replayed {pace.speed:,.0f} times as fast by one worker with {pace.concurrency} threads,"
        f" which keeps it {load:.0%} busy.",
        f"TenantFair admits at most {pace.cap} runs of a user at a time.",
    ]
    return "\n".join([*lines, _NOTE] if log.submits_are_starts else lines)


def _speed(log: Log, speed: float | None, seconds: float) -> float:
    span = log.jobs[-1].submit - log.jobs[0].submit
    return speed or span / seconds or 1.0


def _table(left: Replayed, right: Replayed) -> str:
    """Return the tenants' waits in seconds of compressed time, the busiest tenant first."""
    columns = "".join(f"{name:>9}" for name in ("p50", "p95", "max", "slowdown"))
    lines = [
        f"{'waits in seconds':24}" + "".join(f"{each.engine.name:^39}" for each in (left, right)),
        f"{'tenant':16}{'jobs':>8}" + f"   {columns}" * 2,
    ]
    nothing = f"   {'-':>9}{'-':>9}{'-':>9}{'-':>9}"
    counts = {user: figures.jobs for each in (left, right) for user, figures in each.tenants.items()}
    for user in sorted(counts, key=lambda name: (-counts[name], name)):
        cells = (
            f"   {each.p50:9.3f}{each.p95:9.3f}{each.longest:9.3f}{each.slowdown:9.1f}" if each else nothing
            for each in (left.tenants.get(user), right.tenants.get(user))
        )
        lines.append(f"{user:16}{counts[user]:8,}" + "".join(cells))
    indices = (
        f"{jain([each.slowdown for each in result.tenants.values()]):39.3f}" for result in (left, right)
    )
    lines.append(f"{'Jain index of slowdowns':24}" + "".join(indices))
    return "\n".join(lines)


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
