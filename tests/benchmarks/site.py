"""Django inside a benchmark process, pointed at one database after the other."""

from __future__ import annotations

import os

import django
from django.apps import apps

SETTINGS = "tests.benchmarks.settings"


def use(url: str) -> None:
    """Point the default connection of this process at `url`; sets Django up at the first call."""
    if not apps.ready:
        os.environ["DJANGO_SETTINGS_MODULE"] = SETTINGS
        os.environ["DATABASE_URL"] = url
        django.setup()
    import environ
    from django.db import connection

    wanted = environ.Env.db_url_config(url)
    if connection.settings_dict["NAME"] != wanted["NAME"]:
        connection.close()
        connection.settings_dict["NAME"] = wanted["NAME"]


def leave() -> None:
    """Close the connection, so that its database can be dropped or copied."""
    from django.db import connection

    connection.close()
