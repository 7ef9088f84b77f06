"""What holds for every command."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tests.domains import another_vendor

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
