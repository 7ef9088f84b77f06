"""The outcomes that the state machine knows by name."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from tenantfair import runs

ERROR = {"exception_class_path": "builtins.ValueError", "traceback": "ValueError: no"}


def outcome(lease: Any, kind: str, delay: int, value: Any, consumed: int) -> Any:
    state = runs.UNSET if value is None else value
    later = timedelta(seconds=delay)
    match kind:
        case "completed":
            return runs.Completed(lease, value)
        case "failed":
            return runs.Failed(lease, ERROR)
        case "retry":
            return runs.Retry(lease, ERROR, later)
        case "backoff":
            return runs.Retry(lease, ERROR)
        case "yielded":
            return runs.Yielded(lease, state, consumed)
        case "snoozed":
            return runs.Snoozed(lease, delay=later, state=state, consumed=consumed)
        case "until":
            return runs.Snoozed(lease, until=timezone.now() + later, state=state, consumed=consumed)
        case "waiting":
            return runs.Waiting(lease, state, consumed)
        case "abandoned":
            return runs.Abandoned(lease, "no such module")
    return runs.Released(lease, started=kind == "released")


def backoff(kind: str, lease: Any) -> tuple[float, float]:
    """Between what delays a random wake-up lies, in seconds."""
    if kind == "backoff":
        return 0, min(3600, 5 * 2**lease.failures)
    longest = min(3600, 30 * 2**lease.abandons)
    return longest / 2, longest
