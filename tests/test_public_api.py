"""What users may import is what `__all__` says, and the package itself imports nothing of Django's."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

PUBLIC = {
    "tenantfair.claim": {
        "Call",
        "ClaimBatch",
        "Engine",
        "Lease",
        "Poisoned",
        "claim_due",
        "due_work_exists",
        "get_engine",
    },
    "tenantfair.policy": {
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
    },
    "tenantfair.runs": {
        "MAX_SIGNALS",
        "STATE_EXPRESSION",
        "TENANTLESS",
        "UNSET",
        "Abandoned",
        "Completed",
        "Failed",
        "NewRun",
        "Outcome",
        "PruneResult",
        "Released",
        "Retry",
        "RunView",
        "Settlement",
        "Snoozed",
        "State",
        "Waiting",
        "Yielded",
        "cancel",
        "checkpoint",
        "enqueue",
        "enqueue_many",
        "finish",
        "get",
        "heartbeat",
        "interrupt",
        "prune",
        "retry",
        "settle",
        "signal",
        "state_of",
    },
    "tenantfair.signals": {"cap_changed", "claim_observed"},
}


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_module_exports_exactly_these_names(name: str) -> None:
    module = import_module(name)

    assert set(module.__all__) == PUBLIC[name]
    assert all(hasattr(module, exported) for exported in module.__all__)


def test_importing_the_package_imports_no_models() -> None:
    """Django imports `tenantfair` before its registry is ready."""
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, tenantfair; print(any(m.startswith('django') for m in sys.modules))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "False"
