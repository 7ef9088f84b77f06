"""The engine of exact caps and bounded rotation: calls of the six-argument function."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Final

from tenantfair.claim.base import Answer, Call, ClaimBatch, Plan, Preference
from tenantfair.claim.decode import decode_outcomes, known_shape, refuse_error_row, rows_of_kind
from tenantfair.sql import load

# A worker soon hears of anything else that it is to do.
LONGEST_WALK: Final = timedelta(milliseconds=100)


class TenantFair:
    """Claims through `tenantfair_claim` (`sql/tenantfair_claim.v1.sql`)."""

    name = "tenant_fair"

    def plan(
        self,
        *,
        demand: int,
        preference: Preference | None,
        now: datetime | None = None,
        until: tuple[int, int] | None = None,
    ) -> Plan:
        """Return the claim statement; `now` is for tests, None is the database's clock."""
        params = {"now": now, "demand": demand, "preference": preference}
        if until is None:
            return Plan(sql=load("claim"), params={**params, "trace": False})
        laps, cursor = until
        return Plan(
            sql=load("claim_lap"),
            params={**params, "laps": laps, "cursor": cursor, "time": LONGEST_WALK},
            lap=True,
        )

    @known_shape()
    def decode(self, answer: Answer, *, demand: int) -> ClaimBatch:
        """Return outcomes and the call's own row; `ClaimUnavailable` for an error row."""
        refuse_error_row(answer)
        leases, poisoned = decode_outcomes(answer)
        (call,) = rows_of_kind(answer, "call")
        return ClaimBatch(
            leases=leases,
            poisoned=poisoned,
            call=Call(
                demand=demand,
                inspections=call["inspections"],
                outcomes=call["outcome_count"],
                denials=json.loads(call["denials"]),
                before=(call["laps_before"], call["cursor_before"]),
                after=(call["laps_after"], call["cursor_after"]),
            ),
        )
