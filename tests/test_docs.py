"""The documentation says what is: its tables match the code, its links lead somewhere.

Examples are run by `test_docs_examples`, the tutorial by `test_docs_tutorial`.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission
from django.core.management import load_command_class
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection
from django.test import override_settings

from tenantfair import (
    backend,
    certify,
    checks,
    conf,
    doctor,
    exceptions,
    metrics,
    policy,
    runs,
    schema,
    signals,
)
from tenantfair.execution import RunContext
from tenantfair.management import base
from tenantfair.models import Run
from tenantfair.policy import Inspection
from tenantfair.worker import EXIT_DRAINED, EXIT_FORCED, EXIT_UNDRAINED
from tests.docs_pages import DOCS, ROOT, anchors, blocks, cells, code, links, pages, section, table

REFERENCE = DOCS / "reference"
COMMANDS = REFERENCE / "commands.md"
SETTINGS = {field.name.upper(): field for field in fields(conf.Settings)}


def firsts(rows: list[list[str]]) -> list[str]:
    """What stands in backticks in the first column."""
    return [name for row in rows for name in code(row[0])]


# Pages


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in links(page):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.is_file(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(found), f"{page.name} links to {target}"


def test_the_index_leads_to_every_page() -> None:
    index = DOCS / "index.md"
    listed = {(DOCS / target.partition("#")[0]).resolve() for target in links(index)}
    assert {page for page in DOCS.rglob("*.md") if page.parent.name != "adr"} - {index} <= listed


def test_every_decision_is_listed() -> None:
    listed = {target for target in links(DOCS / "adr/README.md") if not target.startswith("https://")}
    assert {page.name for page in (DOCS / "adr").glob("0*.md")} <= listed


def test_your_own_project_takes_less_than_ten_lines() -> None:
    own = section(ROOT / "README.md", "In your own project")
    lines = [
        line
        for block in blocks(ROOT / "README.md")
        if block.text in own
        for line in block.text.splitlines()
        if line and not line.startswith("#")
    ]
    assert 0 < len(lines) < 10


# Settings


def test_the_settings_table_lists_every_key_with_its_default() -> None:
    rows = table(REFERENCE / "settings.md", "Keys")
    shown = {key: row[1].strip("`") for row in rows for key in code(row[0])}
    expected = {
        key: f'"{field.default}"' if isinstance(field.default, str) else repr(field.default)
        for key, field in SETTINGS.items()
    }
    assert shown == expected


def test_the_ranges_of_the_settings_are_those_in_force() -> None:
    """Both ends are accepted, and what lies beyond them is refused."""
    ranges = {
        code(row[0])[0]: found.groups()
        for row in table(REFERENCE / "settings.md", "Keys")
        if (found := re.fullmatch(r"([\d.]+)\.\.([\d.]+)", row[2]))
    }
    assert len(ranges) == 10
    for key, (low, high) in ranges.items():
        kind = float if SETTINGS[key].type in {"float", "float | None"} else int
        step = 0.001 if kind is float else 1
        for value, fits in [(low, True), (kind(low) - step, False), (high, True), (kind(high) + step, False)]:
            assert accepts(key, kind(value)) is fits, (key, value)


def accepts(key: str, value: Any) -> bool:
    # The lease and the heartbeat bound each other.
    beside = {"HEARTBEAT_INTERVAL": {"LEASE_SECONDS": 86_400}, "LEASE_SECONDS": {"HEARTBEAT_INTERVAL": 0.01}}
    with override_settings(TENANTFAIR={**beside.get(key, {}), key: value}):
        try:
            conf.get_settings()
        except exceptions.ConfigurationError as error:
            return "heartbeats" in str(error)
        return True


def test_every_setting_is_said_to_hold_somewhere() -> None:
    named = {key for row in table(REFERENCE / "settings.md", "What holds where") for key in code(row[1])}
    assert named <= SETTINGS.keys()


# Commands


def parsers(name: str) -> list[argparse.ArgumentParser]:
    """The parser of one of our commands, and those of its actions."""
    parser = load_command_class("tenantfair", name).create_parser("manage.py", name)
    return [parser, *subparsers(parser).values()]


def subparsers(parser: argparse.ArgumentParser) -> dict[str, Any]:
    return {
        name: chosen
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, chosen in action.choices.items()
    }


def djangos_own_options() -> set[str]:
    parser: CommandParser = type("Command", (BaseCommand,), {})().create_parser("manage.py", "any")
    return {option for action in parser._actions for option in action.option_strings}


COMMAND_NAMES = [
    "tenantfair_worker",
    "tenantfair_inspect",
    "tenantfair_caps",
    "tenantfair_prune",
    "tenantfair_doctor",
    "tenantfair_certify",
]


def test_every_command_has_its_section() -> None:
    shipped = (ROOT / "tenantfair/management/commands").glob("tenantfair_*.py")
    assert {path.stem for path in shipped} == set(COMMAND_NAMES)


@pytest.mark.parametrize("name", COMMAND_NAMES)
def test_the_options_of_a_command_are_those_it_takes(name: str) -> None:
    text = section(COMMANDS, name)
    rows = [cells(line)[0] for line in text.splitlines() if line.startswith("| `--")]
    shown = {word.split()[0] for row in rows for word in code(row)}
    taken = {
        option
        for parser in parsers(name)
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--")
    }
    assert shown == taken - djangos_own_options()


def test_the_actions_of_caps_are_those_it_takes() -> None:
    shown = [
        line.split("`")[1] for line in section(COMMANDS, "tenantfair_caps").splitlines() if line[:3] == "| `"
    ]
    (parser, *_) = parsers("tenantfair_caps")
    assert [word for word in shown if not word.startswith("--")] == list(subparsers(parser))


def test_the_exit_codes_are_those_in_use() -> None:
    used = {EXIT_DRAINED, EXIT_FORCED, EXIT_UNDRAINED, base.EXIT_USAGE, base.EXIT_CONFIG}
    assert {int(number) for number in firsts(table(COMMANDS, "Exit codes"))} == used
    assert {int(number) for number in firsts(table(DOCS / "howto/deploy.md", "How it stops"))} == used


# Python


def test_the_checks_are_shown_as_they_are_worded() -> None:
    rows = table(REFERENCE / "checks.md", "System checks")
    assert rows[: len(checks.CHECKS)] == [
        [f"`{check.id}`", check.meaning, check.hint] for check in checks.CHECKS.values()
    ]


def test_the_findings_are_shown_as_they_are_worded() -> None:
    assert table(REFERENCE / "findings.md", "All findings") == [
        [f"`{kind.id}`", kind.severity.value, kind.meaning, kind.remedy] for kind in doctor.KINDS.values()
    ]


def test_the_rules_and_reasons_of_a_certificate_are_shown() -> None:
    text = section(COMMANDS, "tenantfair_certify")
    rows = [cells(line) for line in text.splitlines()]
    shown = {row[0]: row[1] for row in rows if len(row) == 2}
    rules = {f"`{rule.name.lower()}`": rule.value for rule in certify.Rule}
    assert rules.items() <= shown.items()
    reasons = table(DOCS / "explanation/fairness.md", "Eligible windows")
    assert set(firsts(reasons)) == {reason.name.lower() for reason in certify.Reason}


def test_every_exception_is_shown_with_what_else_it_is() -> None:
    shown = {code(row[0])[0]: code(row[1]) for row in table(REFERENCE / "exceptions.md", "Exceptions")[:17]}
    expected = {
        name: [kind.__name__ for kind in found.__bases__ if kind is not exceptions.TenantFairError]
        for name, found in vars(exceptions).items()
        if isinstance(found, type)
        and issubclass(found, exceptions.TenantFairError)
        and found is not exceptions.TenantFairError
    }
    assert shown == expected


def test_every_reason_of_a_refused_claim_is_shown() -> None:
    results = set(metrics.FAMILIES[0].labels["result"]) - {"ok", "error"}
    assert set(firsts(table(REFERENCE / "exceptions.md", "Reasons of a refused claim"))) == results


def test_every_signal_and_metric_is_shown() -> None:
    page = REFERENCE / "signals.md"
    assert firsts(table(page, "Signals")) == sorted(signals.__all__, reverse=True)
    assert table(page, "Metrics") == [
        [
            f"`{family.name}`",
            "; ".join(
                f"`{name}`: {', '.join(f'`{value}`' for value in values)}"
                for name, values in family.labels.items()
            ),
            family.help,
        ]
        for family in metrics.FAMILIES
    ]


def test_every_log_event_is_shown() -> None:
    shown = {event for row in table(REFERENCE / "signals.md", "Log events") for event in code(row[1])}
    source = "".join(path.read_text() for path in (ROOT / "tenantfair").rglob("*.py"))
    assert shown == set(re.findall(r'(?:"event": |_extra\(|\babout\(|logging\.[A-Z]+,\s+)"(\w+)"', source))


def test_the_backends_options_states_and_context_are_shown() -> None:
    page = REFERENCE / "backend.md"
    assert firsts(table(page, "Options")) == [field.name for field in fields(backend.Options)]
    statuses = {state: code(row[1])[0] for row in table(page, "States in results") for state in code(row[0])}
    ready = backend.TaskResultStatus.READY
    assert statuses == {state: backend._STATUS.get(state, ready).name for state in get_args(runs.State)}
    members = {name.split("(")[0] for name in firsts(table(page, "The context"))}
    assert {name for name in vars(RunContext) if not name.startswith("_")} <= members


def test_the_states_and_operations_of_runs_are_shown() -> None:
    page = REFERENCE / "runs.md"
    assert set(firsts(table(page, "States"))) == set(get_args(runs.State))
    shown = {name.split("(")[0] for name in firsts(table(page, "For anybody: tenantfair.runs"))}
    assert shown == {
        "enqueue",
        "enqueue_many",
        "get",
        "cancel",
        "interrupt",
        "signal",
        "retry",
        "prune",
        "state_of",
        "STATE_EXPRESSION",
    } & set(runs.__all__)


def test_the_functions_and_fields_of_policy_are_shown() -> None:
    page = REFERENCE / "policy.md"
    functions = {name for name in policy.__all__ if not isinstance(getattr(policy, name), type)}
    shown = {name.split("(")[0] for name in firsts(table(page, "Policy")[: len(functions) - 1])}
    assert shown == functions - {"restore_policy_row"}
    assert set(firsts(table(page, "Inspection"))) == {field.name for field in fields(Inspection)}


# Database


def test_the_tables_functions_and_indexes_are_shown() -> None:
    page = REFERENCE / "sql.md"
    tables = {model._meta.db_table for model in apps.get_app_config("tenantfair").get_models()}
    assert set(firsts(table(page, "Tables"))) == tables | {"tenantfair_pending"}
    assert set(firsts(table(page, "Functions"))) == set(schema.FUNCTIONS)
    indexes = firsts(table(DOCS / "explanation/storage.md", "The run table"))
    assert set(indexes) == {index.name for index in Run._meta.indexes}


@pytest.mark.django_db
def test_the_claims_arguments_are_shown() -> None:
    rows = table(REFERENCE / "sql.md", "tenantfair_claim")
    shown = ", ".join(f"{code(row[0])[0]} {code(row[1])[0]}" for row in rows[:6])
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_get_function_identity_arguments(oid) FROM pg_proc WHERE proname = 'tenantfair_claim'"
        )
        assert cursor.fetchall() == [(shown,)]


@pytest.mark.django_db
def test_the_permissions_are_shown() -> None:
    ours = {
        f"tenantfair.{permission}"
        for model in apps.get_app_config("tenantfair").get_models()
        for permission, _ in model._meta.permissions
    }
    on_the_page = firsts(table(DOCS / "howto/roles.md", "Permissions in the admin"))
    assert ours <= set(on_the_page)
    assert ours <= set(firsts(table(REFERENCE / "admin.md", "Permissions")))
    existing = {f"tenantfair.{permission.codename}" for permission in Permission.objects.all()}
    assert set(on_the_page) <= existing
