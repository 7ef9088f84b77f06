"""A worker is killed, or told to stop, at each named point of its life (F1, F2), and another goes on."""

from __future__ import annotations

import signal
import time
from contextlib import ExitStack

from tests.faults.points import POINTS
from tests.faults.proxy import Proxy, Rule
from tests.faults.scenario import Scenario, assert_sound, enter
from tests.faults.server import FaultStage, World
from tests.processes.stage import WorkerProcess, until

LEASE_SECONDS = 1
CAP = 2
RUNS = 5
# What is slow on a busy machine is the successor's own work, not the return of what the dead one held.
_PATIENCE_SECONDS = 30.0

_SENT = {"claim sent": b"CROSS JOIN LATERAL tenantfair_claim(", "finish sent": b") AS outcome ("}


class _Victim:
    """The worker under test, at its point."""

    def __init__(self, stage: FaultStage, point: str, stack: ExitStack) -> None:
        self.stage = stage
        self.point = point
        self._rule: Rule | None = None
        self._gate = stage.gate()
        if point == "in heartbeat":
            stage.add("hold", str(self._gate))
        environment = {}
        if marker := _SENT.get(point):
            proxy = stack.enter_context(Proxy(stage.proxied))
            self._rule = proxy.rule(marker, "hold reply")
            environment["DATABASE_URL"] = proxy.url(stage.database)
        self.worker: WorkerProcess = stage.start_worker(
            "--drain-timeout=20", point=point, ready=point == "in shutdown", **environment
        )
        if point == "in shutdown":
            self.worker.signal(signal.SIGTERM)

    def until_there(self) -> None:
        if self._rule is None:
            self.worker.process.until_stopped()  # type: ignore[attr-defined]
        else:
            assert self._rule.fired.wait(_PATIENCE_SECONDS), f"never came to {self.point!r}"

    def strike(self, blow: str) -> None:
        """Kill it, or tell it to stop and let it go on from where it is."""
        if blow == "kill":
            self.worker.signal(signal.SIGKILL)
            assert self.worker.exit_code() == -signal.SIGKILL
        else:
            if self.point != "in shutdown":
                self.worker.signal(signal.SIGTERM)
            self.worker.signal(signal.SIGCONT)
            if self._rule is not None:
                self._rule.released.set()
            self.open_gate()
            assert self.worker.exit_code() == 0, self.worker.said()

    def open_gate(self) -> None:
        self._gate.open()


def strike(world: World, point: str, blow: str) -> None:
    """Bring a worker to `point`, strike it there, and let another finish what is left."""
    stage = world.stage(DEFAULT_MAX_ACTIVE_RUNS=CAP, LEASE_SECONDS=LEASE_SECONDS)
    with ExitStack() as stack:
        runs = stage.add(count=RUNS)
        poisoned = stage.add(tenant="globex", attempts=5) if point == "in poison" else []
        victim = _Victim(stage, point, stack)
        victim.until_there()
        victim.strike(blow)
        struck = time.monotonic()
        if blow == "term":
            # Nothing is left in its hands, and nothing it had begun was begun in vain.
            assert stage.query("SELECT 1 FROM tenantfair_run WHERE claim_token IS NOT NULL") == []
            assert all(count == 1 for count in _starts(stage).values())
        successor = stage.start_worker(ready=False)
        victim.open_gate()
        unfinished = "SELECT 1 FROM tenantfair_run WHERE status = 'running' AND poisoned_at IS NULL LIMIT 1"
        until(lambda: not stage.query(unfinished), f"all runs end after {point!r}", _PATIENCE_SECONDS)
        stage.until_settled(_PATIENCE_SECONDS)
    _judge(stage, runs, poisoned, {victim.worker.pid: struck})
    # With nothing left for it to do it may not have come to listening for signals.
    successor.until_said(" started on ")
    successor.signal(signal.SIGTERM)
    assert successor.exit_code() == 0
    world.discard(stage)


def _starts(stage: FaultStage) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in stage.ledger.events("start"):
        found[line["run"]] = found.get(line["run"], 0) + 1
    return found


def _judge(stage: FaultStage, runs: list[str], poisoned: list[str], gone: dict[int, float]) -> None:
    assert_sound(stage)
    ends: dict[str, set[str]] = {}
    for line in stage.ledger.events("end"):
        ends.setdefault(line["run"], set()).add(str(line["pid"]))
    for run in runs:
        row = stage.run(run)
        assert row["status"] == "completed", row
        # The stored result is that of an execution that came to its end; at most one start was lost.
        assert row["result"] in ends[run], (run, row["result"], ends[run])
        assert 1 <= _starts(stage)[run] <= 2
    for run in poisoned:
        assert stage.run(run)["poison_reason"] == "max_claim_attempts_exceeded"
        assert run not in _starts(stage)
    assert stage.ledger.most_at_once(gone=gone)["acme"] <= CAP


def _enter(point: str, blow: str, fault: str) -> None:
    verb = "killed" if blow == "kill" else "told to stop"

    def struck(world: World, times: int) -> int:
        for _ in range(times):
            strike(world, point, blow)
        return times

    what = f"a worker is {verb} at one of thirteen points of its life"
    enter(Scenario(f"{fault} {blow} {point}", what, (fault,), struck, times=10))


for _point in POINTS:
    _enter(_point, "kill", "F1")
    _enter(_point, "term", "F2")
