"""Servers that are short of disk, read only, or replaced by a standby that has missed the last moments."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from example_project.postgres import PrivateServer
from tests import invariants
from tests.faults.judge import History, verdict_of_claims
from tests.faults.proxy import Proxy
from tests.faults.scenario import NotRun, assert_sound, scenario
from tests.faults.server import DURABLE, World
from tests.faults.soak_checker import Checker
from tests.faults.soak_unit import LEASE_SECONDS, MAX_ATTEMPTS, Soak, tenants
from tests.processes.stage import until

_SMALL: dict[str, int] = {"pg_wal": 160, "base": 400}
_CLAIMS = 1_500


@contextmanager
def _small_disk(world: World, part: str) -> Iterator[Path]:
    """Move a part of the server's data to a small disk of its own."""
    disk = world.folder / "disk"
    disk.mkdir()
    owner = world.server.data_dir.stat()
    options = f"size={_SMALL[part]}m,mode=700,uid={owner.st_uid},gid={owner.st_gid}"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        raise NotRun(f"no small disk can be mounted: {mounted.stderr.strip()}")
    try:
        world.administer("ALTER SYSTEM SET max_wal_size = '64MB'")
        world.server.halt()
        there, here = world.server.data_dir / part, disk / part
        shutil.copytree(there, here, symlinks=True)
        for path in (here, *here.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid)
        shutil.rmtree(there)
        there.symlink_to(here)
        world.server.start()
        yield disk
    finally:
        world.server.halt("immediate")
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def _full_disk(world: World, part: str, times: int) -> int:
    with _small_disk(world, part) as disk:
        world.disk = disk
        struck = 0
        for seed in range(times):
            figures = Soak(world, _CLAIMS, seed, {"fill disk": 1}, backlog=300, claims_per_fault=400).run()
            assert figures.violations == [], figures.violations
            struck += figures.faults["fill disk"]
        return struck


@scenario("F21", own_server=True, quick=False, times=2)
def log_disk_full(world: World, times: int) -> int:
    """The disk of the server's log is full under load: the server goes down and comes back."""
    return _full_disk(world, "pg_wal", times)


@scenario("F21", own_server=True, quick=False, times=2)
def data_disk_full(world: World, times: int) -> int:
    """The disk of the server's tables is full under load: statements fail until there is room."""
    return _full_disk(world, "base", times)


@contextmanager
def _standby(world: World) -> Iterator[PrivateServer]:
    """A copy of the server that follows it, and may be read."""
    program = world.server._bin_dir / "pg_basebackup"
    if not program.exists():
        raise NotRun("pg_basebackup is missing")
    data = world.folder / "standby"
    data.mkdir(mode=0o700)
    owner = world.server.data_dir.stat()
    os.chown(data, owner.st_uid, owner.st_gid)
    copied = subprocess.run(
        [str(program), "-D", str(data), "-R", "-X", "stream", "-c", "fast", "-d", world.server.dsn],
        check=False,
        capture_output=True,
        text=True,
        user=owner.st_uid,
        group=owner.st_gid,
        extra_groups=[],
        cwd="/",
    )
    if copied.returncode:
        raise NotRun(f"no standby can be made: {copied.stderr.strip()}")
    with PrivateServer(data_dir=data, options=DURABLE | {"hot_standby": "on"}) as server:
        yield server


def _socket(server: PrivateServer) -> Path:
    return server.socket_dir / f".s.PGSQL.{server.port}"


@scenario("F24", own_server=True, times=1)
def hot_standby(world: World, times: int) -> int:
    """Every operation is made on a standby: what writes is refused (25006), and nothing has changed."""
    stage = world.stage(DEFAULT_MAX_ACTIVE_RUNS=1000, LISTEN=False)
    with _standby(world) as standby:
        for _ in range(times):
            stage.inside("tests.faults.hosting:read_only_server", str(standby.socket_dir), str(standby.port))
    assert_sound(stage)
    return times


@scenario("F23", own_server=True, quick=False, times=2)
def standby_promoted(world: World, times: int) -> int:
    """A standby that has missed the last moments takes over: no double outcome, no cap broken."""
    soak = Soak(world, _CLAIMS, seed=1, faults={}, backlog=300)
    soak.initialize()
    stage = soak.stage
    with _standby(world) as standby, Proxy(_socket(world.server)) as proxy:
        proxied = {"DATABASE_URL": proxy.url(stage.database)}
        soak.start_producer(**proxied)
        for number in range(2):
            soak.start_claimer(number, **proxied)
        until(lambda: soak.claimed() > _CLAIMS, "claims before the failover")
        with _connect(standby, "postgres") as administrator:
            # From here on it misses everything, as a standby behind a broken line does.
            administrator.execute("ALTER SYSTEM SET primary_conninfo = ''")
            administrator.execute("SELECT pg_reload_conf()")
            until(
                lambda: not administrator.execute("SELECT 1 FROM pg_stat_wal_receiver").fetchall(),
                "the standby receives no more",
            )
            before = soak.claimed()
            until(lambda: soak.claimed() > before + _CLAIMS // 3, "claims that will be lost")
            world.server.halt("immediate")
            promoted_at = time.time()
            administrator.execute("SELECT pg_promote(true, 30)")
        proxy.target = _socket(standby)
        checker = Checker(lambda: _connect(standby, stage.database))
        checker.start()
        before = soak.claimed()
        until(lambda: soak.claimed() > before + _CLAIMS, "claims after the failover")
        soak.stop_all()
        checker.stop()
        with _connect(standby, stage.database) as connection:
            checker.check(connection)
            assert [*checker.found, *invariants.violations(connection)] == []
    _judge(soak, promoted_at)
    return 1


def _connect(server: PrivateServer, database: str) -> invariants.Connection:
    import psycopg

    return psycopg.connect(server.url(database), autocommit=True)


def _judge(soak: Soak, promoted_at: float) -> None:
    history = History.read(soak.diaries)
    # Tokens and outcomes are judged over both servers, overlaps among what the new one has granted.
    assert history.faults == []
    after = {token: claim for token, claim in history.claims.items() if claim.claimed_at > promoted_at}
    assert after
    history.claims = after
    found = verdict_of_claims(history, lease=LEASE_SECONDS, caps=tenants(), max_attempts=MAX_ATTEMPTS)
    assert found == []
