"""What people may see of a run, and the one word for how it stands."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final, Literal, cast
from uuid import UUID

from django.db import connections
from django.db.models import Case, CharField, DateTimeField, F, Func, Q, QuerySet, Value, When

from tenantfair.exceptions import RunNotFound
from tenantfair.models import Run
from tenantfair.runs import _arguments

State = Literal[
    "queued", "ready", "claimed", "scheduled", "waiting", "poisoned", "completed", "failed", "cancelled"
]


class DatabaseClock(Func):
    """`clock_timestamp()`: the only clock that decides what is due, also in a transaction opened long ago."""

    function = "CLOCK_TIMESTAMP"
    arity = 0
    output_field = DateTimeField()


# The first condition that holds names the state; a run that meets none is queued.
STATE_EXPRESSION: Final = Case(
    When(~Q(status="running"), then=F("status")),
    When(poisoned_at__isnull=False, then=Value("poisoned")),
    When(claim_token__isnull=False, then=Value("claimed")),
    When(wake_at__gt=DatabaseClock(), then=Value("scheduled")),
    When(tenant_admitted_at__isnull=False, then=Value("ready")),
    default=Value("queued"),
    output_field=CharField(),
)


def state_of(row: Run, *, now: datetime | None = None) -> State:
    """Return the state of a loaded row, as its columns stand at `now`.

    Without `now`, the clock of the database that the row came from is asked, if the state depends on it.
    `STATE_EXPRESSION` is the same derivation for whole querysets.
    """
    if row.status != Run.Status.RUNNING:
        return cast(State, row.status)
    if row.poisoned_at is not None:
        return "poisoned"
    if row.claim_token is not None:
        return "claimed"
    if now is None:
        now = database_now(_arguments.database(row._state.db))
    if row.wake_at is not None and row.wake_at > now:
        return "scheduled"
    return "queued" if row.tenant_admitted_at is None else "ready"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunView:
    """A run as it stood at one moment. Claim tokens are never shown; payloads stay out of `repr`."""

    run_id: UUID
    tenant_id: str | None
    task_path: str
    state: State
    args: list[Any] = field(repr=False)
    kwargs: dict[str, Any] = field(repr=False)
    saved_state: Any = field(repr=False)
    result: Any = field(repr=False)
    pending_signals: list[Any] = field(repr=False)
    errors: list[dict[str, str]] = field(repr=False)
    queue_name: str
    backend: str
    retry_limit: int
    wake_at: datetime | None
    tenant_admitted_at: datetime | None
    claimed_at: datetime | None
    claimed_by: str | None
    claim_attempts: int
    claim_abandons: int
    failures: int
    checkpoint_seq: int
    poisoned_at: datetime | None
    poison_reason: str | None
    worker_ids: list[str]
    enqueued_at: datetime
    started_at: datetime | None
    last_attempted_at: datetime | None
    finished_at: datetime | None
    updated_at: datetime


_STORED: Final = [column.name for column in fields(RunView) if column.name not in {"state", "saved_state"}]


def get(run_id: UUID | str, *, using: str | None = None) -> RunView:
    """Return the run as it stands now. Raises `RunNotFound`, or `InvalidRun` for what is not a UUID."""
    wanted = _arguments.run_id(run_id)
    found = view(Run.objects.using(_arguments.database(using)).filter(run_id=wanted))
    if found is None:
        raise RunNotFound(wanted)
    return found


def view(queryset: QuerySet[Run]) -> RunView | None:
    """Return the only row of `queryset` as a `RunView`, or None."""
    # The model has a column named state as well, so the derived state travels under another name.
    row = queryset.values(*_STORED, saved_state=F("state"), derived=STATE_EXPRESSION).first()
    return None if row is None else RunView(state=row.pop("derived"), **row)


def database_now(alias: str) -> datetime:
    """Return the clock of the database behind `alias`."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
    return now
