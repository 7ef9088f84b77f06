"""Putting right what can be computed: counts, missing partitions and places, identities, the policy row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from django.db import OperationalError, connections, transaction
from psycopg.errors import DeadlockDetected, LockNotAvailable

from tenantfair.conf import get_settings
from tenantfair.doctor.examine import examine
from tenantfair.doctor.kinds import MISFITS
from tenantfair.exceptions import SchemaMismatch, TenantFairError
from tenantfair.sql import load

LOCK_TIMEOUT_MS: Final = 5_000

_LOCKS: Final = {
    table: f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"
    for table in ("tenantfair_run", "tenantfair_schedule")
}

_WORDS: Final = {
    "identity_moved": "{name}: the last number handed out was {before}, is {after}",
    "policy_restored": "the policy row was put back, as a fresh install has it",
    "count_changed": "count of {name!r}: was {before}, is {after}",
    "position_dropped": "place of {name!r} on the ring, {before}: deleted, as it had no partition",
    "partition_added": "partition of {name!r}: added",
    "position_added": "place of {name!r} on the ring: added, {after}",
    "notes_dropped": "{before} left-over notes for {name!r}: deleted",
    "reinstalled": "{name}: put right",
}


class RepairBlocked(TenantFairError):
    """Somebody holds what a repair needs; nothing was changed but, perhaps, an identity moved. Try again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One thing that was changed: what, of which scope, table or object, and the number before and after."""

    what: str
    name: str
    before: int | None = None
    after: int | None = None

    def __str__(self) -> str:
        return _WORDS[self.what].format(name=self.name, before=self.before, after=self.after)


def repair(using: str | None = None, *, lock_timeout_ms: int = LOCK_TIMEOUT_MS) -> list[Change]:
    """Repair the domain in one transaction and return all that was changed; nothing else is.

    Counts are recomputed under the locks that commits take on them, so commits for just those scopes wait,
    and what is in flight is counted once. An identity that is behind locks its table against writers.
    Repeating it changes nothing. Raises `SchemaMismatch` where the schema does not fit, `RepairBlocked` after
    a wait of `lock_timeout_ms` for one lock, and `RuntimeError` inside a transaction.
    """
    alias = using or get_settings().database
    report = examine(alias)
    if not report.fits:
        raise SchemaMismatch(
            [example for finding in report.findings if finding.id in MISFITS for example in finding.examples],
            "Nothing was repaired.",
        )
    with blocked_as_such(), transaction.atomic(using=alias, durable=True):
        return _Repair(alias, lock_timeout_ms).all()


@contextmanager
def blocked_as_such() -> Iterator[None]:
    """Raise `RepairBlocked` where a lock was waited for in vain."""
    try:
        yield
    except OperationalError as error:
        if isinstance(error.__cause__, (LockNotAvailable, DeadlockDetected)):
            raise RepairBlocked(f"nothing was changed, try again: {error}") from error
        raise


class _Repair:
    """The steps, each made after the ones it needs.

    Locks are taken in the order of a commit's fold: new partitions by scope, then all counts by scope, once.
    What follows touches only rows that are held by then.
    """

    def __init__(self, alias: str, lock_timeout_ms: int) -> None:
        self._alias = alias
        self._changes: list[Change] = []
        # Each statement must see what was committed while the one before it waited for locks.
        self._execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE")
        self._execute("SELECT set_config('lock_timeout', %s::text, true)", [f"{lock_timeout_ms}ms"])

    def all(self) -> list[Change]:
        self._move_identities()
        self._restore_policy()
        self._change("partition_added", "doctor_add_partitions", scopes=None)
        self._change("position_added", "doctor_add_positions")
        drifted = self._execute(load("doctor_drifted"))
        self._recount([scope for scope, _ in drifted])
        self._replace([scope for scope, is_orphan in drifted if is_orphan])
        self._change("notes_dropped", "doctor_drop_notes")
        return self._changes

    def _move_identities(self) -> None:
        for behind in self._execute(load("doctor_identities")):
            # Against writers: one that takes a number while it is being moved could move it back.
            self._execute(_LOCKS[behind[0]])
        for relation, sequence, last, highest in self._execute(load("doctor_identities")):
            self._execute(load("doctor_set_identity"), {"sequence": sequence, "highest": highest})
            self._changes.append(
                Change(what="identity_moved", name=relation, before=last or 0, after=highest)
            )

    def _restore_policy(self) -> None:
        with connections[self._alias].cursor() as cursor:
            cursor.execute(load("restore_policy_row"))
            if cursor.rowcount:
                self._changes.append(Change(what="policy_restored", name="tenantfair_policy"))

    def _replace(self, orphans: list[str]) -> None:
        # Whoever else adds such a partition is refused while its place is there, so nobody is waited for.
        self._change("position_dropped", "doctor_drop_orphans", scopes=orphans)
        self._change("partition_added", "doctor_add_partitions", scopes=orphans)
        self._recount(orphans)

    def _recount(self, scopes: list[str]) -> None:
        # Two statements: one that both locked and counted would count what it saw before it waited.
        self._execute(load("doctor_lock_counts"), {"scopes": scopes})
        self._change("count_changed", "doctor_recount", scopes=scopes)

    def _change(self, what: str, name: str, **parameters: Any) -> None:
        self._changes += (
            Change(what=what, name=scope, before=before, after=after)
            for scope, before, after in sorted(self._execute(load(name), parameters), key=itemgetter(0))
        )

    def _execute(self, statement: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        with connections[self._alias].cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []
