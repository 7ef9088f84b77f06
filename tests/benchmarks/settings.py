"""Django settings of the benchmarks: the tests' own, without a cap that would stop a workload early."""

from tests.settings import *  # noqa: F403

TENANTFAIR = {"DEFAULT_MAX_ACTIVE_RUNS": 1_000_000}
