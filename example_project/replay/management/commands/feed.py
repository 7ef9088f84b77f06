"""`manage.py feed`: what a replay enqueues from, line by line, each at its time."""

import json
import sys
import time
from argparse import ArgumentParser
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError

from example_project.replay.tasks import stand_in
from tenantfair import runs
from tenantfair.conf import get_settings

_WARM_UP_SECONDS = 60.0


class Command(BaseCommand):
    """Enqueues a schedule read from standard input.

    It first has the worker do one run that nobody counts, so that the first job does not wait for its start.
    """

    help = "Enqueue stand-ins for jobs: JSON lines with at, user and seconds, in the order of `at`."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--no-warm-up", action="store_true", help="do not wait for a worker first")

    def handle(self, *args: Any, no_warm_up: bool, **options: Any) -> None:
        schedule = [json.loads(line) for line in sys.stdin]
        if not no_warm_up:
            _wait_for_worker(runs.enqueue_many([_stand_in("", 0)])[0])
        began = time.monotonic()
        while schedule:
            time.sleep(max(began + schedule[0]["at"] - time.monotonic(), 0))
            elapsed = time.monotonic() - began
            due = [job for job in schedule if job["at"] <= elapsed]
            schedule = schedule[len(due) :]
            runs.enqueue_many(_stand_in(job["user"], job["seconds"]) for job in due)


def _stand_in(user: str, seconds: float) -> runs.NewRun:
    named = get_settings().tenant_mode == "required"
    tenant = (user or runs.TENANTLESS) if named else None
    return runs.NewRun(task=stand_in, args=[user, seconds], tenant_id=tenant)


def _wait_for_worker(run_id: UUID) -> None:
    give_up = time.monotonic() + _WARM_UP_SECONDS
    while runs.get(run_id).state != "completed":
        if time.monotonic() > give_up:
            raise CommandError("no worker took up the first run")
        time.sleep(0.05)
