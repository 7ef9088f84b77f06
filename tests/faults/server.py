"""A server that the faults may bring down, with a migrated database to copy for each of them."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql

from example_project.postgres import PrivateServer
from tests.faults.nursery import Child, Nursery
from tests.processes.stage import LONGEST_WAIT_SECONDS, Stage, WorkerProcess, until

# A commit that the server has answered is on disk: whoever crashes the server may count on it.
DURABLE: dict[str, str | int] = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "max_connections": 120,
    "max_prepared_transactions": 10,
    "deadlock_timeout": "200ms",
    "log_lock_waits": "on",
    "max_wal_size": "2GB",
    # After a crash it syncs all files of the machine's disk at once, not each of a thousand by itself.
    "recovery_init_sync_method": "syncfs",
}
TEMPLATE = "migrated"


class World:
    """One server, one nursery of processes, and any number of stages; all of it is gone at the end.

    One that is not `durable` is faster and may crash all the same, as long as its machine does not.
    """

    def __init__(self, bin_dir: Path | None = None, *, durable: bool = True) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tenantfair-faults-", ignore_cleanup_errors=True)
        self.folder = Path(self._folder.name)
        # The server's account has to find its way through.
        self.folder.chmod(0o755)
        self.server = PrivateServer(bin_dir, options=DURABLE | ({} if durable else {"fsync": "off"}))
        self.nursery = Nursery()
        self._numbers = itertools.count(1)
        self._stages: list[FaultStage] = []
        # A small disk that a part of the server's data lies on, if it does.
        self.disk: Path | None = None

    def __enter__(self) -> Self:
        self.server.start()
        try:
            self._migrate()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process that was started here."""
        for stage in self._stages:
            stage.close()
        self.nursery.close()
        self.server.stop("immediate")
        self._folder.cleanup()

    def _migrate(self) -> None:
        self.administer(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(TEMPLATE)))
        log = self.folder / "migrate.log"
        done = self.nursery.start(
            "tests.faults.nursery_process:manage",
            ["migrate", "--verbosity=0"],
            environment={**os.environ, "DATABASE_URL": self.server.url(TEMPLATE)},
            log=log,
        )
        assert done.wait(LONGEST_WAIT_SECONDS) == 0, log.read_text()

    def administer(self, statement: Any) -> None:
        """Run one statement in the maintenance database."""
        with psycopg.connect(self.server.dsn, autocommit=True) as connection:
            connection.execute(statement)

    def stage(self, **tenantfair: Any) -> FaultStage:
        """Return a stage on a fresh copy of the migrated database; keyword arguments are settings."""
        name = f"domain_{next(self._numbers)}"
        self.administer(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(TEMPLATE))
        )
        folder = self.folder / name
        folder.mkdir()
        self._stages.append(FaultStage(self, name, folder, **{"POLL_INTERVAL": 0.1, **tenantfair}))
        return self._stages[-1]

    def discard(self, stage: FaultStage) -> None:
        """End the stage's processes and drop its database."""
        stage.close()
        self._stages.remove(stage)
        self.administer(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(stage.database)))


class FaultStage(Stage):
    """A stage whose processes are forked from one that has loaded everything, so there can be many."""

    def __init__(self, world: World, database: str, folder: Path, **tenantfair: Any) -> None:
        super().__init__(world.server, database, folder, **tenantfair)
        self.world = world
        self.children: list[Child] = []

    def start_worker(
        self, *options: str, ready: bool = True, point: str = "", **environment: str
    ) -> WorkerProcess:
        """Start a worker that stops itself at `point`, if one is named."""
        worker = self.start(
            "tests.faults.nursery_process:manage",
            "tenantfair_worker",
            *options,
            FAULT_POINT=point,
            **environment,
        )
        if ready:
            worker.until_said(" started on ")
        return worker

    def start(self, function: str, *arguments: str, **environment: str) -> WorkerProcess:
        """Start `module:function` with `arguments` in a process of its own."""
        log = self.folder / f"process-{len(self.children)}.log"
        log.touch()
        child = self.world.nursery.start(
            function, arguments, environment=self.environment() | environment, log=log
        )
        self.children.append(child)
        worker = WorkerProcess(child, log)  # type: ignore[arg-type]
        self.workers.append(worker)
        return worker

    def add(
        self, task: str = "work", *args: Any, tenant: str = "acme", count: int = 1, attempts: int = 0
    ) -> list[str]:
        """Create runs of `tests.faults.tasks.TASK`, due now, and return their ids."""
        ids = [str(uuid.uuid4()) for _ in range(count)]
        self.query(
            "INSERT INTO tenantfair_run (run_id, tenant_id, task_path, args, wake_at, claim_attempts)"
            " SELECT run_id, %s, %s, %s::jsonb, clock_timestamp(), %s FROM unnest(%s::uuid[]) AS run_id",
            tenant,
            f"tests.faults.tasks.{task}",
            json.dumps(args),
            attempts,
            ids,
        )
        return ids

    @property
    def proxied(self) -> Path:
        """The server's socket, for a proxy in front of it."""
        return self.server.socket_dir / f".s.PGSQL.{self.server.port}"

    def inside(self, function: str, *arguments: str, **environment: str) -> str:
        """Run `module:function` in a process of its own to its end and return what it said."""
        process = self.start(function, *arguments, **environment)
        assert process.exit_code() == 0, process.said()
        return process.said()

    def url(self) -> str:
        """The address of the stage's database."""
        return self.server.url(self.database)

    def until_settled(self, seconds: float = LONGEST_WAIT_SECONDS) -> None:
        """Wait until no run holds a claim or an admission."""
        held = "SELECT 1 FROM tenantfair_run WHERE num_nonnulls(claim_token, tenant_admitted_at) > 0 LIMIT 1"
        until(lambda: not self.query(held), "all claims end and all admissions return", seconds)
