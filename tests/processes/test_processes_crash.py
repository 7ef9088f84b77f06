"""Workers killed, stopped, or two for one slot: caps hold, nothing is lost, no late write counts."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from tests.processes.stage import Stage, until


def test_two_workers_on_the_last_free_slot_never_exceed_the_cap(stage: Stage) -> None:
    gate = stage.gate()
    (held,) = stage.enqueue("hold", str(gate))
    stage.start_worker()
    stage.start_worker()
    stage.until_started(held)

    with stage.watched() as sampler:
        stage.enqueue("quick", count=200)
        until(lambda: stage.statuses().get("completed") == 200, "all but the held run complete")
        gate.open()
        stage.until_all("completed")

    assert sampler.samples > 10
    assert stage.ledger.most_at_once() == {"acme": 2}
    assert len(stage.ledger.executions()) == 201
    # Both compete for the slot; nothing promises that each of them gets it once.
    assert {line["pid"] for line in stage.ledger.events("start")} <= {worker.pid for worker in stage.workers}


def test_a_run_of_a_killed_worker_is_taken_over_when_its_lease_ends(stage: Stage) -> None:
    gate = stage.gate()
    first = stage.start_worker()
    (run_id,) = stage.enqueue("hold", str(gate))
    others = stage.enqueue("hold", str(gate), count=3)
    stage.until_started(run_id)

    with stage.watched():
        first.signal(signal.SIGKILL)
        first.exit_code()
        killed = time.monotonic()
        second = stage.start_worker()
        stage.until_started(run_id, times=2)
        gate.open()
        stage.until_all("completed")

    row = stage.run(run_id)
    assert row["result"] == second.pid
    assert len(row["worker_ids"]) == 2
    assert stage.ledger.most_at_once(gone={first.pid: killed}) == {"acme": 2}
    assert {line["run"] for line in stage.ledger.events("end")} == {run_id, *others}


def test_a_worker_stopped_past_its_lease_can_write_nothing_when_it_resumes(stage: Stage) -> None:
    gate = stage.gate()
    frozen = stage.start_worker()
    (run_id,) = stage.enqueue("hold", str(gate))
    stage.until_started(run_id)

    with stage.watched():
        frozen.signal(signal.SIGSTOP)
        stopped = time.monotonic()
        thief = stage.start_worker()
        stage.until_started(run_id, times=2)
        gate.open()
        stage.until_all("completed")
        before = stage.run(run_id)
        frozen.signal(signal.SIGCONT)
        frozen.until_said(f"Run {run_id} is no longer this worker's")
        until(lambda: len(stage.ledger.events("end")) == 2, "the resumed task ends")
        # The resumed worker is sound: it goes on to work, and drains.
        thief.signal(signal.SIGTERM)
        assert thief.exit_code() == 0
        (next_run,) = stage.enqueue("quick")
        until(lambda: stage.run(next_run)["status"] == "completed", "the resumed worker runs something else")
        frozen.signal(signal.SIGTERM)
        assert frozen.exit_code() == 0

    assert stage.run(run_id) == before
    assert before["result"] == thief.pid
    assert frozen.said().count(f"Run {run_id} is no longer this worker's") == 1
    assert stage.run(next_run)["result"] == frozen.pid
    assert stage.ledger.most_at_once(gone={frozen.pid: stopped})["acme"] == 1


def test_a_task_that_kills_its_worker_starts_as_often_as_it_may_and_frees_its_slot(
    make_stage: Callable[..., Stage],
) -> None:
    stage = make_stage(DEFAULT_MAX_ACTIVE_RUNS=1, LEASE_SECONDS=1, MAX_ATTEMPTS=2)
    (deadly,) = stage.enqueue("die")
    good = stage.enqueue("quick", count=5)

    for times in (1, 2):
        worker = stage.start_worker(ready=False)
        assert worker.exit_code() == -signal.SIGKILL
        assert len(stage.until_started(deadly, times=times)) == times
    stage.start_worker()
    until(lambda: all(stage.run(run_id)["status"] == "completed" for run_id in good), "the good runs follow")

    assert stage.run(deadly)["poison_reason"] == "max_claim_attempts_exceeded"
    assert len(stage.until_started(deadly)) == 2


@pytest.mark.parametrize(("task", "count"), [("compute", 64), ("keep_interpreter", 1)])
def test_tasks_that_compute_past_their_lease_run_once(
    make_stage: Callable[..., Stage], task: str, count: int
) -> None:
    stage = make_stage(DEFAULT_MAX_ACTIVE_RUNS=count, CONCURRENCY=count)
    stage.start_worker()
    # Another has room for all that is lost.
    stage.start_worker()
    stage.enqueue(task, 2.5 * stage.tenantfair["LEASE_SECONDS"], count=count)

    with stage.watched():
        stage.until_all("completed")

    assert len(stage.ledger.events("start")) == count
    assert [line["owner"] for line in stage.ledger.events("end")] == [True] * count
