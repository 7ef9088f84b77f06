"""Settings of the worker processes that tests start; TENANTFAIR comes from the environment as JSON."""

import json
import os

from tests.settings import *  # noqa: F403

TENANTFAIR = json.loads(os.environ["PROCESS_TENANTFAIR"])
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "loggers": {"tenantfair": {"handlers": ["console"], "level": "INFO"}},
}
