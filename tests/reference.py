"""What the operations on runs do, said once more in plain Python, to predict a domain with.

Imports nothing of the package. Time is a number of seconds that only moves with `Domain.now`. What a claim
grants is said in `tests/model.py`; here it is only carried out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LEASE = 3600


@dataclass
class Run:
    tenant: str | None
    retry_limit: int
    wake: int | None
    status: str = "running"
    token: Any = None
    claimed: int | None = None
    admitted: bool = False
    poisoned: bool = False
    attempts: int = 0
    abandons: int = 0
    failures: int = 0
    seq: int = 0
    saved: Any = None
    result: Any = None
    signals: list[Any] = field(default_factory=list)
    finished: int | None = None

    def park(self, status: str = "running", *, wake: int | None = None, keeps_place: bool = False) -> None:
        """Let go of the claim; of the place among the admitted too, unless it is kept."""
        self.status, self.wake, self.token, self.claimed, self.poisoned = status, wake, None, None, False
        self.admitted = self.admitted and keeps_place


class NotActive(Exception):
    pass


@dataclass
class Domain:
    now: int = 0
    runs: dict[Any, Run] = field(default_factory=dict)

    def state(self, run: Run) -> str:
        if run.status != "running":
            return run.status
        if run.poisoned:
            return "poisoned"
        if run.token is not None:
            return "claimed"
        if run.wake is not None and run.wake > self.now:
            return "scheduled"
        return "ready" if run.admitted else "queued"

    def holds(self, lease: Any) -> bool:
        run = self.runs.get(lease.run_id)
        return run is not None and run.token is not None and run.token == lease.claim_token

    # Claims

    def lease(self, run_id: Any, token: Any) -> None:
        run = self.runs[run_id]
        run.wake, run.token, run.claimed, run.admitted = None, token, self.now, True
        run.attempts += 1

    def poison(self, run_id: Any) -> None:
        run = self.runs[run_id]
        run.park()
        run.poisoned = True

    # By the holder; each says whether the fence held

    def heartbeat(self, lease: Any) -> bool:
        if self.holds(lease):
            self.runs[lease.run_id].claimed = self.now
        return self.holds(lease)

    def checkpoint(self, lease: Any, saved: Any) -> bool:
        if not self.holds(lease) or self.runs[lease.run_id].seq != lease.checkpoint_seq:
            return False
        run = self.runs[lease.run_id]
        run.saved, run.seq, run.attempts, run.abandons, run.claimed = saved, run.seq + 1, 0, 0, self.now
        return True

    def finish(self, kind: str, lease: Any, *, delay: int = 0, value: Any = None, consumed: int = 0) -> bool:
        """`value` is a result, or a state to save where the kind takes one and it is not None."""
        saves = kind in ("yielded", "snoozed", "waiting") and value is not None
        if not self.holds(lease) or (saves and self.runs[lease.run_id].seq != lease.checkpoint_seq):
            return False
        run = self.runs[lease.run_id]
        attempts, abandons = run.attempts, run.abandons
        run.attempts = run.abandons = 0
        if saves:
            run.saved, run.seq = value, run.seq + 1
        if kind in ("failed", "retry"):
            run.failures += 1
        del run.signals[:consumed]
        if kind == "completed":
            self._end(run, "completed")
            run.result = value
        elif kind == "failed" or (kind == "retry" and run.failures > run.retry_limit):
            self._end(run, "failed")
        elif kind in ("retry", "snoozed"):
            run.park(wake=self.now + delay)
        elif kind == "waiting" and not run.signals:
            run.park("waiting")
        elif kind == "waiting":
            run.park(wake=self.now)
        elif kind == "yielded":
            run.park(wake=self.now, keeps_place=True)
        elif kind == "abandoned":
            run.park(wake=self.now + delay)
            run.attempts, run.abandons = max(attempts - 1, 0), abandons + 1
        else:
            run.park(wake=self.now, keeps_place=True)
            run.attempts = attempts if kind == "released" else max(attempts - 1, 0)
            run.abandons = abandons
        return True

    def _end(self, run: Run, status: str) -> None:
        run.park(status)
        run.finished = self.now

    # By anybody

    def cancel(self, run_id: Any) -> None:
        run = self.runs[run_id]
        if run.status in ("completed", "failed"):
            raise NotActive
        if run.status != "cancelled":
            run.attempts = run.abandons = 0
            self._end(run, "cancelled")

    def interrupt(self, run_id: Any) -> None:
        run = self.runs[run_id]
        state = self.state(run)
        if state not in ("queued", "ready", "claimed", "scheduled", "waiting"):
            raise NotActive
        if state not in ("queued", "ready"):
            self._queue(run)

    def signal(self, run_id: Any, payload: Any) -> None:
        run = self.runs[run_id]
        if run.finished is not None:
            raise NotActive
        run.signals.append(payload)
        if run.status == "waiting":
            self._queue(run)

    def retry(self, run_id: Any) -> None:
        run = self.runs[run_id]
        if run.status in ("completed", "cancelled"):
            raise NotActive
        if run.poisoned or run.status == "failed":
            self._queue(run)
            run.failures, run.finished = 0, None

    def _queue(self, run: Run) -> None:
        run.park(wake=self.now)
        run.attempts = run.abandons = 0

    def prune(self, older_than: int) -> int:
        old = [
            run_id
            for run_id, run in self.runs.items()
            if run.finished is not None and run.finished < self.now - older_than
        ]
        for run_id in old:
            del self.runs[run_id]
        return len(old)
