"""What a crash of the server forgets: nothing, but claims where the host has asked for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from example_project.postgres import PrivateServer
from tests.processes.stage import Stage, until

# What nobody waits for stays in memory for up to ten seconds, the longest that the server allows.
_SLOW_TO_WRITE: dict[str, str | int] = {
    "synchronous_commit": "on",
    "wal_writer_delay": "10s",
    "wal_writer_flush_after": "1GB",
    "autovacuum": "off",
}
_MOST_CRASHES = 5


@pytest.fixture
def slow_stage(tmp_path: Path) -> Iterator[Callable[[str], Stage]]:
    """Make a stage with one place to a worker and no heartbeats, on a server that is slow to write."""
    with PrivateServer(options=_SLOW_TO_WRITE) as server:
        stages: list[Stage] = []

        def make(commits: str) -> Stage:
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                connection.execute("CREATE DATABASE domain")
            stage = Stage(
                server, "domain", tmp_path, LEASE_SECONDS=3600, CONCURRENCY=1, CLAIM_COMMITS=commits
            )
            stages.append(stage)
            done = stage.manage("migrate", "--verbosity=0")
            assert done.returncode == 0, done.stderr
            return stage

        yield make
        for stage in stages:
            stage.close()


def test_a_claim_that_a_crash_forgot_is_made_again_and_the_late_holder_is_fenced(
    slow_stage: Callable[[str], Stage],
) -> None:
    stage = slow_stage("asynchronous")
    first = stage.start_worker()
    for _ in range(_MOST_CRASHES):
        gate = stage.gate()
        (held,) = stage.enqueue("hold", str(gate))
        stage.until_started(held)
        stage.server.restart("immediate")
        if stage.run(held)["claim_token"] is None:
            break
        # The server has written just then; it keeps what it has written.
        gate.open()
        until(lambda held=held: stage.run(held)["status"] == "completed", "the run completes")
    else:
        pytest.fail(f"{_MOST_CRASHES} crashes forgot no claim")

    assert stage.run(held)["claim_attempts"] == 0
    second = stage.start_worker()
    stage.until_started(held, times=2)
    gate.open()
    first.until_said("is no longer this worker's; its result was dropped")
    until(lambda: stage.run(held)["status"] == "completed", "the run completes")

    found = stage.run(held)
    assert found["result"] == second.pid
    assert found["claim_attempts"] == 0
    assert len(found["worker_ids"]) == 1


def test_outcomes_are_never_forgotten_however_claims_commit(slow_stage: Callable[[str], Stage]) -> None:
    stage = slow_stage("asynchronous")
    ids = stage.enqueue("quick", count=5)
    stage.start_worker()
    stage.until_all("completed")

    stage.server.restart("immediate")

    assert stage.statuses() == {"completed": 5}
    assert all(len(stage.until_started(run_id)) == 1 for run_id in ids)


def test_a_synchronous_claim_outlives_the_crash(slow_stage: Callable[[str], Stage]) -> None:
    stage = slow_stage("synchronous")
    gate = stage.gate()
    (held,) = stage.enqueue("hold", str(gate))
    worker = stage.start_worker()
    stage.until_started(held)

    stage.server.restart("immediate")

    assert stage.run(held)["claim_token"] is not None
    gate.open()
    until(lambda: stage.run(held)["status"] == "completed", "the run completes")
    assert stage.run(held)["result"] == worker.pid
    assert len(stage.until_started(held)) == 1
