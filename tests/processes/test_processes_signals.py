"""Stopping a worker: what has not begun is given back, what runs may end, the exit code says how it went."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.processes.stage import Stage, until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_running_task_end_and_its_result_count(
    stage: Stage, number: signal.Signals
) -> None:
    gate = stage.gate()
    worker = stage.start_worker()
    (run_id,) = stage.enqueue("hold", str(gate))
    stage.until_started(run_id)

    worker.signal(number)
    worker.until_said("drains")
    (late,) = stage.enqueue("quick")
    gate.open()

    assert worker.exit_code() == 0
    assert stage.run(run_id)["status"] == "completed"
    # Nothing is claimed any more, and nothing is left claimed.
    assert stage.run(late)["claim_attempts"] == 0
    assert stage.query("SELECT 1 FROM tenantfair_run WHERE claim_token IS NOT NULL") == []


def test_an_idle_worker_ends_at_once(stage: Stage) -> None:
    worker = stage.start_worker("--interval=3600", "--drain-timeout=3600")

    worker.signal(signal.SIGTERM)

    assert worker.exit_code() == 0
    assert (
        stage.query(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND application_name <> ''"
        )
        == []
    )


def test_a_task_that_sees_the_drain_yields_and_goes_on_elsewhere(stage: Stage) -> None:
    gate = stage.gate()
    first = stage.start_worker()
    (run_id,) = stage.enqueue("give_way", str(gate))
    stage.until_started(run_id)

    first.signal(signal.SIGTERM)
    first.until_said("drains")
    gate.open()
    assert first.exit_code() == 0
    yielded = stage.run(run_id)
    second = stage.start_worker()
    stage.until_all("completed")

    assert (yielded["state"], yielded["claim_token"]) == ("gave way", None)
    assert yielded["tenant_admitted_at"] is not None
    assert stage.run(run_id)["result"] == second.pid


def test_a_second_signal_ends_the_process_at_once(stage: Stage) -> None:
    worker = stage.start_worker("--drain-timeout=3600")
    (run_id,) = stage.enqueue("hold", str(stage.gate()))
    stage.until_started(run_id)

    worker.signal(signal.SIGTERM)
    worker.until_said("drains")
    worker.signal(signal.SIGTERM)

    assert worker.exit_code() == 1
    assert stage.run(run_id)["claim_token"] is not None


@pytest.mark.conformance(168)
def test_a_task_that_outlasts_the_drain_keeps_its_claim_until_the_lease_ends(stage: Stage) -> None:
    gate = stage.gate()
    worker = stage.start_worker("--drain-timeout=0.5")
    (run_id,) = stage.enqueue("hold", str(gate))
    stage.until_started(run_id)

    with stage.watched():
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 75
        ended = time.monotonic()
        assert stage.run(run_id)["claim_token"] is not None
        stage.start_worker()
        stage.until_started(run_id, times=2)
        gate.open()
        stage.until_all("completed")

    assert stage.ledger.most_at_once(gone={worker.pid: ended}) == {"acme": 1}


def test_a_domain_that_ceases_to_fit_is_told_at_once_and_exits_78_though_tasks_run(stage: Stage) -> None:
    worker = stage.start_worker("--drain-timeout=0.5")
    (run_id,) = stage.enqueue("hold", str(stage.gate()))
    stage.until_started(run_id)

    stage.query("ALTER FUNCTION tenantfair_claim RENAME TO elsewhere")
    stage.enqueue("quick", tenant="globex")

    assert worker.exit_code() == 78
    assert "No more is claimed" in worker.said()
    assert "tenantfair_claim" in worker.said()


def test_a_signal_ends_a_start_that_waits_for_a_lock(stage: Stage) -> None:
    with stage.connect() as holder, holder.transaction():
        holder.execute("LOCK TABLE tenantfair_policy IN ACCESS EXCLUSIVE MODE")
        worker = stage.start_worker(ready=False)
        until(
            lambda: stage.query(
                "SELECT pid FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))",
                holder.info.backend_pid,
            ),
            "the worker waits",
        )
        worker.signal(signal.SIGTERM)
        assert worker.exit_code() == 0


def test_a_worker_that_has_started_all_it_may_lets_it_end_however_long_it_takes(stage: Stage) -> None:
    gate = stage.gate()
    (run_id,) = stage.enqueue("give_way", str(gate))
    worker = stage.start_worker("--max-tasks=1", "--drain-timeout=0")
    stage.until_started(run_id)
    (late,) = stage.enqueue("quick")

    gate.open()

    assert worker.exit_code() == 0
    # Nobody asked the task to yield.
    assert (stage.run(run_id)["status"], stage.run(run_id)["state"]) == ("completed", None)
    assert stage.run(late)["claim_attempts"] == 0


def test_signals_at_any_moment_lose_no_run_and_leave_none_claimed(stage: Stage) -> None:
    """Workers are stopped again and again while they work through a backlog, at moments nobody chose."""
    stage.enqueue("quick", tenant="acme", count=150)
    stage.enqueue("quick", tenant="globex", count=150)

    with stage.watched():
        for round_number in range(6):
            worker = stage.start_worker()
            done = len(stage.ledger.events("end"))
            until(
                lambda done=done, more=round_number: (
                    len(stage.ledger.events("end")) > min(done + 5 * more, 299)
                ),
                "the worker gets some way",
            )
            worker.signal(signal.SIGTERM)
            assert worker.exit_code() == 0
            assert stage.query("SELECT 1 FROM tenantfair_run WHERE claim_token IS NOT NULL") == []
        assert stage.start_worker("--batch", ready=False).exit_code() == 0

    assert stage.statuses() == {"completed": 300}
    # Whatever was given back had not begun, so every run has started once.
    assert len(stage.ledger.events("start")) == 300
    assert max(stage.ledger.most_at_once().values()) <= 2


def test_the_keeper_ends_with_its_worker_and_is_replaced_when_it_dies(
    make_stage: Callable[..., Stage],
) -> None:
    stage = make_stage()
    worker = stage.start_worker()
    first = until(lambda: _children(worker.pid), "the worker has a keeper")

    os.kill(first[0], signal.SIGKILL)
    second = until(
        lambda: [pid for pid in _children(worker.pid) if pid not in first], "there is another keeper"
    )
    # A signal to the whole process group or control group must not end it before its worker.
    os.kill(second[0], signal.SIGTERM)
    worker.signal(signal.SIGKILL)
    worker.exit_code()

    until(lambda: not _alive(second[0]), "the keeper notices that its worker is gone")


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        return [int(child) for child in children.read().split()]


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
