"""Pytest plugin that gives a run its PostgreSQL: the one DATABASE_URL names, else a private one of its own.

It is loaded by ``-p`` and acts before pytest-django reads the settings, where a conftest would be too late.
The workers of pytest-xdist inherit DATABASE_URL and so share one server.
"""

import os

import psycopg
import pytest

from example_project.postgres import PostgresError, PrivateServer

_SERVER = pytest.StashKey[PrivateServer]()


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    if os.environ.get("DATABASE_URL"):
        return
    try:
        server = PrivateServer().start()
    except PostgresError as error:
        raise pytest.UsageError(f"no private PostgreSQL: {error}") from error
    early_config.stash[_SERVER] = server
    # Django makes a test database of its own; processes that tests start use this one.
    with psycopg.connect(server.dsn, autocommit=True) as administrator:
        administrator.execute("CREATE DATABASE tenantfair")
    os.environ["DATABASE_URL"] = server.url("tenantfair")


def pytest_report_header(config: pytest.Config) -> str:
    kind = "private" if _SERVER in config.stash else "from DATABASE_URL"
    return f"postgresql: {_server_version()} ({kind})"


def pytest_unconfigure(config: pytest.Config) -> None:
    server = config.stash.get(_SERVER, None)
    if server is not None:
        del os.environ["DATABASE_URL"]
        del config.stash[_SERVER]
        server.stop()


def _server_version() -> str:
    from django.db import connection

    # The test database may not exist yet, so ask the one that every server has.
    parameters = connection.get_connection_params() | {"dbname": "postgres", "connect_timeout": 5}
    parameters.pop("pool", None)
    try:
        with psycopg.connect(**parameters) as answering:
            return str(answering.info.parameter_status("server_version"))
    except psycopg.Error as error:
        return f"no answer: {str(error).splitlines()[0]}"
