"""`manage.py tenantfair_inspect`."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tenantfair import policy
from tenantfair.models import Policy, Run
from tests.domains import migrate, scratch_alias, scratch_domain

pytestmark = pytest.mark.django_db(transaction=True)

PAST = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture
def initialised() -> None:
    policy.synchronize()


def make_run(tenant_id: str | None, **values: Any) -> None:
    Run.objects.create(tenant_id=tenant_id, task_path="t.t", **(values or {"wake_at": PAST}))


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("tenantfair_inspect", *arguments, stdout=out)
    return out.getvalue()


def scopes(*arguments: str) -> list[dict[str, Any]]:
    return json.loads(run("--format", "json", *arguments))["scopes"]


def test_the_table_shows_scopes_at_work_and_with_overrides_in_ring_order(initialised: None) -> None:
    make_run("zeta")
    make_run(None)
    policy.put_override("acme", 3)

    header, columns, *rows = run().splitlines()

    assert header == "mode tenant_fair, default cap 10, version 1, scan budget 32"
    assert columns.split()[:6] == ["SCOPE", "CAP", "SOURCE", "QUEUED", "READY", "CLAIMED"]
    assert [row.split()[:4] for row in rows] == [
        ["zeta", "10", "default", "1"],
        ["(tenantless)", "10", "default", "1"],
        ["acme", "3", "override", "0"],
    ]


def test_the_json_document_carries_every_field(initialised: None) -> None:
    policy.put_override("acme", 1)
    make_run("acme")
    for _ in range(2):
        make_run("acme", claim_token=uuid.uuid4(), claimed_at=PAST, tenant_admitted_at=PAST)

    document = json.loads(run("--format", "json"))
    (acme,) = document["scopes"]
    wait = acme.pop("oldest_due_wait")
    position = acme.pop("ring_position")

    assert acme == {
        "scope_key": "acme",
        "cap": 1,
        "source": "override",
        "default_version": 1,
        "override_version": 1,
        "queued": 1,
        "admitted_ready": 0,
        "admitted_claimed": 2,
        "debt": 1,
        "unfinished": 3,
        "admission_epoch": 0,
        "mode": "tenant_fair",
    }
    assert wait > 0
    assert position > 0
    assert document["policy"]["cap"] == 10


def test_no_output_carries_a_claim_token(initialised: None) -> None:
    token = uuid.uuid4()
    make_run("acme", claim_token=token, claimed_at=PAST, tenant_admitted_at=PAST)

    assert str(token) not in run() + run("--format", "json")


def test_one_scope_is_shown_known_or_not(initialised: None) -> None:
    make_run("acme")

    assert [one["scope_key"] for one in scopes("--scope", "nobody")] == ["nobody"]
    assert [(one["scope_key"], one["queued"]) for one in scopes("--scope", "acme")] == [("acme", 1)]


def test_the_tenantless_scope_is_asked_for_by_name(initialised: None) -> None:
    make_run(None)
    make_run("acme")

    assert [(one["scope_key"], one["queued"]) for one in scopes("--tenantless")] == [("", 1)]


def test_the_number_of_scopes_is_limited(initialised: None) -> None:
    for number in range(3):
        make_run(f"tenant-{number}")

    assert [one["scope_key"] for one in scopes("--limit", "2")] == ["tenant-0", "tenant-1"]


def test_a_legacy_domain_is_shown_and_says_so() -> None:
    make_run("acme")

    assert run().splitlines()[0] == "mode legacy: caps do not hold here"
    assert [one["queued"] for one in scopes()] == [1]


def test_another_database_is_shown_when_asked_for(initialised: None) -> None:
    with scratch_domain("tf_inspect") as alias:
        Policy.objects.using(alias).update(lease_seconds=77)

        assert json.loads(run("--format", "json", "--database", alias))["policy"]["lease_seconds"] == 77


@pytest.mark.parametrize("scope", ["", " acme", "a\nb"])
def test_a_scope_that_cannot_be_is_wrong_usage(initialised: None, scope: str) -> None:
    with pytest.raises(CommandError) as caught:
        run("--scope", scope)

    assert caught.value.returncode == 2


def test_both_kinds_of_scope_are_wrong_usage(initialised: None) -> None:
    with pytest.raises(CommandError, match="not allowed with"):
        run("--scope", "acme", "--tenantless")


def test_a_schema_of_another_shape_exits_78() -> None:
    with scratch_alias("tf_inspect") as alias:
        migrate(alias, "0001")
        with pytest.raises(CommandError, match="0002_install is not applied") as caught:
            run("--database", alias)

    assert caught.value.returncode == 78


def test_settings_that_cannot_work_exit_78(settings: Any) -> None:
    settings.TENANTFAIR = {"NO_SUCH_KEY": 1}

    with pytest.raises(CommandError, match="NO_SUCH_KEY") as caught:
        run()

    assert caught.value.returncode == 78
