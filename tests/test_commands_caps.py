"""`manage.py tenantfair_caps`."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tenantfair import policy
from tenantfair.models import Partition, Policy
from tests.domains import scratch_alias

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def initialised() -> None:
    policy.synchronize()


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("tenantfair_caps", *arguments, stdout=out)
    return out.getvalue()


def document(*arguments: str) -> dict[str, Any]:
    return json.loads(run(*arguments, "--format", "json"))


def exit_code(*arguments: str) -> int:
    with pytest.raises(CommandError) as caught:
        run(*arguments)
    return caught.value.returncode


def test_list_shows_the_default_and_every_override(initialised: None) -> None:
    policy.put_override("zeta", 5)
    policy.put_override("acme", 3)
    policy.put_override(None, 2)
    policy.put_override("reset", 2)
    policy.reset_override("reset")

    assert [row.split() for row in run("list").splitlines()] == [
        ["SCOPE", "CAP", "VERSION"],
        ["(default)", "10", "1"],
        ["(tenantless)", "2", "1"],
        ["acme", "3", "1"],
        ["zeta", "5", "1"],
    ]
    listed = document("list", "--limit", "2")
    assert listed["default"] == {
        "mode": "tenant_fair",
        "cap": 10,
        "configured": 10,
        "scan_budget": 32,
        "version": 1,
    }
    assert [entry["scope_key"] for entry in listed["overrides"]] == ["", "acme"]


def test_set_creates_and_changes_an_override(initialised: None) -> None:
    assert document("set", "acme", "3") == {"scope_key": "acme", "cap": 3, "version": 1}
    assert document("set", "acme", "4", "--expected-version", "1")["version"] == 2
    assert policy.inspect("acme").cap == 4


@pytest.mark.parametrize("arguments", [["--tenantless", "3"], ["3", "--tenantless"]])
def test_the_tenantless_scope_is_set_by_name(initialised: None, arguments: list[str]) -> None:
    assert document("set", *arguments) == {"scope_key": "", "cap": 3, "version": 1}


def test_reset_inherits_again(initialised: None) -> None:
    run("set", "acme", "3")
    run("set", "--tenantless", "3")

    assert document("reset", "acme", "--expected-version", "1") == {
        "scope_key": "acme",
        "cap": None,
        "version": 2,
    }
    assert document("reset", "--tenantless")["cap"] is None


def test_default_shows_and_sets(initialised: None) -> None:
    assert document("default")["cap"] == 10
    assert document("default", "3", "--expected-version", "1")["cap"] == 3
    assert run("default").split() == [
        *("MODE", "CAP", "CONFIGURED", "SCAN", "BUDGET", "VERSION"),
        *("tenant_fair", "3", "10", "32", "2"),
    ]


def test_default_initialises_a_domain_that_no_worker_has_started_in() -> None:
    assert document("default")["cap"] is None

    assert document("default", "3")["version"] == 1


def test_budget_shows_and_sets(initialised: None) -> None:
    assert document("budget")["scan_budget"] == 32
    assert document("budget", "64", "--expected-version", "1")["scan_budget"] == 64


@pytest.mark.parametrize(
    "arguments",
    [
        ["set", "acme", "3", "--expected-version", "7"],
        ["reset", "acme"],
        ["default", "3", "--expected-version", "7"],
        ["budget", "64", "--expected-version", "7"],
    ],
)
def test_a_stale_version_exits_1_and_changes_nothing(initialised: None, arguments: list[str]) -> None:
    before = list(Policy.objects.values())

    assert exit_code(*arguments) == 1

    assert list(Policy.objects.values()) == before
    assert not Partition.objects.exists()


@pytest.mark.conformance(131)
@pytest.mark.parametrize("arguments", [["set", "acme", "4"], ["reset", "acme"]], ids=lambda words: words[0])
@pytest.mark.parametrize("version", ["0", "7"])
def test_a_stale_version_of_an_override_exits_1_and_changes_nothing(
    initialised: None, arguments: list[str], version: str
) -> None:
    run("set", "acme", "3")
    before = list(Partition.objects.values())

    assert exit_code(*arguments, "--expected-version", version) == 1

    assert list(Partition.objects.values()) == before


@pytest.mark.parametrize("arguments", [["set", "acme", "3"], ["reset", "acme"], ["budget", "64"]])
def test_before_the_first_boot_all_but_the_default_exit_1(arguments: list[str]) -> None:
    assert exit_code(*arguments) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["set", "acme", "0"],
        ["set", "acme", "2147483648"],
        ["set", "acme", "many"],
        ["set", "acme"],
        ["set", "3"],
        ["set", "a", "b", "3"],
        ["set", "acme", "3", "--tenantless"],
        ["set", " acme", "3"],
        ["set", "", "3"],
        ["set", "acme", "3", "--expected-version", "-1"],
        ["reset"],
        ["reset", "acme", "--tenantless"],
        ["default", "0"],
        ["budget", "31"],
    ],
)
def test_wrong_usage_exits_2(initialised: None, arguments: list[str]) -> None:
    assert exit_code(*arguments) == 2
    assert not Partition.objects.exists()


@pytest.mark.parametrize("arguments", [[], ["raise"], ["default", "many"], ["list", "--format", "xml"]])
def test_what_the_parser_refuses_is_wrong_usage(initialised: None, arguments: list[str]) -> None:
    """Run from the command line the parser exits with 2; called from Python it raises."""
    with pytest.raises(CommandError, match="Error"):
        run(*arguments)


def test_a_database_without_the_tables_exits_78() -> None:
    with scratch_alias("tf_caps") as alias:
        assert exit_code("list", "--database", alias) == 78
