"""`manage.py tenantfair_doctor`: say what is wrong with a domain, and repair what can be computed."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser
from django.db import ProgrammingError
from psycopg.errors import InsufficientPrivilege

from tenantfair import doctor
from tenantfair.doctor import Change, Limits, Report, Severity
from tenantfair.management.base import (
    EXIT_CONFIG,
    DomainCommand,
    add_common_arguments,
    alias_of,
    as_json,
    exit_codes,
)

_LONGEST_SECONDS: Final = 31_536_000.0


def seconds(text: str) -> float:
    """Return `text` as a number of seconds in 0..31536000; `ArgumentTypeError` otherwise."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.0 <= found <= _LONGEST_SECONDS:
        raise ArgumentTypeError(f"{text!r} is not a number of seconds in 0..{_LONGEST_SECONDS:.0f}")
    return found


class Command(DomainCommand):
    help = (
        "Say what is wrong with a domain, from one consistent snapshot; nothing is locked. Reads every run,"
        " finished ones too, and imports the tasks of unfinished ones. Exit codes: 0 nothing grave or wrong,"
        " 1 findings, 2 for wrong usage, 78 for settings or a schema that do not fit."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--fix",
            action="store_true",
            help="recompute counts; add missing partitions, places on the ring and the policy row; move"
            " identities that are behind; say what was changed",
        )
        parser.add_argument(
            "--reinstall",
            action="store_true",
            help="before anything else create functions and triggers anew, as the migrations did; say what"
            " that put right",
        )
        for name, default, what in (
            ("stalled", Limits().stalled_after, "due work and free slots, but nothing started for so long"),
            (
                "snapshot",
                Limits().snapshot_after,
                "a transaction this old keeps vacuum from its work",
            ),
        ):
            parser.add_argument(
                f"--{name}-after",
                type=seconds,
                default=default,
                metavar="SECONDS",
                help=f"{what} (default: {default:g})",
            )
        add_common_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        limits = Limits(stalled_after=options["stalled_after"], snapshot_after=options["snapshot_after"])
        changes: list[Change] = []
        with exit_codes():
            alias = alias_of(options["database"])
            try:
                if options["reinstall"]:
                    changes += doctor.reinstall(alias)
                report = doctor.examine(alias, limits)
                if options["fix"] and report.fits:
                    changes += doctor.repair(alias)
                    report = doctor.examine(alias, limits)
            except ProgrammingError as error:
                if not isinstance(error.__cause__, InsufficientPrivilege):
                    raise
                raise CommandError(
                    f"{error} Use the role that owns the tables.", returncode=EXIT_CONFIG
                ) from error
        if options["format"] == "json":
            self.stdout.write(as_json(_document(report, changes)))
        else:
            self.stdout.write("\n".join(_lines(report, changes)))
        if not report.fits:
            raise CommandError("the schema does not fit, so nothing is repaired", returncode=EXIT_CONFIG)
        if report.count(Severity.GRAVE) or report.count(Severity.WRONG):
            raise CommandError(_summary(report), returncode=1)


def _summary(report: Report) -> str:
    if not report.findings:
        return "nothing found"
    return "found " + ", ".join(f"{report.count(severity)} {severity.value}" for severity in Severity)


def _lines(report: Report, changes: list[Change]) -> Iterator[str]:
    yield from (f"changed  {change}" for change in changes)
    for finding in report.findings:
        yield f"{finding.severity.value}: {finding.id} ({finding.number})"
        yield f"    {finding.meaning}"
        yield from (f"    - {example}" for example in finding.examples)
        if finding.number > len(finding.examples):
            yield f"    - and {finding.number - len(finding.examples)} more"
        yield f"    {finding.remedy}"
    yield _summary(report)


def _document(report: Report, changes: list[Change]) -> dict[str, Any]:
    return {
        "database": report.database,
        "taken_at": None if report.taken_at is None else report.taken_at.isoformat(),
        "schema_fits": report.fits,
        "changes": [asdict(change) for change in changes],
        "findings": [
            {
                "id": finding.id,
                "severity": finding.severity.value,
                "number": finding.number,
                "examples": finding.examples,
                "meaning": finding.meaning,
                "remedy": finding.remedy,
            }
            for finding in report.findings
        ],
    }
