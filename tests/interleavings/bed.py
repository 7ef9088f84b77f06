"""A database of its own, with the gates in it, for one process that steps sessions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.core.management import call_command
from django.db import connection, connections
from django.db.utils import load_backend
from psycopg import sql

from tests.interleavings.gates import GATE, gated_claim, gated_fold

_TABLES = ("policy", "partition", "schedule", "run", "pending")


def connect(database: str) -> psycopg.Connection[Any]:
    """Return an autocommit session, free of Django's adapters, on another database of the test server."""
    found = connection.get_connection_params() | {"dbname": database}
    for django_only in ("pool", "context", "cursor_factory", "prepare_threshold"):
        found.pop(django_only, None)
    return psycopg.connect(**found, autocommit=True)


@contextmanager
def database(name: str) -> Iterator[str]:
    """Make a database, install the app with gates in it, yield its name and drop it at the end.

    Autovacuum leaves its tables alone: it would take locks of its own at moments of its own. The stage
    vacuums.
    """
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
    with connect("postgres") as administrator:
        administrator.execute(drop)
        administrator.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        _in_thread(name)
        with connect(name) as session:
            session.execute(GATE)
            install(session)
            # Schedules begin with runs whose ids no identity handed out; those of new runs are above them.
            session.execute("SELECT setval(pg_get_serial_sequence('tenantfair_run', 'id'), 100)")
            for table in _TABLES:
                session.execute(f"ALTER TABLE tenantfair_{table} SET (autovacuum_enabled = off)")
        yield name
    finally:
        with connect("postgres") as administrator:
            administrator.execute(drop)


def install(session: psycopg.Connection[Any]) -> None:
    """Install the shipped functions with their gates."""
    for gated in (gated_claim(), gated_fold()):
        # The trigger beside the fold cannot be replaced, and need not be.
        session.execute(gated.installation.split("CREATE CONSTRAINT TRIGGER")[0])


def _in_thread(name: str) -> None:
    """Run the migrations through a connection of Django's that no other code sees."""

    def migrate() -> None:
        settings = connections.settings["default"]
        wrapper = load_backend(settings["ENGINE"]).DatabaseWrapper({**settings, "NAME": name}, "default")
        connections["default"] = wrapper
        try:
            call_command("migrate", verbosity=0)
        except BaseException as error:
            failures.append(error)
        finally:
            wrapper.close()

    failures: list[BaseException] = []
    thread = threading.Thread(target=migrate)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
