"""The worker: claims runs, runs them in threads, keeps their leases and stores their outcomes.

    main thread   signals and supervision, this module; what a start waits for, a thread waits for
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
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from django.db import InterfaceError, OperationalError, connections

from tenantfair import policy, schema
from tenantfair.conf import get_settings
from tenantfair.exceptions import ConfigurationError
from tenantfair.logs import log_safely
from tenantfair.worker.backoff import backoff
from tenantfair.worker.crew import Crew, Plan
from tenantfair.worker.database import WorkerConnections
from tenantfair.worker.stopping import StopRequests

__all__ = ["EXIT_DRAINED", "EXIT_FORCED", "EXIT_UNDRAINED", "EXIT_UNFIT", "Worker", "default_worker_id"]

logger = logging.getLogger("tenantfair.worker")

EXIT_DRAINED: Final = 0
EXIT_FORCED: Final = 1
EXIT_UNDRAINED: Final = 75
EXIT_UNFIT: Final = 78

_SUPERVISE_SECONDS: Final = 1.0
_DRAIN_STEP_SECONDS: Final = 0.05
_LONGEST_BACKOFF: Final = 10.0
# So that who waits for a lock here says so, again and again, and can be told to stop.
_BOOT_OPTIONS: Final = "-c lock_timeout=5s"
_LOCK_NOT_AVAILABLE: Final = "55P03"


def default_worker_id() -> str:
    """Return `host:pid:random`, at most the 63 bytes that PostgreSQL keeps of an application's name."""
    host = socket.gethostname().encode("ascii", "replace").decode()
    tail = f":{os.getpid()}:{secrets.token_hex(2)}"
    return host[: 63 - len(tail)] + tail


class Worker:
    """One worker process's work on one domain, from start to drained.

    `until_idle` ends it once nothing can be claimed, `max_tasks` after that many starts.
    `on_event(name, **facts)` is told of `run_settled` and `run_poisoned`. Times are seconds; None means what
    the settings say.
    """

    def __init__(
        self,
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
        chosen = get_settings()
        self.plan = Plan(
            settings=chosen,
            using=using or chosen.database,
            concurrency=concurrency or chosen.concurrency,
            interval=chosen.poll_interval if interval is None else interval,
            drain_timeout=chosen.drain_timeout if drain_timeout is None else drain_timeout,
            worker_id=worker_id or default_worker_id(),
            until_idle=until_idle,
            max_tasks=max_tasks,
            listen=chosen.listen if listen is None else listen,
            health_file=health_file,
            metrics_address=metrics_address,
        )
        # Set once `run()` has ended.
        self.finished = threading.Event()
        self._on_event = on_event
        self._requests = StopRequests()
        self._boot_abandoned = threading.Event()
        self._connections = WorkerConnections(self.plan.using, self.plan.worker_id)

    def run(self) -> int:
        """Work until stopped, and return the exit code.

        0 drained, 1 forced or one of the worker's own threads has died, 75 not drained in time, 78 the same
        after settings or schema have ceased to fit. Raises `ConfigurationError`, `SchemaMismatch` or
        `InactiveEngine`, at the start or once all running tasks have ended. After a code other than 0 there
        are threads that still run: leave the process by `os._exit`.
        """
        try:
            self._refuse_open_transaction()
            # Before anything is connected: another driver cannot read what our sessions ask for.
            schema.require_postgresql(self.plan.using)
            with self._requests:
                return self._work() if self._boot() else EXIT_DRAINED
        finally:
            self._requests.close()
            self.finished.set()

    def stop(self) -> None:
        """Drain and end, as after a first signal; a second call ends at once."""
        self._requests.add()

    def _refuse_open_transaction(self) -> None:
        if connections[self.plan.using].in_atomic_block:
            raise ConfigurationError(
                "a worker cannot run inside a transaction, as in a TestCase: its own connections would not"
                " see what that has enqueued. Use tenantfair.testing.drain() there"
            )

    def _prepare(self) -> None:
        """Verify and synchronise on a connection of its own, which waits for no lock without a bound."""
        with self._connections.own(server_options=_BOOT_OPTIONS):
            schema.verify(self.plan.using)
            policy.synchronize(self.plan.using)

    def _boot(self) -> bool:
        """Prepare in a thread, so that signals are obeyed whatever that waits for; False when asked to stop.

        The thread is then left where it is, which may be a connection attempt or a wait for a lock.
        """
        booted: Future[bool] = Future()

        def boot() -> None:
            try:
                booted.set_result(self._prepare_patiently())
            except BaseException as error:  # handed on to whoever waits
                booted.set_exception(error)
            finally:
                self._requests.poke()

        threading.Thread(target=boot, name="tenantfair-boot", daemon=True).start()
        while not booted.done() and self._requests.count == 0:
            self._requests.wait(_SUPERVISE_SECONDS)
        if booted.done():
            return booted.result()
        self._boot_abandoned.set()
        self._log(
            logging.INFO, "worker_stopped", "Worker %s stopped before it had started", self.plan.worker_id
        )
        return False

    def _prepare_patiently(self) -> bool:
        """Verify and synchronise, waiting for the database; False when given up."""
        failures = 0
        while not self._boot_abandoned.is_set():
            try:
                self._connections.probe()
                self._prepare()
                return True
            except (OperationalError, InterfaceError) as error:
                failures += 1
                said = str(error).strip()
                if getattr(error.__cause__, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
                    self._log(logging.WARNING, "boot_locked", "The start waits for somebody's lock: %s", said)
                else:
                    self._log(logging.WARNING, "database_away", "The database cannot be reached: %s", said)
                self._boot_abandoned.wait(backoff(failures, longest=_LONGEST_BACKOFF))
        return False

    def _work(self) -> int:
        crew = Crew(
            self.plan,
            self._connections,
            prepare=self._prepare,
            on_ended=self._requests.poke,
            report=self._report,
        )
        try:
            crew.start()
            self._log(
                logging.INFO,
                "worker_started",
                "Worker %s started on %r with %d places",
                self.plan.worker_id,
                self.plan.using,
                self.plan.concurrency,
            )
            self._supervise(crew)
            code = self._drain(crew)
        finally:
            crew.close_keeper()
        fatal = crew.dispatcher.fatal
        if code == EXIT_DRAINED and fatal is not None:
            raise fatal
        return EXIT_UNFIT if code == EXIT_UNDRAINED and fatal is not None else code

    def _supervise(self, crew: Crew) -> None:
        """Return when the worker is asked to stop, the dispatcher has ended or a thread has died."""
        while self._requests.count == 0 and not crew.dispatcher.stopping and not crew.failed:
            self._look_after(crew)
            self._requests.wait(_SUPERVISE_SECONDS)

    def _look_after(self, crew: Crew) -> None:
        crew.check_keeper()
        if self.plan.health_file is not None and crew.healthy:
            try:
                self.plan.health_file.touch()
            except OSError as error:
                self._log(logging.ERROR, "health_file_failed", "The health file cannot be touched: %s", error)

    def _drain(self, crew: Crew) -> int:
        """Claim no more and wait for what runs: after a request to stop no longer than the drain timeout."""
        crew.dispatcher.stop()
        deadline: float | None = None
        while True:
            if deadline is None and (self._requests.count > 0 or crew.dispatcher.fatal is not None):
                deadline = time.monotonic() + self.plan.drain_timeout
                self._log(logging.INFO, "worker_draining", "Worker %s drains", self.plan.worker_id)
                crew.drain()
            if crew.wait_until_drained(_DRAIN_STEP_SECONDS) and not crew.failed:
                break
            self._look_after(crew)
            if self._requests.count > 1 or crew.failed:
                return self._abandon(crew, EXIT_FORCED)
            if deadline is not None and time.monotonic() > deadline:
                return self._abandon(crew, EXIT_UNDRAINED)
        ended = crew.close()
        self._log(logging.INFO, "worker_stopped", "Worker %s stopped", self.plan.worker_id)
        return EXIT_DRAINED if ended else EXIT_UNDRAINED

    def _abandon(self, crew: Crew, code: int) -> int:
        self._log(
            logging.WARNING,
            "worker_abandoned",
            "Worker %s leaves %d runs to the end of their leases",
            self.plan.worker_id,
            len(crew.holdings),
        )
        return code

    def _report(self, event: str, **facts: Any) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event, **facts)
        except Exception:  # an observer can spoil nothing
            self._log(logging.ERROR, "observer_failed", "An observer of the worker failed", exc_info=True)

    def _log(
        self, level: int, event: str, message: str, *arguments: object, exc_info: bool | None = None
    ) -> None:
        extra = {"event": event, "worker_id": self.plan.worker_id}
        log_safely(logger, level, message, *arguments, exc_info=exc_info, extra=extra)
