"""What a lease's holder may do while the task runs. A lost fence is a result, never an effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from tenantfair import payloads
from tenantfair.claim.base import Lease
from tenantfair.exceptions import StaleClaim
from tenantfair.runs import _arguments, _statements
from tenantfair.sql import load


def heartbeat(leases: Sequence[Lease], *, using: str | None = None) -> set[UUID]:
    """Extend `leases` and return the ids of those whose fence still holds; the others are lost.

    Never waits: a row that another session has locked keeps its lease for now and counts as held.
    """
    return set(extend(leases, using=using))


def extend(leases: Sequence[Lease], *, using: str | None = None) -> dict[UUID, bool]:
    """As `heartbeat()`, and say of each run whose fence holds whether its lease was extended.

    It was not where another session has locked the row; try again soon, for the lease may end meanwhile.
    """
    if not leases:
        return {}
    alias = _arguments.database(using)
    params = {
        "run_id": [lease.run_id for lease in leases],
        "claim_token": [lease.claim_token for lease in leases],
    }
    return dict(_statements.retried(alias, lambda: _statements.rows(alias, load("heartbeat_leases"), params)))


def saved_checkpoint(lease: Lease, *, using: str | None = None) -> int:
    """Return the number of the last checkpoint stored under the claim of `lease`, -1 when that is lost."""
    alias = _arguments.database(using)
    params = {"run_id": lease.run_id, "claim_token": lease.claim_token}
    found = _statements.rows(alias, load("saved_checkpoint"), params)
    return int(found[0][0]) if found else -1


def checkpoint(lease: Lease, state: Any, *, using: str | None = None) -> int:
    """Save `state` and return the new checkpoint number; claim and place are kept, attempts start anew.

    The lease's own `checkpoint_seq` must be the stored one: afterwards go on with
    `lease._replace(checkpoint_seq=...)`. Raises `StaleClaim` or `InvalidPayload`.
    """
    alias = _arguments.database(using)
    params = {
        "run_id": lease.run_id,
        "claim_token": lease.claim_token,
        "checkpoint_seq": lease.checkpoint_seq,
        "state": payloads.encode(state, what="state"),
    }
    found = _statements.retried(alias, lambda: _statements.rows(alias, load("checkpoint_run"), params))
    if not found:
        raise StaleClaim(lease.run_id)
    return int(found[0][0])
