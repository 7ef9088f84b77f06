"""`manage.py tenantfair_doctor`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from tenantfair import policy
from tests.doctor_damage import CLAIMED, QUEUED, SCHEMA, TASK, alias, change, damage
from tests.domains import scratch_alias, scratch_domain

__all__ = ["alias"]

pytestmark = pytest.mark.django_db(transaction=True)


def run(*arguments: str, expected: int = 0) -> str:
    """Run the command, see it end with a code, and return what it printed."""
    out = StringIO()
    code = 0
    try:
        call_command("tenantfair_doctor", *arguments, stdout=out)
    except CommandError as error:
        code = error.returncode
    assert code == expected
    return out.getvalue()


def document(*arguments: str, expected: int = 0) -> dict[str, Any]:
    return json.loads(run("--format", "json", *arguments, expected=expected))


def test_a_sound_domain_exits_0() -> None:
    policy.synchronize()

    assert run() == "nothing found\n"


def test_what_is_wrong_is_told_with_its_remedy_and_exits_1(alias: str) -> None:
    damage("UPDATE tenantfair_schedule SET unfinished_count = 0 WHERE scope_key = 'acme'")

    assert run("--database", alias, expected=1).splitlines() == [
        "grave: count_too_low (1)",
        "    A count is lower than the scope's unfinished runs. At 0 the scope has left the ring and is never"
        " served; above, its last runs cannot be finished.",
        "    - 'acme' counts 0 of 4 unfinished runs and has left the ring",
        "    Run `manage.py tenantfair_doctor --fix`.",
        "found 1 grave, 0 wrong, 0 worth a look",
    ]


def test_what_is_only_worth_a_look_exits_0(alias: str) -> None:
    damage(change("claim_attempts = 99", QUEUED))

    assert "worth a look: run_attempts (1)" in run("--database", alias)


def test_more_than_ten_are_said_to_be_more(alias: str) -> None:
    damage(
        "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at, worker_ids)"
        " SELECT 'acme', 'tests.tasks_for_tests.add', now(), '{}' FROM generate_series(1, 12)"
    )

    assert "    - and 2 more" in run("--database", alias, expected=1).splitlines()


def test_the_json_document_carries_every_finding(alias: str) -> None:
    damage(change("tenant_admitted_at = NULL", CLAIMED))

    found = document("--database", alias, expected=1)

    assert found["database"] == alias
    assert found["schema_fits"] is True
    assert found["taken_at"].startswith("20")
    assert found["changes"] == []
    (finding,) = found["findings"]
    assert [finding["id"], finding["severity"], finding["number"]] == ["claim_unmarked", "grave", 2]
    assert len(finding["examples"]) == 2
    assert finding.keys() == {"id", "severity", "number", "examples", "meaning", "remedy"}


def test_fix_says_what_it_changed_and_what_is_left(alias: str) -> None:
    damage(
        "UPDATE tenantfair_schedule SET unfinished_count = 0 WHERE scope_key = 'acme'",
        "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at) VALUES ('new', 'nowhere.task', now())",
        "DELETE FROM tenantfair_policy",
    )

    lines = run("--fix", "--database", alias, expected=1).splitlines()

    assert lines[:5] == [
        "changed  the policy row was put back, as a fresh install has it",
        "changed  partition of 'new': added",
        "changed  count of 'acme': was 0, is 4",
        "changed  count of 'new': was 0, is 1",
        "wrong: task_unknown (1)",
    ]


def test_fix_changes_nothing_the_second_time(alias: str) -> None:
    damage("UPDATE tenantfair_schedule SET unfinished_count = 9 WHERE scope_key = 'acme'")

    first = document("--fix", "--database", alias)
    second = document("--fix", "--database", alias)

    assert first["changes"] == [{"what": "count_changed", "name": "acme", "before": 9, "after": 4}]
    assert first["findings"] == []
    assert second["changes"] == second["findings"] == []


def test_without_fix_nothing_is_changed(alias: str) -> None:
    damage("UPDATE tenantfair_schedule SET unfinished_count = 9 WHERE scope_key = 'acme'")

    run("--database", alias, expected=1)

    assert document("--database", alias, expected=1)["findings"][0]["id"] == "count_too_high"


def test_a_schema_that_does_not_fit_exits_78_and_is_not_repaired(alias: str) -> None:
    damage(
        "UPDATE tenantfair_schedule SET unfinished_count = 0 WHERE scope_key = 'acme'",
        "ALTER TABLE tenantfair_run DISABLE TRIGGER tenantfair_run_updated",
    )

    found = document("--fix", "--database", alias, expected=78)

    assert found["schema_fits"] is False
    assert found["changes"] == []
    assert [finding["id"] for finding in found["findings"]] == ["count_too_low", "schema"]


def test_a_database_without_our_tables_exits_78() -> None:
    with scratch_alias(SCHEMA) as alias:
        assert "table tenantfair_run is missing" in run("--database", alias, expected=78)


def test_settings_that_cannot_work_exit_78(settings: Any) -> None:
    settings.TENANTFAIR = {"NO_SUCH_KEY": 1}

    run(expected=78)


def test_when_work_counts_as_stalled_can_be_chosen(alias: str) -> None:
    damage(change("wake_at = now() - interval '30 seconds'", QUEUED))

    assert document("--database", alias)["findings"] == []
    (finding,) = document("--database", alias, "--stalled-after", "20", expected=1)["findings"]
    assert (finding["id"], finding["number"]) == ("stalled", 1)


@pytest.mark.parametrize("seconds", ["-1", "nan", "soon", "1e9"])
def test_no_number_of_seconds_is_wrong_usage(seconds: str) -> None:
    with pytest.raises(CommandError, match="is not a number of seconds"):
        call_command("tenantfair_doctor", f"--stalled-after={seconds}")


# Roles


@contextmanager
def role(alias: str, *grants: str) -> Iterator[None]:
    """Act on `alias` as a new role with these grants, until the end."""
    statements = ["CREATE ROLE tf_doctor", f"GRANT USAGE ON SCHEMA {SCHEMA} TO tf_doctor", *grants]
    with connections[alias].cursor() as cursor:
        try:
            for statement in [*statements, "SET ROLE tf_doctor"]:
                cursor.execute(statement)
            yield
        finally:
            for statement in ("RESET ROLE", "DROP OWNED BY tf_doctor", "DROP ROLE tf_doctor"):
                cursor.execute(statement)


def test_roles_that_may_create_in_the_schema_are_named_and_owners_are_not(alias: str) -> None:
    """Whether they are trusted as the owners are is not for the doctor to say, so it exits 0."""
    roles = ("tf_creator", "tf_user", "tf_super", "tf_tables", "tf_schema")
    damage(*(f"CREATE ROLE {name}" for name in roles), "ALTER ROLE tf_super SUPERUSER")
    try:
        damage(
            "ALTER TABLE tenantfair_run OWNER TO tf_tables",
            f"ALTER SCHEMA {SCHEMA} OWNER TO tf_schema",
            f"GRANT CREATE ON SCHEMA {SCHEMA} TO PUBLIC, tf_creator, tf_super, tf_tables, tf_schema",
            f"GRANT USAGE ON SCHEMA {SCHEMA} TO tf_user",
        )

        (finding,) = document("--database", alias)["findings"]
    finally:
        everyone = ", ".join(roles)
        damage(
            f"REASSIGN OWNED BY {everyone} TO CURRENT_USER",
            f"DROP OWNED BY {everyone}",
            f"DROP ROLE {everyone}",
        )

    assert (finding["id"], finding["severity"]) == ("schema_creators", "worth a look")
    assert finding["examples"] == [
        f"PUBLIC may create in schema '{SCHEMA}'",
        f"role 'tf_creator' may create in schema '{SCHEMA}'",
    ]


def test_a_role_that_may_not_read_exits_78(alias: str) -> None:
    with role(alias, "GRANT SELECT ON tenantfair_run TO tf_doctor"):
        run("--database", alias, expected=78)


def test_a_role_that_may_only_read_can_look_but_not_repair() -> None:
    with scratch_domain(SCHEMA) as alias:
        policy.synchronize(using=alias)
        damage(f"INSERT INTO tenantfair_run (tenant_id, task_path, wake_at) VALUES ('acme', {TASK}, now())")
        with role(
            alias,
            f"GRANT SELECT ON ALL TABLES IN SCHEMA {SCHEMA} TO tf_doctor",
            f"GRANT SELECT ON ALL SEQUENCES IN SCHEMA {SCHEMA} TO tf_doctor",
        ):
            assert [one["id"] for one in document("--database", alias, expected=1)["findings"]] == [
                "partition_missing",
                "ring_position_missing",
            ]
            run("--database", alias, "--fix", expected=78)
