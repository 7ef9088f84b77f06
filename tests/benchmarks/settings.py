"""Django settings of the benchmarks: the tests' own, without a cap."""

from tenantfair.conf import MAX_CAP
from tests.settings import *  # noqa: F403

TENANTFAIR = {"DEFAULT_MAX_ACTIVE_RUNS": MAX_CAP}
