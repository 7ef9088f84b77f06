"""Runs from enqueue to their end: the public operations on them.

Anybody: `enqueue`, `enqueue_many`, `get`, `cancel`, `interrupt`, `signal`, `retry`, `prune`. The holder of a
lease: `heartbeat`, `checkpoint`, `finish`, `settle`; each of these is fenced by the lease's claim token.
`using=None` is the database that the settings name; for an enqueue, the one of the task's backend.
"""

from tenantfair.runs.enqueuing import enqueue, enqueue_many
from tenantfair.runs.finishing import Settlement, finish, settle
from tenantfair.runs.holder import checkpoint, heartbeat
from tenantfair.runs.manage import cancel, interrupt, retry, signal
from tenantfair.runs.new import TENANTLESS, NewRun
from tenantfair.runs.outcomes import (
    MAX_SIGNALS,
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
)
from tenantfair.runs.pruning import PruneResult, prune
from tenantfair.runs.views import STATE_EXPRESSION, RunView, State, get, state_of

__all__ = [
    "MAX_SIGNALS",
    "STATE_EXPRESSION",
    "TENANTLESS",
    "UNSET",
    "Abandoned",
    "Completed",
    "Failed",
    "NewRun",
    "Outcome",
    "PruneResult",
    "Released",
    "Retry",
    "RunView",
    "Settlement",
    "Snoozed",
    "State",
    "Waiting",
    "Yielded",
    "cancel",
    "checkpoint",
    "enqueue",
    "enqueue_many",
    "finish",
    "get",
    "heartbeat",
    "interrupt",
    "prune",
    "retry",
    "settle",
    "signal",
    "state_of",
]
