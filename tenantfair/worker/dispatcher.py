"""When to claim and how much: a thread of its own, one claim in flight.

A poll asks first whether anything could be granted. If so it claims for all free places, and after a call
that left places free it claims again at once until the cursor has passed where the first call began, one
lap on; after a call that was granted nothing, up to 32 times in one exchange with the server. A filled call
is a sign that there is more: for a quarter of a second after it, places that become free are claimed for
without asking, and those whose outcome is just being stored are waited for, at most 2 ms, so that one call
serves them together.

Then it waits: for a random part of the poll interval, and after a lap that granted nothing at least twenty
times as long as the lap took. A request, which a freed place or a notification makes, ends the wait early.
Any number of them during a poll are one more poll.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from django.db import Error, connections

from tenantfair import metrics
from tenantfair.claim.base import ClaimBatch, Lease
from tenantfair.exceptions import (
    ClaimUnavailable,
    ConfigurationError,
    InactiveEngine,
    SchemaMismatch,
    TenantFairError,
)
from tenantfair.logs import log_safely
from tenantfair.runs.log_facts import about
from tenantfair.worker.backoff import backoff
from tenantfair.worker.calls import Calls
from tenantfair.worker.database import WorkerConnections

logger = logging.getLogger("tenantfair.worker")

_LARGEST_DEMAND: Final = 256
_LAP_FACTOR: Final = 20
_GATHER_SECONDS: Final = 0.002
_LONGEST_BACKOFF: Final = 10.0
_BEAT_SECONDS: Final = 5.0
_ALARM_SECONDS: Final = 5.0
# The function or a table is not what it was: replaced, altered or gone.
_SHAPE_SQLSTATES: Final = frozenset({"0A000", "2D000", "42809", "42883", "42P01", "42703", "42804", "3F000"})
# Refusals that settings and the policy row explain.
_POLICY_REASONS: Final = frozenset({"not_initialized", "inactive_engine", "malformed_policy"})


class _LaunchFailed(Exception):
    """A lease was given back at once; claiming on would only bring it here again."""


class Dispatcher:
    """Claims for `free()` places and hands the leases to `launch`, with the time they were asked for at.

    `soon()` says how many more are about to be free.
    `launch` returns how many were started; it has given the others back. `prepare` verifies the schema and
    synchronises the policy; it is called again when a claim says that something of these has
    changed. What it raises then, or a domain that can never be claimed from, is `fatal` and ends all polls.
    With `until_idle` it ends at the first poll that finds nothing while `busy()` is False; after `limit`
    launches it ends as well.
    """

    def __init__(
        self,
        *,
        connections_of: WorkerConnections,
        free: Callable[[], int],
        busy: Callable[[], bool],
        launch: Callable[[Sequence[Lease], float], int],
        prepare: Callable[[], None],
        interval: float,
        until_idle: bool = False,
        limit: int | None = None,
        soon: Callable[[], int] = lambda: 0,
        worker_id: str = "",
        report: Callable[..., None] = lambda event, **_: None,
    ) -> None:
        self._connections = connections_of
        self._free = free
        self._soon = soon
        self._busy = busy
        self._launch = launch
        self._prepare = prepare
        self._interval = interval
        self._until_idle = until_idle
        self._left = limit
        self._worker_id = worker_id
        self._report = report
        self._changed = threading.Condition()
        self._requested = False
        self._stopping = False
        self._calls = Calls(connections_of.alias)
        # When the next poll may begin if one is requested, and when it begins anyway.
        self._earliest = self._latest = 0.0
        self._failures = 0
        self._refused_since: float | None = None
        self._alarmed = False
        self.fatal: TenantFairError | None = None
        self.beat = time.monotonic()

    def request(self) -> None:
        """Ask for a poll; returns at once."""
        with self._changed:
            self._requested = True
            self._changed.notify()

    def stop(self) -> None:
        """Claim no more. A claim in flight comes back to `launch`."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    @property
    def stopping(self) -> bool:
        """Whether no further lease may be started."""
        return self._stopping

    def run(self) -> None:
        """Poll until `stop()`, a fatal error, or the end of what was to be done."""
        with self._connections.own():
            while self._wait():
                self._poll_safely()

    def _wait(self) -> bool:
        """Wait for the next poll; False when there is none."""
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                if self._failures == 0:
                    # Nothing is wanted of the database, and the last answer was one.
                    self.beat = now
                due = self._earliest if self._requested else self._latest
                if now >= due:
                    self._requested = False
                    return True
                self._changed.wait(min(due - now, _BEAT_SECONDS))
            return False

    def _poll_safely(self) -> None:
        try:
            self._poll_or_back_off()
        except Exception:  # the top of the thread's loop: a worker that no longer claims must not look alive
            self._back_off()
            self._log(logging.CRITICAL, "dispatcher_failed", "The dispatcher failed", exc_info=True)

    def _poll_or_back_off(self) -> None:
        try:
            answered = self._poll()
        except _LaunchFailed:
            self._back_off()
        except SchemaMismatch as error:
            self._give_up(error)
        except ClaimUnavailable as refusal:
            self._refused(refusal)
        except Error as error:
            self._failed(error)
        else:
            if answered:
                self._failures = 0
                self._refused_since = None
                self._alarmed = False

    def _demand(self) -> int:
        if self._stopping:
            return 0
        demand = min(self._free(), _LARGEST_DEMAND)
        return demand if self._left is None else min(demand, self._left)

    def _gathered_demand(self) -> int:
        """Return the demand; while there is more work, with the places that are just about to be free."""
        deadline = min(self._calls.more_until, time.monotonic() + _GATHER_SECONDS)
        with self._changed:
            while not self._stopping and self._soon() > 0 and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
        return self._demand()

    def _poll(self) -> bool:
        """Claim what there is for the free places; return whether the database was asked."""
        self._regular_pause(0.0)
        busy = self._busy()
        if self._demand() == 0:
            return False
        metrics.increment("tenantfair_worker_events_total", event="poll")
        self._calls.seconds = 0.0
        if not self._claim_a_lap():
            self._idle(busy, self._calls.seconds)
        return True

    def _claim_a_lap(self) -> bool:
        """Claim until places or ring are used up; return whether anything was granted."""
        # Where the walk ends: a lap after where the first of its calls began.
        end: tuple[int, int] | None = None
        granted = fruitless = False
        asks = True
        while (demand := self._gathered_demand()) > 0:
            batch = self._calls.claim(demand, asks=asks, until=end if fruitless else None)
            self.beat = time.monotonic()
            if batch is None:
                break
            asks = False
            fruitless = batch.call.outcomes == 0
            granted = granted or not fruitless
            self._start(batch, self._calls.asked_at)
            if batch.call.outcomes >= demand:
                # Filled: poisoned runs have left places free, or tasks have ended already. A new walk begins.
                end = None
                continue
            if end is None:
                laps, cursor = batch.call.before
                end = (laps + 1, cursor)
            if batch.call.inspections == 0 or batch.call.after >= end:
                break
        return granted

    def _start(self, batch: ClaimBatch, asked_at: float) -> None:
        """Launch what was granted; `_LaunchFailed` when one of the leases could not be started."""
        for run in batch.poisoned:
            log_safely(
                logger,
                logging.WARNING,
                "Run %s is poisoned: %s",
                run.run_id,
                run.poison_reason,
                extra=about("run_poisoned", run, self._worker_id),
            )
            self._report("run_poisoned", run=run)
        started = self._launch(batch.leases, asked_at)
        if self._left is not None:
            self._left -= started
            if self._left <= 0:
                self.stop()
        if started < len(batch.leases):
            raise _LaunchFailed

    def _idle(self, busy: bool, lap_seconds: float) -> None:
        metrics.increment("tenantfair_worker_events_total", event="idle")
        self._regular_pause(lap_seconds)
        if self._until_idle and not busy and not self._requested:
            self.stop()

    def _regular_pause(self, lap_seconds: float) -> None:
        """Wait a random part of the interval, and at least twenty times what a fruitless lap took."""
        pause = self._interval * (1.0 - random.random())  # noqa: S311 - jitter, in (0, interval]
        self._earliest = 0.0
        self._latest = time.monotonic() + max(pause, _LAP_FACTOR * lap_seconds)

    def _back_off(self, *, longest: float = _LONGEST_BACKOFF) -> None:
        """Wait longer with each failure in a row; requests do not shorten it."""
        self._failures += 1
        pause = backoff(self._failures, longest=longest)
        self._earliest = self._latest = time.monotonic() + pause

    def _refused(self, refusal: ClaimUnavailable) -> None:
        # A refusal is an answer.
        self.beat = now = time.monotonic()
        self._refused_since = self._refused_since or now
        if refusal.reason == "unsupported_isolation":
            self._give_up(
                ConfigurationError(
                    f"sessions of database {self._connections.alias!r} begin at an isolation level other than"
                    " READ COMMITTED, and what is in between lets no session choose. Run: ALTER ROLE ... SET"
                    " default_transaction_isolation = 'read committed'"
                )
            )
            return
        if refusal.reason in _POLICY_REASONS:
            self._log(logging.WARNING, "claim_refused", "Claims are refused: %s", refusal.reason)
            self._check_again()
        elif refusal.reason == "read_only_transaction":
            # After a failover the same name may lead to the new primary.
            connections[self._connections.alias].close()
        if now - self._refused_since > _ALARM_SECONDS and not self._alarmed:
            self._alarmed = True
            self._log(
                logging.ERROR,
                "claims_refused",
                "Claims have been refused for more than %d s: %s",
                _ALARM_SECONDS,
                refusal.reason,
            )
        self._back_off(longest=self._interval if refusal.reason == "lock_contention" else _LONGEST_BACKOFF)

    def _failed(self, error: Error) -> None:
        metrics.increment("tenantfair_worker_events_total", event="claim_error")
        self._log(logging.WARNING, "claim_failed", "A claim failed: %s", str(error).strip())
        self._connections.unprepare(error)
        connections[self._connections.alias].close()
        if getattr(error.__cause__, "sqlstate", None) in _SHAPE_SQLSTATES:
            self._check_again()
        self._back_off()

    def _check_again(self) -> None:
        try:
            self._prepare()
        except (ConfigurationError, InactiveEngine, SchemaMismatch) as error:
            self._give_up(error)
        except Error as error:
            self._log(logging.WARNING, "verify_failed", "The schema cannot be verified now: %s", error)

    def _give_up(self, error: TenantFairError) -> None:
        # Running tasks may go on for long, or be cut off: it is said now, with its remedy.
        self._log(logging.CRITICAL, "domain_unfit", "No more is claimed: %s", error)
        self.fatal = error
        self.stop()

    def _log(
        self, level: int, event: str, message: str, *arguments: object, exc_info: bool | None = None
    ) -> None:
        log_safely(logger, level, message, *arguments, exc_info=exc_info, extra=self._extra(event))

    def _extra(self, event: str) -> dict[str, Any]:
        return {"event": event, "worker_id": self._worker_id}
