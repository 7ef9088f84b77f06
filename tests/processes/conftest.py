"""One private server for these tests, one fresh domain for each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from example_project.postgres import PrivateServer
from tests.processes.stage import Stage

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def process_server() -> Iterator[PrivateServer]:
    with PrivateServer() as server:
        yield server


@pytest.fixture(scope="session")
def migrated(process_server: PrivateServer, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a migrated database to copy."""
    with psycopg.connect(process_server.dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE migrated")
    done = Stage(process_server, "migrated", tmp_path_factory.mktemp("migrate")).manage(
        "migrate", "--verbosity=0"
    )
    assert done.returncode == 0, done.stderr
    return "migrated"


@pytest.fixture
def make_stage(
    process_server: PrivateServer, migrated: str, tmp_path: Path
) -> Iterator[Callable[..., Stage]]:
    """Make a stage on a fresh copy of the migrated database; keyword arguments are settings."""
    stages: list[Stage] = []

    def make(**tenantfair: Any) -> Stage:
        name = f"domain_{next(_numbers)}"
        with psycopg.connect(process_server.dsn, autocommit=True) as connection:
            connection.execute(
                psycopg.sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                    psycopg.sql.Identifier(name), psycopg.sql.Identifier(migrated)
                )
            )
        stages.append(Stage(process_server, name, tmp_path, **tenantfair))
        return stages[-1]

    yield make
    for stage in stages:
        stage.close()


@pytest.fixture
def stage(make_stage: Callable[..., Stage]) -> Stage:
    return make_stage()
