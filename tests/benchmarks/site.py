"""Django inside a benchmark process, pointed at one database after the other."""

from __future__ import annotations

import os
from contextlib import ExitStack

import django
from django.apps import apps

SETTINGS = "tests.benchmarks.settings"

# The worker's session in use, by the database it is on.
_working: dict[str, ExitStack] = {}


def use(url: str) -> None:
    """Point the default connection of this process at `url`; sets Django up at the first call."""
    if not apps.ready:
        os.environ["DJANGO_SETTINGS_MODULE"] = SETTINGS
        os.environ["DATABASE_URL"] = url
        django.setup()
    import environ
    from django.db import connection

    _stop_working()
    wanted = environ.Env.db_url_config(url)
    if connection.settings_dict["NAME"] != wanted["NAME"]:
        connection.close()
        connection.settings_dict["NAME"] = wanted["NAME"]


def use_as_worker(url: str) -> None:
    """As `use`, with a session as a worker opens for itself: it prepares its statements."""
    if url in _working:
        return
    use(url)
    from tenantfair.worker.database import WorkerConnections

    sessions = WorkerConnections("default", "bench")
    sessions.probe()
    _working[url] = ExitStack()
    _working[url].enter_context(sessions.own())


def _stop_working() -> None:
    for session in _working.values():
        session.close()
    _working.clear()


def leave() -> None:
    """Close the connection, so that its database can be dropped or copied."""
    from django.db import connection

    _stop_working()
    connection.close()
