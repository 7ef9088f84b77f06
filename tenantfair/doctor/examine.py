"""Looking at a domain: one consistent snapshot, nothing locked, nothing written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from django.db import connections, transaction

from tenantfair import schema
from tenantfair.conf import get_settings
from tenantfair.doctor.bodies import changed_functions
from tenantfair.doctor.report import EXAMPLES, Report, collect
from tenantfair.doctor.tasks import named_tasks, unknown_tasks
from tenantfair.sql import load

# What the schema's problems begin with when the rows cannot be asked at all.
_HOPELESS: Final = ("column ", "table ", "found ")
_STATEMENTS: Final = ("doctor_runs", "doctor_scopes", "doctor_policy", "doctor_load", "doctor_sessions")

Found = tuple[str, int, Sequence[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """From when on something is worth a word: seconds, and for expired claims a number of leases."""

    stalled_after: float = 60.0
    locked_after: float = 5.0
    snapshot_after: float = 600.0
    leases: float = 3.0


def examine(using: str | None = None, limits: Limits | None = None) -> Report:
    """Return everything that is wrong with the domain.

    Reads each table of ours, finished runs included, in one REPEATABLE READ READ ONLY transaction of its own,
    then imports the modules of the tasks that unfinished runs name. Inside another transaction it raises
    `RuntimeError`.
    """
    alias = using or get_settings().database
    if connections[alias].vendor != "postgresql":
        return Report(
            database=alias, taken_at=None, findings=collect(_in_kind("schema", schema.problems(alias)))
        )
    with _snapshot(alias) as taken_at:
        problems = schema.problems(alias)
        found = [*_in_kind("schema", problems), *_in_kind("function_body", [*changed_functions(alias)])]
        pairs = []
        if not any(problem.startswith(_HOPELESS) for problem in problems):
            for name in ("doctor_shape", "doctor_creators", "doctor_recording"):
                found += _rows(alias, load(name), {})
            parameters = {"most": EXAMPLES, **asdict(limits or Limits())}
            for name in _STATEMENTS:
                found += _rows(alias, load(name), parameters)
            pairs = named_tasks(alias)
    found += unknown_tasks(pairs)
    return Report(database=alias, taken_at=taken_at, findings=collect(found))


@contextmanager
def _snapshot(alias: str) -> Iterator[datetime]:
    with transaction.atomic(using=alias, durable=True), connections[alias].cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cursor.execute("SELECT transaction_timestamp()")
        yield cursor.fetchone()[0]


def _in_kind(kind: str, examples: Sequence[str]) -> list[Found]:
    return [(kind, len(examples), examples)] if examples else []


def _rows(alias: str, statement: str, parameters: dict[str, Any]) -> list[Found]:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return list(cursor.fetchall())
