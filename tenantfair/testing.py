"""For a host's own tests: run what has been enqueued, in the test's thread and transaction.

def test_import(self):
    for_tenant(import_statement, "acme").enqueue(statement.pk)
    drain()
    self.assertEqual(Booking.objects.count(), 3)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django.db import connections
from psycopg.pq import TransactionStatus

from tenantfair import claim, policy, runs
from tenantfair.claim.base import Lease
from tenantfair.conf import get_settings
from tenantfair.execution import execute
from tenantfair.runs import Outcome

_BATCH = 32


def drain(*, using: str | None = None, limit: int = 1000) -> list[Outcome]:
    """Claim and run all that is due, by the same claim and policy as a worker; return the outcomes in order.

    Runs enqueued by tasks are run too; what is not due yet, a retry after its back-off included, stays. More
    than `limit` attempts raise `RuntimeError`, for some run comes back for ever. Works inside `TestCase`: a
    statement of a task that fails there takes back what that attempt wrote, so that the test can go on.
    """
    alias = using if using is not None else get_settings().database
    policy.synchronize(using=alias)
    outcomes: list[Outcome] = []
    for leases in _batches(alias):
        for lease in leases:
            if len(outcomes) == limit:
                raise RuntimeError(
                    f"drain() has run {limit} attempts and is not done; {lease.task_path} is due again"
                )
            outcomes.append(_run(lease, alias))
            runs.finish([outcomes[-1]], using=alias)
    return outcomes


def _batches(alias: str) -> Iterator[Sequence[Lease]]:
    """Claim until a whole lap of the ring has granted nothing."""
    fruitless_since: tuple[int, int] | None = None
    while True:
        batch = claim.claim_due(_BATCH, using=alias, allow_in_transaction=True)
        yield batch.leases
        if batch.call.outcomes:
            fruitless_since = None
            continue
        before, after = batch.call.before, batch.call.after
        fruitless_since = fruitless_since or before
        if after == before or after >= (fruitless_since[0] + 1, fruitless_since[1]):
            return


def _run(lease: Lease, alias: str) -> Outcome:
    """Run one attempt; behind a savepoint in a transaction, where an error would break all that follows."""
    connection = connections[alias]
    # Not an atomic block: a task may open a durable one, which must not be nested.
    savepoint = connection.savepoint()
    outcome = execute(lease, using=alias, worker_id="drain")
    if savepoint is None:
        return outcome
    status = connection.connection.info.transaction_status
    if connection.needs_rollback or status == TransactionStatus.INERROR:
        connection.set_rollback(False)
        connection.savepoint_rollback(savepoint)
    else:
        connection.savepoint_commit(savepoint)
    return outcome
