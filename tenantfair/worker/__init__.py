"""The worker: claims runs, runs them in threads, keeps their leases and stores their outcomes.

    main thread   signals and supervision, this module
    dispatcher    when to claim and how much; one claim in flight
    executor      one thread per running task
    heartbeat     renews leases, with a keeper process for when this one is held up
    completer     stores outcomes, each on its own fence
    listener      wakes the dispatcher; polling finds the work without it

All but the tasks use connections of the worker's own.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from django.db import InterfaceError, OperationalError, connections

from tenantfair import metrics, policy, schema
from tenantfair.claim.base import Lease
from tenantfair.conf import Settings, get_settings
from tenantfair.exceptions import ConfigurationError
from tenantfair.runs import Released
from tenantfair.worker.backoff import backoff
from tenantfair.worker.completer import Completer
from tenantfair.worker.database import WorkerConnections
from tenantfair.worker.dispatcher import Dispatcher
from tenantfair.worker.executor import Executor
from tenantfair.worker.exposition import MetricsServer, touch
from tenantfair.worker.heartbeat import Heartbeat
from tenantfair.worker.holdings import Holdings
from tenantfair.worker.keeper import Keeper
from tenantfair.worker.listener import Listener
from tenantfair.worker.stopping import StopRequests

__all__ = ["EXIT_DRAINED", "EXIT_FORCED", "EXIT_UNDRAINED", "Worker", "default_worker_id"]

logger = logging.getLogger("tenantfair.worker")

EXIT_DRAINED: Final = 0
EXIT_FORCED: Final = 1
EXIT_UNDRAINED: Final = 75

_SUPERVISE_SECONDS: Final = 1.0
_STALE_SECONDS: Final = 30.0
_LONGEST_BACKOFF: Final = 10.0
_CLOSING_SECONDS: Final = 5.0


def default_worker_id() -> str:
    """Return `host:pid:random`, at most the 63 bytes that PostgreSQL keeps of an application's name."""
    host = socket.gethostname().encode("ascii", "replace").decode()
    tail = f":{os.getpid()}:{secrets.token_hex(2)}"
    return host[: 63 - len(tail)] + tail


class Worker:
    """One worker process's work on one domain, from start to drained.

    `until_idle` ends it once nothing is due, `max_tasks` after that many starts. `on_event(name, **facts)` is
    told of settled and poisoned runs. Times are seconds; None means what the settings say.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        using: str | None = None,
        concurrency: int | None = None,
        interval: float | None = None,
        drain_timeout: float | None = None,
        worker_id: str | None = None,
        until_idle: bool = False,
        max_tasks: int | None = None,
        listen: bool | None = None,
        health_file: Path | None = None,
        metrics_address: tuple[str, int] | None = None,
        on_event: Callable[..., None] | None = None,
    ) -> None:
        self.settings = settings or get_settings()
        self.using = using or self.settings.database
        self.concurrency = concurrency or self.settings.concurrency
        self.worker_id = worker_id or default_worker_id()
        self.requests = StopRequests()
        self.finished = threading.Event()
        self.drain_timeout = self.settings.drain_timeout if drain_timeout is None else drain_timeout
        self._health_file = health_file
        self._on_event = on_event
        self._metrics_server = MetricsServer(*metrics_address) if metrics_address else None
        self._threads: list[threading.Thread] = []
        self._connections = WorkerConnections(self.using, self.worker_id)
        interval = self.settings.poll_interval if interval is None else interval

        beat = self.settings.heartbeat_seconds
        self._keeper = self._make_keeper(beat) if Keeper.supported else None
        self._holdings = Holdings(
            places=self.concurrency,
            write_place=self._keeper.write_place if self._keeper else None,
            on_freed=lambda: self._dispatcher.request(),
        )
        self._heartbeat = Heartbeat(
            connections_of=self._connections,
            holdings=self._holdings,
            interval=beat,
            worker_id=self.worker_id,
            on_renewed=self._keeper.renewed if self._keeper else lambda: None,
        )
        self._completer = Completer(
            connections_of=self._connections,
            holdings=self._holdings,
            worker_id=self.worker_id,
            counts_releases=self.settings.engine == "tenant_fair",
            report=self._report,
        )
        self._executor = Executor(using=self.using, worker_id=self.worker_id, on_outcome=self._completer.put)
        self._dispatcher = Dispatcher(
            connections_of=self._connections,
            free=lambda: self._holdings.free,
            busy=lambda: len(self._holdings) > 0,
            launch=self._launch,
            prepare=self._prepare,
            interval=interval,
            until_idle=until_idle,
            limit=max_tasks,
            worker_id=self.worker_id,
            report=self._report,
        )
        self._listener: Listener | None = None
        if self.settings.listen if listen is None else listen:
            listen_alias = self.settings.listen_database or self.using
            self._listener = Listener(
                params=lambda: self._connections.params(listen_alias),
                on_wakeup=self._dispatcher.request,
                worker_id=self.worker_id,
            )

    def run(self) -> int:
        """Work until stopped, and return the exit code: 0 drained, 1 forced, 75 not drained in time.

        Raises `ConfigurationError`, `SchemaMismatch` or `InactiveEngine`, at the start or once all running
        tasks have ended. After 1 and 75 there are threads that still run: leave the process by `os._exit`.
        """
        try:
            self._refuse_open_transaction()
            with self.requests:
                if not self._prepare_patiently():
                    return EXIT_DRAINED
                self._start()
                self._supervise()
                code = self._drain()
            if self._dispatcher.fatal is not None and code == EXIT_DRAINED:
                raise self._dispatcher.fatal
            return code
        finally:
            if self._keeper:
                self._keeper.stop()
            self.requests.close()
            self.finished.set()

    def stop(self) -> None:
        """Drain and end, as after a first signal; a second call ends at once."""
        self.requests.add()

    def _make_keeper(self, interval: float) -> Keeper:
        return Keeper(
            # Twice as many as tasks: a settled run's row can be locked while its place is taken again.
            places=2 * self.concurrency,
            interval=interval,
            params=lambda: self._connections.params(self.using),
            role=self._connections.role(),
            worker_id=self.worker_id,
        )

    def _refuse_open_transaction(self) -> None:
        if connections[self.using].in_atomic_block:
            raise ConfigurationError(
                "a worker cannot run inside a transaction, as in a TestCase: its own connections would not see"
                " what that has enqueued. Use tenantfair.testing.drain() there"
            )

    def _prepare(self) -> None:
        schema.verify(self.using)
        policy.synchronize(self.using)

    def _prepare_patiently(self) -> bool:
        """Verify and synchronise, waiting for a database that is away; False when asked to stop meanwhile."""
        failures = 0
        while self.requests.count == 0:
            try:
                self._connections.probe()
                with self._connections.own():
                    self._prepare()
                return True
            except (OperationalError, InterfaceError) as error:
                failures += 1
                logger.warning(
                    "The database cannot be reached: %s", str(error).strip(), extra=self._extra("database_away")
                )
                self.requests.wait(backoff(failures, longest=_LONGEST_BACKOFF))
        return False

    def _start(self) -> None:
        metrics.connect()
        if self._metrics_server:
            self._metrics_server.start()
        if self._keeper:
            self._keeper.ensure_running()
        services: dict[str, Callable[[], None]] = {
            "heartbeat": self._heartbeat.run,
            "completer": self._completer.run,
            "dispatcher": self._dispatch,
        }
        if self._listener:
            services["listener"] = self._listener.run
        for name, run in services.items():
            thread = threading.Thread(target=run, name=f"tenantfair-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)
        metrics.increment("tenantfair_worker_events_total", event="started")
        logger.info(
            "Worker %s started on %r with %d places",
            self.worker_id,
            self.using,
            self.concurrency,
            extra=self._extra("worker_started"),
        )

    def _dispatch(self) -> None:
        try:
            self._dispatcher.run()
        finally:
            self.requests.poke()

    def _supervise(self) -> None:
        """Return when the worker is asked to stop, or the dispatcher has ended by itself."""
        while self.requests.count == 0 and not self._dispatcher.stopping:
            if self._keeper:
                self._keeper.ensure_running()
            self._show_health()
            self.requests.wait(_SUPERVISE_SECONDS)

    def _show_health(self) -> None:
        """Keep the health file fresh while the threads that talk to the database get their answers."""
        if self._health_file is None:
            return
        oldest = min(self._dispatcher.beat, self._heartbeat.beat + self.settings.heartbeat_seconds)
        if time.monotonic() - oldest < _STALE_SECONDS and all(
            thread.is_alive() for thread in self._threads if thread.name != "tenantfair-listener"
        ):
            touch(self._health_file)

    def _launch(self, lease: Lease) -> bool:
        holding = self._holdings.take(lease)
        if not self._dispatcher.stopping and self.requests.count == 0:
            try:
                self._executor.launch(holding)
                return True
            except RuntimeError:
                metrics.increment("tenantfair_worker_events_total", event="launch_error")
                logger.exception(
                    "Run %s could not be started and is released",
                    lease.run_id,
                    extra=self._extra("launch_failed") | {"run_id": str(lease.run_id)},
                )
        self._completer.put(holding, Released(lease, started=False), 0.0)
        return False

    def _drain(self) -> int:
        """Claim no more, give back what has not begun, and wait for the rest until the drain timeout."""
        deadline = time.monotonic() + self.drain_timeout
        metrics.increment("tenantfair_worker_events_total", event="draining")
        logger.info("Worker %s drains", self.worker_id, extra=self._extra("worker_draining"))
        self._dispatcher.stop()
        self._holdings.draining.set()
        for holding in self._executor.take_unstarted():
            self._completer.put(holding, Released(holding.lease, started=False), 0.0)
        dispatcher = next(thread for thread in self._threads if thread.name == "tenantfair-dispatcher")
        while dispatcher.is_alive() or len(self._holdings) > 0:
            self._show_health()
            if self.requests.count > 1:
                return self._abandon(EXIT_FORCED)
            if time.monotonic() > deadline:
                return self._abandon(EXIT_UNDRAINED)
            if self._keeper:
                self._keeper.ensure_running()
            if not self._holdings.wait_until_empty(0.05):
                continue
            dispatcher.join(0.05)
        return EXIT_DRAINED if self._close() else EXIT_UNDRAINED

    def _abandon(self, code: int) -> int:
        logger.warning(
            "Worker %s leaves %d runs to the end of their leases",
            self.worker_id,
            len(self._holdings),
            extra=self._extra("worker_abandoned"),
        )
        return code

    def _close(self) -> bool:
        """End all threads; False when one does not."""
        self._completer.stop()
        self._heartbeat.stop()
        if self._listener:
            self._listener.stop()
        if self._metrics_server:
            self._metrics_server.stop()
        ended = self._executor.stop(_CLOSING_SECONDS)
        deadline = time.monotonic() + _CLOSING_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            ended = ended and not thread.is_alive()
        metrics.increment("tenantfair_worker_events_total", event="stopped")
        logger.info("Worker %s stopped", self.worker_id, extra=self._extra("worker_stopped"))
        return ended

    def _report(self, event: str, **facts: Any) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event, **facts)
        except Exception:  # an observer can spoil nothing
            logger.exception("An observer of the worker failed", extra=self._extra("observer_failed"))

    def _extra(self, event: str) -> dict[str, Any]:
        return {"event": event, "worker_id": self.worker_id}
