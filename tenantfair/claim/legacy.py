"""The tenant-blind engine: due or expired, oldest first. The default of TENANT_MODE "none" only."""

from __future__ import annotations

from datetime import datetime

from tenantfair.claim.base import Answer, Call, ClaimBatch, Plan, Preference
from tenantfair.claim.decode import decode_outcomes, known_shape, refuse_error_row
from tenantfair.sql import load


class Legacy:
    """Claims by one statement (`sql/legacy_claim.sql`) that shares the policy row."""

    name = "legacy"

    def plan(
        self,
        *,
        demand: int,
        preference: Preference | None,
        now: datetime | None = None,
        until: tuple[int, int] | None = None,
    ) -> Plan:
        """Return the claim statement; age alone decides, whatever `preference` says, and there is no ring."""
        return Plan(sql=load("legacy_claim"), params={"now": now, "demand": demand})

    @known_shape()
    def decode(self, answer: Answer, *, demand: int) -> ClaimBatch:
        """Return the outcomes; `ClaimUnavailable` for an error row."""
        refuse_error_row(answer)
        leases, poisoned = decode_outcomes(answer)
        return ClaimBatch(
            leases=leases,
            poisoned=poisoned,
            call=Call(demand=demand, outcomes=len(leases) + len(poisoned)),
        )
