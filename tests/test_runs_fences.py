"""No holder whose fence is lost has any effect: every operation, every way to lose it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tenantfair import runs
from tenantfair.claim.base import Lease
from tenantfair.exceptions import StaleClaim
from tenantfair.models import Run
from tests.factories import LONG_AGO, claim, claimed_lease, policy_in_force, snapshot
from tests.tasks_for_tests import add

pytestmark = pytest.mark.django_db

ERROR = {"exception_class_path": "builtins.ValueError", "traceback": "ValueError: no"}


def checkpoint(lease: Lease) -> set[uuid.UUID]:
    with pytest.raises(StaleClaim) as raised:
        runs.checkpoint(lease, {"stale": True})
    assert raised.value.run_id == lease.run_id
    return set()


def finishing(make: Callable[[Lease], runs.Outcome]) -> Callable[[Lease], set[uuid.UUID]]:
    return lambda lease: runs.finish([make(lease)])


OPERATIONS: dict[str, Callable[[Lease], set[uuid.UUID]]] = {
    "heartbeat": lambda lease: runs.heartbeat([lease]),
    "checkpoint": checkpoint,
    "complete": finishing(lambda lease: runs.Completed(lease, "stale")),
    "complete with what cannot be stored": finishing(lambda lease: runs.Completed(lease, float("nan"))),
    "fail": finishing(lambda lease: runs.Failed(lease, ERROR)),
    "retry": finishing(lambda lease: runs.Retry(lease, ERROR)),
    "yield": finishing(runs.Yielded),
    "yield with state": finishing(lambda lease: runs.Yielded(lease, state=1)),
    "snooze": finishing(lambda lease: runs.Snoozed(lease, delay=timedelta(0))),
    "wait": finishing(runs.Waiting),
    "wait with state": finishing(lambda lease: runs.Waiting(lease, state=1, consumed=1)),
    "release": finishing(lambda lease: runs.Released(lease, started=False)),
    "release started": finishing(lambda lease: runs.Released(lease, started=True)),
    "abandon": finishing(lambda lease: runs.Abandoned(lease, "stale")),
}


def stolen(lease: Lease) -> None:
    policy_in_force()
    Run.objects.filter(run_id=lease.run_id).update(claimed_at=LONG_AGO)
    (newer,) = claim().leases
    assert newer.run_id == lease.run_id
    assert newer.claim_token != lease.claim_token


def reclaimed_under_the_same_worker_name(lease: Lease) -> None:
    runs.interrupt(lease.run_id)
    policy_in_force()
    assert claim().leases[0].worker_ids[-1] == Run.objects.get(run_id=lease.run_id).worker_ids[-1]


LOSSES: dict[str, Callable[[Lease], Any]] = {
    "stolen": stolen,
    "reclaimed": reclaimed_under_the_same_worker_name,
    "cancelled": lambda lease: runs.cancel(lease.run_id),
    "interrupted": lambda lease: runs.interrupt(lease.run_id),
    "completed": lambda lease: runs.finish([runs.Completed(lease, "won")]),
    "failed": lambda lease: runs.finish([runs.Failed(lease, ERROR)]),
    "snoozed": lambda lease: runs.finish([runs.Snoozed(lease, delay=timedelta(hours=1))]),
    "yielded": lambda lease: runs.finish([runs.Yielded(lease)]),
    "waiting": lambda lease: runs.finish([runs.Waiting(lease)]),
    "poisoned": lambda lease: Run.objects.filter(run_id=lease.run_id).update(
        claim_token=None,
        claimed_at=None,
        tenant_admitted_at=None,
        poisoned_at=LONG_AGO,
        poison_reason="max_claim_attempts_exceeded",
    ),
}


@pytest.mark.conformance(112, 118, 120)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_a_lost_fence_has_no_effect(
    operation: Callable[[Lease], set[uuid.UUID]], loss: Callable[[Lease], Any]
) -> None:
    lease = claimed_lease(pending_signals=["a"])
    loss(lease)
    before = snapshot(lease.run_id)
    assert operation(lease) == set()
    assert snapshot(lease.run_id) == before


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_a_run_that_is_gone_is_a_lost_fence(operation: Callable[[Lease], set[uuid.UUID]]) -> None:
    lease = claimed_lease()
    Run.objects.filter(run_id=lease.run_id).delete()
    assert operation(lease) == set()


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS.keys())
def test_the_token_of_another_run_is_no_fence(operation: Callable[[Lease], set[uuid.UUID]]) -> None:
    lease, other = claimed_lease(), claimed_lease()
    before = snapshot(lease.run_id), snapshot(other.run_id)
    assert operation(lease._replace(claim_token=other.claim_token)) == set()
    assert (snapshot(lease.run_id), snapshot(other.run_id)) == before


@pytest.mark.conformance(118)
def test_a_stale_lease_in_a_batch_leaves_the_others_theirs() -> None:
    stale, held = claimed_lease(), claimed_lease()
    runs.cancel(stale.run_id)
    before = snapshot(stale.run_id)
    assert runs.heartbeat([stale, held]) == {held.run_id}
    assert runs.finish([runs.Completed(stale, 1), runs.Completed(held, 2)]) == {held.run_id}
    assert snapshot(stale.run_id) == before


def test_saved_state_is_fenced_by_its_number_too() -> None:
    lease = claimed_lease(checkpoint_seq=5)
    behind = lease._replace(checkpoint_seq=4)
    before = snapshot(lease.run_id)
    checkpoint(behind)
    for outcome in (runs.Yielded(behind, state=1), runs.Waiting(behind, state=1)):
        assert runs.finish([outcome]) == set()
    assert snapshot(lease.run_id) == before


def test_a_lease_of_a_real_claim_is_a_fence() -> None:
    policy_in_force()
    run_id = runs.enqueue(add, tenant_id="acme")
    (lease,) = claim().leases
    assert runs.heartbeat([lease]) == {run_id}
    assert runs.finish([runs.Completed(lease, 3)]) == {run_id}
