"""How each outcome reads as one row of the statement behind `finish`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from tenantfair import payloads
from tenantfair.claim.base import Lease
from tenantfair.runs import _arguments
from tenantfair.runs.outcomes import (
    UNSET,
    Abandoned,
    Completed,
    Failed,
    Outcome,
    Released,
    Retry,
    Snoozed,
    Waiting,
    Yielded,
    abandon_backoff,
    retry_backoff,
)

# What django.tasks shows for a host that could not load the task: an error class that can be imported.
_ABANDONED_AS: Final = "builtins.ImportError"
_PATH_BYTES: Final = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Write:
    """One row, in the names of the statement's parameters.

    `checkpoint_seq` is the fence where saved state moves, None where it does not.
    """

    run_id: UUID
    claim_token: UUID
    kind: str
    checkpoint_seq: int | None = None
    saved_state: str | None = None
    result: str | None = None
    error: str | None = None
    due_at: datetime | None = None
    delay: timedelta | None = None
    consumed: int = 0

    @property
    def carries_payload(self) -> bool:
        """Whether the row holds values of the host's, which the database may refuse."""
        return not self.result is self.error is self.saved_state is None


def write(outcome: Outcome) -> Write:
    """Return the row for `outcome`. What JSON or PostgreSQL cannot hold ends the run failed, saying why."""
    lease = outcome.lease
    try:
        return _exact(outcome)
    except Exception as error:  # InvalidPayload; or whatever a value of the host's raises while it is read
        return _row(lease, "failed", error=_error(payloads.error_record(error)))


def _exact(outcome: Outcome) -> Write:
    lease = outcome.lease
    match outcome:
        case Completed(result=result):
            return _row(lease, "completed", result=payloads.encode(result, what="result"))
        case Failed(error=error):
            return _row(lease, "failed", error=_error(error))
        case Retry(error=error, delay=delay):
            backoff = retry_backoff(lease.failures) if delay is None else delay
            return _row(lease, "retry", error=_error(error), delay=backoff)
        case Yielded(consumed=consumed):
            return _row(lease, "yielded", state=outcome.state, consumed=consumed)
        case Snoozed(until=until, delay=delay, consumed=consumed):
            due_at = None if until is None else _arguments.moment(until, what="until")
            return _row(lease, "snoozed", state=outcome.state, consumed=consumed, due_at=due_at, delay=delay)
        case Waiting(consumed=consumed):
            return _row(lease, "waiting", state=outcome.state, consumed=consumed)
        case Released(started=started):
            return _row(lease, "released" if started else "returned")
        case Abandoned(reason=reason):
            record = {"exception_class_path": _ABANDONED_AS, "traceback": reason}
            return _row(lease, "abandoned", error=_error(record), delay=abandon_backoff(lease.abandons))


def _row(
    lease: Lease,
    kind: str,
    *,
    state: object = UNSET,
    result: str | None = None,
    error: str | None = None,
    due_at: datetime | None = None,
    delay: timedelta | None = None,
    consumed: int = 0,
) -> Write:
    saves = state is not UNSET
    return Write(
        run_id=lease.run_id,
        claim_token=lease.claim_token,
        kind=kind,
        checkpoint_seq=lease.checkpoint_seq if saves else None,
        saved_state=payloads.encode(state, what="state") if saves else None,
        result=result,
        error=error,
        due_at=due_at,
        delay=delay,
        consumed=consumed,
    )


def _error(record: Mapping[str, str]) -> str:
    safe = {
        "exception_class_path": payloads.safe_error_text(str(record["exception_class_path"]), _PATH_BYTES),
        "traceback": payloads.safe_error_text(str(record["traceback"])),
    }
    return json.dumps(safe)
