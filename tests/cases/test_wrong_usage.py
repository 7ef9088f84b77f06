"""A command that is used wrongly says what is wrong; nobody sees a traceback."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command

from tests.factories import policy_in_force

pytestmark = pytest.mark.django_db

COMMANDS = [
    ["tenantfair_worker"],
    ["tenantfair_prune", "--older-than=1d"],
    ["tenantfair_caps", "list"],
    ["tenantfair_inspect"],
    ["tenantfair_doctor"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_an_alias_that_does_not_exist_exits_2(command: list[str]) -> None:
    with pytest.raises(CommandError, match="must name a key of DATABASES, not 'nope'") as error:
        call_command(*command, "--database=nope")

    assert error.value.returncode == 2


@pytest.mark.parametrize("limit", ["-1", "1.5", "", "x", "9" * 5000, "\N{ARABIC-INDIC DIGIT ONE}"])
@pytest.mark.parametrize("command", [["tenantfair_caps", "list"], ["tenantfair_inspect"]], ids=lambda c: c[0])
def test_a_limit_is_an_integer_of_zero_or_more(command: list[str], limit: str) -> None:
    policy_in_force()

    with pytest.raises(CommandError, match="--limit"):
        call_command(*command, f"--limit={limit}")

    call_command(*command, "--limit=0")
