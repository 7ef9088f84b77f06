"""No operation leaves a setting of the session, or a lock or listener, behind for whoever gets it next."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from tenantfair import claim, policy, runs
from tenantfair.testing import drain
from tests.factories import claimed_lease, policy_in_force, run_in
from tests.tasks_for_tests import echo

pytestmark = pytest.mark.django_db(transaction=True)

# Pooled sessions are handed on between transactions, so what counts is what is left after each.
OPERATIONS: dict[str, Callable[[], Any]] = {
    "enqueue": lambda: runs.enqueue(echo, tenant_id="acme"),
    "enqueue many": lambda: runs.enqueue_many([runs.NewRun(task=echo, tenant_id=str(n)) for n in range(3)]),
    "claim": lambda: claim.claim_due(8),
    "idle check": claim.due_work_exists,
    "heartbeat": lambda: runs.heartbeat([claimed_lease()]),
    "checkpoint": lambda: runs.checkpoint(claimed_lease(), 1),
    "finish": lambda: runs.finish([runs.Completed(claimed_lease(), 1)]),
    "unstorable finish": lambda: runs.finish([runs.Completed(claimed_lease(), "\0")]),
    "cancel": lambda: runs.cancel(run_in("queued").run_id),
    "interrupt": lambda: runs.interrupt(run_in("claimed").run_id),
    "signal": lambda: runs.signal(run_in("waiting").run_id, 1),
    "retry": lambda: runs.retry(run_in("failed").run_id),
    "prune": lambda: runs.prune(older_than=timedelta(0)),
    "default cap": lambda: policy.put_default(5),
    "override": lambda: policy.put_override("acme", 5),
    "inspect": lambda: policy.inspect("acme"),
    "synchronize": policy.synchronize,
    "drain": drain,
}


def left_behind() -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT name, setting FROM pg_settings WHERE setting <> ''"
            " UNION ALL SELECT 'listens to', pg_listening_channels()"
            " UNION ALL SELECT 'locks', objid::text FROM pg_locks"
            " WHERE pid = pg_backend_pid() AND locktype = 'advisory'"
            " ORDER BY 1, 2"
        )
        return list(cursor.fetchall())


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_session_is_given_back_as_it_was(name: str) -> None:
    policy_in_force()
    run_in("queued")
    before = left_behind()

    OPERATIONS[name]()

    assert left_behind() == before


@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - {"claim"}))
def test_so_it_is_after_a_transaction_of_the_hosts_own(name: str) -> None:
    policy_in_force()
    run_in("queued")
    before = left_behind()

    with transaction.atomic():
        OPERATIONS[name]()

    assert left_behind() == before
