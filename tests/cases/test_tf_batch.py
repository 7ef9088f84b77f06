"""A row that Python cannot read, written past the package, spoils no neighbour of its claim."""

from __future__ import annotations

from typing import LiteralString

import pytest

from tenantfair import runs
from tenantfair.claim import Engine
from tenantfair.claim.legacy import Legacy
from tenantfair.claim.tenant_fair import TenantFair
from tenantfair.models import Run
from tests.factories import claim, policy_in_force, run_in
from tests.rows import assert_exact, sessions
from tests.worker_parts import run_until_idle

pytestmark = pytest.mark.django_db(transaction=True)

# jsonb spells this out, and Python reads no integer of so many digits.
UNREADABLE: LiteralString = "'[1e5000]'"


@pytest.mark.parametrize("column", ["args", "kwargs", "state", "pending_signals", "errors"])
def test_a_number_that_python_cannot_read_fails_its_own_run_at_once(column: str) -> None:
    policy_in_force()
    good = [run_in("queued") for _ in range(2)]
    bad = run_in("queued")
    good.append(run_in("queued"))
    with sessions() as another:
        session = another()
        session.execute(f"UPDATE tenantfair_run SET {column} = {UNREADABLE} WHERE id = %s", [bad.pk])

        run_until_idle()

        assert [runs.get(run.run_id).state for run in good] == ["completed"] * 3
        row = Run.objects.filter(pk=bad.pk).values_list("status", "claim_attempts", "failures")
        assert row.get() == ("failed", 0, 1)
        assert_exact(session)


@pytest.mark.parametrize("engine", [TenantFair(), Legacy()], ids=lambda engine: engine.name)
def test_a_list_of_workers_that_is_none_fails_no_claim(engine: Engine) -> None:
    policy_in_force(admission_mode=engine.name)
    for spoilt in ({}, "worker", 5):
        run_in("queued", worker_ids=spoilt)
    run_in("queued")

    leases = claim(4, engine=engine).leases

    assert [len(lease.worker_ids) for lease in leases] == [1] * 4
