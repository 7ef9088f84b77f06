"""`manage.py tenantfair_worker`: claim runs and run them until told to stop."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from argparse import ArgumentTypeError, BooleanOptionalAction, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any, Final

from django.conf import settings as django_settings
from django.core.management.base import BaseCommand, CommandError, CommandParser, DjangoHelpFormatter
from django.utils import autoreload

from tenantfair.conf import get_settings, require_default_cap
from tenantfair.exceptions import InactiveEngine
from tenantfair.management.base import EXIT_CONFIG, EXIT_USAGE, exit_codes
from tenantfair.worker import EXIT_DRAINED, EXIT_FORCED, Worker

_LONGEST_SECONDS: Final = 86_400.0
_SWITCH_SECONDS: Final = 0.001

HELP: Final = """\
Claim runs of one fairness domain (one database and schema) and run them until told to stop.

There is no --queue: caps and rotation hold for all the work of a domain together, and a worker that skipped
some of it would make a scope wait while its turn and its slots are used up. A queue name is checked and
shown, and does not route. For work that must run elsewhere use another database or schema.

SIGTERM or SIGINT drains: nothing more is claimed, what has not begun is given back, running tasks may end or
yield until --drain-timeout. A second signal ends the process at once.

Exit codes: 0 drained, 1 forced by a second signal or one of its own threads has died, 2 wrong usage, 75 tasks
still ran at the drain timeout, 78 settings or a schema that do not fit.
"""


class _HelpFormatter(DjangoHelpFormatter, RawDescriptionHelpFormatter):
    """Django's order of options, and paragraphs kept as they are."""


class Command(BaseCommand):
    help = HELP
    # The worker verifies what it needs itself, and has an exit code of its own for it.
    requires_system_checks = ()

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs.setdefault("formatter_class", _HelpFormatter)
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--concurrency",
            type=_places,
            metavar="N",
            help='tasks at once; TENANTFAIR["CONCURRENCY"] unless given',
        )
        parser.add_argument("--batch", action="store_true", help="end, with 0, once nothing can be claimed")
        parser.add_argument(
            "--max-tasks", type=_positive, metavar="N", help="start N tasks, then drain and end with 0"
        )
        parser.add_argument(
            "--interval",
            type=_interval,
            metavar="SECONDS",
            help='longest pause between polls; TENANTFAIR["POLL_INTERVAL"] unless given',
        )
        parser.add_argument(
            "--drain-timeout",
            type=_seconds,
            metavar="SECONDS",
            help='how long running tasks may go on after a signal; TENANTFAIR["DRAIN_TIMEOUT"] unless given',
        )
        parser.add_argument(
            "--worker-id",
            type=_worker_id,
            metavar="ID",
            help="name in logs and in the database; information only (default: host:pid:random)",
        )
        parser.add_argument(
            "--database", metavar="ALIAS", help='database alias; TENANTFAIR["DATABASE"] unless given'
        )
        parser.add_argument(
            "--no-listen", action="store_true", help="only poll; hold no connection for LISTEN"
        )
        parser.add_argument(
            "--health-file",
            type=Path,
            metavar="PATH",
            help="file touched once a second, unless the database has not answered for 30 s",
        )
        parser.add_argument(
            "--metrics-port",
            type=_address,
            metavar="[HOST:]PORT",
            help="serve counters at /metrics, on 127.0.0.1 unless a host is given",
        )
        parser.add_argument(
            "--reload",
            action=BooleanOptionalAction,
            default=None,
            help="start again when code changes (default: as DEBUG, unless --batch or --max-tasks)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        alias = options["database"]
        if alias is not None and alias not in django_settings.DATABASES:
            raise CommandError(
                f"--database must name a key of DATABASES, not {alias!r}", returncode=EXIT_USAGE
            )
        _show_log(options["verbosity"])
        ends_by_itself = options["batch"] or options["max_tasks"] is not None
        reloads = options["reload"]
        if reloads is None:
            reloads = django_settings.DEBUG and not ends_by_itself
        if reloads:
            if os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) != "true":
                # The first start, before there is anything to wait beside.
                _require_settings()
            autoreload.run_with_reloader(self._work_until_reloaded, options)
        else:
            self._leave(self._run(self._worker(options)))

    def _worker(self, options: dict[str, Any]) -> Worker:
        with exit_codes():
            return Worker(
                using=options["database"],
                concurrency=options["concurrency"],
                interval=options["interval"],
                drain_timeout=options["drain_timeout"],
                worker_id=options["worker_id"],
                until_idle=options["batch"],
                max_tasks=options["max_tasks"],
                listen=False if options["no_listen"] else None,
                health_file=options["health_file"],
                metrics_address=options["metrics_port"],
            )

    def _run(self, worker: Worker) -> int:
        # With many computing tasks, a thread that only looks in waits this long for each of them.
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))
        try:
            with exit_codes():
                return worker.run()
        except CommandError as error:
            # A legacy worker in a domain that was switched is a setting that cannot work.
            if isinstance(error.__cause__, InactiveEngine):
                raise CommandError(str(error), returncode=EXIT_CONFIG) from error.__cause__
            raise

    def _work_until_reloaded(self, options: dict[str, Any]) -> None:
        """Run beside the reloader, which ends the process under the worker: drain first."""
        ending = threading.Event()
        try:
            worker = self._worker(options)

            def drain() -> None:
                ending.set()
                worker.stop()
                worker.finished.wait(timeout=worker.plan.drain_timeout)

            atexit.register(drain)
            code = self._run(worker)
            if not ending.is_set():
                self._leave(code)
        except CommandError as error:
            self.stderr.write(self.style.ERROR(f"{error} Waiting for a change."))

    def _leave(self, code: int) -> None:
        if code == EXIT_DRAINED:
            return
        # Tasks still run in threads that nothing can end; an ordinary exit would wait or crash under them.
        if code == EXIT_FORCED:
            self.stderr.write("Forced to stop; running tasks were cut off.")
        else:
            self.stderr.write(
                "Not drained in time; the remaining runs go on elsewhere when their leases end."
            )
        logging.shutdown()
        self.stdout.flush()
        self.stderr.flush()
        sys.stdout.flush()
        os._exit(code)


def _require_settings() -> None:
    with exit_codes():
        settings = get_settings()
        if settings.engine == "tenant_fair":
            require_default_cap(settings)


def _show_log(verbosity: int) -> None:
    """Show the worker's messages where the project configures no logging for them."""
    logger = logging.getLogger("tenantfair")
    if verbosity == 0 or logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("{asctime} {levelname} {message}", style="{"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if verbosity > 1 else logging.INFO)


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _places(text: str) -> int:
    if (found := _positive(text)) > 1000:
        raise ArgumentTypeError(f"{text!r} is more than 1000")
    return found


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.0 <= found <= _LONGEST_SECONDS:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds in 0..{_LONGEST_SECONDS:g}")
    return found


def _interval(text: str) -> float:
    if not 0.01 <= (found := _seconds(text)) <= 3600.0:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds in 0.01..3600")
    return found


def _worker_id(text: str) -> str:
    if not (text.isascii() and text.isprintable() and 1 <= len(text) <= 63):
        raise ArgumentTypeError(f"{text!r} is not 1..63 printable ASCII characters")
    return text


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ArgumentTypeError(f"{text!r} is not a port in 1..65535, or a host and such a port")
    return host.strip("[]") or "127.0.0.1", int(port)
