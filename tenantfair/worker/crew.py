"""The parts of one worker, wired together, with the threads they run in."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tenantfair import metrics
from tenantfair.claim.base import Lease
from tenantfair.conf import Settings
from tenantfair.exceptions import ConfigurationError
from tenantfair.logs import log_safely
from tenantfair.runs import Released
from tenantfair.runs.log_facts import about
from tenantfair.worker.completer import Completer
from tenantfair.worker.database import WorkerConnections
from tenantfair.worker.dispatcher import Dispatcher
from tenantfair.worker.executor import Executor
from tenantfair.worker.exposition import MetricsServer
from tenantfair.worker.heartbeat import Heartbeat
from tenantfair.worker.holdings import Holding, Holdings
from tenantfair.worker.keeper import Keeper
from tenantfair.worker.listener import Listener

logger = logging.getLogger("tenantfair.worker")

_CLOSING_SECONDS: Final = 5.0
_STALE_SECONDS: Final = 30.0
_MAY_BE_LEFT: Final = frozenset({"heartbeat", "listener"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a worker has been asked to be. Times are seconds."""

    settings: Settings
    using: str
    concurrency: int
    interval: float
    drain_timeout: float
    worker_id: str
    until_idle: bool
    max_tasks: int | None
    listen: bool
    health_file: Path | None
    metrics_address: tuple[str, int] | None


class Crew:
    """`prepare` verifies and synchronises the domain; `on_ended` is called when a thread has ended."""

    def __init__(
        self,
        plan: Plan,
        connections_of: WorkerConnections,
        *,
        prepare: Callable[[], None],
        on_ended: Callable[[], None],
        report: Callable[..., None],
    ) -> None:
        self.plan = plan
        self._on_ended = on_ended
        # Whether a service thread has died: then this worker can keep none of its promises any more.
        self.failed = False
        self._threads: dict[str, threading.Thread] = {}
        self._beat_seconds = plan.settings.heartbeat_seconds
        self.keeper = self._make_keeper(connections_of) if Keeper.supported else None
        self.holdings = Holdings(
            places=plan.concurrency,
            write_place=self.keeper.write_place if self.keeper else None,
            on_freed=self._poll,
        )
        self.heartbeat = Heartbeat(
            connections_of=connections_of,
            holdings=self.holdings,
            interval=self._beat_seconds,
            lease_seconds=plan.settings.lease_seconds,
            worker_id=plan.worker_id,
            on_renewed=self.keeper.renewed if self.keeper else lambda began: None,
        )
        self.completer = Completer(
            connections_of=connections_of,
            holdings=self.holdings,
            worker_id=plan.worker_id,
            counts_releases=plan.settings.engine == "tenant_fair",
            report=report,
        )
        self.executor = Executor(using=plan.using, worker_id=plan.worker_id, on_outcome=self.completer.put)
        self.dispatcher = Dispatcher(
            connections_of=connections_of,
            free=lambda: self.holdings.free,
            soon=lambda: self.holdings.settling,
            busy=lambda: len(self.holdings) > 0,
            launch=self.launch,
            prepare=prepare,
            interval=plan.interval,
            until_idle=plan.until_idle,
            limit=plan.max_tasks,
            worker_id=plan.worker_id,
            report=report,
        )
        self._listener: Listener | None = None
        if plan.listen:
            # It leads to the settings' domain, in which another one's wake-ups are not heard.
            other = plan.settings.listen_database if plan.using == plan.settings.database else None
            alias = other or plan.using
            self._listener = Listener(
                params=lambda: connections_of.params(alias), on_wakeup=self._poll, worker_id=plan.worker_id
            )
        self._metrics_server = _metrics_server(plan.metrics_address)

    def start(self) -> None:
        """Start all threads, and the keeper process."""
        metrics.connect()
        if self._metrics_server:
            self._metrics_server.start()
        self.check_keeper()
        services: dict[str, Callable[[], None]] = {
            "heartbeat": self.heartbeat.run,
            "completer": self.completer.run,
            "dispatcher": self.dispatcher.run,
        }
        if self._listener:
            services["listener"] = self._listener.run
        for name, run in services.items():
            self._threads[name] = threading.Thread(
                target=self._serve, args=[name, run], name=f"tenantfair-{name}", daemon=True
            )
            self._threads[name].start()
        metrics.increment("tenantfair_worker_events_total", event="started")

    def launch(self, leases: Sequence[Lease], asked_at: float) -> int:
        """Start `leases`, claimed since `asked_at`, and return how many; the others are given back.

        All are held, and so renewed, before the first is started: tasks that compute leave this thread little
        time to start the others. None is started that may have ended while its claim was on the way.
        """
        holdings = self.holdings.take_all(leases)
        late = time.monotonic() - asked_at > self.heartbeat.lease_seconds
        unstarted = [holding for holding in holdings if late or not self._start(holding)]
        for holding in unstarted:
            self.completer.put(holding, Released(holding.lease, started=False), 0.0)
        return len(holdings) - len(unstarted)

    def _start(self, holding: Holding) -> bool:
        if self.dispatcher.stopping:
            return False
        try:
            self.executor.launch(holding)
        except RuntimeError:
            metrics.increment("tenantfair_worker_events_total", event="launch_error")
            log_safely(
                logger,
                logging.ERROR,
                "Run %s could not be started and is released",
                holding.lease.run_id,
                exc_info=True,
                extra=about("launch_failed", holding.lease, self.plan.worker_id),
            )
            return False
        return True

    def drain(self) -> None:
        """Give back what has not begun, and let running tasks know that their thread is wanted back."""
        metrics.increment("tenantfair_worker_events_total", event="draining")
        self.holdings.draining.set()
        for holding in self.executor.take_unstarted():
            self.completer.put(holding, Released(holding.lease, started=False), 0.0)

    def wait_until_drained(self, seconds: float) -> bool:
        """Wait for the claim in flight and for the last holding to go; False when it took longer."""
        deadline = time.monotonic() + seconds
        dispatcher = self._threads["dispatcher"]
        dispatcher.join(seconds)
        return not dispatcher.is_alive() and self.holdings.wait_until_empty(
            max(0.0, deadline - time.monotonic())
        )

    def close(self) -> bool:
        """End all threads of a drained worker; False when one that a task may still occupy does not end.

        Neither the listener nor the heartbeat, which may wait for a connection, has anything left to lose.
        """
        self.completer.stop()
        self.heartbeat.stop()
        if self._listener:
            self._listener.stop()
        if self._metrics_server:
            self._metrics_server.stop()
        ended = self.executor.stop(_CLOSING_SECONDS)
        deadline = time.monotonic() + _CLOSING_SECONDS
        for name in ("dispatcher", "completer", "heartbeat", "listener"):
            if (thread := self._threads.get(name)) is None:
                continue
            thread.join(max(0.0, deadline - time.monotonic()))
            if name not in _MAY_BE_LEFT:
                ended = ended and not thread.is_alive()
        metrics.increment("tenantfair_worker_events_total", event="stopped")
        return ended

    def check_keeper(self) -> None:
        """Start the keeper process if it does not run."""
        if self.keeper:
            self.keeper.ensure_running()

    def close_keeper(self) -> None:
        """End the keeper process."""
        if self.keeper:
            self.keeper.stop()

    @property
    def healthy(self) -> bool:
        """Whether the threads that talk to the database run and have had its answers of late."""
        oldest = min(self.dispatcher.beat, self.heartbeat.beat + self._beat_seconds)
        return time.monotonic() - oldest < _STALE_SECONDS and all(
            thread.is_alive() for name, thread in self._threads.items() if name != "listener"
        )

    def _poll(self) -> None:
        self.dispatcher.request()

    def _serve(self, name: str, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException:  # each loop survives what it can; what ends it must end the worker
            self.failed = True
            log_safely(
                logger,
                logging.CRITICAL,
                "The thread %s has died; the worker ends",
                name,
                exc_info=True,
                extra={"event": "service_died", "worker_id": self.plan.worker_id},
            )
        finally:
            self._on_ended()

    def _make_keeper(self, connections_of: WorkerConnections) -> Keeper:
        return Keeper(
            # Twice as many as tasks: a settled run's row can be locked while its place is taken again.
            places=2 * self.plan.concurrency,
            interval=self._beat_seconds,
            params=lambda: connections_of.params(self.plan.using),
            role=connections_of.role(),
            worker_id=self.plan.worker_id,
        )


def _metrics_server(address: tuple[str, int] | None) -> MetricsServer | None:
    if address is None:
        return None
    try:
        return MetricsServer(*address)
    except OSError as error:
        raise ConfigurationError(f"metrics cannot be served on {address[0]}:{address[1]}: {error}") from error
