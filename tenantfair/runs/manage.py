"""What people and other code may do to a run they do not hold: cancel, interrupt, signal, retry.

Each locks the row, waiting 250 ms at most, decides by the state found, writes and returns the run as it
then stands, in one short transaction or inside the caller's. None of them needs or shows a claim token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from django.db import OperationalError, connections, transaction
from django.db.models import JSONField, Value
from django.db.models.functions import Cast, Now

from tenantfair import payloads, wakeups
from tenantfair.conf import get_settings
from tenantfair.exceptions import InvalidPayload, RunBusy, RunNotActive, RunNotFound
from tenantfair.models import Run
from tenantfair.runs import _arguments, _statements
from tenantfair.runs.outcomes import MAX_SIGNALS
from tenantfair.runs.views import STATE_EXPRESSION, RunView, State, view
from tenantfair.sql import load

# What a decision answers: the columns to write, or None to leave the run as it is. Times stay in the
# database: without USE_TZ one that comes here and goes back can be an hour off while clocks are put back.
Changes = dict[str, Any] | None
Decision = Callable[[Run, State], Changes]

# No claim and no place among the admitted: what every change from outside leaves behind.
_FREED: dict[str, Any] = {
    "claim_token": None,
    "claimed_at": None,
    "claimed_by": None,
    "tenant_admitted_at": None,
    "claim_attempts": 0,
    "claim_abandons": 0,
    "poisoned_at": None,
    "poison_reason": None,
}


def cancel(run_id: UUID | str, *, using: str | None = None) -> RunView:
    """End an unfinished run cancelled, whoever holds it; the holder loses its fence.

    A cancelled run stays as it is; a completed or failed one is `RunNotActive`.
    """

    def decide(run: Run, state: State) -> Changes:
        if state == "cancelled":
            return None
        if state in {"completed", "failed"}:
            raise RunNotActive(run.run_id, state)
        return {**_FREED, "status": Run.Status.CANCELLED, "wake_at": None, "finished_at": Now()}

    return _change(run_id, using, decide)


def interrupt(run_id: UUID | str, *, using: str | None = None) -> RunView:
    """Stop what a run is doing (working, sleeping, waiting) and queue it, due now; a claim is revoked.

    A run that is due and unclaimed already stays as it is, with its place; a poisoned or finished one is
    `RunNotActive`.
    """

    def decide(run: Run, state: State) -> Changes:
        if state in {"queued", "ready"}:
            return None
        if state in {"claimed", "scheduled", "waiting"}:
            return _queued()
        raise RunNotActive(run.run_id, state)

    return _change(run_id, using, decide)


def signal(run_id: UUID | str, payload: Any, *, using: str | None = None) -> RunView:
    """Hand `payload` to an unfinished run: a waiting one is queued, for any other it stays pending.

    No claim is revoked; a run that holds a pending signal does not wait. Raises `RunNotActive` for a finished
    run and `InvalidPayload` when 1,000 signals, or as many bytes as one payload may have, are pending.
    """
    payloads.encode(payload, what="signal")

    def decide(run: Run, state: State) -> Changes:
        if run.finished_at is not None:
            raise RunNotActive(run.run_id, state)
        kept: dict[str, Any] = {"pending_signals": _pending([*run.pending_signals, payload])}
        return {**kept, **_queued()} if state == "waiting" else kept

    return _change(run_id, using, decide)


def retry(run_id: UUID | str, *, using: str | None = None) -> RunView:
    """Queue a poisoned or failed run again, due now, with all its attempts and retries before it.

    A healthy unfinished run stays as it is; a completed or cancelled one is `RunNotActive`.
    """

    def decide(run: Run, state: State) -> Changes:
        if state in {"completed", "cancelled"}:
            raise RunNotActive(run.run_id, state)
        if state not in {"poisoned", "failed"}:
            return None
        return {**_queued(), "failures": 0, "finished_at": None}

    return _change(run_id, using, decide)


def _pending(signals: Sequence[Any]) -> Cast:
    """Return the column's new value; `InvalidPayload` when these are too many or too large together."""
    if len(signals) > MAX_SIGNALS:
        raise InvalidPayload(f"{MAX_SIGNALS} signals are pending already")
    limits = get_settings()
    encoded = [payloads.encode(payload, what="signal", limits=limits) for payload in signals]
    size, limit = sum(map(payloads.size_of, encoded)), limits.max_payload_bytes
    if size > limit:
        raise InvalidPayload(f"the pending signals have {size} bytes of JSON together, the limit is {limit}")
    return Cast(Value(f"[{','.join(encoded)}]"), JSONField())


def _queued() -> dict[str, Any]:
    return {**_FREED, "status": Run.Status.RUNNING, "wake_at": Now()}


def _change(run_id: UUID | str, using: str | None, decide: Decision) -> RunView:
    wanted = _arguments.run_id(run_id)
    alias = _arguments.database(using)
    try:
        return _statements.retried(alias, lambda: _change_once(wanted, alias, decide))
    except OperationalError as error:
        if _statements.sqlstate(error) == _statements.LOCK_NOT_AVAILABLE:
            raise RunBusy(wanted) from error
        raise


def _change_once(run_id: UUID, alias: str, decide: Decision) -> RunView:
    alone = not _statements.in_transaction(alias)
    with transaction.atomic(using=alias):
        run, state = _locked(run_id, alias, alone=alone)
        changes = decide(run, state)
        only = Run.objects.using(alias).filter(pk=run.pk)
        if changes is not None:
            only.update(**changes, updated_at=Now())
            if changes.get("wake_at") is not None:
                wakeups.request(alias)
        found = view(only)
    if found is None:
        raise RunNotFound(run_id)
    return found


def _locked(run_id: UUID, alias: str, *, alone: bool) -> tuple[Run, State]:
    """Return the run, locked, and its state once it is.

    The caller's own lock_timeout is in force again afterwards. Where the transaction is ours `alone`, its
    commit is bounded, too: it may meet a transaction that holds the tenant's count.
    """
    with connections[alias].cursor() as cursor:
        cursor.execute(load("bound_lock_wait"))
        before, bounded = cursor.fetchone()
        run = Run.objects.using(alias).select_for_update(no_key=True).filter(run_id=run_id).first()
        after = bounded if alone else before
        cursor.execute("SELECT set_config('lock_timeout', %s::text, true)", [after])
    if run is None:
        raise RunNotFound(run_id)
    states = Run.objects.using(alias).filter(pk=run.pk).annotate(derived=STATE_EXPRESSION)
    return run, states.values_list("derived", flat=True).get()
