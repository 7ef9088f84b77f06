"""What a claim returns, and the seam every engine fits: plan, decode, observe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol
from uuid import UUID

WorkClass = Literal["admitted_ready", "queued_ready", "expired"]
Preference = Literal["ready", "expired"]

_UNSHOWN = frozenset({"claim_token", "args", "kwargs", "state", "signals", "errors"})


class Lease(NamedTuple):
    """The right to work on one run until the lease ends, and all that a start needs.

    Every write by the holder names `run_id` and `claim_token`; `checkpoint_seq` joins them where saved
    state moves. `attempt` counts starts since the last recorded outcome, this one included.

    A named tuple, because a claim makes one for each run: making a frozen dataclass takes ten times as long.
    """

    run_id: UUID
    claim_token: UUID
    claimed_at: datetime
    attempt: int
    checkpoint_seq: int
    tenant_id: str | None
    task_path: str
    args: list[Any]
    kwargs: dict[str, Any]
    state: Any
    signals: list[Any]
    failures: int
    retry_limit: int
    abandons: int
    queue_name: str
    backend: str
    enqueued_at: datetime
    started_at: datetime
    errors: list[Any]
    worker_ids: list[str]
    work_class: WorkClass
    eligible_at: datetime

    def __repr__(self) -> str:
        """Neither the token nor a payload, which would end up in logs."""
        shown = (f"{name}={value!r}" for name, value in self._asdict().items() if name not in _UNSHOWN)
        return f"Lease({', '.join(shown)})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Poisoned:
    """A run that used up its starts and was set aside instead of being leased."""

    run_id: UUID
    tenant_id: str | None
    task_path: str
    poisoned_at: datetime
    poison_reason: str
    work_class: WorkClass


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What one claim call did, free of identities: the `call` row of `tenantfair_claim`.

    `before` and `after` are (laps, cursor) pairs; `denials` counts fruitless inspections by disposition.
    The legacy engine walks no ring and reports zeros.
    """

    demand: int
    inspections: int = 0
    outcomes: int = 0
    denials: Mapping[str, int] = field(default_factory=Counter)
    before: tuple[int, int] = (0, 0)
    after: tuple[int, int] = (0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimBatch:
    """The outcomes of one claim call in the order they were granted.

    `earlier` are the calls before it, where `claim_due(until=...)` made several; they were granted nothing.
    """

    leases: Sequence[Lease]
    poisoned: Sequence[Poisoned]
    call: Call
    earlier: Sequence[Call] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One statement and its parameters. A `lap` answers for several calls, with one array of rows."""

    sql: str
    params: Mapping[str, Any]
    lap: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of a claim statement as the driver hands them over, JSON as text, and their columns' names."""

    columns: Sequence[str]
    rows: Sequence[tuple[Any, ...]]


class Engine(Protocol):
    """A way of choosing what to claim. Engines know nothing of each other."""

    name: str

    def plan(
        self,
        *,
        demand: int,
        preference: Preference | None,
        now: datetime | None = None,
        until: tuple[int, int] | None = None,
    ) -> Plan:
        """Return the statement that claims up to `demand` runs; `now` None is the database's clock.

        With `until`, (laps, cursor), one that goes on to there, if there is a ring to go around.
        """

    def decode(self, answer: Answer, *, demand: int) -> ClaimBatch:
        """Turn the rows of one call into a batch; `ClaimUnavailable` when they hold an error row."""
