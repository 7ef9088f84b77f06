"""Tools that a machine may lack: PgBouncer in transaction mode, and libfaketime for clocks."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.faults.scenario import NotRun, assert_sound, scenario
from tests.faults.server import FaultStage, World
from tests.processes.stage import ROOT, WorkerProcess, until

_STEP_SECONDS = 600
# Only the time of day is wrong, as on a machine that is; the processes share nothing about it.
_TIME_OF_DAY = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_DISABLE_SHM": "1", "DONT_FAKE_MONOTONIC": "1"}


def _found(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise NotRun(f"{program} is missing")
    return path


class _Bouncer:
    """PgBouncer in transaction mode in front of the world's server."""

    def __init__(self, world: World, size: int) -> None:
        self._program = _found("pgbouncer")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._folder = world.folder / f"bouncer-{self.port}"
        self._folder.mkdir(mode=0o755)
        server = world.server
        (self._folder / "users.txt").write_text('"postgres" ""\n')
        (self._folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={server.socket_dir} port={server.port} user=postgres\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = trust\nauth_file = {self._folder / 'users.txt'}\nadmin_users = postgres\n"
            f"pool_mode = transaction\ndefault_pool_size = {size}\nmax_client_conn = 200\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self._process = subprocess.Popen(
            [self._program, str(self._folder / "pgbouncer.ini")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **({"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}),  # type: ignore[arg-type]
        )
        until(self._answers, "pgbouncer answers", 20)

    def _answers(self) -> bool:
        try:
            psycopg.connect(f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def url(self, stage: FaultStage) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{stage.database}"


@contextmanager
def _bouncer(world: World, size: int) -> Iterator[_Bouncer]:
    bouncer = _Bouncer(world, size)
    bouncer.start()
    try:
        yield bouncer
    finally:
        bouncer.stop()


@scenario("F28", own_server=True)
def pgbouncer_with_one_session(world: World, times: int) -> int:
    """Every operation is made through PgBouncer in transaction mode with a pool of one session."""
    stage = world.stage(DEFAULT_MAX_ACTIVE_RUNS=1000, LISTEN=False)
    with _bouncer(world, 1) as bouncer:
        for _ in range(times):
            stage.inside("tests.faults.hosting:elsewhere", "127.0.0.1", str(bouncer.port))
    assert_sound(stage)
    return times


@scenario("F28", own_server=True)
def pgbouncer_killed_under_workers(world: World, times: int) -> int:
    """Two workers behind PgBouncer, which is killed and comes back again and again: all runs complete."""
    stage = world.stage(DEFAULT_MAX_ACTIVE_RUNS=3, LEASE_SECONDS=5)
    with _bouncer(world, 4) as bouncer, stage.watched():
        workers = [stage.start_worker(DATABASE_URL=bouncer.url(stage)) for _ in range(2)]
        for _ in range(times):
            runs = stage.add(count=60)
            done = len(stage.ledger.events("end"))
            until(lambda done=done: len(stage.ledger.events("end")) > done + 10, "work goes on")
            bouncer.stop()
            bouncer.start()
            until(
                lambda runs=runs: all(stage.run(run)["status"] == "completed" for run in runs), "all complete"
            )
        for worker in workers:
            worker.signal(signal.SIGTERM)
            assert worker.exit_code() == 0, worker.said()
    stage.until_settled()
    assert max(stage.ledger.most_at_once().values()) <= 3
    assert_sound(stage)
    return times


def _faketime() -> str:
    """The path of libfaketime for programs with threads."""
    near = Path(_found("faketime")).resolve().parent.parent
    for root in (near, Path("/usr")):
        for path in root.glob("lib/*/faketime/libfaketimeMT.so.1"):
            return str(path)
    raise NotRun("libfaketime is missing")


def _worker_in_time(stage: FaultStage, library: str, offset: str) -> WorkerProcess:
    log = stage.folder / f"offset{offset}.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "django", "tenantfair_worker", "--settings=tests.faults.settings"],
            cwd=ROOT,
            env=stage.environment() | _TIME_OF_DAY | {"LD_PRELOAD": library, "FAKETIME": offset},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    worker = WorkerProcess(process, log)
    stage.workers.append(worker)
    worker.until_said(" started on ")
    return worker


@scenario("F30")
def worker_clocks_apart(world: World, times: int) -> int:
    """Two workers whose clocks are an hour ahead and an hour behind: nothing is stolen, nothing waits."""
    library = _faketime()
    for _ in range(times):
        stage = world.stage(DEFAULT_MAX_ACTIVE_RUNS=2, LEASE_SECONDS=2)
        gate = stage.gate()
        (held,) = stage.add("hold", str(gate))
        with stage.watched():
            workers = [_worker_in_time(stage, library, offset) for offset in ("+3600s", "-3600s")]
            stage.until_started(held)
            claimed_at = stage.run(held)["claimed_at"]
            runs = stage.add(count=20)
            until(
                lambda stage=stage, runs=runs: all(stage.run(run)["status"] == "completed" for run in runs),
                "all but the held run complete",
            )
            until(
                lambda stage=stage, held=held, claimed_at=claimed_at: (
                    (stage.run(held)["claimed_at"] - claimed_at).total_seconds() > 2.5
                ),
                "the held run's lease has been renewed past its length",
            )
            gate.open()
            stage.until_all("completed")
        for run in (held, *runs):
            assert len([line for line in stage.ledger.events("start") if line["run"] == run]) == 1
        assert_sound(stage)
        for worker in workers:
            # Sleeps fail in such a process now and then, which is the tool's doing; so it is just killed.
            worker.end()
        world.discard(stage)
    return times


@scenario("F31", own_server=True, quick=False, times=1)
def server_clock_steps_back(world: World, times: int) -> int:
    """The server's clock steps back ten minutes: held runs stay their worker's, new ones are claimed."""
    clock = world.folder / "clock"
    programs = _programs_in_time(world, clock)
    with World(bin_dir=programs) as timed:
        for _ in range(times):
            _step_back(timed, clock)
    return times


def _programs_in_time(world: World, clock: Path) -> Path:
    """A folder of the server's programs of which the server itself lives in the time that `clock` says."""
    library = _faketime()
    programs = world.folder / "bin"
    programs.mkdir(mode=0o755)
    clock.write_text("+0\n")
    real = world.server._bin_dir
    (programs / "initdb").symlink_to(real / "initdb")
    changed = {"LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1"}
    variables = " ".join(f"{name}={value}" for name, value in (_TIME_OF_DAY | changed).items())
    (programs / "postgres").write_text(f'#!/bin/sh\nexec env {variables} {real}/postgres "$@"\n')
    (programs / "postgres").chmod(0o755)
    return programs


def _step_back(world: World, clock: Path) -> None:
    stage = world.stage(DEFAULT_MAX_ACTIVE_RUNS=2, LEASE_SECONDS=2)
    gate = stage.gate()
    (held,) = stage.add("hold", str(gate))
    first = stage.start_worker()
    stage.until_started(held)
    second = stage.start_worker()
    with stage.watched():
        (before,) = stage.query("SELECT clock_timestamp() AS now")
        clock.write_text(f"-{_STEP_SECONDS}\n")
        (after,) = stage.query("SELECT clock_timestamp() AS now")
        assert (before["now"] - after["now"]).total_seconds() > _STEP_SECONDS / 2
        runs = stage.add(count=20)
        until(
            lambda stage=stage, runs=runs: all(stage.run(run)["status"] == "completed" for run in runs),
            "what is enqueued afterwards is worked off",
        )
        gate.open()
        stage.until_all("completed")
    assert stage.run(held)["result"] == str(first.pid)
    for run in (held, *runs):
        assert len([line for line in stage.ledger.events("start") if line["run"] == run]) == 1
    for worker in (first, second):
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0, worker.said()
    clock.write_text("+0\n")
    assert_sound(stage)
