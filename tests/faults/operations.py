"""Every operation of the public API as something that a fault can hit: prepared, done, and looked at.

`prepare` works on the calm connection and returns what the operation is about; `act` does it on the
connection that the fault is done to; `applied` says, on the calm one, whether it has taken effect.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db import Error, connections

from tenantfair import claim, policy, runs
from tenantfair.claim import Lease
from tenantfair.exceptions import ClaimUnavailable, RunBusy, RunExists, StaleClaim
from tenantfair.models import Partition, Policy, Run, Schedule
from tests.faults.tasks import work

FAULTY = "faulty"
_ERROR = {"exception_class_path": "builtins.ValueError", "traceback": "as the test wants it"}
_MARKER, _COMMIT = b"tenantfair_", b"COMMIT"
# What an operation may say when a fault hits it, besides a database error; nothing is changed then.
REFUSALS = (ClaimUnavailable, RunBusy)


@dataclass(frozen=True)
class Operation:
    """`marker` is in the request whose answer is the commit."""

    prepare: Callable[[], Any]
    act: Callable[[Any], Any]
    applied: Callable[[Any], bool]
    marker: bytes = _MARKER


def _tenant() -> str:
    return f"tenant {uuid.uuid4().hex[:8]}"


def queued() -> Run:
    return Run.objects.get(run_id=runs.enqueue(work, tenant_id=_tenant()))


def claimed() -> Lease:
    """Claim a run of a tenant of its own; others that are due are claimed on the way and completed."""
    wanted = queued().run_id
    while True:
        leases = claim.claim_due(32).leases
        others = [lease for lease in leases if lease.run_id != wanted]
        runs.finish([runs.Completed(lease, None) for lease in others])
        for lease in leases:
            if lease.run_id == wanted:
                return lease


def _waiting() -> Run:
    lease = claimed()
    runs.finish([runs.Waiting(lease)])
    return Run.objects.get(run_id=lease.run_id)


def _failed() -> Run:
    lease = claimed()
    runs.finish([runs.Failed(lease, _ERROR)])
    return Run.objects.get(run_id=lease.run_id)


def _claim(run: Run) -> None:
    """Claim as a worker does: again until a lap is made, since a call makes 32 visits."""
    origin: tuple[int, int] | None = None
    while True:
        batch = claim.claim_due(32, using=FAULTY)
        origin = origin or batch.call.before
        if any(lease.run_id == run.run_id for lease in batch.leases):
            return
        if batch.call.after >= (origin[0] + 1, origin[1]):
            return


def _behind_idle_tenants() -> Run:
    """The only run that is due, behind more tenants that can be granted nothing than a call looks at."""
    runs.finish([runs.Completed(claimed(), None)])
    if not Run.objects.filter(tenant_id="idle 0").exists():
        runs.enqueue_many(
            runs.NewRun(task=work, tenant_id=f"idle {number}", run_after=timedelta(days=1))
            for number in range(70)
        )
    run = queued()
    before_them = Schedule.objects.get(partition_id="idle 0").ring_position - 1
    Policy.objects.update(scan_ring_position=before_them)
    return run


def _walk(run: Run) -> None:
    """Claim as a worker does after a call that was granted nothing: for a lap, in one exchange."""
    policy = Policy.objects.get()
    end = policy.scan_laps + 1, policy.scan_ring_position
    while True:
        batch = claim.claim_due(32, until=end, using=FAULTY)
        if any(lease.run_id == run.run_id for lease in batch.leases) or batch.call.after >= end:
            return


def _status(run: Any) -> Any:
    return Run.objects.get(run_id=run.run_id)


def _enqueue(run_id: uuid.UUID) -> None:
    try:
        runs.enqueue(work, tenant_id="acme", run_id=run_id, using=FAULTY)
    except RunExists:
        assert Run.objects.filter(run_id=run_id).exists()


def _enqueue_many(ids: list[uuid.UUID]) -> None:
    try:
        runs.enqueue_many(
            [runs.NewRun(task=work, tenant_id=_tenant(), run_id=run_id) for run_id in ids], using=FAULTY
        )
    except RunExists:
        assert Run.objects.filter(run_id__in=ids).count() == len(ids)


def _all_or_none(ids: list[uuid.UUID]) -> bool:
    found = Run.objects.filter(run_id__in=ids).count()
    assert found in {0, len(ids)}, found
    return found > 0


def _checkpoint(lease: Lease) -> None:
    try:
        runs.checkpoint(lease, "saved", using=FAULTY)
    except StaleClaim:
        assert _status(lease).checkpoint_seq == lease.checkpoint_seq + 1


def _outcome(make: Callable[[Lease], runs.Outcome]) -> Operation:
    return Operation(
        claimed,
        lambda lease: runs.settle([make(lease)], using=FAULTY),
        lambda lease: _status(lease).claim_token != lease.claim_token,
    )


OPERATIONS: dict[str, Operation] = {
    "enqueue": Operation(uuid.uuid4, _enqueue, lambda run_id: Run.objects.filter(run_id=run_id).exists()),
    "enqueue many": Operation(
        lambda: [uuid.uuid4() for _ in range(3)], _enqueue_many, _all_or_none, marker=_COMMIT
    ),
    "claim": Operation(
        queued,
        _claim,
        lambda run: _status(run).claim_token is not None,
    ),
    "walk": Operation(
        _behind_idle_tenants,
        _walk,
        lambda run: _status(run).claim_token is not None,
    ),
    "idle check": Operation(queued, lambda run: claim.due_work_exists(using=FAULTY), lambda run: True),
    "heartbeat": Operation(
        claimed,
        lambda lease: runs.heartbeat([lease], using=FAULTY),
        lambda lease: _status(lease).claimed_at > lease.claimed_at,
    ),
    "checkpoint": Operation(
        claimed, _checkpoint, lambda lease: _status(lease).checkpoint_seq > lease.checkpoint_seq
    ),
    "complete": _outcome(lambda lease: runs.Completed(lease, 1)),
    "fail": _outcome(lambda lease: runs.Failed(lease, _ERROR)),
    "retry later": _outcome(lambda lease: runs.Retry(lease, _ERROR)),
    "snooze": _outcome(lambda lease: runs.Snoozed(lease, delay=timedelta(hours=1))),
    "wait": _outcome(runs.Waiting),
    "yield": _outcome(runs.Yielded),
    "release": _outcome(lambda lease: runs.Released(lease, started=False)),
    "abandon": _outcome(lambda lease: runs.Abandoned(lease, "not here")),
    "cancel": Operation(
        queued,
        lambda run: runs.cancel(run.run_id, using=FAULTY),
        lambda run: _status(run).status == "cancelled",
        marker=_COMMIT,
    ),
    "interrupt": Operation(
        claimed,
        lambda lease: runs.interrupt(lease.run_id, using=FAULTY),
        lambda lease: _status(lease).claim_token is None,
        marker=_COMMIT,
    ),
    "signal": Operation(
        _waiting,
        lambda run: runs.signal(run.run_id, "hello", using=FAULTY),
        lambda run: _status(run).status == "running",
        marker=_COMMIT,
    ),
    "retry by hand": Operation(
        _failed,
        lambda run: runs.retry(run.run_id, using=FAULTY),
        lambda run: _status(run).status == "running",
        marker=_COMMIT,
    ),
    "override": Operation(
        _tenant,
        lambda tenant: policy.put_override(tenant, 7, using=FAULTY),
        lambda tenant: Partition.objects.filter(scope_key=tenant, max_active=7).exists(),
        marker=_COMMIT,
    ),
    "scan budget": Operation(
        lambda: Policy.objects.get().scan_budget % 64 + 32,
        lambda budget: policy.put_scan_budget(budget, using=FAULTY),
        lambda budget: Policy.objects.get().scan_budget == budget,
        marker=_COMMIT,
    ),
    "inspect": Operation(queued, lambda run: policy.inspect(run.tenant_id, using=FAULTY), lambda run: True),
}
READS = frozenset({"idle check", "inspect"})
CLAIMS = frozenset({"claim", "walk"})


def faulty(**changes: Any) -> None:
    """Let the alias `faulty` be a connection of its own with `changes` to the options or the address."""
    settings = connections.settings["default"]
    options = settings["OPTIONS"] | changes.pop("OPTIONS", {})
    if FAULTY in connections.settings:
        connections[FAULTY].close()
        del connections[FAULTY]
    connections.settings[FAULTY] = settings | changes | {"OPTIONS": options}


def attempt(operation: Operation, material: Any) -> Exception | None:
    """Do it on the faulty connection and return the database's or the package's refusal, if there is one."""
    try:
        operation.act(material)
    except (Error, *REFUSALS) as error:
        if isinstance(error, Error):
            connections[FAULTY].close()
        return error
    return None


def boot() -> None:
    """Put the domain into force, with room for everybody."""
    policy.synchronize()
