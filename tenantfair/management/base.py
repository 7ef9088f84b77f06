"""What the commands share: exit codes, the database option, tables."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from tenantfair import schema
from tenantfair.conf import get_settings
from tenantfair.exceptions import (
    ConfigurationError,
    InvalidCap,
    InvalidRun,
    InvalidScanBudget,
    InvalidTenant,
    InvalidVersion,
    SchemaMismatch,
    TenantFairError,
)

EXIT_USAGE: Final = 2
EXIT_CONFIG: Final = 78

_LIMIT_DIGITS: Final = 9

_USAGE_ERRORS: Final = (InvalidCap, InvalidRun, InvalidScanBudget, InvalidTenant, InvalidVersion)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn our errors into `CommandError`: 2 for a wrong argument, 78 for settings or schema, else 1."""
    try:
        yield
    except _USAGE_ERRORS as error:
        raise CommandError(str(error), returncode=EXIT_USAGE) from error
    except (ConfigurationError, SchemaMismatch) as error:
        raise CommandError(str(error), returncode=EXIT_CONFIG) from error
    except TenantFairError as error:
        raise CommandError(str(error)) from error


def add_common_arguments(parser: ArgumentParser) -> None:
    """Add `--database` and `--format`."""
    parser.add_argument(
        "--database", metavar="ALIAS", help='database alias; TENANTFAIR["DATABASE"] unless given'
    )
    parser.add_argument(
        "--format", choices=("table", "json"), default="table", help="how to print (default: table)"
    )


class DomainCommand(BaseCommand):
    """A command about one domain.

    It verifies settings and schema itself, with an exit code of its own; what is wrong elsewhere in the
    project keeps nobody from looking at a domain.
    """

    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        # Off for the host's own code; nobody would commit what a command does.
        for connection in connections.all():
            connection.settings_dict["AUTOCOMMIT"] = True
        super().run_from_argv(argv)


def alias_of(given: str | None) -> str:
    """Return the alias to work on; `CommandError` when DATABASES has no such key.

    `ConfigurationError` when the settings cannot work, whatever alias was given.
    """
    settings = get_settings()
    alias = given or settings.database
    if alias not in connections:
        raise CommandError(f"--database must name a key of DATABASES, not {alias!r}", returncode=EXIT_USAGE)
    return alias


def checked_alias(given: str | None) -> str:
    """Return the alias to work on, its schema verified; for use inside `exit_codes`."""
    alias = alias_of(given)
    schema.verify(alias)
    return alias


def row_limit(text: str) -> int:
    """Read the value of a `--limit`."""
    if not text.isascii() or not text.isdigit() or len(text) > _LIMIT_DIGITS:
        raise ArgumentTypeError(
            f"{text!r} is not an integer of zero or more, of up to {_LIMIT_DIGITS} digits"
        )
    return int(text)


def as_json(value: Any) -> str:
    """Return `value` as indented JSON text."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def as_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return aligned columns, the first to the left and the others to the right; None prints as a dash."""
    cells = [list(header), *(["-" if value is None else str(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    lines = (
        [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        for line in cells
    )
    return "\n".join("  ".join(line).rstrip() for line in lines)


def scope_label(scope_key: str) -> str:
    """Return how a scope is printed in a table."""
    return scope_key or "(tenantless)"
