"""Recording what became of claimed runs: whole batches, each row on its own fence."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final
from uuid import UUID

from django.db import DatabaseError, DataError, Error

from tenantfair import prepared, wakeups
from tenantfair.claim.base import Lease
from tenantfair.logs import log_safely
from tenantfair.runs import _arguments, _statements
from tenantfair.runs._writes import Write, write
from tenantfair.runs.log_facts import about
from tenantfair.runs.outcomes import Outcome
from tenantfair.sql import load

logger = logging.getLogger("tenantfair.runs")

# How long `finish` comes back to rows that somebody else has locked, and how often.
_BUSY_SECONDS: Final = 2.0
_BUSY_PAUSE: Final = 0.05

_COLUMNS: Final = tuple(field.name for field in fields(Write))
# Classes of SQLSTATE that say nothing about a run: the connection, the state of the transaction, conflicts,
# resources, operators, the system; then what the statement is made of is missing, as it would be for others.
_ABOUT_NO_RUN: Final = (
    *("08", "25", "28", "3D", "40", "53", "57", "58", "72", "F0", "XX"),
    *("0A", "26", "3F", "42"),
)


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of a batch. What is neither accepted nor busy has lost its fence or cannot be stored."""

    accepted: frozenset[UUID]
    # The fence holds, but somebody else's lock is in the way: nothing was written, try again.
    busy: frozenset[UUID]
    # Those of the busy that met a lock only when they were written: their tenant's count, as a rule.
    blocked: frozenset[UUID] = frozenset()


def finish(outcomes: Sequence[Outcome], *, using: str | None = None) -> set[UUID]:
    """Record `outcomes` and return the ids of the runs that accepted theirs; the others had lost their fence.

    One bad value never spoils its neighbours: it ends its own run failed. A run that another session keeps
    locked for more than two seconds counts as not accepted; `settle` tells the two apart.
    """
    deadline = time.monotonic() + _BUSY_SECONDS
    settled = settle(outcomes, using=using)
    accepted = set(settled.accepted)
    while settled.busy and time.monotonic() < deadline:
        time.sleep(_BUSY_PAUSE)
        left = [found for found in outcomes if found.lease.run_id in settled.busy]
        free = [found for found in left if found.lease.run_id not in settled.blocked]
        # One by one, since it is not known which of them the lock is about.
        blocked = [[found] for found in left if found.lease.run_id in settled.blocked]
        settled = _together(
            settle(batch, using=using) for batch in (free, *blocked) if time.monotonic() < deadline
        )
        accepted |= settled.accepted
    return accepted


def settle(outcomes: Sequence[Outcome], *, using: str | None = None) -> Settlement:
    """Record `outcomes` in one statement, each fenced on its own, without waiting for locked rows.

    Where a host's transaction holds a tenant's count, the wait for it ends after 250 ms, and that tenant's
    outcomes are busy; inside a transaction of the caller's, whose commit counts, there is no such bound.

    Safe to repeat: what was recorded before has no fence left. The first of two outcomes for one run counts.
    What is said about the database, and not about a run, is raised: `django.db.Error`, with nothing recorded.
    Where some outcomes are recorded by then, those that it hit are busy instead.
    """
    if not outcomes:
        return _together([])
    alias = _arguments.database(using)
    writes: dict[UUID, Write] = {}
    for outcome in outcomes:
        if outcome.lease.run_id not in writes:
            writes[outcome.lease.run_id] = write(outcome)
    leases = {outcome.lease.run_id: outcome.lease for outcome in reversed(outcomes)}
    return _settle(alias, list(writes.values()), leases)


def _settle(alias: str, batch: Sequence[Write], leases: Mapping[UUID, Lease]) -> Settlement:
    """Store `batch`; in parts when some of it is in the way of the rest."""
    try:
        return _store(alias, *_statement(batch, bounded=not _statements.in_transaction(alias)))
    except (DatabaseError, UnicodeError) as error:
        if _is_lock(error):
            parts: dict[object, list[Write]] = {}
            for single in batch:
                parts.setdefault(leases[single.run_id].tenant_id, []).append(single)
            if len(parts) == 1:
                return _blocked(batch)
        elif not _is_about_a_run(error):
            raise
        elif len(batch) == 1:
            return _last_resort(alias, batch[0], leases[batch[0].run_id], error)
        else:
            parts = {single.run_id: [single] for single in batch}
    return _settle_parts(alias, list(parts.values()), leases)


def _settle_parts(alias: str, parts: Sequence[Sequence[Write]], leases: Mapping[UUID, Lease]) -> Settlement:
    """Store each part by itself; what has been stored is told, whatever becomes of the others."""
    settled: list[Settlement] = []
    failure: Error | None = None
    for part in parts:
        try:
            settled.append(_settle(alias, part, leases))
        except Error as error:
            failure = error
            settled.append(Settlement(frozenset(), busy=frozenset(single.run_id for single in part)))
    together = _together(settled)
    if failure is not None and not together.accepted:
        raise failure
    return together


def _last_resort(
    alias: str, single: Write, lease: Lease, refusal: DatabaseError | UnicodeError
) -> Settlement:
    """Store constants instead of what was refused; if even those are, log and go on."""
    if single.carries_payload:
        params = {
            "run_id": single.run_id,
            "claim_token": single.claim_token,
            "bounded": not _statements.in_transaction(alias),
        }
        try:
            return _store(alias, "fail_run", params)
        except DatabaseError as error:
            if _is_lock(error):
                return _blocked([single])
            if not _is_about_a_run(error):
                raise
            refusal = error
    log_safely(
        logger,
        logging.ERROR,
        "the outcome of a run cannot be stored; its lease will expire",
        extra=about("outcome_refused", lease),
        exc_info=refusal,
    )
    return _together([])


def _store(alias: str, name: str, params: Mapping[str, Any]) -> Settlement:
    found = _statements.retried(alias, lambda: _statements.prepared_rows(alias, load(name), params))
    accepted = frozenset(run_id for run_id, is_accepted, _ in found if is_accepted)
    if any(is_due for _, _, is_due in found):
        wakeups.request(alias)
    return Settlement(accepted, frozenset(run_id for run_id, _, _ in found) - accepted)


def _statement(batch: Sequence[Write], *, bounded: bool) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the parameters of the statement that stores `batch`."""
    if any(single.kind != "completed" for single in batch):
        columns = {name: [getattr(single, name) for single in batch] for name in _COLUMNS}
        return "finish_runs", {**columns, "bounded": bounded}
    return "complete_runs", {
        "run_id": prepared.uuid_array([single.run_id for single in batch]),
        "claim_token": prepared.uuid_array([single.claim_token for single in batch]),
        "result": prepared.text_array([single.result or "null" for single in batch]),
        "bounded": bounded,
    }


def _blocked(batch: Sequence[Write]) -> Settlement:
    found = frozenset(single.run_id for single in batch)
    return Settlement(frozenset(), busy=found, blocked=found)


def _together(parts: Iterable[Settlement]) -> Settlement:
    found = list(parts)
    return Settlement(
        frozenset().union(*(part.accepted for part in found)),
        frozenset().union(*(part.busy for part in found)),
        frozenset().union(*(part.blocked for part in found)),
    )


def _is_lock(error: DatabaseError | UnicodeError) -> bool:
    return isinstance(error, DatabaseError) and _statements.sqlstate(error) == _statements.LOCK_NOT_AVAILABLE


def _is_about_a_run(error: DatabaseError | UnicodeError) -> bool:
    """Return whether the outcome of a run was refused: for its values, or by a trigger of the host's."""
    if isinstance(error, UnicodeError):
        return True
    state = _statements.sqlstate(error)
    # Without a state, psycopg itself refused a value before the server saw it.
    return isinstance(error, DataError) if state is None else not state.startswith(_ABOUT_NO_RUN)
