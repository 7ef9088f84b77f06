"""The engine of exact caps and bounded rotation: one call of the six-argument function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from tenantfair.claim.base import Call, ClaimBatch, Plan, Preference
from tenantfair.claim.decode import decode_outcomes, known_shape, refuse_error_row
from tenantfair.sql import load


class TenantFair:
    """Claims through `tenantfair_claim` (`sql/tenantfair_claim.v1.sql`)."""

    name = "tenant_fair"

    def plan(self, *, demand: int, preference: Preference | None, now: datetime | None = None) -> Plan:
        """Return the claim statement; `now` is for tests, None is the database's clock."""
        return Plan(
            sql=load("claim"),
            params={"now": now, "demand": demand, "preference": preference, "trace": False},
        )

    @known_shape()
    def decode(self, rows: Sequence[Mapping[str, Any]], *, demand: int) -> ClaimBatch:
        """Return outcomes and the call's own row; `ClaimUnavailable` for an error row."""
        refuse_error_row(rows)
        leases, poisoned = decode_outcomes(rows)
        (call,) = (row for row in rows if row["row_kind"] == "call")
        return ClaimBatch(
            leases=leases,
            poisoned=poisoned,
            call=Call(
                demand=demand,
                inspections=call["inspections"],
                outcomes=call["outcome_count"],
                denials=call["denials"],
                before=(call["laps_before"], call["cursor_before"]),
                after=(call["laps_after"], call["cursor_after"]),
            ),
        )
