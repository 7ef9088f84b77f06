"""Django's own fixtures carry a domain to another place, except for the ring, which grows anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import DatabaseError

from tenantfair import policy, runs
from tenantfair.models import Policy, Run, Schedule
from tests.factories import STATES, policy_in_force, run_in
from tests.rows import assert_exact, sessions
from tests.worker_parts import run_until_idle

pytestmark = pytest.mark.django_db(transaction=True)


def fill() -> None:
    policy_in_force()
    for state in STATES:
        run_in(state, tenant_id=f"tenant {state}")
    policy.put_override("tenant queued", 3)


def test_a_fixture_without_the_ring_is_loaded_exactly(tmp_path: Path) -> None:
    fill()
    before = {run.pk: (run.run_id, run.scope_key, run.status) for run in Run.objects.all()}
    fixture = tmp_path / "domain.json"
    call_command("dumpdata", "tenantfair", exclude=["tenantfair.schedule"], output=str(fixture), verbosity=0)
    call_command("flush", interactive=False, verbosity=0)

    call_command("loaddata", str(fixture), verbosity=0)

    assert {run.pk: (run.run_id, run.scope_key, run.status) for run in Run.objects.all()} == before
    assert policy.inspect("tenant queued").cap == 3
    with sessions() as another:
        assert_exact(another())
    run_until_idle()
    queued = Run.objects.get(tenant_id="tenant queued")
    assert runs.get(queued.run_id).state == "completed"


def test_a_fixture_with_the_ring_is_refused_whole(tmp_path: Path) -> None:
    fill()
    fixture = tmp_path / "domain.json"
    call_command("dumpdata", "tenantfair", output=str(fixture), verbosity=0)
    call_command("flush", interactive=False, verbosity=0)

    with pytest.raises(DatabaseError, match="ring_position"):
        call_command("loaddata", str(fixture), verbosity=0)

    assert not Run.objects.exists()
    assert not Schedule.objects.exists()
    assert Policy.objects.get().initialized_at is None
