"""What a task with `takes_context` is handed: its run, and the ways to end an attempt without finishing.

`snooze()`, `wait()` and `yield_()` leave the task by an exception that is no `Exception`, so that a task's
own `except Exception` lets it pass. Inside `transaction.atomic()` it rolls the block back as any exception
does: call them outside.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from threading import Event
from typing import Any, NoReturn
from uuid import UUID

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from tenantfair import metrics, payloads, runs
from tenantfair.claim.base import Lease
from tenantfair.compat import AnyTaskContext, AnyTaskResult
from tenantfair.conf import get_settings
from tenantfair.exceptions import StaleClaim
from tenantfair.runs import UNSET, Outcome
from tenantfair.runs.holder import saved_checkpoint


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseMonitor:
    """What the worker knows about a lease while its task runs.

    `lost` is set once the run belongs to somebody else or to nobody, `draining` once the worker has been
    asked to stop.
    """

    lost: Event = field(default_factory=Event)
    draining: Event = field(default_factory=Event)


class AttemptEnded(BaseException):
    """A task has ended its attempt through its context; `outcome` says how. Tasks let it pass."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        super().__init__(type(outcome).__name__.lower())


class Attempt:
    """One attempt at a run: its lease as checkpoints move it, and how many signals the task has taken."""

    def __init__(self, lease: Lease, *, using: str | None, monitor: LeaseMonitor) -> None:
        self.using = using if using is not None else get_settings().database
        self.monitor = monitor
        self.taken = 0
        self._lease = self._committed = lease
        # The connection of the last checkpoint, also when a coroutine's thread asks.
        self._saved_on: BaseDatabaseWrapper | None = None
        # The leases that checkpoints in a block have left, by their number, until it is known how it ended.
        self._unsettled: dict[int, Lease] = {}
        self._renewed_at = 0.0

    @property
    def lease(self) -> Lease:
        """The lease as the last checkpoint left it; one whose transaction was rolled back does not count."""
        if self._unsettled and self._saved_on is not None and not self._saved_on.in_atomic_block:
            self._find_out()
        return self._lease

    def save(self, state: Any) -> None:
        """Store `state` and go on with the lease that this leaves."""
        stored = payloads.normalize(state, what="state")
        saved_at = time.monotonic()
        try:
            sequence = self._checkpoint(stored)
        except StaleClaim:
            metrics.increment("tenantfair_fences_lost_total", operation="checkpoint")
            raise
        self._lease = self.lease._replace(state=stored, checkpoint_seq=sequence)
        self._saved_on = connections[self.using]
        if self._saved_on.in_atomic_block:
            self._unsettled[sequence] = self._lease
            self._saved_on.on_commit(partial(self._keep, self._lease))
            # The row was locked until now, and no heartbeat could renew it. Robust, since the block has
            # been committed: the heartbeat's next try does as well.
            self._saved_on.on_commit(partial(self._renew_old, saved_at), robust=True)
        else:
            self._keep(self._lease)

    def _checkpoint(self, stored: Any) -> int:
        """Save; where checkpoints were rolled back with a block or a savepoint, go on from the one before."""
        try:
            return runs.checkpoint(self.lease, stored, using=self.using)
        except StaleClaim:
            known = {self._committed.checkpoint_seq: self._committed, **self._unsettled}
            found = known.get(saved_checkpoint(self._committed, using=self.using))
            if found is None or found is self._lease:
                raise
            self._lease = found
        return runs.checkpoint(found, stored, using=self.using)

    def _keep(self, lease: Lease) -> None:
        self._committed = lease
        self._unsettled.pop(lease.checkpoint_seq, None)

    def _find_out(self) -> None:
        """Go by the database where a block has ended and nobody said how.

        It was rolled back, as a rule. But a hook of the host's that raises after the commit keeps the others
        from being called, and so does a commit whose answer is lost.
        """
        self._lease = self._committed
        try:
            stored = saved_checkpoint(self._committed, using=self.using)
        except (Error, SynchronousOnlyOperation):  # away, or a coroutine asks: whoever asks next finds out
            return
        self._lease = self._committed = self._unsettled.get(stored, self._committed)
        self._unsettled.clear()

    def _renew_old(self, saved_at: float) -> None:
        """Extend the lease after a block that lasted longer than a heartbeat since its checkpoint."""
        if time.monotonic() - max(saved_at, self._renewed_at) > get_settings().heartbeat_seconds:
            runs.heartbeat([self._committed], using=self.using)
            self._renewed_at = time.monotonic()


class RunContext(AnyTaskContext):
    """The framework's `TaskContext` with the run behind it.

    `attempt` is the framework's: how many starts the run has had, this one included, at most the 32 that are
    remembered. State is any JSON value; one that cannot be stored raises `InvalidPayload` and changes
    nothing.
    """

    running: Attempt

    def __init__(self, *, task_result: AnyTaskResult, running: Attempt) -> None:
        super().__init__(task_result=task_result)
        object.__setattr__(self, "running", running)

    @property
    def run_id(self) -> UUID:
        """The run's id, also as text in `task_result.id`."""
        return self.running.lease.run_id

    @property
    def tenant_id(self) -> str | None:
        """The tenant the run belongs to, None in the tenantless scope."""
        return self.running.lease.tenant_id

    @property
    def state(self) -> Any:
        """The state saved last, None when none has been."""
        return self.running.lease.state

    @property
    def signals(self) -> list[Any]:
        """The payloads sent to the run, oldest first, as of the start of this attempt.

        Looking at them takes them: a `wait()` or `snooze()` that ends this attempt removes them; after a
        failure or a `yield_()` they are there again. While there are others, sent meanwhile or never looked
        at, a wait ends at once and the run starts again.
        """
        pending = self.running.lease.signals
        self.running.taken = len(pending)
        return list(pending)

    def checkpoint(self, state: Any) -> None:
        """Save `state`, so that whoever runs this run next goes on from there; it also extends the lease.

        Raises `StaleClaim` when the run is no longer this attempt's: stop then, nothing more of it counts.
        Inside `transaction.atomic()` the state is saved if and only if the block commits, and the run stays
        locked until then.
        """
        self.running.save(state)

    async def acheckpoint(self, state: Any) -> None:
        """`checkpoint()` for coroutines."""
        await sync_to_async(self.checkpoint, thread_sensitive=True)(state)

    def still_owner(self) -> bool:
        """False once the worker knows that the run is no longer this attempt's. Asks no database."""
        return not self.running.monitor.lost.is_set()

    def should_yield(self) -> bool:
        """True once the worker wants its thread back: it stops, or the run is lost. Asks no database."""
        return self.running.monitor.draining.is_set() or self.running.monitor.lost.is_set()

    def snooze(
        self, *, until: datetime | None = None, delay: timedelta | None = None, state: Any = UNSET
    ) -> NoReturn:
        """End the attempt; the run starts again at `until` or after `delay`, not as a failure.

        `InvalidRun`, and the attempt goes on, when that is not exactly one time that can be stored.
        """
        raise AttemptEnded(
            runs.Snoozed(
                self.running.lease, until=until, delay=delay, state=_state(state), consumed=self.running.taken
            )
        )

    def wait(self, *, state: Any = UNSET) -> NoReturn:
        """End the attempt; the run starts again once it is sent a signal."""
        raise AttemptEnded(runs.Waiting(self.running.lease, state=_state(state), consumed=self.running.taken))

    def yield_(self, *, state: Any = UNSET) -> NoReturn:
        """End the attempt and free the thread; the run keeps its slot and is due at once."""
        raise AttemptEnded(runs.Yielded(self.running.lease, state=_state(state)))


def _state(value: Any) -> Any:
    return value if value is UNSET else payloads.normalize(value, what="state")
