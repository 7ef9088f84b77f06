"""Run ids come in the order of time, whoever makes them (decision 0016)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from uuid import RFC_4122, UUID

import pytest
from django.db import connection

from tenantfair import runs
from tenantfair.models import Run
from tenantfair.run_ids import new_run_id
from tests.tasks_for_tests import add

SECOND = 1_000_000_000
# A fraction whose last bits would be lost by floating point.
NOW = 1_796_000_000 * SECOND + 123_456_789


def moment_of(run_id: UUID) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=run_id.int >> 80)


def test_an_id_is_a_version_7_uuid_of_its_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: NOW)
    made = new_run_id()
    assert (made.version, made.variant) == (7, RFC_4122)
    assert made.int >> 80 == 1_796_000_000_123
    assert (made.int >> 64) & 0xFFF == 456_789 * 4096 // 1_000_000


def test_ids_are_ordered_within_a_millisecond(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for step in (0, 245, 490, 999_000, SECOND):
        monkeypatch.setattr(time, "time_ns", lambda step=step: NOW // 1_000_000 * 1_000_000 + step)
        made.append(new_run_id())
    assert made == sorted(made)


def test_ids_of_one_moment_differ_in_all_their_random_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: NOW)
    made = {new_run_id().int & (1 << 62) - 1 for _ in range(1_000)}
    assert len(made) == 1_000
    for bit in range(62):
        # Wrong once in 2 ** 999.
        assert {value >> bit & 1 for value in made} == {0, 1}


@pytest.mark.django_db
def test_enqueued_runs_get_such_an_id_and_a_given_one_stays() -> None:
    before = time.time_ns()
    made = [
        runs.enqueue(add, tenant_id="acme"),
        *runs.enqueue_many([runs.NewRun(task=add, tenant_id="acme")]),
        Run(task_path="t.t").run_id,
    ]
    assert [run_id.version for run_id in made] == [7, 7, 7]
    assert all(before // 1_000_000 <= run_id.int >> 80 <= time.time_ns() // 1_000_000 for run_id in made)
    given = UUID("00000000-0000-4000-8000-000000000001")
    assert runs.enqueue(add, tenant_id="acme", run_id=given) == given


@pytest.mark.django_db
def test_raw_sql_gets_such_an_id_from_the_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT date_trunc('milliseconds', clock_timestamp())")
        (before,) = cursor.fetchone()
        cursor.execute(
            "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at)"
            " SELECT 'acme', 't.t', now() FROM generate_series(1, 500) RETURNING run_id"
        )
        made = [run_id for (run_id,) in cursor.fetchall()]
        cursor.execute("SELECT clock_timestamp()")
        (after,) = cursor.fetchone()
    assert {(run_id.version, run_id.variant) for run_id in made} == {(7, RFC_4122)}
    moments = [moment_of(run_id) for run_id in made]
    assert moments == sorted(moments)
    assert before <= moments[0] <= moments[-1] <= after
    assert len(set(made)) == 500
