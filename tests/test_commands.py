"""What holds for every command."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import autoreload

from tenantfair.management.commands import tenantfair_prune
from tenantfair.models import Run
from tests.domains import another_vendor
from tests.factories import policy_in_force, run_in

pytestmark = pytest.mark.django_db(transaction=True)

COMMANDS = {
    "tenantfair_caps": ["list"],
    "tenantfair_certify": ["--seconds=0.1"],
    "tenantfair_doctor": [],
    "tenantfair_inspect": [],
    "tenantfair_prune": ["--older-than=1d"],
    "tenantfair_worker": ["--batch", "--no-listen"],
}
every_command = pytest.mark.parametrize("command", COMMANDS)


def refused(command: str, *arguments: Any, **options: Any) -> tuple[int, str]:
    """Return the exit code and all that the command says."""
    out = StringIO()
    with pytest.raises(CommandError) as caught:
        call_command(command, *arguments, stdout=out, **options)
    return caught.value.returncode, f"{out.getvalue()}{caught.value}"


@every_command
def test_a_database_that_is_not_postgresql_exits_78_and_says_so(command: str) -> None:
    with another_vendor() as alias:
        code, said = refused(command, *COMMANDS[command], f"--database={alias}")

    assert code == 78
    assert "found the database vendor sqlite, need postgresql" in said


@every_command
def test_settings_that_cannot_work_exit_78_and_say_so(command: str, settings: Any) -> None:
    settings.TENANTFAIR = {"CONCURRENCY": 0}

    code, said = refused(command, *COMMANDS[command], "--database=default")

    assert code == 78
    assert "TENANTFAIR['CONCURRENCY']" in said


def test_what_a_command_line_does_is_committed_where_autocommit_is_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy_in_force()
    run_in("completed", finished_at=datetime(2020, 1, 1, tzinfo=UTC))
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", False)

    tenantfair_prune.Command().run_from_argv(["manage.py", "tenantfair_prune", "--older-than=1d"])

    assert Run.objects.count() == 0


def test_code_that_calls_a_command_keeps_its_transaction() -> None:
    policy_in_force()
    run_in("completed", finished_at=datetime(2020, 1, 1, tzinfo=UTC))
    connection.set_autocommit(False)
    try:
        call_command("tenantfair_prune", "--older-than=1d", stdout=StringIO())
        assert not connection.get_autocommit()
        connection.rollback()
    finally:
        connection.set_autocommit(True)
    assert Run.objects.count() == 1


@pytest.mark.parametrize("broken", [{}, {"CONCURRENCY": 0}], ids=str)
def test_a_worker_that_reloads_exits_78_for_settings_that_cannot_work(
    broken: dict[str, Any], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.TENANTFAIR = broken
    monkeypatch.setattr(autoreload, "run_with_reloader", pytest.fail)

    code, said = refused("tenantfair_worker", "--reload")

    assert code == 78
    assert "TENANTFAIR" in said


def test_a_reloaded_worker_waits_for_the_next_change_of_settings_that_cannot_work(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reload(main: Callable[[Any], None], options: Any) -> None:
        main(options)

    settings.TENANTFAIR = {"CONCURRENCY": 0}
    monkeypatch.setenv(autoreload.DJANGO_AUTORELOAD_ENV, "true")
    monkeypatch.setattr(autoreload, "run_with_reloader", reload)

    call_command("tenantfair_worker", "--reload", stderr=(said := StringIO()))

    assert "TENANTFAIR['CONCURRENCY']" in said.getvalue()
    assert "Waiting for a change." in said.getvalue()
