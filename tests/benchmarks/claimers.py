"""The ways to claim that are compared: two floors, the bare SQL function, and `claim_due()`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, LiteralString

from tests.benchmarks import site
from tests.benchmarks.rows import FLOOR, OWN_FLOOR
from tests.benchmarks.server import connect

FUNCTION = "function"
FACADE = "facade"
VARIANTS = (FLOOR, OWN_FLOOR, FUNCTION, FACADE)
THROUGH = {
    FLOOR: "one UPDATE on a one-index table",
    OWN_FLOOR: "one UPDATE on the run table",
    FUNCTION: "tenantfair_claim, prepared by psycopg",
    FACADE: "claim_due(), a worker's session",
}
WALKING = "claim_due(), around the ring as a worker goes"

# What was claimed: the tenant, and what a finish needs to name it by. None is a refused call.
Claimed = list[tuple[str | None, Any]]
Claim = Callable[[], Claimed | None]
# How many calls it took, and what the last of them claimed.
Walk = Callable[[], tuple[int, Claimed]]
Finish = Callable[[Sequence[Any]], None]

# "= ANY (ARRAY (...))" runs the sub-select once whatever the statistics say.
FLOOR_CLAIM: LiteralString = """
    UPDATE job SET state = 1, claimed_at = now(), token = gen_random_uuid()
    WHERE id = ANY (ARRAY (
        SELECT id FROM job WHERE state = 0 AND run_at <= now()
        ORDER BY run_at, id LIMIT %s FOR UPDATE SKIP LOCKED
    ))
    RETURNING tenant, id
"""
OWN_FLOOR_CLAIM: LiteralString = """
    UPDATE tenantfair_run SET
        wake_at = NULL, claim_token = gen_random_uuid(), claimed_at = now(), tenant_admitted_at = now()
    WHERE id = ANY (ARRAY (
        SELECT id FROM tenantfair_run WHERE status = 'running' AND wake_at <= now()
        ORDER BY wake_at, id LIMIT %s FOR UPDATE SKIP LOCKED
    ))
    RETURNING tenant_id, id
"""
# What a start needs, as the server has it.
FUNCTION_CLAIM: LiteralString = """
    SELECT
        row_kind, tenant_id, claim_token, run_id, task_path, args::text, kwargs::text, state::text,
        signals::text, checkpoint_seq, claimed_at, claim_attempt
    FROM tenantfair_claim(clock_timestamp(), clock_timestamp() - interval '1 minute', %s, 5, NULL, false)
"""
FLOOR_FINISH: LiteralString = "UPDATE job SET state = 2 WHERE id = ANY (%s)"
OWN_FLOOR_FINISH: LiteralString = """
    UPDATE tenantfair_run SET
        status = 'completed', finished_at = now(),
        claim_token = NULL, claimed_at = NULL, tenant_admitted_at = NULL
    WHERE id = ANY (%s)
"""


def claimer(variant: str, url: str, demand: int) -> Claim:
    """Return a callable that makes one claim of `demand` runs."""
    if variant == FACADE:
        return _facade_claimer(url, demand)
    session = connect(url)
    if variant == FUNCTION:
        return lambda: _outcomes(session.execute(FUNCTION_CLAIM, [demand], binary=True).fetchall())
    statement = FLOOR_CLAIM if variant == FLOOR else OWN_FLOOR_CLAIM
    return lambda: session.execute(statement, [demand]).fetchall()


def walker(variant: str, url: str, demand: int, *, most_calls: int) -> Walk:
    """Return a callable that claims until something is granted, as a worker's dispatcher does."""
    if variant == FACADE:
        return _facade_walker(url, demand, most_calls)
    claim = claimer(variant, url, demand)

    def walk() -> tuple[int, Claimed]:
        calls, found = 1, claim()
        while not found and calls < most_calls:
            calls, found = calls + 1, claim()
        return calls, found or []

    return walk


def finisher(variant: str, url: str) -> Finish:
    """Return a callable that completes what a claimer of the same variant returned."""
    if variant == FACADE:
        return _facade_finisher(url)
    session = connect(url)
    statement = FLOOR_FINISH if variant == FLOOR else OWN_FLOOR_FINISH
    return lambda handles: (session.execute(statement, [list(handles)]), None)[1]


def rehearse(url: str) -> None:
    """Let a worker's session claim from the last position and undo it, so that it has its plans."""
    from django.db import connection, transaction

    from tenantfair.claim import claim_due

    site.use_as_worker(url)
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE tenantfair_policy SET scan_ring_position ="
                " (SELECT max(ring_position) - 1 FROM tenantfair_schedule)"
            )
        if not claim_due(1, allow_in_transaction=True).leases:
            raise RuntimeError("the last tenant has nothing to claim")
        transaction.set_rollback(True)


def _outcomes(found: Sequence[tuple[Any, ...]]) -> Claimed | None:
    if any(kind == "error" for kind, *_ in found):
        return None
    return [(tenant, token) for kind, tenant, token, *_ in found if kind == "outcome"]


def _facade_claimer(url: str, demand: int) -> Claim:
    site.use_as_worker(url)
    from tenantfair.claim import claim_due
    from tenantfair.exceptions import ClaimUnavailable

    def claim() -> Claimed | None:
        try:
            return [(lease.tenant_id, lease) for lease in claim_due(demand).leases]
        except ClaimUnavailable:
            return None

    return claim


def _facade_walker(url: str, demand: int, most_calls: int) -> Walk:
    site.use_as_worker(url)
    from tenantfair.claim import claim_due

    def walk() -> tuple[int, Claimed]:
        batch = claim_due(demand)
        calls, (laps, cursor) = 1, batch.call.before
        while not batch.call.outcomes and calls < most_calls:
            batch = claim_due(demand, until=(laps + 1, cursor))
            calls += len(batch.earlier) + 1
        return calls, [(lease.tenant_id, lease) for lease in batch.leases]

    return walk


def _facade_finisher(url: str) -> Finish:
    site.use_as_worker(url)
    from tenantfair import runs

    def finish(leases: Sequence[Any]) -> None:
        runs.finish([runs.Completed(lease, None) for lease in leases])

    return finish
