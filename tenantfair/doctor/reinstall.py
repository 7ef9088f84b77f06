"""Putting back what the migrations installed: functions and triggers, from the shipped files."""

from __future__ import annotations

from typing import Final

from django.db import connections, transaction

from tenantfair import schema, sql
from tenantfair.conf import get_settings
from tenantfair.doctor.bodies import changed_functions, newest_files
from tenantfair.doctor.repair import LOCK_TIMEOUT_MS, Change, blocked_as_such
from tenantfair.exceptions import SchemaMismatch

# It waits for every transaction that has a note, so it is created where it is missing and else left alone.
_FOLD_TRIGGER: Final = "tenantfair_pending_fold"
_FOLD_PROBLEM: Final = f"trigger tenantfair_pending.{_FOLD_TRIGGER} is "
_LOCKED: Final = "tenantfair_run, tenantfair_pending, tenantfair_partition, tenantfair_schedule"
# What such problems begin with is made of tables, and those are not made anew around their rows.
_BEYOND_REPAIR: Final = ("column ", "table ")
# These files define tables and their storage.
_TABLES: Final = frozenset({"tenantfair_pending", "tenantfair_storage"})


def reinstall(using: str | None = None, *, lock_timeout_ms: int = LOCK_TIMEOUT_MS) -> list[Change]:
    """Create all functions and triggers anew in one transaction, and return each problem that this solved.

    Triggers are enabled by that, and functions bound to the schema that they are in now. What was written
    while they were missing is not counted: `repair` does that. Raises `SchemaMismatch` where migrations are
    to be applied or a table or column is missing, `RepairBlocked` after a wait of `lock_timeout_ms` for one
    lock, and `RuntimeError` inside a transaction.
    """
    alias = using or get_settings().database
    before = _problems(alias)
    if schema.pending_migrations(alias) or any(problem.startswith(_BEYOND_REPAIR) for problem in before):
        raise SchemaMismatch(before, schema.remedy(alias))
    with blocked_as_such(), transaction.atomic(using=alias, durable=True):
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [f"{lock_timeout_ms}ms"])
            # In the order in which an enqueue and its commit take them.
            cursor.execute(f"LOCK TABLE {_LOCKED} IN SHARE ROW EXCLUSIVE MODE")
            for name in newest_files():
                stem, _, _ = name.partition(".")
                if stem == _FOLD_TRIGGER:
                    if not any(problem.startswith(_FOLD_PROBLEM) for problem in before):
                        continue
                    cursor.execute("DROP TRIGGER IF EXISTS tenantfair_pending_fold ON tenantfair_pending")
                if stem not in _TABLES:
                    cursor.execute(sql.install(name))
        after = _problems(alias)
    return [Change(what="reinstalled", name=problem) for problem in before if problem not in after]


def _problems(alias: str) -> list[str]:
    bodies = (f"function {name} is not the shipped text" for name in changed_functions(alias))
    return [*schema.problems(alias), *bodies]
