"""The operations that meet: the package's own functions, each with a short word for what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache

from django.db import connection

from tenantfair import claim, policy, runs
from tenantfair.claim.base import Call, Lease
from tenantfair.exceptions import ClaimUnavailable, TenantFairError
from tenantfair.models import Partition
from tests.interleavings.actors import stop_here
from tests.interleavings.gates import gated_claim, gated_fold
from tests.interleavings.look import run_name
from tests.interleavings.state import run_id, token
from tests.tasks_for_tests import add

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
ERROR = {"exception_class_path": "builtins.ValueError", "traceback": "ValueError: no"}


@dataclass(frozen=True)
class Told:
    """What an operation returned: a word, and of a claim its leases (name, token, due or claimed since) and
    call.
    """

    word: str
    leases: tuple[tuple[str, str, datetime], ...] = ()
    scopes: tuple[str, ...] = ()
    call: Call | None = None
    accepted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Operation:
    """`skips` are sections of the claim function without stops, None for all of it; of `only`, if any, all
    others are without. `fold` is for stops in the fold, `row` for the one between the lock and the write of
    a row.

    `errors` are the exceptions of Django or the driver that it may end with; the package's own are always
    told. With `autocommit` its statements commit by themselves, so it cannot be rolled back as a whole.
    """

    name: str
    work: Callable[[], Told]
    skips: tuple[str, ...] | None = None
    only: tuple[str, ...] = ()
    fold: bool = True
    row: bool = False
    errors: tuple[str, ...] = ()
    autocommit: bool = False

    @property
    def points(self) -> str:
        points = [] if self.skips is None else list(_claim_points(self.skips, self.only))
        points += _fold_points() if self.fold else ()
        return ",".join([*points, *(["row"] if self.row else [])])

    def perform(self) -> Told:
        try:
            return self.work()
        except TenantFairError as error:
            return Told(type(error).__name__)


@cache
def _claim_points(skips: tuple[str, ...], only: tuple[str, ...]) -> tuple[str, ...]:
    gated = gated_claim()
    skipped = gated.of(*skips)
    return tuple(point for point in gated.of(*only) or gated.points if point not in skipped)


@cache
def _fold_points() -> tuple[str, ...]:
    return gated_fold().of("fold_partition", "fold_schedule")


# Sections that the way of due work does not go through, and sections in which that of expired or worn-out
# work touches nothing. Before the door nothing is read that others write but the values of the policy.
SIMPLE = ("door", "careful")
CAREFUL = ("door", "simple", "recheck")


def claims(demand: int = 1, skips: tuple[str, ...] = SIMPLE, *, only: tuple[str, ...] = ()) -> Operation:
    def work() -> Told:
        try:
            batch = claim.claim_due(demand, allow_in_transaction=True)
        except ClaimUnavailable as error:
            return Told(f"refused: {error.reason}")
        leases = tuple(
            (run_name(str(lease.run_id)), str(lease.claim_token), lease.eligible_at) for lease in batch.leases
        )
        poisoned = [f"!{run_name(str(one.run_id))}" for one in batch.poisoned]
        word = "+".join([*(name for name, *_ in leases), *poisoned]) or "nothing"
        granted = tuple(one.tenant_id or "" for one in (*batch.leases, *batch.poisoned))
        return Told(word, leases=leases, scopes=granted, call=batch.call)

    return Operation(f"claim {demand}", work, skips=skips, only=only, fold=False)


def lease(name: str, scope: str = "a") -> Lease:
    """Return the lease of a run that the first state has claimed or expired."""
    return Lease(
        run_id=run_id(name),
        claim_token=token(name),
        claimed_at=LONG_AGO,
        attempt=1,
        checkpoint_seq=0,
        tenant_id=scope,
        task_path="tests.tasks_for_tests.add",
        args=[1],
        kwargs={},
        state=None,
        signals=[],
        failures=0,
        retry_limit=3,
        abandons=0,
        queue_name="default",
        backend="default",
        enqueued_at=LONG_AGO,
        started_at=LONG_AGO,
        errors=[],
        worker_ids=[],
        work_class="queued_ready",
        eligible_at=LONG_AGO,
    )


OUTCOMES: dict[str, Callable[[Lease], runs.Outcome]] = {
    "completed": lambda held: runs.Completed(held, 7),
    "failed": lambda held: runs.Failed(held, ERROR),
    "retried": lambda held: runs.Retry(held, ERROR, timedelta(hours=1)),
    "yielded": lambda held: runs.Yielded(held, state="s"),
    "snoozed": lambda held: runs.Snoozed(held, delay=timedelta(hours=1)),
    "waiting": runs.Waiting,
    "released": lambda held: runs.Released(held, started=True),
    "abandoned": lambda held: runs.Abandoned(held, "no"),
}
# How a run stands after an accepted outcome.
AFTER = {
    "completed": "completed",
    "failed": "failed",
    "retried": "scheduled",
    "yielded": "ready",
    "snoozed": "scheduled",
    "waiting": "waiting",
    "released": "ready",
    "abandoned": "scheduled",
}


def settles(kind: str, *names: str, scopes: str = "a", row: bool = True) -> Operation:
    """The holder's outcome, for one run or several at once: `scopes` has a letter for each."""
    leases = [lease(name, scope) for name, scope in zip(names, scopes, strict=True)]

    def work() -> Told:
        settled = runs.settle([OUTCOMES[kind](held) for held in leases])
        accepted = tuple(sorted(run_name(str(found)) for found in settled.accepted))
        if len(accepted) == len(leases):
            return Told("accepted", accepted=accepted)
        return Told("busy" if settled.busy else "lost", accepted=accepted)

    return Operation(f"finish {kind}", work, row=row)


def beats(name: str) -> Operation:
    def work() -> Told:
        return Told("held" if runs.heartbeat([lease(name)]) else "lost")

    return Operation("heartbeat", work, fold=False, row=True)


def checkpoints(name: str) -> Operation:
    return Operation("checkpoint", lambda: Told(str(runs.checkpoint(lease(name), "s"))), fold=False, row=True)


def cancels(name: str, *, row: bool = False) -> Operation:
    return Operation("cancel", lambda: Told(runs.cancel(run_id(name)).state), row=row)


def interrupts(name: str, *, row: bool = False) -> Operation:
    return Operation("interrupt", lambda: Told(runs.interrupt(run_id(name)).state), row=row)


def signals(name: str, *, row: bool = False) -> Operation:
    return Operation("signal", lambda: Told(f"told {runs.signal(run_id(name), 'hello').state}"), row=row)


def retries(name: str, *, row: bool = False) -> Operation:
    return Operation("retry", lambda: Told(runs.retry(run_id(name)).state), row=row)


def enqueues(*names: str, scopes: str, due: datetime = LONG_AGO) -> Operation:
    """Enqueue runs one by one in one transaction; `scopes` has a letter for each."""

    def work() -> Told:
        for name, scope in zip(names, scopes, strict=True):
            runs.enqueue(add, args=[1], tenant_id=scope, run_id=run_id(name), run_after=due)
        return Told("enqueued")

    return Operation(f"enqueue {scopes}", work)


def enqueues_many(*names: str, scopes: str, due: datetime = LONG_AGO) -> Operation:
    def work() -> Told:
        new = [
            runs.NewRun(task=add, args=[1], tenant_id=scope, run_id=run_id(name), run_after=due)
            for name, scope in zip(names, scopes, strict=True)
        ]
        stop_here("copy")
        runs.enqueue_many(new)
        return Told("enqueued")

    return Operation(f"enqueue many {scopes}", work)


def prunes() -> Operation:
    return Operation("prune", lambda: Told(f"pruned {runs.prune(older_than=timedelta(days=1)).deleted}"))


def puts_override(scope: str, cap: int, *, expected: int | None = None) -> Operation:
    def work() -> Told:
        return Told(f"cap {policy.put_override(scope, cap, expected_version=expected).cap}")

    return Operation(f"override {cap}", work)


def resets_override(scope: str) -> Operation:
    return Operation("reset", lambda: Told(f"cap {policy.reset_override(scope).cap}"))


def puts_default(cap: int) -> Operation:
    return Operation(f"default {cap}", lambda: Told(f"cap {policy.put_default(cap).cap}"))


def puts_budget(budget: int) -> Operation:
    return Operation("budget", lambda: Told(f"budget {policy.put_scan_budget(budget).scan_budget}"))


def deletes_partition(scope: str) -> Operation:
    def work() -> Told:
        Partition.objects.filter(scope_key=scope).delete()
        return Told("deleted")

    return Operation("delete partition", work, errors=("IntegrityError",))


def flushes(tables: tuple[str, ...], *, autocommit: bool = False) -> Operation:
    """Django's flush of the given tables, and what `post_migrate` does after it."""

    def work() -> Told:
        from django.core.management.color import no_style

        flush = connection.ops.sql_flush(no_style(), tables, reset_sequences=False, allow_cascade=False)
        connection.ops.execute_sql_flush(flush)
        policy.restore_policy_row(using="default")
        return Told("flushed")

    return Operation("flush", work, autocommit=autocommit)
