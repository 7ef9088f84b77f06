"""Making a recording: an opening snapshot, the journal, a closing snapshot; then nothing is left of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db import ProgrammingError, connections, transaction
from psycopg.errors import UndefinedFunction, UndefinedTable

from tenantfair.certify import triggers
from tenantfair.certify.errors import RecordingFailed
from tenantfair.certify.record import Held, Record, Row, State
from tenantfair.certify.ring import Cursor
from tenantfair.certify.triggers import PATIENCE_SECONDS, Stop, execute
from tenantfair.sql import load

# How long the triggers go on, if nobody takes them off: until this much after the recording's latest end.
_GRACE_SECONDS: Final = 10.0
# A claim's time is taken before it waits for its turn, which it does for at most 250 ms.
_SLACK: Final = timedelta(seconds=1)
_LOOK_SECONDS: Final = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """When a recording ends: after seconds, claims or rows of the journal, whichever comes first."""

    seconds: float = 60.0
    calls: int = 100_000
    rows: int = 500_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """A record and how it came about; `ended_by` is one of `seconds`, `calls`, `rows`, `signal`."""

    record: Record
    started_at: datetime
    seconds: float
    ended_by: str


def make(alias: str, limits: Limits, stop: Stop) -> Recording:
    """Record the claims of the running workers, and remove what recorded them, whatever ends it.

    Raises `RecordingNotAllowed`; `RecordingFailed` when somebody records already, the domain is not in mode
    tenant_fair, a table stays locked or anything was lost; `RecordingLeft` when parts could not be removed;
    and `RuntimeError` inside a transaction.
    """
    triggers.require_rights(alias)
    found = triggers.left(alias)
    if found and found.records:
        raise RecordingFailed(
            f"a recording goes on until {found.until}; `manage.py tenantfair_certify --clean` ends it"
        )
    if found:
        triggers.take_off(alias, stop)
    until = _now(alias) + timedelta(seconds=PATIENCE_SECONDS + limits.seconds + _GRACE_SECONDS)
    triggers.begin(alias, until)
    try:
        triggers.put_on(alias, stop, until=until, most=2 * limits.rows)
        return _recorded(alias, limits, stop, until)
    except ProgrammingError as error:
        if isinstance(error.__cause__, (UndefinedTable, UndefinedFunction)):
            raise RecordingFailed("somebody has removed the recording") from error
        raise
    except BaseException:
        # It may be the connection that has broken.
        connections[alias].close()
        raise
    finally:
        triggers.take_off(alias, stop)


def _recorded(alias: str, limits: Limits, stop: Stop, until: datetime) -> Recording:
    with _snapshot(alias):
        started_at = _now(alias)
        due = started_at - _SLACK
        opening, seen = _state(alias, due, until)
    began = time.monotonic()
    ended_by = _wait(alias, limits, stop, began)
    seconds = time.monotonic() - began
    with _snapshot(alias):
        closing, _ = _state(alias, due, until)
        rows = [Row(*row) for row in execute(alias, load("certify_journal"), {"seen": seen})]
        ((_, _, lost),) = execute(alias, load("certify_progress"))
        late = _now(alias) >= until
    record = Record(opening, closing, rows, _microseconds(due), _microseconds(until))
    if lost or late or not record.adds_up():
        raise RecordingFailed("some of what happened is missing from the recording, so it proves nothing")
    return Recording(record=record, started_at=started_at, seconds=seconds, ended_by=ended_by)


def _wait(alias: str, limits: Limits, stop: Stop, began: float) -> str:
    """Wait for the end of the recording and return what ended it."""
    while True:
        left = limits.seconds - (time.monotonic() - began)
        if left <= 0:
            return "seconds"
        stop.wait(min(left, _LOOK_SECONDS))
        if stop.count:
            return "signal"
        ((rows, calls, lost),) = execute(alias, load("certify_progress"))
        if lost:
            raise RecordingFailed("a trigger could not write into the recording, so it proves nothing")
        if rows >= limits.rows:
            return "rows"
        if calls >= limits.calls:
            return "calls"


@contextmanager
def _snapshot(alias: str) -> Iterator[None]:
    with transaction.atomic(using=alias, durable=True):
        execute(alias, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def _state(alias: str, due: datetime, until: datetime) -> tuple[State, str]:
    """Return the domain as the transaction's snapshot shows it, and that snapshot."""
    policy = execute(alias, load("certify_policy"))
    if not policy or policy[0][1] != "tenant_fair":
        raise RecordingFailed("only a domain in mode tenant_fair has a bound; start a worker first")
    ((seen, _, cap, budget, lease, laps, place),) = policy
    places = execute(alias, load("certify_ring"))
    runs: Counter[Held] = Counter()
    for scope, state, at, n in execute(alias, load("certify_runs"), {"due": due, "until": until}):
        runs[Held(scope, state, at)] = n
    return State(
        cap=cap,
        budget=budget,
        lease=lease,
        cursor=Cursor(laps, place),
        ring={position: scope for position, scope, on_ring, _ in places if on_ring},
        caps={scope: own for _, scope, _, own in places if own is not None},
        runs=runs,
        functions=[identity for (identity,) in execute(alias, load("certify_functions"))],
    ), seen


def _now(alias: str) -> datetime:
    # Not as a time: without USE_TZ a connection hands out times without a zone.
    ((seconds,),) = execute(alias, "SELECT extract(epoch FROM clock_timestamp())::double precision")
    return datetime.fromtimestamp(seconds, UTC)


def _microseconds(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
