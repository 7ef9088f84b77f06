"""The shape of the database that this version needs, and how far a database is from it.

A worker refuses to start on any other shape, because what is missing would show only later: as counts that
never move, or runs that nobody claims. Objects that a host adds to our tables are its own business.
"""

from __future__ import annotations

import pkgutil
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final, NamedTuple

from django.apps import apps
from django.db import connections, migrations, router
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.migrations.state import ProjectState

from tenantfair.conf import get_settings
from tenantfair.exceptions import SchemaMismatch
from tenantfair.sql import load

__all__ = [
    "function_sources",
    "has_tables",
    "install_unmigrated",
    "is_installed",
    "object_problems",
    "pending_migrations",
    "prepare_unmigrated",
    "problems",
    "remedy",
    "require_postgresql",
    "shipped_migrations",
    "verify",
]

APP: Final = "tenantfair"
MIN_SERVER_VERSION: Final = 150_000

# Argument types as schema_shape.sql prints them.
FUNCTIONS: Final = {
    "tenantfair_claim": (
        "timestamp with time zone, timestamp with time zone, integer, integer, text, boolean"
    ),
    "tenantfair_claim_lap": "timestamp with time zone, integer, text, bigint, bigint, interval, text[]",
    "tenantfair_fold": "",
    "tenantfair_new_run_id": "",
    "tenantfair_partition_schedule": "",
    "tenantfair_pending_fold": "",
    "tenantfair_policy_shape": (
        "smallint, text, integer, integer, integer, integer, integer, bigint, bigint, bigint, smallint,"
        " timestamp with time zone"
    ),
    "tenantfair_run_deleted": "",
    "tenantfair_run_inserted": "",
    "tenantfair_run_shape": (
        "text, text, timestamp with time zone, uuid, timestamp with time zone, timestamp with time zone,"
        " timestamp with time zone, text, timestamp with time zone, integer, integer, integer, bigint,"
        " smallint"
    ),
    "tenantfair_run_updated": "",
    "tenantfair_schedule_guard": "",
    "tenantfair_tenant_is_well_formed": "text",
    "tenantfair_truncate_guard": "",
}

# By table and name; the value says when the trigger fires.
TRIGGERS: Final = {
    "tenantfair_partition.tenantfair_partition_schedule": "",
    "tenantfair_pending.tenantfair_pending_fold": "deferred",
    "tenantfair_run.tenantfair_run_deleted": "",
    "tenantfair_run.tenantfair_run_inserted": "",
    "tenantfair_run.tenantfair_run_truncate_guard": "",
    "tenantfair_run.tenantfair_run_updated": "",
    "tenantfair_run.tenantfair_run_updated_end": "",
    "tenantfair_schedule.tenantfair_schedule_guard_delete": "",
    "tenantfair_schedule.tenantfair_schedule_guard_insert": "",
    "tenantfair_schedule.tenantfair_schedule_guard_update": "",
    "tenantfair_schedule.tenantfair_schedule_truncate_guard": "",
}

# What the install adds to what the models say.
OTHERS: Final = (
    ("column", "tenantfair_pending.xid"),
    ("column", "tenantfair_pending.opens"),
    ("column", "tenantfair_pending.scope_key"),
    ("column", "tenantfair_pending.delta"),
    ("column", "tenantfair_pending.gathers"),
    ("constraint", "tenantfair_schedule_partition"),
    ("index", "tenantfair_pending_xid"),
)


class Found(NamedTuple):
    """One object of the database: what it is, and what keeps it from working, if anything does."""

    kind: str
    name: str
    detail: str
    fault: str | None


def verify(using: str | None = None) -> None:
    """Raise `SchemaMismatch` with every problem and the command that helps, unless the shape is right."""
    alias = using or get_settings().database
    found = problems(alias)
    if found:
        raise SchemaMismatch(found, remedy(alias))


def require_postgresql(using: str) -> None:
    """Raise `SchemaMismatch` where the alias `using` leads to another database; nothing is connected."""
    found = _vendor_problems(using)
    if found:
        raise SchemaMismatch(found, remedy(using))


def problems(using: str | None = None) -> list[str]:
    """Return what is wrong with the database, one sentence each: what was found and what is needed."""
    alias = using or get_settings().database
    return _vendor_problems(alias) or [
        *_server_problems(alias),
        *_migration_problems(alias),
        *object_problems(alias),
    ]


def object_problems(using: str) -> list[str]:
    """Return which tables, triggers, functions and so on are missing or do not do their work."""
    objects = _objects(using)
    return list(_object_problems(objects)) if objects else ["table tenantfair_run is missing"]


def remedy(alias: str) -> str:
    """Return what brings the database on `alias` to the shape this version needs."""
    if _vendor_problems(alias):
        return (
            'Let TENANTFAIR["DATABASE"], or --database, name an alias with ENGINE'
            ' "django.db.backends.postgresql".'
        )
    if any(_unknown_migrations(alias)):
        return "Install the version of tenantfair that this database was migrated with."
    if pending_migrations(alias):
        return f"Run `manage.py migrate tenantfair --database={alias}`."
    return f"Run `manage.py tenantfair_doctor --reinstall --fix --database={alias}`; it names what is left."


def _vendor_problems(alias: str) -> list[str]:
    vendor = connections[alias].vendor
    return [] if vendor == "postgresql" else [f"found the database vendor {vendor}, need postgresql"]


def _server_problems(alias: str) -> Iterator[str]:
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('server_version_num')::integer, current_setting('server_encoding')"
        )
        version, encoding = cursor.fetchone()
    if version < MIN_SERVER_VERSION:
        yield f"found PostgreSQL {version // 10_000}, need {MIN_SERVER_VERSION // 10_000} or newer"
    if encoding != "UTF8":
        yield f"found the server encoding {encoding}, need UTF8"


def _migration_problems(alias: str) -> Iterator[str]:
    for name in _unknown_migrations(alias):
        yield f"found migration {name} applied, which this version does not have"
    for name in pending_migrations(alias):
        yield f"migration {name} is not applied"


def _needed() -> Iterator[tuple[str, str]]:
    for model in apps.get_app_config(APP).get_models():
        table = model._meta.db_table
        yield from (("column", f"{table}.{field.column}") for field in model._meta.concrete_fields)
        yield from (("constraint", constraint.name) for constraint in model._meta.constraints)
        yield from (("index", index.name) for index in model._meta.indexes)
    yield from OTHERS


def _object_problems(objects: list[Found]) -> Iterator[str]:
    by_name = {(found.kind, found.name): found for found in objects}
    for kind, name in _needed():
        if (kind, name) not in by_name:
            yield f"{kind} {name} is missing"
    for name, timing in TRIGGERS.items():
        trigger = by_name.get(("trigger", name))
        if trigger is None:
            yield f"trigger {name} is missing"
        elif timing != trigger.detail:
            yield f"trigger {name} is not {timing or 'immediate'}"
    overloads = Counter(found.name for found in objects if found.kind == "function")
    for name, arguments in FUNCTIONS.items():
        if overloads[name] != 1:
            yield f"found {overloads[name]} functions {name}, need exactly {name}({arguments})"
        elif (detail := by_name["function", name].detail) != arguments:
            yield f"found {name}({detail}), need {name}({arguments})"
    needed = {
        *_needed(),
        *(("trigger", name) for name in TRIGGERS),
        *(("function", name) for name in FUNCTIONS),
    }
    for found in objects:
        if found.fault and (found.kind, found.name) in needed:
            yield f"{found.kind} {found.name} is {found.fault}"


def _objects(alias: str) -> list[Found]:
    with connections[alias].cursor() as cursor:
        cursor.execute(load("schema_shape"))
        return [Found(*row) for row in cursor.fetchall()]


def function_sources(using: str | None = None) -> dict[str, str]:
    """Return the installed body of each of our functions by name, as PostgreSQL keeps it."""
    with connections[using or get_settings().database].cursor() as cursor:
        cursor.execute(load("function_sources"))
        return dict(cursor.fetchall())


def is_installed(using: str) -> bool:
    """Return whether the migrations up to the one that installs triggers and functions have run."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT to_regclass('tenantfair_pending') IS NOT NULL")
        return bool(cursor.fetchone()[0])


def shipped_migrations() -> list[str]:
    """Return the names of this version's migrations, in order."""
    package = import_module(f"{APP}.migrations")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__))


def _applied_migrations(alias: str) -> set[str] | None:
    """Return what the database says was applied, or None where that says nothing about our tables."""
    if MigrationLoader.migrations_module(APP)[1]:
        return None  # MIGRATION_MODULES turns our migrations off, or replaces them
    recorded = MigrationRecorder(connections[alias]).applied_migrations()
    applied = {name for label, name in recorded if label == APP}
    # TEST["MIGRATE"] = False turns migrations off only for as long as the test database is made.
    return None if not applied and has_tables(alias) else applied


def pending_migrations(using: str) -> list[str]:
    """Return which of this version's migrations have not run on the alias `using`."""
    applied = _applied_migrations(using)
    return [] if applied is None else [name for name in shipped_migrations() if name not in applied]


def _unknown_migrations(alias: str) -> list[str]:
    applied = _applied_migrations(alias)
    return [] if applied is None else sorted(applied.difference(shipped_migrations()))


def prepare_unmigrated(using: str, **_: Any) -> None:
    """Install the functions that the tables' constraints call before tables are created without migrations.

    A receiver of `pre_migrate`. Does nothing unless MIGRATION_MODULES turns the migrations of this app off
    and the tables are still to come.
    """
    if (
        _migrations_are_off()
        and connections[using].vendor == "postgresql"
        and router.allow_migrate_model(using, apps.get_model(APP, "Run"))
        and not has_tables(using)
    ):
        _install(using, shipped_migrations()[:1])


def install_unmigrated(using: str) -> None:
    """Install triggers and functions into tables that were created without migrations, once.

    Only where MIGRATION_MODULES turns the migrations of this app off: test settings do. Elsewhere, or when
    the objects are there, nothing happens.
    """
    if _migrations_are_off() and has_tables(using) and not is_installed(using):
        _install(using, shipped_migrations())


def _migrations_are_off() -> bool:
    return MigrationLoader.migrations_module(APP)[0] is None


def _install(using: str, names: list[str]) -> None:
    state = ProjectState()
    with connections[using].schema_editor(atomic=True) as editor:
        for name in names:
            for operation in import_module(f"{APP}.migrations.{name}").Migration.operations:
                if isinstance(operation, migrations.RunSQL):
                    operation.database_forwards(APP, editor, state, state)


def has_tables(using: str) -> bool:
    """Return whether the search path of the alias `using` leads to our tables."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT to_regclass('tenantfair_run') IS NOT NULL")
        return bool(cursor.fetchone()[0])
