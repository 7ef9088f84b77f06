"""A random walk through everything that can happen to runs: the cap holds after every step."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import Count, Q

from tenantfair import runs
from tenantfair.claim.base import Lease
from tenantfair.exceptions import RunNotActive, StaleClaim
from tenantfair.models import Partition, Run
from tests.factories import LONG_AGO, claim, policy_in_force
from tests.tasks_for_tests import add

TENANTS = ("a", "b", None)
ERROR = {"exception_class_path": "builtins.ValueError", "traceback": "ValueError: no"}


class Walk:
    """One domain of three scopes, the leases given out so far, live and stale, and every step there is."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.leases: list[Lease] = []
        self.admitted: dict[str, int] = {}
        self.default = 2
        policy_in_force(max_active=self.default, max_attempts=2)

    def step(self) -> None:
        steps: list[Callable[[], object]] = [
            self.enqueue,
            self.claim,
            self.claim,
            self.finish,
            self.finish,
            self.outside,
            self.heartbeat,
            self.checkpoint,
            self.expire,
            self.fall_due,
            self.change_cap,
        ]
        self.random.choice(steps)()

    def enqueue(self) -> None:
        tenant = self.random.choice(TENANTS)
        runs.enqueue(add, tenant_id=runs.TENANTLESS if tenant is None else tenant)

    def claim(self) -> None:
        self.leases += claim(self.random.randint(1, 4)).leases

    def lease(self) -> Lease | None:
        return self.random.choice(self.leases) if self.leases else None

    def finish(self) -> None:
        lease = self.lease()
        if lease is None:
            return
        delay = timedelta(seconds=self.random.choice([0, 3600]))
        outcome: runs.Outcome = self.random.choice(
            [
                runs.Completed(lease, 1),
                runs.Failed(lease, ERROR),
                runs.Retry(lease, ERROR, delay),
                runs.Yielded(lease, state=1),
                runs.Snoozed(lease, delay=delay),
                runs.Waiting(lease),
                runs.Released(lease, started=False),
                runs.Released(lease, started=True),
                runs.Abandoned(lease, "x"),
            ]
        )
        runs.finish([outcome])

    def outside(self) -> None:
        run = self.random.choice([*Run.objects.all(), None])
        if run is None:
            return
        operation: Callable[..., object] = self.random.choice(
            [runs.cancel, runs.interrupt, runs.retry, self.signal]
        )
        try:
            operation(run.run_id)
        except RunNotActive:
            assert run.finished_at is not None or run.poisoned_at is not None

    def signal(self, run_id: object) -> None:
        runs.signal(run_id, "s")  # type: ignore[arg-type]

    def heartbeat(self) -> None:
        runs.heartbeat(self.leases[-5:])

    def checkpoint(self) -> None:
        lease = self.lease()
        if lease is not None:
            try:
                runs.checkpoint(lease, 1)
            except StaleClaim:
                self.leases.remove(lease)

    def expire(self) -> None:
        Run.objects.filter(claim_token__isnull=False).update(claimed_at=LONG_AGO)

    def fall_due(self) -> None:
        Run.objects.filter(wake_at__isnull=False).update(wake_at=LONG_AGO)

    def change_cap(self) -> None:
        self.default = self.random.randint(1, 3)
        policy_in_force(max_active=self.default, max_attempts=2)

    def check(self) -> None:
        """Live claims <= admitted <= cap, or admitted that does not grow while it is in debt."""
        found = Run.objects.values("scope_key").annotate(
            live=Count("id", filter=Q(claim_token__isnull=False)),
            admitted=Count("id", filter=Q(tenant_admitted_at__isnull=False)),
        )
        for scope in found:
            assert scope["live"] <= scope["admitted"]
            before = self.admitted.get(scope["scope_key"], 0)
            assert scope["admitted"] <= max(self.default, before)
            self.admitted[scope["scope_key"]] = scope["admitted"]
        odd = Q(tenant_admitted_at__isnull=False) & Q(claim_token__isnull=True, wake_at__isnull=True)
        assert not Run.objects.filter(odd).exists()

    def check_counts(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
            cursor.execute("SET CONSTRAINTS ALL DEFERRED")
        unfinished = dict(
            Run.objects.filter(finished_at__isnull=True)
            .values_list("scope_key")
            .annotate(number=Count("id"))
            .order_by()
        )
        for partition in Partition.objects.select_related("schedule"):
            assert partition.schedule.unfinished_count == unfinished.get(partition.scope_key, 0)


@pytest.mark.django_db
@pytest.mark.conformance(121)
@pytest.mark.parametrize("seed", range(12))
def test_the_cap_holds_after_every_step(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(120):
        walk.step()
        walk.check()
    walk.check_counts()
    # Debt is worked off and nothing is stuck: everything can still be brought to its end.
    Run.objects.filter(wake_at__isnull=False).update(wake_at=LONG_AGO)
    walk.change_cap()
    for _ in range(200):
        walk.expire()
        batch = claim(8)
        runs.finish([runs.Completed(lease, 1) for lease in batch.leases])
        if not batch.leases and not batch.poisoned and batch.call.outcomes == 0:
            break
        walk.check()
    left = {runs.get(run.run_id).state for run in Run.objects.filter(finished_at__isnull=True)}
    assert left <= {"waiting", "poisoned"}
