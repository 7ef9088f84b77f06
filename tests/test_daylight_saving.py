"""A delay is as long as it says, also where the session's zone puts its clocks forward or back meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import connection

from tenantfair import runs
from tenantfair.claim import claim_due
from tests.factories import policy_in_force, run_in
from tests.tasks_for_tests import add

pytestmark = pytest.mark.django_db(transaction=True)

# From any day of a year, one of these ends under the other clock.
DELAYS = [timedelta(days=days, seconds=1, microseconds=1) for days in (1, 90, 182, 270)]


@pytest.fixture(params=["Europe/Berlin", "America/New_York", "Australia/Lord_Howe"], autouse=True)
def zone(request: pytest.FixtureRequest) -> Iterator[str]:
    policy_in_force(max_active=100)
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('TimeZone', %s, false)", [request.param])
    yield request.param
    connection.close()


def apart(earlier: str, later: str) -> list[timedelta]:
    """The time between two columns of each run; Python would subtract what the clocks of a zone show."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT 1000000 * (extract(epoch FROM {later}) - extract(epoch FROM {earlier}))"
            " FROM tenantfair_run"
        )
        return [timedelta(microseconds=int(found)) for (found,) in cursor.fetchall()]


def test_one_of_the_delays_crosses_a_change_of_the_clocks(zone: str) -> None:
    now = datetime.now(UTC)
    here = now.astimezone(ZoneInfo(zone)).utcoffset()
    assert any((now + delay).astimezone(ZoneInfo(zone)).utcoffset() != here for delay in DELAYS)


@pytest.mark.parametrize("delay", DELAYS)
def test_enqueued_with_a_delay(delay: timedelta) -> None:
    runs.enqueue(add, args=[1, 2], tenant_id="a", run_after=delay)
    runs.enqueue_many([runs.NewRun(task=add, args=[1, 2], tenant_id="a", run_after=delay)])

    assert apart("enqueued_at", "wake_at") == [delay, delay]


@pytest.mark.parametrize("delay", DELAYS)
def test_put_off_by_a_delay(delay: timedelta) -> None:
    """A snooze and a retry; both are written in one batch."""
    run_in("queued", tenant_id="a")
    run_in("queued", tenant_id="a")
    snoozed, failed = claim_due(2).leases

    error = {"exception_class_path": "builtins.ValueError", "traceback": "none"}
    runs.finish([runs.Snoozed(snoozed, delay=delay), runs.Retry(failed, error, delay=delay)])

    assert apart("updated_at", "wake_at") == [delay, delay]


@pytest.mark.parametrize("night", ["2026-03-29T01:00:00+00:00", "2026-10-25T01:00:00+00:00"])
def test_a_lease_lasts_through_the_night_of_a_change(night: str) -> None:
    """Clocks in Europe change at that moment; the lease began half an hour before it and lasts for one."""
    changed = datetime.fromisoformat(night)
    policy_in_force(max_active=100, lease_seconds=3600)
    run_in("queued", tenant_id="a", wake_at=changed - timedelta(hours=2))
    assert len(claim_due(1, now=changed - timedelta(minutes=30)).leases) == 1

    assert claim_due(1, now=changed + timedelta(minutes=30)).leases == []
    assert len(claim_due(1, now=changed + timedelta(minutes=30, microseconds=1)).leases) == 1
