"""Settings of the processes that faults are done to; what differs comes from the environment as JSON."""

import json
import os
from typing import Any

from tests.settings import *  # noqa: F403
from tests.settings import env


def tenantfair() -> dict[str, Any]:
    """Return what the environment says about tenantfair."""
    found: dict[str, Any] = json.loads(os.environ.get("PROCESS_TENANTFAIR", '{"DEFAULT_MAX_ACTIVE_RUNS": 2}'))
    return found


def databases() -> dict[str, Any]:
    """Return the one database that the environment names, with its options."""
    default = env.db("DATABASE_URL", default="postgresql:///nowhere")
    default["OPTIONS"] = {**default.get("OPTIONS", {}), **json.loads(os.environ.get("FAULT_OPTIONS", "{}"))}
    return {"default": default | {"CONN_MAX_AGE": None}}


DATABASES = databases()
TENANTFAIR = tenantfair()
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"tenantfair": {"handlers": ["console"], "level": "INFO"}},
}
