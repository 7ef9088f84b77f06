"""A task that leaves a transaction open, forks, or loses a checkpoint harms neither its worker nor others."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connections

from tenantfair import runs
from tenantfair.models import Run
from tests.factories import policy_in_force, run_in
from tests.worker_parts import run_until_idle

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def persistent_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task of a thread meets the session as the one before has left it."""
    policy_in_force()
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)


def queue(name: str, *args: Any) -> Run:
    return run_in("queued", task_path=f"tests.cases.tasks.{name}", args=list(args))


def notes() -> set[str | None]:
    return set(Run.objects.filter(task_path="note").values_list("tenant_id", flat=True))


@pytest.mark.parametrize("way", ["begin_and_leave", "turn_autocommit_off"])
def test_whatever_opened_a_transaction_it_ends_with_its_task(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the next task of the thread would work in it, complete, and have written nothing."""
    left = queue(way)
    after = queue("write", "committed")

    run_until_idle(concurrency=1)

    assert [runs.get(run.run_id).state for run in (left, after)] == ["completed", "completed"]
    assert notes() == {"committed"}
    assert "transaction_left_open" in [getattr(record, "event", None) for record in caplog.records]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(("way", "status"), [("exit", 3), ("raise", 1), ("return", 0)])
def test_a_forked_child_ends_with_the_task_and_touches_no_session(way: str, status: int) -> None:
    forking = queue("fork_a_child", way)
    after = queue("write", "next")

    run_until_idle(concurrency=1)

    view = runs.get(forking.run_id)
    assert (view.state, view.result, view.claim_attempts) == ("completed", status, 0)
    assert runs.get(after.run_id).state == "completed"
    assert notes() == {"parent", "next"}


@pytest.mark.parametrize("then", ["yield", "checkpoint"])
def test_after_a_checkpoint_that_was_rolled_back_the_attempt_goes_on_from_the_state_before(then: str) -> None:
    run = queue("yield_after_a_rollback", then)

    run_until_idle()

    view = runs.get(run.run_id)
    assert (view.state, view.result, view.saved_state) == ("completed", "done", "saved")


def test_a_task_that_interrupts_itself_starts_again_and_completes_once() -> None:
    run = queue("interrupt_itself")

    run_until_idle()

    view = runs.get(run.run_id)
    assert (view.state, view.result, view.failures) == ("completed", 2, 0)
