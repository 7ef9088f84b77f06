"""`manage.py tenantfair_inspect`: caps and counts, of every active scope or of one."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from tenantfair import policy
from tenantfair.management.base import (
    DomainCommand,
    add_common_arguments,
    as_json,
    as_table,
    checked_alias,
    exit_codes,
    row_limit,
    scope_label,
)
from tenantfair.policy import DefaultPolicy, Inspection
from tenantfair.tenants import TENANTLESS_SCOPE, validate_tenant

HEADER = (
    "SCOPE",
    "CAP",
    "SOURCE",
    "QUEUED",
    "READY",
    "CLAIMED",
    "DEBT",
    "UNFINISHED",
    "OLDEST WAIT",
    "RING",
    "GRANTS",
)


class Command(DomainCommand):
    help = (
        "Show each scope's effective cap and its committed work: the scopes with unfinished runs or an"
        " override, in ring order, or one scope. Exit codes: 0, 1, 2 for wrong usage, 78 for settings or"
        " a schema that do not fit."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_common_arguments(parser)
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--scope", metavar="TENANT", help="only this tenant, known or not")
        which.add_argument("--tenantless", action="store_true", help="only the tenantless scope")
        parser.add_argument(
            "--limit",
            type=row_limit,
            default=100,
            metavar="N",
            help="at most this many scopes (default: 100)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        with exit_codes():
            alias = checked_alias(options["database"])
            if options["tenantless"]:
                scope_keys = [TENANTLESS_SCOPE]
            elif options["scope"] is not None:
                scope_keys = [validate_tenant(options["scope"])]
            else:
                scope_keys = policy.list_scopes(options["limit"], using=alias)
            default = policy.get_default(using=alias)
            found = policy.inspect_many(scope_keys, using=alias)
        inspections = [found[scope_key] for scope_key in scope_keys]
        if options["format"] == "json":
            self.stdout.write(as_json(_document(default, inspections)))
        else:
            self.stdout.write(_summary(default))
            self.stdout.write(as_table(HEADER, [_cells(one) for one in inspections]))


def _summary(default: DefaultPolicy) -> str:
    if default.mode == "legacy":
        return "mode legacy: caps do not hold here"
    return (
        f"mode {default.mode}, default cap {default.cap}, version {default.version},"
        f" scan budget {default.scan_budget}"
    )


def _seconds(wait: timedelta | None) -> float | None:
    return None if wait is None else round(wait.total_seconds(), 3)


def _cells(one: Inspection) -> list[object]:
    wait = _seconds(one.oldest_due_wait)
    return [
        scope_label(one.scope_key),
        one.cap,
        one.source,
        one.queued,
        one.admitted_ready,
        one.admitted_claimed,
        one.debt,
        one.unfinished,
        None if wait is None else f"{wait:.1f} s",
        one.ring_position,
        one.admission_epoch,
    ]


def _document(default: DefaultPolicy, inspections: list[Inspection]) -> dict[str, Any]:
    updated_at = None if default.updated_at is None else default.updated_at.isoformat()
    return {
        "policy": {**asdict(default), "updated_at": updated_at},
        "scopes": [{**asdict(one), "oldest_due_wait": _seconds(one.oldest_due_wait)} for one in inspections],
    }
