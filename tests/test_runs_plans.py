"""The holder's statements find their rows by index, in any number and under any kind of plan."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from tenantfair import runs
from tenantfair.runs._writes import write
from tenantfair.runs.finishing import _statement
from tenantfair.sql import load
from tests.factories import claimed_lease

pytestmark = pytest.mark.django_db


def scans(name: str, params: dict[str, Any]) -> list[str]:
    """Return the lines of the plan that say how the run table is read."""
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN " + load(name), params)
        return [line for (line,) in cursor.fetchall() if " on tenantfair_run" in line and "Scan" in line]


@pytest.mark.parametrize("number", [1, 32, 200])
def test_holders_never_scan_the_table(number: int) -> None:
    # So many that a scan is dear beside 200 lookups, whichever rows ANALYZE happens to sample.
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO tenantfair_run (tenant_id, task_path, status, finished_at)"
            " SELECT 'acme', 'x', 'completed', '2020-01-01Z' FROM generate_series(1, 100000)"
        )
    lease = claimed_lease()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE tenantfair_run")
    row = write(runs.Completed(lease, 1))
    _, finish = _statement([write(runs.Yielded(lease))] * number, bounded=True)
    _, complete = _statement([row] * number, bounded=True)
    heartbeat = {name: [getattr(lease, name)] * number for name in ("run_id", "claim_token")}
    checkpoint = {"run_id": row.run_id, "claim_token": row.claim_token, "checkpoint_seq": 0, "state": "1"}
    for name, params in (
        ("finish_runs", finish),
        ("complete_runs", complete),
        ("heartbeat_leases", heartbeat),
        ("checkpoint_run", checkpoint),
    ):
        found = scans(name, params)
        assert found
        assert not [line for line in found if "Index Scan" not in line], found
