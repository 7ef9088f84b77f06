"""The policy in the admin: one page, changed by compare-and-set."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client

from tenantfair import policy
from tenantfair.models import Policy
from tests.admin_pages import POLICY_URL, messages_of, page_of, person
from tests.factories import policy_in_force, run_in
from tests.rows import result
from tests.threads import in_django_thread

pytestmark = pytest.mark.django_db

LIST_URL = "/admin/tenantfair/policy/"


@pytest.fixture(autouse=True)
def in_force() -> None:
    policy_in_force()


@pytest.fixture
def editor() -> Client:
    return person("view_policy", "change_policy", name="editor")


def save(client: Client, **changes: Any) -> Any:
    fields = {"max_active": 10, "scan_budget": 32, "expected_version": 1, **changes}
    return client.post(POLICY_URL, fields, follow=True)


def values() -> tuple[int | None, int, int]:
    found = policy.get_default()
    return found.cap, found.scan_budget, found.version


def log() -> list[str]:
    return list(LogEntry.objects.order_by("id").values_list("change_message", flat=True))


def test_the_list_leads_to_the_one_page(editor: Client) -> None:
    assert editor.get(LIST_URL).headers["Location"] == POLICY_URL


def test_it_shows_what_is_in_force_and_where_it_comes_from(editor: Client) -> None:
    policy_in_force(scan_ring_position=77, scan_laps=5, lease_seconds=61, max_attempts=6)

    text = page_of(editor.get(POLICY_URL)).text

    for shown in ("Cursor: 77", "Laps: 5", "Lease in seconds: 61", "Starts before poison: 6", "tenant fair"):
        assert shown in text
    assert "DEFAULT_MAX_ACTIVE_RUNS has changed, the next worker start writes it here" in text


@pytest.mark.parametrize(
    ("changes", "stored", "logged"),
    [
        ({"max_active": 12}, (12, 32, 2), "Default cap: 10 -> 12 (version 2)."),
        ({"scan_budget": 64}, (10, 64, 2), "Scan budget: 32 -> 64 (version 2)."),
        (
            {"max_active": 12, "scan_budget": 64},
            (12, 64, 3),
            "Default cap: 10 -> 12, Scan budget: 32 -> 64 (version 3).",
        ),
        ({}, (10, 32, 1), "No change."),
    ],
)
def test_saving_writes_what_was_changed_and_logs_old_and_new(
    editor: Client, changes: dict[str, int], stored: tuple[int, int, int], logged: str
) -> None:
    save(editor, **changes)

    assert values() == stored
    assert log() == [logged]


def test_a_stale_form_shows_both_values_and_changes_nothing(editor: Client) -> None:
    policy.put_default(15)

    text = page_of(save(editor, max_active=12)).text

    assert "it is now default cap 15, scan budget 32 (version 2), and you asked for default cap 12" in text
    assert values() == (15, 32, 2)
    assert log() == []


@pytest.mark.django_db(transaction=True)
def test_a_race_lost_after_the_check_is_shown_the_same_way(
    editor: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_default = policy.put_default

    def overtaken(*args: Any, **options: Any) -> Any:
        result(in_django_thread(lambda: put_default(15)))
        return put_default(*args, **options)

    monkeypatch.setattr(policy, "put_default", overtaken)

    text = page_of(save(editor, max_active=12)).text

    assert "it is now default cap 15, scan budget 32 (version 2), and you asked for default cap 12" in text
    assert values() == (15, 32, 2)
    assert log() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_active", ""),
        ("max_active", "0"),
        ("max_active", "2147483648"),
        ("max_active", "True"),
        ("scan_budget", "31"),
        ("scan_budget", "4097"),
        ("expected_version", "-1"),
        ("expected_version", ""),
    ],
)
def test_a_value_out_of_range_is_a_field_error(editor: Client, field: str, value: str) -> None:
    response = save(editor, **{field: value})

    assert response.context["adminform"].form.errors.keys() == {field}
    assert values() == (10, 32, 1)


def test_lowering_below_the_admitted_says_how_many_scopes_are_in_debt(editor: Client) -> None:
    for tenant in ("a", "a", "b", "b", "c"):
        run_in("claimed", tenant_id=tenant)
    with connection.cursor() as cursor:
        cursor.execute("SELECT tenantfair_fold()")

    response = save(editor, max_active=1)

    assert messages_of(response)[0].startswith("2 scopes are in debt: their admitted runs keep running")


def test_before_the_first_boot_the_default_can_be_set_already(editor: Client) -> None:
    policy_in_force(max_active=None, configured_max_active=None, policy_version=0, initialized_at=None)

    assert "not initialised" in page_of(editor.get(POLICY_URL)).text
    save(editor, max_active=3, scan_budget=40, expected_version=0)

    assert values() == (3, 40, 2)


def test_without_its_row_the_list_says_how_it_comes_back(editor: Client) -> None:
    Policy.objects.all().delete()

    assert "There is no policy row." in page_of(editor.get(LIST_URL)).text
    assert editor.get(POLICY_URL).status_code == 404


def test_whoever_may_not_look_is_told_nothing_about_the_row() -> None:
    nobody = person("view_run", name="nobody")

    assert nobody.get(LIST_URL).status_code == 403
    assert messages_of(nobody.get("/admin/")) == []


@pytest.mark.parametrize("pk", ["2", "0", "x", "01", "9" * 400])
def test_a_forged_id_is_not_found(editor: Client, pk: str) -> None:
    assert editor.get(f"/admin/tenantfair/policy/{pk}/change/").status_code == 404


def test_each_step_has_its_permission() -> None:
    reader, nobody = person("view_policy", name="reader"), person("override_cap", name="nobody")

    assert page_of(reader.get(POLICY_URL)).fields.keys() & {"max_active", "scan_budget"} == set()
    assert save(reader, max_active=12).status_code == 403
    for url in (LIST_URL, POLICY_URL):
        assert nobody.get(url).status_code == 403
    writer = person("change_policy", "delete_policy", "add_policy", name="writer")
    assert writer.get("/admin/tenantfair/policy/add/").status_code == 403
    assert writer.post("/admin/tenantfair/policy/1/delete/", {"post": "yes"}).status_code == 403
    assert values() == (10, 32, 1)
