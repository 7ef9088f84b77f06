"""Claiming: `claim_due()` is the only way in, whatever the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from tenantfair import prepared
from tenantfair.claim import lap
from tenantfair.claim.base import Answer, Call, ClaimBatch, Engine, Lease, Plan, Poisoned, Preference
from tenantfair.claim.decode import another_shape, is_unflushed
from tenantfair.claim.legacy import Legacy
from tenantfair.claim.observe import Observation
from tenantfair.claim.tenant_fair import TenantFair
from tenantfair.conf import get_settings
from tenantfair.exceptions import ClaimUnavailable
from tenantfair.sql import load

__all__ = ["Call", "ClaimBatch", "Engine", "Lease", "Poisoned", "claim_due", "due_work_exists", "get_engine"]

_ENGINES: dict[str, Engine] = {engine.name: engine for engine in (TenantFair(), Legacy())}

# SQLSTATEs of refusals that the function could not turn into a row: nothing was claimed either way.
_REFUSALS: Final = {"25006": "read_only_transaction", "55P03": "lock_contention"}
_UNDEFINED_COLUMN: Final = "42703"


def get_engine() -> Engine:
    """Return the engine `settings.TENANTFAIR` names."""
    return _ENGINES[get_settings().engine]


def claim_due(
    demand: int,
    *,
    preference: Preference | None = None,
    engine: Engine | None = None,
    using: str | None = None,
    now: datetime | None = None,
    until: tuple[int, int] | None = None,
    allow_in_transaction: bool = False,
) -> ClaimBatch:
    """Claim up to `demand` runs in a transaction of its own, and return what was granted.

    `preference` matters at demand one: it picks between ready and expired work of one admission tier.
    Due, lease and expiry are decided by the database's clock; `now` replaces it in tests.

    With `until`, a place of the cursor as (laps, ring position), a call that is granted nothing is followed
    by another, in a transaction of its own, until one is granted something, the cursor has come to that
    place, 32 are made, or 100 ms are over. They cost one exchange with the server (decision 0017). A given
    `preference` is the first call's and alternates. The batch is that of the last.

    Raises `ClaimUnavailable`; its reason is `open_transaction` inside an atomic block or with autocommit off,
    where the domain's policy row would stay locked until somebody else's commit; `allow_in_transaction` lifts
    that, in tests and only without `until`. Raises `SchemaMismatch` when the database's function is another
    version's.
    """
    settings = get_settings()
    alias = using or settings.database
    chosen = engine or _ENGINES[settings.engine]
    with Observation(using=alias, engine=chosen, demand=demand) as observation:
        connection = connections[alias]
        own = connection.get_autocommit()
        if not own and (until is not None or not allow_in_transaction):
            raise ClaimUnavailable("open_transaction")
        plan = chosen.plan(demand=demand, preference=preference, now=now, until=until)
        # Somebody else's transaction keeps its own durability.
        unflushed = own and settings.claim_commits == "asynchronous"
        *earlier, answer = _fetch(connection, plan, {"own": own, "unflushed": unflushed})
        observation.earlier = [chosen.decode(each, demand=demand).call for each in earlier]
        batch = chosen.decode(answer, demand=demand)
        if own and not unflushed and batch.call.outcomes and (plan.lap or is_unflushed(answer)):
            # Nothing starts that a crash of the server could forget.
            _fetch(connection, Plan(sql=load("flush_claims"), params={}), {})
        if earlier:
            batch = replace(batch, earlier=observation.earlier)
        observation.batch = batch
        return batch


def _fetch(connection: BaseDatabaseWrapper, plan: Plan, more: Mapping[str, Any]) -> list[Answer]:
    """Return what each call of the plan's statement came to, with times as Django hands them out."""
    try:
        columns, found = prepared.fetch(connection, plan.sql, {**plan.params, **more}, binary=True)
    except DatabaseError as error:
        state = getattr(error.__cause__, "sqlstate", None) or ""
        if state == _UNDEFINED_COLUMN:
            raise another_shape(str(error).partition("\n")[0]) from error
        if state not in _REFUSALS:
            raise
        raise ClaimUnavailable(_REFUSALS[state]) from error
    answers = [Answer(columns, found)]
    if plan.lap:
        session: Any = connection.connection
        answers = lap.answers(answers[0], session.info.timezone)
    if connection.timezone is None:
        answers = [Answer(each.columns, [tuple(map(_naive, row)) for row in each.rows]) for each in answers]
    return answers


def _naive(value: Any) -> Any:
    """Return a time as Django hands it out without USE_TZ: in the session's time zone, and not saying so."""
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def due_work_exists(*, using: str | None = None) -> bool:
    """Return whether a claim could be granted anything; reads only, locks nothing, may err towards True."""
    _, ((found,),) = prepared.fetch(connections[using or get_settings().database], load("due_work_exists"))
    return bool(found)
