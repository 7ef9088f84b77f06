"""The worker's own sessions: prepared where nobody is in between, with plans of index lookups only."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from django.db import connections

from tenantfair import runs
from tenantfair.claim import claim_due, due_work_exists
from tenantfair.models import Run
from tenantfair.worker.database import WorkerConnections
from tests.factories import LONG_AGO, policy_in_force, run_in

pytestmark = pytest.mark.django_db(transaction=True)


def threshold_of(connections_of: WorkerConnections) -> int | None:
    with connections_of.own() as own:
        own.ensure_connection()
        found: int | None = own.connection.prepare_threshold
        return found


def test_a_session_with_the_server_itself_prepares() -> None:
    connections_of = WorkerConnections("default", "direct")
    connections_of.probe()

    assert threshold_of(connections_of) == 5


def test_a_session_through_a_pooler_prepares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pooler tells its clients another process number than the server has."""
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", property(lambda self: -1))
    connections_of = WorkerConnections("default", "pooled")
    connections_of.probe()

    assert threshold_of(connections_of) is None


def test_a_session_without_our_parameters_prepares_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenantfair.worker.database._SERVER_OPTIONS", "-c no_such_setting=1")
    connections_of = WorkerConnections("default", "refused")
    connections_of.probe()

    assert threshold_of(connections_of) is None


def test_what_the_host_says_about_preparing_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"]["OPTIONS"], "prepare_threshold", None)
    connections_of = WorkerConnections("default", "told")
    connections_of.probe()

    assert threshold_of(connections_of) is None


def test_a_session_keeps_no_list_of_its_statements_in_debug_mode(settings: Any) -> None:
    settings.DEBUG = True
    with WorkerConnections("default", "debugged").own() as own, own.cursor() as cursor:
        cursor.execute("SELECT 1")

        assert list(own.queries_log) == []


def test_plans_made_on_an_empty_table_stay_right_when_it_has_grown() -> None:
    """Without a single row read in order: the statements of a session are planned before there is work."""
    policy_in_force(max_active=1_000)
    connections_of = WorkerConnections("default", "planned early")
    connections_of.probe()
    with connections_of.own() as own, own.cursor() as cursor:
        for _ in range(2):
            due_work_exists()
            claim_due(8)
            runs.finish([])
            run_in("queued")
            runs.finish([runs.Completed(lease, None) for lease in claim_due(8).leases])
        Run.objects.bulk_create(
            Run(tenant_id=f"t{number % 7}", task_path="x", status="completed", finished_at=LONG_AGO)
            for number in range(20_000)
        )
        for number in range(40):
            run_in("queued", tenant_id=f"t{number % 7}")
        before = read_in_order(cursor)
        assert due_work_exists()
        leases = claim_due(8).leases
        assert len(runs.finish([runs.Completed(lease, None) for lease in leases])) == 8
        assert read_in_order(cursor) == before


def read_in_order(cursor: Any) -> int:
    """Return how many rows of the run table this database has read without an index."""
    cursor.execute("SELECT pg_stat_force_next_flush()")
    cursor.execute("SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'tenantfair_run'")
    return int(cursor.fetchone()[0])
