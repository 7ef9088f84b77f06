"""Named points in a worker's life at which a process under test stops itself, so that it can be killed there.

Only a process under test installs one, and it wraps the package's functions from outside. A process that has
reached its point is stopped (SIGSTOP): no thread of it goes on until somebody continues or kills it.
"""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from typing import Any

_point = ""


def reach(point: str) -> None:
    """Stop this process if `point` is the one it was told of; only once."""
    global _point  # noqa: PLW0603 - one process has one point
    if point == _point:
        _point = ""
        os.kill(os.getpid(), signal.SIGSTOP)


def install(point: str) -> None:
    """Let this process stop at `point`, one of `POINTS`."""
    global _point  # noqa: PLW0603 - one process has one point
    _point = point
    POINTS[point]()


def _before(owner: Any, name: str, point: str, when: Callable[..., bool] = lambda *_: True) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def stopping(*arguments: Any, **named: Any) -> Any:
        if when(*arguments):
            reach(point)
        return original(*arguments, **named)

    setattr(owner, name, stopping)


def _after(owner: Any, name: str, point: str, when: Callable[[Any], bool] = bool) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def stopping(*arguments: Any, **named: Any) -> Any:
        answer = original(*arguments, **named)
        if when(answer):
            reach(point)
        return answer

    setattr(owner, name, stopping)


def _before_claim() -> None:
    from tenantfair import claim

    _before(claim, "claim_due", "before claim")


def _after_claim() -> None:
    from tenantfair import claim

    _after(claim, "claim_due", "after reply", lambda batch: bool(batch.leases))


def _in_poison() -> None:
    from tenantfair import claim

    _after(claim, "claim_due", "in poison", lambda batch: bool(batch.poisoned))


def _before_start() -> None:
    from tenantfair.worker.executor import Executor

    _before(Executor, "launch", "before start")


def _after_start() -> None:
    from tenantfair.compat import signals

    signals.task_started.connect(lambda **_: reach("after start"), weak=False)


def _in_heartbeat() -> None:
    from tenantfair.worker import heartbeat

    _before(heartbeat, "extend", "in heartbeat", bool)


def _before_finish() -> None:
    from tenantfair import runs

    _before(runs, "settle", "before finish")


def _after_commit() -> None:
    from tenantfair import runs

    _after(runs, "settle", "after commit", lambda settled: bool(settled.accepted))


def _in_release() -> None:
    """Refuse the first thread, as an exhausted system does: the lease is then given back unstarted."""
    from tenantfair import runs
    from tenantfair.worker.executor import Executor

    launch = Executor.launch
    refused: list[object] = []

    def refusing(self: Executor, holding: Any) -> None:
        if not refused:
            refused.append(holding)
            raise RuntimeError("no thread, by order of the test")
        launch(self, holding)

    Executor.launch = refusing  # type: ignore[method-assign]
    _before(
        runs,
        "settle",
        "in release",
        lambda outcomes: any(isinstance(outcome, runs.Released) for outcome in outcomes),
    )


def _in_shutdown() -> None:
    from tenantfair.worker.crew import Crew

    _before(Crew, "drain", "in shutdown")


def _nowhere() -> None:
    """Leave the process as it is; its task or the proxy in front of its server knows the point."""


# In the order of a run's life. At the points "after send" the reply is kept from the process by a proxy.
POINTS: dict[str, Callable[[], None]] = {
    "before claim": _before_claim,
    "claim sent": _nowhere,
    "after reply": _after_claim,
    "before start": _before_start,
    "after start": _after_start,
    "in heartbeat": _in_heartbeat,
    "in task": _nowhere,
    "before finish": _before_finish,
    "finish sent": _nowhere,
    "after commit": _after_commit,
    "in release": _in_release,
    "in poison": _in_poison,
    "in shutdown": _in_shutdown,
}
