"""The database goes away and comes back, or is not what the worker needs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from example_project.postgres import PrivateServer
from tests.processes.stage import Stage, until


@pytest.fixture
def own_stage(tmp_path: Path) -> Iterator[Stage]:
    """A stage on a server that no other test sees, since this one is brought down."""
    with PrivateServer() as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CREATE DATABASE domain")
        stage = Stage(server, "domain", tmp_path, LEASE_SECONDS=6, CONCURRENCY=4)
        done = stage.manage("migrate", "--verbosity=0")
        assert done.returncode == 0, done.stderr
        yield stage
        stage.close()


def test_a_server_crash_under_load_loses_nothing_and_breaks_no_cap(own_stage: Stage) -> None:
    stage = own_stage
    tenants = ("acme", "globex", "initech")
    gate = stage.gate()
    held = stage.enqueue("hold", str(gate), tenant="acme")
    for tenant in tenants:
        stage.enqueue("quick", tenant=tenant, count=400)
    stage.start_worker()
    stage.start_worker()
    stage.until_started(held[0])

    with stage.watched():
        for crash in (1, 2, 3):
            ends = len(stage.ledger.events("end"))
            until(
                lambda ends=ends: len(stage.ledger.events("end")) > min(ends + 30, 1199),
                f"work before crash {crash}",
            )
            stage.server.restart("immediate")
        gate.open()
        stage.until_all("completed")

    assert stage.statuses() == {"completed": 1201}
    # The lease outlives each outage, so the held run was never taken from its worker.
    assert len(stage.until_started(held[0])) == 1
    assert max(stage.ledger.most_at_once().values()) <= 2
    for worker in stage.workers:
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0


def test_a_worker_waits_for_a_database_that_is_down_at_its_start(own_stage: Stage) -> None:
    stage = own_stage
    (run_id,) = stage.enqueue("quick")
    stage.server.halt()
    worker = stage.start_worker(ready=False)
    worker.until_said("The database cannot be reached")

    stage.server.start()
    until(lambda: stage.run(run_id)["status"] == "completed", "the run completes")


def test_a_worker_that_waits_for_the_database_can_be_stopped(own_stage: Stage) -> None:
    own_stage.server.halt()
    worker = own_stage.start_worker(ready=False)
    worker.until_said("The database cannot be reached")

    worker.signal(signal.SIGTERM)

    assert worker.exit_code() == 0
    own_stage.server.start()


def test_a_claim_function_that_is_gone_ends_the_worker_with_what_is_missing(stage: Stage) -> None:
    gate = stage.gate()
    worker = stage.start_worker()
    (run_id,) = stage.enqueue("hold", str(gate))
    stage.until_started(run_id)

    stage.query("DROP FUNCTION tenantfair_claim(timestamptz, timestamptz, integer, integer, text, boolean)")
    stage.enqueue("quick")
    worker.until_said("drains")
    gate.open()

    assert worker.exit_code() == 78
    assert stage.run(run_id)["status"] == "completed"
    assert "tenantfair_claim" in worker.said().splitlines()[-1]
    assert worker.said().count("A claim failed") == 1


def test_a_claim_function_that_is_replaced_by_one_like_it_disturbs_nothing(stage: Stage) -> None:
    stage.start_worker()
    stage.enqueue("quick", count=50)
    (definition,) = stage.query("SELECT pg_get_functiondef('tenantfair_claim'::regproc) AS sql")

    stage.query(
        "DROP FUNCTION tenantfair_claim(timestamptz, timestamptz, integer, integer, text, boolean); "
        + definition["sql"]
    )
    stage.enqueue("quick", count=50)

    stage.until_all("completed")
    assert len(stage.ledger.events("start")) == 100


def test_a_worker_without_a_default_cap_exits_78_with_the_line_to_paste(
    make_stage: Callable[..., Stage],
) -> None:
    stage = make_stage(DEFAULT_MAX_ACTIVE_RUNS=None)

    worker = stage.start_worker(ready=False)

    assert worker.exit_code() == 78
    assert 'TENANTFAIR = {"DEFAULT_MAX_ACTIVE_RUNS": 4}' in worker.said()


def test_a_worker_on_an_unmigrated_database_exits_78_with_the_command_to_run(
    process_server: PrivateServer, tmp_path: Path
) -> None:
    stage = Stage(process_server, "postgres", tmp_path)

    worker = stage.start_worker(ready=False)

    assert worker.exit_code() == 78
    assert "manage.py migrate tenantfair" in worker.said()
    assert "Traceback" not in worker.said()


def test_a_host_that_runs_serializable_by_default_works_all_the_same(stage: Stage) -> None:
    stage.query(
        f"ALTER DATABASE {stage.database} SET default_transaction_isolation = 'serializable';"
        f"ALTER DATABASE {stage.database} SET default_transaction_read_only = 'off'"
    )
    stage.enqueue("quick", count=20)

    worker = stage.start_worker("--batch", ready=False)

    assert worker.exit_code() == 0, worker.said()
    assert stage.statuses() == {"completed": 20}
