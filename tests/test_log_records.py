"""What log records about one run carry: the run always, its tenant where `LOG_TENANTS` is on."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import tenantfair
from tenantfair import payloads, runs
from tenantfair.compat import signals
from tenantfair.execution import execute
from tenantfair.models import Run
from tenantfair.runs import finishing
from tenantfair.worker import executor
from tenantfair.worker.database import WorkerConnections
from tenantfair.worker.executor import Executor
from tenantfair.worker.heartbeat import Heartbeat
from tenantfair.worker.holdings import Holdings
from tests.factories import claimed_lease, policy_in_force, run_in
from tests.worker_parts import run_until_idle, store

pytestmark = pytest.mark.django_db(transaction=True)

TENANT = "a tenant's name"
WORKER = "logs"


def refuse(*_: Any, **__: Any) -> Any:
    raise RuntimeError("no")


def attempt_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    execute(claimed_lease(tenant_id=TENANT, task_path="tests.tasks_for_tests.fail", args=[]))


def run_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    execute(claimed_lease(tenant_id=TENANT, task_path="tests.tasks_for_tests.nobody_has_it"))


def run_unaccounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "error_record", refuse)
    attempt_failed(monkeypatch)


def receiver_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(**_: Any) -> None:
        raise SystemExit

    signals.task_started.connect(leave)
    try:
        execute(claimed_lease(tenant_id=TENANT, task_path="tests.tasks_for_tests.add", args=[1]))
    finally:
        signals.task_started.disconnect(leave)


def outcome_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finishing, "load", lambda name: "SELECT 1 / 0")
    runs.finish([runs.Completed(claimed_lease(tenant_id=TENANT), 1)])


def run_poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    run_in("queued", tenant_id=TENANT, claim_attempts=5)
    run_until_idle(worker_id=WORKER)


def launch_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    launch, refusals = Executor.launch, iter([True])

    def refuse_once(self: Executor, holding: Any) -> None:
        if next(refusals, False):
            raise RuntimeError("can't start new thread")
        launch(self, holding)

    monkeypatch.setattr(Executor, "launch", refuse_once)
    run_in("queued", tenant_id=TENANT)
    run_until_idle(worker_id=WORKER)


def executor_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "execute", refuse)
    run_in("queued", tenant_id=TENANT)
    run_until_idle(worker_id=WORKER)


def run_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    store(runs.Completed(claimed_lease(tenant_id=TENANT), 1))


def fence_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice: noticed when an outcome is stored, and by a heartbeat."""
    lease = claimed_lease(tenant_id=TENANT)
    Run.objects.update(claim_token=uuid4())
    store(runs.Completed(lease, 1))
    holdings = Holdings(places=1)
    holdings.take(lease)
    connections_of = WorkerConnections("default", WORKER)
    Heartbeat(
        connections_of=connections_of, holdings=holdings, interval=60, lease_seconds=60, worker_id=WORKER
    ).renew()


OCCASIONS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    occasion.__name__: occasion
    for occasion in (
        attempt_failed,
        run_abandoned,
        run_unaccounted,
        receiver_left,
        outcome_refused,
        run_poisoned,
        launch_failed,
        executor_failed,
        run_settled,
        fence_lost,
    )
}


def records_about_runs(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """Every record that names a run, in its facts or in its text."""
    (run_id,) = Run.objects.values_list("run_id", flat=True)
    return [
        record
        for record in caplog.records
        if record.name.startswith("tenantfair")
        and (hasattr(record, "run_id") or str(run_id) in record.getMessage())
    ]


@pytest.mark.parametrize("shown", [True, False])
@pytest.mark.parametrize("event", OCCASIONS)
def test_a_record_about_one_run_names_its_tenant_if_and_only_if_that_is_allowed(
    event: str,
    shown: bool,
    settings: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings.TENANTFAIR = {**settings.TENANTFAIR, "LOG_TENANTS": shown}
    policy_in_force()
    caplog.set_level(logging.DEBUG, logger="tenantfair")

    OCCASIONS[event](monkeypatch)

    found = records_about_runs(caplog)
    assert event in {record.event for record in found}
    assert {getattr(record, "tenant", None) for record in found} == {TENANT if shown else None}
    assert {(record.run_id, record.task) for record in found} == {
        (str(run.run_id), run.task_path) for run in Run.objects.all()
    }
    assert not any(TENANT in record.getMessage() for record in found)


def test_these_are_all_events_about_one_run() -> None:
    sources = Path(tenantfair.__file__).parent.rglob("*.py")
    written = re.findall(
        r'\babout\(\s*"(\w+)"', "".join(source.read_text(encoding="utf-8") for source in sources)
    )
    assert set(written) == set(OCCASIONS)


def test_a_worker_that_loses_a_run_says_so_where_it_notices(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fence_lost(monkeypatch)

    assert [record.event for record in records_about_runs(caplog)] == ["fence_lost"] * 2
