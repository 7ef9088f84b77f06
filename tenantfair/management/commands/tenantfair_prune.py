"""`manage.py tenantfair_prune`: delete finished runs that are old enough."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser

from tenantfair import runs
from tenantfair.management.base import (
    EXIT_USAGE,
    DomainCommand,
    add_common_arguments,
    as_json,
    checked_alias,
    exit_codes,
)

UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
LONGEST: Final = timedelta(days=36_500)


def age(text: str) -> timedelta:
    """Return the age that `text` such as `7d` or `12h` names, at most 100 years; else `ArgumentTypeError`."""
    match = re.fullmatch(rf"([0-9]{{1,9}})([{''.join(UNITS)}])", text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is no age; write a number and one of s, m, h, d, w, such as 7d")
    found = timedelta(**{UNITS[match[2]]: int(match[1])})
    if found > LONGEST:
        raise ArgumentTypeError(f"{text!r} is more than 100 years")
    return found


def positive(text: str) -> int:
    """Return `text` as a positive integer; `ArgumentTypeError` otherwise."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


class Command(DomainCommand):
    help = (
        "Delete runs that finished longer ago than an age, in small committed batches. Unfinished, waiting"
        " and poisoned runs stay; so do runs that a foreign key of another table protects. Exit codes: 0, 1,"
        " 2 for wrong usage, 78 for settings or a schema that do not fit."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--older-than",
            # Not `required`: call_command() would have a timedelta read as text.
            type=age,
            metavar="AGE",
            help="required; age since the run finished: 90m, 12h, 7d, 4w",
        )
        parser.add_argument(
            "--batch-size", type=positive, default=1000, metavar="N", help="runs per commit (default: 1000)"
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="try and roll back: count only, delete nothing"
        )
        add_common_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        older_than = options["older_than"]
        if older_than is None:
            raise CommandError("--older-than is required", returncode=EXIT_USAGE)
        if isinstance(older_than, str):  # from call_command()
            try:
                older_than = age(older_than)
            except ArgumentTypeError as error:
                raise CommandError(str(error), returncode=EXIT_USAGE) from error
        with exit_codes():
            result = runs.prune(
                older_than=older_than,
                batch_size=options["batch_size"],
                dry_run=options["dry_run"],
                using=checked_alias(options["database"]),
            )
        if options["format"] == "json":
            self.stdout.write(as_json({**asdict(result), "dry_run": options["dry_run"]}))
            return
        verb = "would delete" if options["dry_run"] else "deleted"
        self.stdout.write(
            f"{verb} {result.deleted} finished runs; {result.protected} protected by other tables"
        )
