"""Without USE_TZ everything works from enqueue to the admin, and no time is stored that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connections
from django.test import Client
from django.urls import reverse

from tenantfair import policy, runs
from tenantfair.backend import for_tenant
from tenantfair.claim import claim_due
from tenantfair.exceptions import InvalidRun
from tenantfair.models import Run
from tests.factories import policy_in_force, run_in
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


@pytest.fixture
def unknown_zone(settings: Any) -> Iterator[None]:
    """A zone that Python does not know: no time that comes from the database can go back unharmed."""
    connections["default"].close()
    settings.USE_TZ = False
    with connections["default"].cursor() as cursor:
        cursor.execute("SET TIME ZONE '<-05>5'")
    yield
    connections["default"].close()


def passed_since(column: str) -> timedelta:
    with connections["default"].cursor() as cursor:
        cursor.execute(f"SELECT clock_timestamp() - {column} FROM tenantfair_run")
        since: timedelta = cursor.fetchone()[0]
    return since


@pytest.mark.parametrize(
    ("state", "change"),
    [
        ("claimed", runs.interrupt),
        ("waiting", lambda run_id: runs.signal(run_id, "go")),
        ("failed", runs.retry),
        ("poisoned", runs.retry),
    ],
)
@pytest.mark.usefixtures("unknown_zone")
def test_what_is_queued_by_a_person_is_due_at_once(
    state: str, change: Callable[[UUID], runs.RunView]
) -> None:
    assert change(run_in(state).run_id).state == "queued"
    assert timedelta(0) <= passed_since("wake_at") < timedelta(minutes=1)


@pytest.mark.usefixtures("unknown_zone")
def test_what_is_cancelled_has_ended_now() -> None:
    runs.cancel(run_in("claimed").run_id)

    assert timedelta(0) <= passed_since("finished_at") < timedelta(minutes=1)


def test_pruning_goes_on_where_it_was_in_an_hour_that_the_clocks_show_twice(settings: Any) -> None:
    connections["default"].close()
    settings.USE_TZ = False
    settings.TIME_ZONE = "Europe/Berlin"
    for minute in (10, 50, 80, 100):
        run_in("completed", finished_at=datetime(2025, 10, 26, 0, tzinfo=UTC) + timedelta(minutes=minute))

    assert runs.prune(older_than=timedelta(days=1), batch_size=1).deleted == 4
