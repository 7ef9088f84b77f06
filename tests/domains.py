"""Further fairness domains for tests: schemas of the test database, each reached by an alias of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from django.core.management import call_command
from django.db import connections


@contextmanager
def scratch_alias(schema: str, **options: Any) -> Iterator[str]:
    """Yield a database alias whose search path is the new, empty schema `schema` and nothing else."""
    base = connections["default"]
    quoted = base.ops.quote_name(schema)
    with base.cursor() as cursor:
        cursor.execute(f"DROP SCHEMA IF EXISTS {quoted} CASCADE")
        cursor.execute(f"CREATE SCHEMA {quoted}")
    settings = deepcopy(base.settings_dict)
    settings["OPTIONS"] = {**settings["OPTIONS"], "options": f"-c search_path={quoted}", **options}
    alias = f"scratch_{schema}"
    connections.settings[alias] = settings
    # Opened here: Django's test cases refuse to open an alias that they did not know when they started.
    connections[alias].connect()
    try:
        yield alias
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]
        with base.cursor() as cursor:
            cursor.execute(f"DROP SCHEMA {quoted} CASCADE")


def migrate(alias: str, target: str | None = None) -> None:
    """Migrate this app, and nothing else, on `alias`."""
    call_command("migrate", "tenantfair", *([target] if target else []), database=alias, verbosity=0)


@contextmanager
def scratch_domain(schema: str) -> Iterator[str]:
    """Yield an alias that leads to a fresh install in the new schema `schema`."""
    with scratch_alias(schema) as alias:
        migrate(alias)
        yield alias


@contextmanager
def another_vendor() -> Iterator[str]:
    """Yield an alias that leads to SQLite."""
    alias = "lite"
    connections.settings[alias] = connections.configure_settings(
        {"default": {}, alias: {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    )[alias]
    try:
        yield alias
    finally:
        del connections[alias]
        del connections.settings[alias]
