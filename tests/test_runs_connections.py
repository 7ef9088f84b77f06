"""Every operation on every kind of connection a host may have configured."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from psycopg import IsolationLevel

from tenantfair import runs
from tenantfair.claim.base import Lease
from tenantfair.exceptions import InvalidRun, RunBusy, RunExists
from tenantfair.models import Run
from tenantfair.runs import NewRun
from tests.domains import migrate, scratch_alias
from tests.factories import LONG_AGO, lease_of
from tests.rows import result
from tests.tasks_for_tests import add
from tests.threads import in_django_thread

pytestmark = pytest.mark.django_db(transaction=True)

ERROR = {"exception_class_path": "builtins.ValueError", "traceback": "ValueError: no"}
KINDS: dict[str, dict[str, Any]] = {
    "server-side binding": {"server_side_binding": True},
    "prepared statements": {"server_side_binding": True, "prepare_threshold": 1},
    "repeatable read": {"isolation_level": IsolationLevel.REPEATABLE_READ},
    "serializable": {"isolation_level": IsolationLevel.SERIALIZABLE},
    "pool": {"pool": {"min_size": 1, "max_size": 4}},
}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def alias(request: pytest.FixtureRequest) -> Iterator[str]:
    with scratch_alias("runs_connections", **request.param) as name:
        migrate(name)
        yield name
        close_pool = getattr(connections[name], "close_pool", None)
        connections[name].close()
        if close_pool is not None:
            close_pool()


def claimed(alias: str, run_id: uuid.UUID) -> Lease:
    """Claim one run by hand: a claim itself refuses the stricter isolation levels."""
    Run.objects.using(alias).filter(run_id=run_id).update(
        wake_at=None,
        claim_token=uuid.uuid4(),
        claimed_at=LONG_AGO,
        tenant_admitted_at=LONG_AGO,
        worker_ids=["w"],
        claim_attempts=1,
    )
    return lease_of(Run.objects.using(alias).get(run_id=run_id), started_at=LONG_AGO)


def test_a_run_lives_its_whole_life(alias: str) -> None:
    first = runs.enqueue(add, args=[1], tenant_id="acme", using=alias)
    assert runs.get(first, using=alias).state == "queued"
    with pytest.raises(RunExists):
        runs.enqueue(add, tenant_id="acme", run_id=first, using=alias)
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    many = runs.enqueue_many(
        [
            NewRun(task=add, tenant_id="acme"),
            NewRun(task=add, tenant_id="acme", run_after=moment),
            NewRun(task=add, tenant_id=runs.TENANTLESS, run_after=timedelta(days=1)),
            *[NewRun(task=add, tenant_id="b") for _ in range(5)],
        ],
        using=alias,
    )
    assert [runs.get(run_id, using=alias).state for run_id in many[:3]] == [
        "queued",
        "scheduled",
        "scheduled",
    ]
    leases = [claimed(alias, run_id) for run_id in [first, *many]]
    assert runs.heartbeat(leases, using=alias) == {lease.run_id for lease in leases}
    leases[0] = leases[0]._replace(checkpoint_seq=runs.checkpoint(leases[0], {"n": 1}, using=alias))
    runs.signal(leases[5].run_id, {"s": 1}, using=alias)
    batch: list[runs.Outcome] = [
        runs.Completed(leases[0], {"r": 1}),
        runs.Failed(leases[1], ERROR),
        runs.Retry(leases[2], ERROR),
        runs.Yielded(leases[3], state=None),
        runs.Snoozed(leases[4], moment),
        runs.Waiting(leases[5]),
        runs.Waiting(leases[6], consumed=1),
        runs.Released(leases[7], started=False),
        runs.Abandoned(leases[8], "why"),
    ]
    assert runs.finish(batch, using=alias) == {lease.run_id for lease in leases}
    assert [runs.get(lease.run_id, using=alias).state for lease in leases[3:8]] == [
        "ready",
        "scheduled",
        "queued",
        "waiting",
        "ready",
    ]
    assert runs.signal(leases[6].run_id, 1, using=alias).state == "queued"
    assert runs.interrupt(leases[4].run_id, using=alias).state == "queued"
    assert runs.cancel(leases[4].run_id, using=alias).state == "cancelled"
    assert runs.retry(leases[1].run_id, using=alias).state == "queued"
    result_of_prune = runs.prune(older_than=timedelta(0), using=alias)
    assert (result_of_prune.deleted, result_of_prune.protected) == (2, 0)
    assert not Run.objects.exists()


def test_a_row_locked_elsewhere_is_busy(alias: str) -> None:
    lease = claimed(alias, runs.enqueue(add, tenant_id="acme", using=alias))
    with transaction.atomic(using=alias):
        runs.signal(lease.run_id, 1, using=alias)

        def elsewhere() -> None:
            connections[alias].connect()
            with pytest.raises(RunBusy):
                runs.cancel(lease.run_id, using=alias)
            assert runs.settle([runs.Completed(lease, 1)], using=alias).busy == {lease.run_id}
            assert runs.heartbeat([lease], using=alias) == {lease.run_id}

        result(in_django_thread(elsewhere))
    assert runs.finish([runs.Completed(lease, 1)], using=alias) == {lease.run_id}


def test_many_threads_finish_runs_of_one_tenant(alias: str) -> None:
    """Their commits meet at one count; what the isolation level refuses is tried again."""
    ids = runs.enqueue_many([NewRun(task=add, tenant_id="acme") for _ in range(24)], using=alias)
    leases = [claimed(alias, run_id) for run_id in ids]

    def finish(mine: list[Lease]) -> set[uuid.UUID]:
        connections[alias].connect()
        return {run_id for lease in mine for run_id in runs.finish([runs.Completed(lease, 1)], using=alias)}

    futures = [in_django_thread(lambda mine=leases[n::3]: finish(mine)) for n in range(3)]
    assert set().union(*map(result, futures)) == set(ids)
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT unfinished_count FROM tenantfair_schedule")
        assert cursor.fetchall() == [(0,)]


@pytest.mark.django_db(transaction=True)
def test_without_time_zones_naive_times_are_local(settings: Any) -> None:
    settings.USE_TZ = False
    settings.TIME_ZONE = "Europe/Berlin"
    with scratch_alias("runs_naive") as alias:
        migrate(alias)
        summer = datetime(2030, 7, 1, 12, 0)
        run_id = runs.enqueue(add, tenant_id="acme", run_after=summer, using=alias)
        assert runs.get(run_id, using=alias).wake_at == summer
        assert runs.get(run_id, using=alias).state == "scheduled"
        aware = datetime(2030, 7, 1, 10, 0, tzinfo=UTC)
        assert (
            runs.get(runs.enqueue(add, tenant_id="acme", run_after=aware, using=alias), using=alias).wake_at
            == summer
        )
        for gap_or_overlap in (datetime(2030, 3, 31, 2, 30), datetime(2030, 10, 27, 2, 30)):
            runs.enqueue(add, tenant_id="acme", run_after=gap_or_overlap, using=alias)
        assert runs.interrupt(run_id, using=alias).state == "queued"
        assert runs.state_of(Run.objects.using(alias).get(run_id=run_id)) == "queued"
        lease = claimed(alias, run_id)
        assert runs.finish([runs.Snoozed(lease, summer)], using=alias) == {run_id}
        assert runs.get(run_id, using=alias).wake_at == summer
        assert runs.cancel(run_id, using=alias).state == "cancelled"
        assert runs.prune(older_than=timedelta(0), using=alias).deleted == 1


def test_with_time_zones_naive_times_are_refused() -> None:
    with pytest.raises(InvalidRun, match="aware"):
        runs.enqueue(add, tenant_id="acme", run_after=datetime(2030, 1, 1))
