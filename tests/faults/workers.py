"""What is done to a worker's sessions, memory and surroundings while it lives on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tenantfair.sql import load
from tests.faults.proxy import Proxy
from tests.faults.scenario import NotRun, Scenario, assert_sound, enter, scenario
from tests.faults.server import FaultStage, World
from tests.processes.stage import WorkerProcess, until

_LEASE_SECONDS = 2
_MEMORY_BYTES = 100 * 1024 * 1024
_GATE_SQL = """
    CREATE TABLE fault_gate (marker text NOT NULL);
    CREATE FUNCTION fault_gate() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = '0' AS $$
    BEGIN
        IF EXISTS (SELECT FROM fault_gate WHERE position(marker IN current_query()) > 0) THEN
            PERFORM pg_advisory_lock_shared(77);
            PERFORM pg_advisory_unlock_shared(77);
        END IF;
        RETURN NULL;
    END
    $$;
    CREATE TRIGGER fault_gate
        BEFORE UPDATE ON tenantfair_run FOR EACH STATEMENT EXECUTE FUNCTION fault_gate();
"""
_AT_GATE_SQL = """
    SELECT pid
    FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'advisory'
"""
_MARKERS = {"claim": "tenantfair_claim(", "heartbeat": ") AS lease (run_id", "finish": ") AS outcome ("}


@contextmanager
def _held_inside(stage: FaultStage, marker: str) -> Iterator[Callable[[], int]]:
    """Hold statements with `marker` in their middle; yields what waits for one and returns its session."""
    stage.query(_GATE_SQL)
    with stage.connect() as gate:
        gate.execute("SELECT pg_advisory_lock(77)")
        gate.execute("INSERT INTO fault_gate VALUES (%s)", [marker])

        def caught() -> int:
            found: Any = until(lambda: gate.execute(_AT_GATE_SQL).fetchone(), f"a session at {marker!r}")
            return int(found[0])

        yield caught


def _end(worker: WorkerProcess) -> None:
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0, worker.said()


def _once_each(stage: FaultStage, runs: list[str]) -> None:
    """Every run has completed, and none was executed twice for it."""
    until(lambda: all(stage.run(run)["status"] == "completed" for run in runs), "all runs complete")
    stage.until_settled()
    for run in runs:
        assert len([line for line in stage.ledger.events("start") if line["run"] == run]) == 1, run
    assert_sound(stage)


def _struck_inside(world: World, where: str, function: str) -> None:
    stage = world.stage(DEFAULT_MAX_ACTIVE_RUNS=4, LEASE_SECONDS=_LEASE_SECONDS, LISTEN=False)
    worker = stage.start_worker()
    gate = stage.gate()
    runs = stage.add("hold", str(gate)) if where == "heartbeat" else []
    if runs:
        stage.until_started(runs[0])
    with _held_inside(stage, _MARKERS[where]) as caught:
        runs += stage.add(count=3, tenant="globex") if where != "heartbeat" else []
        pid = caught()
        # Who comes next, or again, is not held.
        stage.query("DELETE FROM fault_gate")
        stage.query(f"SELECT {function}(%s)", pid)
        until(
            lambda: not stage.query("SELECT 1 FROM (" + _AT_GATE_SQL + ") AS at WHERE pid = %s", pid),
            "the session leaves the gate",
        )
    gate.open()
    _once_each(stage, runs)
    _end(worker)
    world.discard(stage)


def _enter(fault: str, verb: str, function: str) -> None:
    for where in _MARKERS:

        def strike(world: World, times: int, where: str = where) -> int:
            for _ in range(times):
                _struck_inside(world, where, function)
            return times

        what = f"a worker's session is {verb} in the middle of a claim, a heartbeat, a finish"
        enter(Scenario(f"{fault} {verb} in {where}", what, (fault,), strike, times=10))


_enter("F9", "terminated", "pg_terminate_backend")
_enter("F10", "cancelled", "pg_cancel_backend")


@scenario("F9", times=5)
def listener_terminated(world: World, times: int) -> int:
    """The listener's session is terminated; it comes back, and polling has carried on."""
    stage = world.stage(DEFAULT_MAX_ACTIVE_RUNS=2)
    worker = stage.start_worker()
    listening = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    for _ in range(times):
        (row,) = until(lambda: stage.query(listening), "somebody listens")
        stage.query("SELECT pg_terminate_backend(%s)", row["pid"])
        until(
            lambda row=row: all(found["pid"] != row["pid"] for found in stage.query(listening)), "it has gone"
        )
        _once_each(stage, stage.add(count=2))
    _end(worker)
    world.discard(stage)
    return times


@scenario("F27", times=5)
def silent_connection(world: World, times: int) -> int:
    """A claim's connection falls silent for ever: what runs completes, and the worker can be stopped."""
    for _ in range(times):
        stage = world.stage(DEFAULT_MAX_ACTIVE_RUNS=2, LEASE_SECONDS=_LEASE_SECONDS, LISTEN=False)
        with Proxy(stage.proxied) as proxy:
            worker = stage.start_worker("--drain-timeout=1", DATABASE_URL=proxy.url(stage.database))
            gate = stage.gate()
            (held,) = stage.add("hold", str(gate))
            stage.until_started(held)
            rule = proxy.rule(load("due_work_exists")[:60].encode(), "silence")
            assert rule.fired.wait(30)
            gate.open()
            _once_each(stage, [held])
            worker.signal(signal.SIGTERM)
            # The claim in flight cannot be waited for; nothing is left behind but its session.
            assert worker.exit_code() == 75, worker.said()
        successor = stage.start_worker()
        _once_each(stage, stage.add(count=2))
        _end(successor)
        world.discard(stage)
    return times


@scenario("F29")
def name_not_found(world: World, times: int) -> int:
    """The server's name cannot be resolved: the worker waits, says so, and can be stopped."""
    for _ in range(times):
        stage = world.stage()
        worker = stage.start_worker(
            ready=False, DATABASE_URL="postgresql://postgres@nowhere.invalid:5432/none"
        )
        worker.until_said("The database cannot be reached")
        _end(worker)
        world.discard(stage)
    return times


@scenario("F36")
def flush_under_load(world: World, times: int) -> int:
    """All tables are emptied under working workers, by flush; what is enqueued afterwards is worked off."""
    stage = world.stage(DEFAULT_MAX_ACTIVE_RUNS=3, LEASE_SECONDS=_LEASE_SECONDS)
    workers = [stage.start_worker(), stage.start_worker()]
    for _ in range(times):
        before = len(stage.ledger.events("end"))
        stage.add(count=100, tenant="acme")
        until(lambda before=before: len(stage.ledger.events("end")) > before + 10, "work goes on")
        flushed = stage.manage("flush", "--no-input", "--verbosity=0")
        assert flushed.returncode == 0, flushed.stderr
    _once_each(stage, stage.add(count=5, tenant="globex"))
    for worker in workers:
        _end(worker)
    world.discard(stage)
    return times


@scenario("F39")
def unknown_task_on_half_the_fleet(world: World, times: int) -> int:
    """One worker cannot import the task: it abandons the run, which another completes; none is poisoned."""
    for _ in range(times):
        stage = world.stage(DEFAULT_MAX_ACTIVE_RUNS=2)
        (run,) = stage.add()
        old = stage.start_worker(FAULT_UNKNOWN="tests.faults.tasks.work")
        until(lambda run=run, stage=stage: stage.run(run)["claim_abandons"] == 1, "the run is abandoned")
        row = stage.run(run)
        assert (row["claim_attempts"], row["tenant_admitted_at"], row["poisoned_at"]) == (0, None, None)
        new = stage.start_worker()
        # Thirty seconds of back-off are what the package promises; the clock is not waited for here.
        stage.query("UPDATE tenantfair_run SET wake_at = clock_timestamp() WHERE claim_token IS NULL")
        until(
            lambda run=run, stage=stage: (
                stage.query("UPDATE tenantfair_run SET wake_at = clock_timestamp() WHERE wake_at > now()")
                or stage.run(run)["status"] == "completed"
            ),
            "the other completes it",
        )
        assert_sound(stage)
        for worker in (old, new):
            _end(worker)
        world.discard(stage)
    return times


@scenario("F4")
def out_of_memory(world: World, times: int) -> int:
    """The kernel kills a worker whose task eats its memory; the run is set aside in the end."""
    with _memory_group() as group:
        for _ in range(times):
            stage = world.stage(DEFAULT_MAX_ACTIVE_RUNS=1, LEASE_SECONDS=1, MAX_ATTEMPTS=2)
            (greedy,) = stage.add("eat")
            good = stage.add(count=2)
            for start in (1, 2):
                worker = stage.start_worker(ready=False, FAULT_CGROUP=str(group))
                assert worker.exit_code() == -signal.SIGKILL
                assert len(stage.until_started(greedy, times=start)) == start
            successor = stage.start_worker()
            set_aside = "SELECT 1 FROM tenantfair_run WHERE poisoned_at IS NOT NULL"
            until(lambda stage=stage, sql=set_aside: stage.query(sql), "the greedy run is set aside")
            _once_each(stage, good)
            assert len(stage.until_started(greedy)) == 2
            _end(successor)
            world.discard(stage)
    return times


@contextmanager
def _memory_group() -> Iterator[Path]:
    """A control group of its own with little memory; `NotRun` where the machine gives none."""
    for root, limit in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
        group = Path(root) / f"tenantfair-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        # Where there is no such file, this is no control group but a folder.
        if not (group / limit).exists():
            group.rmdir()
            continue
        (group / limit).write_text(str(_MEMORY_BYTES))
        try:
            yield group
        finally:
            until(lambda group=group: not (group / "cgroup.procs").read_text(), "the group is empty")
            group.rmdir()
        return
    raise NotRun("no control group with a memory limit can be made here")
