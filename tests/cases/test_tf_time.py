"""Without USE_TZ everything works from enqueue to the admin, and no time is stored that cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connections
from django.test import Client
from django.urls import reverse

from tenantfair import policy, runs
from tenantfair.backend import for_tenant
from tenantfair.claim import claim_due
from tenantfair.exceptions import InvalidRun
from tenantfair.models import Run
from tests.factories import policy_in_force
from tests.tasks_for_tests import approval, echo, three_steps
from tests.worker_parts import run_until_idle

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=["Asia/Tokyo", "America/St_Johns"])
def naive(request: pytest.FixtureRequest, settings: Any) -> Iterator[str]:
    """A project without USE_TZ in one zone; sessions take the zone when they open."""
    connections["default"].close()
    settings.TIME_ZONE = request.param
    settings.USE_TZ = False
    policy_in_force()
    yield request.param
    connections["default"].close()


def test_a_project_without_time_zones_works_from_end_to_end(naive: str, admin_client: Client) -> None:
    hour = timedelta(hours=1)
    past = runs.enqueue(echo, tenant_id="a", run_after=datetime.now() - hour)
    future = runs.enqueue(echo, tenant_id="a", run_after=datetime.now() + hour)
    result = for_tenant(echo, "a").enqueue(1)
    steps = runs.enqueue(three_steps, tenant_id="a")
    asked = runs.enqueue(approval, tenant_id="a")

    run_until_idle()

    assert [runs.get(run).state for run in (past, result.id, steps)] == ["completed"] * 3
    assert [runs.get(run).state for run in (future, asked)] == ["scheduled", "waiting"]
    assert policy.inspect("a").unfinished == 2
    for run in Run.objects.all():
        page = admin_client.get(reverse("admin:tenantfair_run_change", args=[run.pk]))
        assert page.status_code == 200
    for model in ("run", "partition"):
        assert admin_client.get(reverse(f"admin:tenantfair_{model}_changelist")).status_code == 200

    runs.signal(asked, "yes")
    runs.cancel(future)
    run_until_idle()

    assert runs.get(asked).state == "completed"
    # A naive time, by the clock on this project's wall.
    assert timedelta(0) <= datetime.now() - echo.get_result(result.id).finished_at < hour
    assert runs.prune(older_than=timedelta(0)).deleted == 5


def test_a_time_that_the_zone_of_the_project_cannot_show_is_refused(naive: str) -> None:
    east = naive == "Asia/Tokyo"
    ends = {"last": datetime.max.replace(tzinfo=UTC), "first": datetime.min.replace(tzinfo=UTC)}
    hidden, shown = ("last", "first") if east else ("first", "last")

    with pytest.raises(InvalidRun):
        runs.enqueue(echo, tenant_id="a", run_after=ends[hidden])

    run_id = runs.enqueue(echo, tenant_id="a", run_after=ends[shown])
    assert runs.get(run_id).wake_at is not None


def test_times_of_a_lease_are_as_django_hands_them_out(naive: str) -> None:
    runs.enqueue(echo, tenant_id="a")
    (lease,) = claim_due(1).leases
    row = Run.objects.get()
    assert (lease.enqueued_at, lease.claimed_at, lease.eligible_at) == (
        row.enqueued_at,
        row.claimed_at,
        row.enqueued_at,
    )
