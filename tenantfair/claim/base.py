"""What a claim returns, and the seam every engine fits: plan, decode, observe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol
from uuid import UUID

WorkClass = Literal["admitted_ready", "queued_ready", "expired"]
Preference = Literal["ready", "expired"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """The right to work on one run until the lease ends, and all that a start needs.

    Every write by the holder names `run_id` and `claim_token`; `checkpoint_seq` joins them where saved
    state moves. `attempt` counts starts since the last recorded outcome, this one included.
    """

    run_id: UUID
    claim_token: UUID = field(repr=False)
    claimed_at: datetime
    attempt: int
    checkpoint_seq: int
    tenant_id: str | None
    task_path: str
    args: list[Any] = field(repr=False)
    kwargs: dict[str, Any] = field(repr=False)
    state: Any = field(repr=False)
    signals: list[Any] = field(repr=False)
    failures: int
    retry_limit: int
    abandons: int
    queue_name: str
    backend: str
    enqueued_at: datetime
    started_at: datetime
    errors: list[Any] = field(repr=False)
    worker_ids: list[str]
    work_class: WorkClass
    eligible_at: datetime


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
    """What one claim call did, free of identities: the `call` row of contract 3, D11.

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
    """The outcomes of one claim call in the order they were granted."""

    leases: Sequence[Lease]
    poisoned: Sequence[Poisoned]
    call: Call


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One statement and its parameters."""

    sql: str
    params: Mapping[str, Any]


class Engine(Protocol):
    """A way of choosing what to claim. Engines know nothing of each other."""

    name: str

    def plan(self, *, demand: int, preference: Preference | None, now: datetime | None = None) -> Plan:
        """Return the statement that claims up to `demand` runs; `now` None is the database's clock."""

    def decode(self, rows: Sequence[Mapping[str, Any]], *, demand: int) -> ClaimBatch:
        """Turn its rows into a batch; `ClaimUnavailable` when they hold an error row."""
