"""Recording what became of claimed runs: whole batches, each row on its own fence."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final
from uuid import UUID

from django.db import DatabaseError, DataError

from tenantfair import prepared
from tenantfair.claim.base import Lease
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
# Classes of SQLSTATE that speak of the values: data, integrity, program limits, a host's own trigger.
_SPOILT_BY_DATA: Final = ("22", "23", "54", "P0")


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of a batch. What is neither accepted nor busy has lost its fence for good."""

    accepted: frozenset[UUID]
    # The fence holds, but another session has the row locked: nothing was written, try again.
    busy: frozenset[UUID]


def finish(outcomes: Sequence[Outcome], *, using: str | None = None) -> set[UUID]:
    """Record `outcomes` and return the ids of the runs that accepted theirs; the others had lost their fence.

    One bad value never spoils its neighbours: it ends its own run failed. A run that another session keeps
    locked for more than two seconds counts as not accepted; `settle` tells the two apart and never waits.
    """
    deadline = time.monotonic() + _BUSY_SECONDS
    settled = settle(outcomes, using=using)
    accepted = set(settled.accepted)
    while settled.busy and time.monotonic() < deadline:
        time.sleep(_BUSY_PAUSE)
        settled = settle([found for found in outcomes if found.lease.run_id in settled.busy], using=using)
        accepted |= settled.accepted
    return accepted


def settle(outcomes: Sequence[Outcome], *, using: str | None = None) -> Settlement:
    """Record `outcomes` in one statement, each fenced on its own, waiting for nobody.

    Safe to repeat: what was recorded before has no fence left. The first of two outcomes for one run counts.
    """
    if not outcomes:
        return Settlement(frozenset(), frozenset())
    alias = _arguments.database(using)
    writes: dict[UUID, Write] = {}
    for outcome in outcomes:
        if outcome.lease.run_id not in writes:
            writes[outcome.lease.run_id] = write(outcome)
    try:
        return _store(alias, list(writes.values()))
    except (DatabaseError, UnicodeError) as error:
        if not _is_about_data(error):
            raise
    leases = {outcome.lease.run_id: outcome.lease for outcome in reversed(outcomes)}
    parts = [_store_alone(alias, single, leases[run_id]) for run_id, single in writes.items()]
    return Settlement(
        frozenset().union(*(part.accepted for part in parts)),
        frozenset().union(*(part.busy for part in parts)),
    )


def _store(alias: str, batch: Sequence[Write]) -> Settlement:
    name, params = _statement(batch)
    found = _statements.retried(alias, lambda: _statements.prepared_rows(alias, load(name), params))
    accepted = frozenset(run_id for run_id, is_accepted in found if is_accepted)
    return Settlement(accepted, frozenset(run_id for run_id, _ in found) - accepted)


def _statement(batch: Sequence[Write]) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the parameters of the statement that stores `batch`."""
    if any(single.kind != "completed" for single in batch):
        return "finish_runs", {name: [getattr(single, name) for single in batch] for name in _COLUMNS}
    return "complete_runs", {
        "run_id": prepared.uuid_array([single.run_id for single in batch]),
        "claim_token": prepared.uuid_array([single.claim_token for single in batch]),
        "result": prepared.text_array([single.result or "null" for single in batch]),
    }


def _store_alone(alias: str, single: Write, lease: Lease) -> Settlement:
    """Store one row; if the database refuses its values, constants instead; if even those, log and go on."""
    try:
        return _store(alias, [single])
    except (DatabaseError, UnicodeError) as error:
        if not _is_about_data(error):
            raise
        refusal = error
    if single.carries_payload:
        params = {"run_id": single.run_id, "claim_token": single.claim_token}
        try:
            found = _statements.retried(alias, lambda: _statements.rows(alias, load("fail_run"), params))
            return Settlement(frozenset(row[0] for row in found), frozenset())
        except DatabaseError as error:
            if not _is_about_data(error):
                raise
            refusal = error
    logger.error(
        "the outcome of a run cannot be stored; its lease will expire",
        extra=about("outcome_refused", lease),
        exc_info=refusal,
    )
    return Settlement(frozenset(), frozenset())


def _is_about_data(error: DatabaseError | UnicodeError) -> bool:
    if isinstance(error, UnicodeError):
        return True
    state = _statements.sqlstate(error)
    # Without a state, psycopg itself refused a value before the server saw it.
    return isinstance(error, DataError) if state is None else state.startswith(_SPOILT_BY_DATA)
