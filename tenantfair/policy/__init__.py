"""Caps and their administration: read, write by compare-and-set, inspect, and synchronise with settings.

Every write takes an optional `expected_version`: when it is not the stored one, `StaleVersion` is raised and
nothing has changed. `using` names a database alias, `TENANTFAIR["DATABASE"]` by default. A tenant id of None
is the tenantless scope. A write inside the caller's transaction holds its row until that transaction ends.
"""

from tenantfair.policy.boot import restore_policy_row, synchronize
from tenantfair.policy.caps import get_default, put_default, put_override, put_scan_budget, reset_override
from tenantfair.policy.inspection import inspect, inspect_many, list_scopes
from tenantfair.policy.records import DefaultPolicy, Inspection, Override, SyncResult

__all__ = [
    "DefaultPolicy",
    "Inspection",
    "Override",
    "SyncResult",
    "get_default",
    "inspect",
    "inspect_many",
    "list_scopes",
    "put_default",
    "put_override",
    "put_scan_budget",
    "reset_override",
    "restore_policy_row",
    "synchronize",
]
