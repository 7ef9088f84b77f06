"""`manage.py tenantfair_caps`: list, set and reset caps, the default cap and the scan budget."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser

from tenantfair import policy
from tenantfair.management.base import (
    EXIT_USAGE,
    DomainCommand,
    add_common_arguments,
    as_json,
    as_table,
    checked_alias,
    exit_codes,
    row_limit,
    scope_label,
)
from tenantfair.models import Partition
from tenantfair.policy import DefaultPolicy, Override


class Command(DomainCommand):
    help = (
        "Show or change caps. Each change is compare-and-set with --expected-version. Exit codes: 0, 1 for a"
        " stale version or a domain that no worker has initialised, 2 for wrong usage, 78 for settings or a"
        " schema that do not fit."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

        listing = actions.add_parser("list", help="the default cap and all overrides")
        listing.add_argument(
            "--limit", type=row_limit, default=1000, metavar="N", help="at most this many (default: 1000)"
        )
        add_common_arguments(listing)

        change = actions.add_parser(
            "set", help="give one scope its own cap", usage="%(prog)s (SCOPE | --tenantless) CAP [options]"
        )
        change.add_argument(
            "values", nargs="+", metavar="SCOPE CAP", help="the tenant, and its cap in 1..2147483647"
        )
        _add_write_arguments(change, scoped=True)

        reset = actions.add_parser(
            "reset",
            help="let one scope inherit the default cap",
            usage="%(prog)s (SCOPE | --tenantless) [options]",
        )
        reset.add_argument("values", nargs="*", metavar="SCOPE", help="the tenant")
        _add_write_arguments(reset, scoped=True)

        default = actions.add_parser(
            "default", help="show or set the default cap", usage="%(prog)s [CAP] [options]"
        )
        default.add_argument("cap", nargs="?", type=int, metavar="CAP", help="a cap in 1..2147483647")
        _add_write_arguments(default)

        budget = actions.add_parser(
            "budget", help="show or set the scan budget", usage="%(prog)s [BUDGET] [options]"
        )
        budget.add_argument(
            "budget", nargs="?", type=int, metavar="BUDGET", help="inspections per claim, 32..4096"
        )
        _add_write_arguments(budget)

    def handle(self, *args: Any, **options: Any) -> None:
        with exit_codes():
            alias = checked_alias(options["database"])
            header, rows, document = getattr(self, f"_{options['action']}")(alias, options)
        if options["format"] == "json":
            self.stdout.write(as_json(document))
        else:
            self.stdout.write(as_table(header, rows))

    def _list(self, alias: str, options: dict[str, Any]) -> Answer:
        default = policy.get_default(using=alias)
        overrides = (
            Partition.objects.using(alias)
            .filter(max_active__isnull=False)
            .order_by("scope_key")[: options["limit"]]
        )
        entries = [
            Override(scope_key=row.scope_key, cap=row.max_active, version=row.partition_version)
            for row in overrides
        ]
        rows: list[list[object]] = [["(default)", default.cap, default.version]]
        rows += (_override_row(entry) for entry in entries)
        document = {"default": _default_document(default), "overrides": [asdict(entry) for entry in entries]}
        return OVERRIDE_HEADER, rows, document

    def _set(self, alias: str, options: dict[str, Any]) -> Answer:
        *names, cap_text = options["values"]
        tenant_id = _tenant(names, options["tenantless"])
        try:
            cap = int(cap_text)
        except ValueError as error:
            raise CommandError(f"a cap is an integer, not {cap_text!r}", returncode=EXIT_USAGE) from error
        entry = policy.put_override(tenant_id, cap, expected_version=options["expected_version"], using=alias)
        return OVERRIDE_HEADER, [_override_row(entry)], asdict(entry)

    def _reset(self, alias: str, options: dict[str, Any]) -> Answer:
        tenant_id = _tenant(options["values"], options["tenantless"])
        entry = policy.reset_override(tenant_id, expected_version=options["expected_version"], using=alias)
        return OVERRIDE_HEADER, [_override_row(entry)], asdict(entry)

    def _default(self, alias: str, options: dict[str, Any]) -> Answer:
        if options["cap"] is None:
            return _default_answer(policy.get_default(using=alias))
        return _default_answer(
            policy.put_default(options["cap"], expected_version=options["expected_version"], using=alias)
        )

    def _budget(self, alias: str, options: dict[str, Any]) -> Answer:
        if options["budget"] is None:
            return _default_answer(policy.get_default(using=alias))
        return _default_answer(
            policy.put_scan_budget(
                options["budget"], expected_version=options["expected_version"], using=alias
            )
        )


Answer = tuple[tuple[str, ...], list[list[object]], dict[str, Any]]

OVERRIDE_HEADER = ("SCOPE", "CAP", "VERSION")
DEFAULT_HEADER = ("MODE", "CAP", "CONFIGURED", "SCAN BUDGET", "VERSION")


def _add_write_arguments(parser: ArgumentParser, *, scoped: bool = False) -> None:
    if scoped:
        parser.add_argument("--tenantless", action="store_true", help="the tenantless scope")
    parser.add_argument(
        "--expected-version", type=int, metavar="N", help="change only if this is the stored version"
    )
    add_common_arguments(parser)


def _tenant(names: list[str], tenantless: bool) -> str | None:
    """Return the tenant id that the command line names, None for the tenantless scope."""
    if len(names) != (0 if tenantless else 1):
        raise CommandError("name one SCOPE, or say --tenantless", returncode=EXIT_USAGE)
    return names[0] if names else None


def _override_row(entry: Override) -> list[object]:
    return [scope_label(entry.scope_key), entry.cap, entry.version]


def _default_document(default: DefaultPolicy) -> dict[str, Any]:
    return {
        "mode": default.mode,
        "cap": default.cap,
        "configured": default.configured,
        "scan_budget": default.scan_budget,
        "version": default.version,
    }


def _default_answer(default: DefaultPolicy) -> Answer:
    document = _default_document(default)
    return DEFAULT_HEADER, [list(document.values())], document
