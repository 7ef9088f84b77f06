"""The benchmarks' own PostgreSQL, its databases, and probes of how busy the machine is."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import django
import psycopg
from psycopg import sql

from example_project.postgres import PrivateServer

# Durable, as in production: a benchmark without fsync measures another machine.
OPTIONS: dict[str, str | int] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "wal_level": "replica",
    "wal_compression": "off",
    "shared_buffers": "1GB",
    "effective_cache_size": "8GB",
    "work_mem": "16MB",
    "maintenance_work_mem": "256MB",
    "max_wal_size": "4GB",
    "min_wal_size": "1GB",
    "checkpoint_timeout": "15min",
    "random_page_cost": "1.1",
    "jit": "off",
    "autovacuum": "on",
    "autovacuum_naptime": "10s",
    "max_connections": 200,
    "log_min_messages": "warning",
}

# More than any cell writes.
_WAL_FILES = 24

Connection = psycopg.Connection[tuple[Any, ...]]


def connect(url: str) -> Connection:
    """Return an autocommit session that prepares every statement at its first use."""
    return psycopg.connect(url, autocommit=True, prepare_threshold=0)


class Databases:
    """Databases on one server: templates are made once, every cell gets a fresh copy of one."""

    def __init__(self, server: PrivateServer) -> None:
        self.server = server
        self._number = 0
        self._admin = connect(server.dsn)
        self._admin.execute("CREATE TABLE probe (id int PRIMARY KEY, n bigint) WITH (fillfactor = 10)")
        self._admin.execute("INSERT INTO probe VALUES (1, 0)")
        self._age_wal()

    def url(self, name: str) -> str:
        return self.server.url(name)

    def create(self, name: str, template: str = "template0") -> str:
        self._run("CREATE DATABASE {} TEMPLATE {}", name, template)
        return name

    def drop(self, name: str) -> None:
        self._run("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    @contextmanager
    def copy(self, template: str) -> Iterator[str]:
        """A fresh copy of a template, checkpointed, for one cell; gone when the block ends."""
        self._number += 1
        name = self.create(f"cell_{self._number}", template)
        try:
            self._admin.execute("CHECKPOINT")
            yield name
        finally:
            self.drop(name)

    def settle(self, name: str) -> None:
        """Vacuum, analyse and checkpoint, so that every cell starts alike."""
        with connect(self.url(name)) as connection:
            connection.execute("VACUUM (ANALYZE)")
            connection.execute("CHECKPOINT")

    def probe(self) -> dict[str, float]:
        """How the machine is right now: a tiny synchronous commit and a fixed CPU loop, medians in ms."""
        commits = [_timed(lambda: self._admin.execute("UPDATE probe SET n = n + 1")) for _ in range(30)]
        loops = [_timed(lambda: sum(range(300_000))) for _ in range(5)]
        return {
            "probe_commit_ms": round(statistics.median(commits) * 1e3, 3),
            "probe_cpu_ms": round(statistics.median(loops) * 1e3, 2),
        }

    def close(self) -> None:
        self._admin.close()

    def _age_wal(self) -> None:
        """Write some WAL and let a checkpoint keep its files for later.

        A server that has run for a while overwrites old files; a new one stops to fill each with zeros first.
        """
        for _ in range(_WAL_FILES):
            self._admin.execute("SELECT pg_logical_emit_message(false, 'age', '')")
            self._admin.execute("SELECT pg_switch_wal()")
        self._admin.execute("CHECKPOINT")

    def _run(self, statement: str, *names: str) -> None:
        self._admin.execute(sql.SQL(statement).format(*map(sql.Identifier, names)), prepare=False)


def _timed(action: Any) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def versions(server: PrivateServer) -> dict[str, str]:
    """What the figures were measured with."""
    return {
        "machine": f"{os.cpu_count()} cores, {_processor()}, {_filesystem(server.data_dir)}",
        "postgresql": server.version,
        "python": platform.python_version(),
        "django": django.__version__,
        "psycopg": psycopg.__version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next(
        (line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.machine()
    )


def _filesystem(folder: Path) -> str:
    """The kind of file system that holds the data: on one in memory an fsync costs nothing."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown file system"
    holding = [(point, kind) for point, kind in mounts if folder.is_relative_to(point)]
    return max(holding, key=lambda mount: len(mount[0]))[1]
