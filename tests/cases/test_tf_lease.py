"""A lease that another worker's start has shortened does not end under work that is renewed as before."""

from __future__ import annotations

import pytest

from tenantfair.models import Run
from tenantfair.worker.database import WorkerConnections
from tenantfair.worker.heartbeat import Heartbeat
from tenantfair.worker.holdings import Holdings
from tests.factories import claimed_lease, policy_in_force
from tests.threads import LONGEST_WAIT_SECONDS, in_django_thread
from tests.worker_parts import NEVER, until

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_heartbeat_follows_the_domain_to_a_shorter_lease() -> None:
    policy_in_force(lease_seconds=1)
    holdings = Holdings(places=1)
    runs = Run.objects.filter(run_id=holdings.take(claimed_lease()).lease.run_id)
    heartbeat = Heartbeat(
        connections_of=WorkerConnections("default", "beats"),
        holdings=holdings,
        interval=NEVER,
        lease_seconds=60,
        worker_id="beats",
    )
    heartbeat.renew()
    first = runs.get().claimed_at
    assert first is not None

    beating = in_django_thread(heartbeat.run)
    until(lambda: runs.filter(claimed_at__gt=first).exists(), "the lease is renewed again")

    heartbeat.stop()
    beating.result(timeout=LONGEST_WAIT_SECONDS)
