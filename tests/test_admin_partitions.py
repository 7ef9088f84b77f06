"""Partitions in the admin: what is shown of a scope, and how its override is set and reset."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urljoin

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client

from tenantfair import policy
from tenantfair.admin.object_ids import to_object_id
from tenantfair.models import Partition
from tests.admin_pages import (
    OVERVIEW_URL,
    ask,
    messages_of,
    page_of,
    partition_url,
    partitions_url,
    person,
)
from tests.factories import policy_in_force, run_in
from tests.rows import result
from tests.threads import in_django_thread

pytestmark = pytest.mark.django_db

ADD_URL = "/admin/tenantfair/partition/add/"
TENANTLESS = " tenantless"
# Each of them means something in a URL, in the admin's own quoting or in a LIKE pattern.
AWKWARD = (
    "a/b",
    "a_2Fb",
    "100%",
    "a?b#c",
    "on",
    "tenantless",
    "add",
    "overview",
    "x y",
    'a"b<c>',
    "ä\u2028ö",
    ".",
    "..",
    "...",
)


@pytest.fixture(autouse=True)
def in_force() -> None:
    policy_in_force()


@pytest.fixture
def editor() -> Client:
    return person("view_partition", "override_cap", name="editor")


@pytest.fixture
def reader() -> Client:
    return person("view_partition", name="reader")


def count_runs() -> None:
    """Do what a commit does: count this transaction's runs and create their partitions."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tenantfair_fold()")


def log() -> list[tuple[str, str, str]]:
    return list(LogEntry.objects.order_by("id").values_list("object_id", "object_repr", "change_message"))


def overrides() -> dict[str, tuple[int | None, int]]:
    return {
        row.scope_key: (row.max_active, row.partition_version)
        for row in Partition.objects.order_by("scope_key")
    }


def post(client: Client, url: str, **fields: Any) -> Any:
    return client.post(url, fields, follow=True)


class TestList:
    def test_a_scope_shows_its_cap_its_counts_and_its_place(self, reader: Client) -> None:
        for state in ("queued", "queued", "ready", "claimed", "claimed", "claimed", "waiting", "completed"):
            run_in(state, tenant_id="acme")
        count_runs()
        policy.put_override("acme", 2)

        response = reader.get(partitions_url())

        assert "(tenantless)" not in page_of(response).text
        row = page_of(response).text.split("acme")[-1]
        assert row.startswith(" 2 override 2 1 3 2 7 ")

    def test_counts_come_from_one_statement_about_the_scopes_of_the_page(self, reader: Client) -> None:
        for number in range(60):
            policy.put_override(f"t{number:02}", 1)

        _, statements = ask(reader, partitions_url("?p=2"))

        counting = [statement for statement in statements if "tenantfair_run" in statement]
        assert len(counting) == 1
        assert "t50" in counting[0]
        assert "t49" not in counting[0]

    def test_search_finds_the_beginning_of_a_scope_and_takes_no_wildcards(self, reader: Client) -> None:
        for tenant in ("acme", "acme-2", "macme", "Acme", "100%", "100x"):
            policy.put_override(tenant, 1)

        assert listed(reader, "?q=acme") == ["acme", "acme-2"]
        assert listed(reader, "?q=100%25") == ["100%"]
        assert listed(reader, "?q=_cme") == []

    @pytest.mark.parametrize(
        ("query", "expected"),
        [
            ("?load=unfinished", ["debtor", "full", "idle"]),
            ("?load=full", ["debtor", "full"]),
            ("?load=debt", ["debtor"]),
            ("?cap=override", ["debtor", "full", "resting"]),
            ("?cap=default", ["idle"]),
        ],
    )
    def test_scopes_are_filtered_by_load_and_by_cap(
        self, reader: Client, query: str, expected: list[str]
    ) -> None:
        run_in("claimed", tenant_id="full")
        run_in("claimed", tenant_id="debtor")
        run_in("ready", tenant_id="debtor")
        run_in("queued", tenant_id="idle")
        count_runs()
        for tenant in ("full", "debtor", "resting"):
            policy.put_override(tenant, 1)

        assert listed(reader, query) == expected

    @pytest.mark.parametrize("query", ["?load=all", "?cap=7", "?load=debt&load=%00"])
    def test_an_unknown_filter_value_is_refused(self, reader: Client, query: str) -> None:
        assert reader.get(partitions_url(query)).headers["Location"].endswith("?e=1")

    def test_other_lookups_are_refused(self, reader: Client) -> None:
        assert reader.get(partitions_url("?max_active__gt=1")).status_code == 400

    def test_a_legacy_domain_and_one_that_never_started_say_so(self, reader: Client) -> None:
        policy_in_force(admission_mode="legacy")
        assert "caps do not hold here" in page_of(reader.get(partitions_url())).text

        policy_in_force(max_active=None, policy_version=0, initialized_at=None)
        assert "not initialised" in page_of(reader.get(partitions_url())).text


def listed(client: Client, query: str) -> list[str]:
    response = client.get(partitions_url(query))
    assert response.status_code == 200
    return [partition.scope_key for partition in response.context["cl"].result_list]


def as_browsers_do(link: str) -> str:
    """Return the address that a browser asks for when it follows a link of a list."""
    return urljoin(f"http://testserver{partitions_url()}", link).removeprefix("http://testserver")


class TestAddresses:
    @pytest.mark.parametrize("scope_key", ["", *AWKWARD])
    def test_every_scope_is_reached_from_the_list_changed_and_found_in_the_log(
        self, editor: Client, scope_key: str
    ) -> None:
        for tenant in (None, *AWKWARD):
            policy.put_override(tenant, 5)
        links = {
            str(response.context["original"]): link
            for link in page_of(editor.get(partitions_url())).links
            if link.endswith("/change/") and (response := editor.get(as_browsers_do(link))).status_code == 200
        }
        link = links[scope_key or "(tenantless)"]

        saved = post(editor, link, max_active=6, expected_version=1, _continue="1")

        assert {key: cap for key, (cap, _) in overrides().items() if cap == 6} == {scope_key: 6}
        assert messages_of(saved) == [f"Scope {scope_key or '(tenantless)'}: the cap override is 6."]
        history = editor.get(as_browsers_do(link.replace("/change/", "/history/")))
        assert "Cap override: 5 -> 6 (version 2)" in page_of(history).text
        logged = as_browsers_do(LogEntry.objects.get().get_admin_url())
        assert str(editor.get(logged).context["original"]) == (scope_key or "(tenantless)")

    @pytest.mark.parametrize("scope_key", ["", ".", "..", "a/b"])
    def test_every_scope_leads_to_its_runs(self, scope_key: str) -> None:
        staff = person("view_partition", "view_run", name="both")
        for tenant in (None, ".", "..", "a/b"):
            run_in("queued", tenant_id=tenant)
        count_runs()

        page = page_of(staff.get(partition_url(to_object_id(scope_key))))
        (link,) = [link for link in page.links if "/run/" in link and "scope=" in link]

        assert [run.scope_key for run in staff.get(link).context["cl"].result_list] == [scope_key]

    @pytest.mark.parametrize("scope_key", ["", "on"])
    def test_the_box_of_a_scope_chooses_this_scope(self, editor: Client, scope_key: str) -> None:
        policy.put_override(None, 5)
        policy.put_override("on", 5)
        boxes = page_of(editor.get(partitions_url())).fields["_selected_action"]
        assert boxes == [TENANTLESS, "on"]

        asked = editor.post(
            partitions_url(), {"action": "reset_overrides", "_selected_action": scope_key or TENANTLESS}
        )

        assert page_of(asked).fields["_selected_action"] == [scope_key or TENANTLESS]

    @pytest.mark.parametrize("object_id", ["nobody", "a\x00b", "a\nb", "  ", " acme", "x" * 256, "e\u0301"])
    @pytest.mark.parametrize("view", ["change", "history"])
    def test_what_names_no_scope_is_not_found(self, editor: Client, object_id: str, view: str) -> None:
        policy.put_override("acme", 5)

        assert editor.get(partition_url(object_id, view)).status_code == 404
        assert editor.post(partition_url(object_id, view), {}).status_code in {404, 405}

    def test_the_tenantless_scope_is_not_found_before_it_exists(self, editor: Client) -> None:
        assert editor.get(partition_url(TENANTLESS)).status_code == 404


class TestOverride:
    def test_saving_sets_the_override_and_logs_old_and_new(self, editor: Client) -> None:
        policy.put_override("acme", 5)

        response = post(editor, partition_url("acme"), max_active=4, expected_version=1)

        assert messages_of(response) == ["Scope acme: the cap override is 4."]
        assert overrides() == {"acme": (4, 2)}
        assert log() == [("acme", "acme", "Cap override: 5 -> 4 (version 2)")]

    def test_an_empty_value_resets_to_the_default(self, editor: Client) -> None:
        policy.put_override("acme", 5)

        post(editor, partition_url("acme"), max_active="", expected_version=1)

        assert overrides() == {"acme": (None, 2)}
        assert log() == [("acme", "acme", "Cap override: 5 -> default (version 2)")]

    def test_an_unchanged_value_writes_nothing(self, editor: Client) -> None:
        policy.put_override("acme", 5)

        post(editor, partition_url("acme"), max_active=5, expected_version=1)

        assert overrides() == {"acme": (5, 1)}

    def test_a_stale_form_shows_both_values_and_changes_nothing(self, editor: Client) -> None:
        policy.put_override("acme", 5)
        page = page_of(editor.get(partition_url("acme")))
        assert page.fields["expected_version"] == ["1"]
        policy.put_override("acme", 7)

        response = post(editor, partition_url("acme"), max_active=4, expected_version=1)

        assert "it is now 7 (version 2), and you asked for 4. Nothing was saved." in page_of(response).text
        assert page_of(response).fields["expected_version"] == ["1"]
        assert overrides() == {"acme": (7, 2)}
        assert log() == []

    @pytest.mark.django_db(transaction=True)
    def test_a_race_lost_after_the_check_is_shown_the_same_way(
        self, editor: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        policy.put_override("acme", 5)
        put_override = policy.put_override

        def overtaken(*args: Any, **options: Any) -> Any:
            result(in_django_thread(lambda: put_override("acme", 9)))
            return put_override(*args, **options)

        monkeypatch.setattr(policy, "put_override", overtaken)

        response = post(editor, partition_url("acme"), max_active=4, expected_version=1)

        assert "it is now 9 (version 2), and you asked for 4. Nothing was saved." in page_of(response).text
        assert overrides() == {"acme": (9, 2)}
        assert log() == []

    def test_lowering_below_the_admitted_says_what_keeps_running(self, editor: Client) -> None:
        for state in ("claimed", "claimed", "ready", "queued"):
            run_in(state, tenant_id="acme")
        count_runs()
        policy.put_override("acme", 5)

        response = post(editor, partition_url("acme"), max_active=1, expected_version=1)

        assert messages_of(response) == [
            "Scope acme: the cap override is 1.",
            "Scope acme: 3 admitted runs keep running. The cap is 1, the debt 2: nothing more is admitted"
            " until it is worked off.",
        ]

    @pytest.mark.parametrize("cap", ["0", "-1", "2147483648", "True", "1.5", "many", "9" * 400, "\x00"])
    def test_what_is_no_cap_is_a_field_error(self, editor: Client, cap: str) -> None:
        policy.put_override("acme", 5)

        response = post(editor, partition_url("acme"), max_active=cap, expected_version=1)

        assert response.context["adminform"].form.errors.keys() == {"max_active"}
        assert overrides() == {"acme": (5, 1)}

    @pytest.mark.parametrize("version", ["", "-1", "x", str(2**63)])
    def test_a_forged_version_is_refused(self, editor: Client, version: str) -> None:
        policy.put_override("acme", 5)

        response = post(editor, partition_url("acme"), max_active=4, expected_version=version)

        assert response.context["adminform"].form.errors.keys() == {"expected_version"}
        assert overrides() == {"acme": (5, 1)}


class TestNewOverride:
    @pytest.mark.parametrize(
        ("fields", "scope_key", "object_id"),
        [({"tenant": "new"}, "new", "new"), ({"tenantless": "on"}, "", TENANTLESS)],
    )
    def test_a_scope_that_nobody_has_used_gets_one(
        self, editor: Client, fields: dict[str, str], scope_key: str, object_id: str
    ) -> None:
        response = post(editor, ADD_URL, **fields, max_active=3)

        assert response.redirect_chain == [(partition_url(object_id), 302)]
        assert overrides() == {scope_key: (3, 1)}
        assert log() == [(object_id, scope_key or "(tenantless)", "Cap override: default -> 3 (version 1)")]

    def test_a_known_scope_without_one_gets_one(self, editor: Client) -> None:
        policy.put_override("acme", 5)
        policy.reset_override("acme")

        post(editor, ADD_URL, tenant="acme", max_active=3)

        assert overrides() == {"acme": (3, 3)}

    def test_an_override_that_is_there_is_shown_and_kept(self, editor: Client) -> None:
        policy.put_override("acme", 5)

        response = post(editor, ADD_URL, tenant="acme", max_active=3)

        assert "it is now 5 (version 1), and you asked for 3." in page_of(response).text
        assert overrides() == {"acme": (5, 1)}

    @pytest.mark.parametrize(
        "fields", [{}, {"tenant": "acme", "tenantless": "on"}, {"tenant": " acme"}, {"tenant": "a\tb"}]
    )
    def test_what_names_no_scope_is_a_form_error(self, editor: Client, fields: dict[str, str]) -> None:
        response = post(editor, ADD_URL, **fields, max_active=3)

        assert response.context["adminform"].form.errors
        assert overrides() == {}

    def test_before_the_first_boot_there_is_none(self, editor: Client) -> None:
        policy_in_force(max_active=None, policy_version=0, initialized_at=None)

        response = post(editor, ADD_URL, tenant="acme", max_active=3)

        assert "The policy is not initialised" in page_of(response).text
        assert overrides() == {}


class TestWayBack:
    FILTERS = "?_changelist_filters=cap%3Doverride%26p%3D1"

    @pytest.mark.parametrize(
        ("button", "where"),
        [
            ("_save", partitions_url("?cap=override&p=1")),
            ("_continue", partition_url("acme") + FILTERS),
            ("_addanother", ADD_URL + FILTERS),
        ],
    )
    def test_a_saved_change_keeps_the_filters_of_the_list(
        self, editor: Client, button: str, where: str
    ) -> None:
        policy.put_override("acme", 5)
        fields = {"max_active": 4, "expected_version": 1, button: "1"}

        assert editor.post(partition_url("acme") + self.FILTERS, fields).headers["Location"] == where

    @pytest.mark.parametrize(
        ("button", "where"), [("_save", partition_url("acme")), ("_addanother", ADD_URL)]
    )
    def test_a_new_override_keeps_the_filters_of_the_list(
        self, editor: Client, button: str, where: str
    ) -> None:
        saved = editor.post(ADD_URL + self.FILTERS, {"tenant": "acme", "max_active": 3, button: "1"})

        assert saved.headers["Location"] == where + self.FILTERS

    def test_the_list_hands_its_filters_to_the_form_for_a_new_override(self, editor: Client) -> None:
        links = page_of(editor.get(partitions_url("?cap=override"))).links

        assert f"{ADD_URL}?_changelist_filters=cap%3Doverride" in links

    def test_a_question_leads_back_to_the_list_as_it_was_filtered(self, editor: Client) -> None:
        policy.put_override("acme", 5)
        chosen = {"action": "reset_overrides", "_selected_action": "acme"}

        asked = editor.post(partitions_url("?cap=override&p=1"), chosen)

        assert asked.context["changelist_url"] == partitions_url("?cap=override")

    def test_a_stale_form_is_shown_again_at_its_own_address(self, editor: Client) -> None:
        policy.put_override("acme", 5)
        stale = {"max_active": 4, "expected_version": 0, "_popup": 1}

        html = editor.post(partition_url("acme") + "?_popup=1", stale).content.decode()

        assert '<a href="">Show the page as it is now.</a>' in html


class TestPopup:
    @pytest.mark.parametrize(
        ("fields", "key"), [({"tenant": "a/b"}, "a/b"), ({"tenantless": "on"}, "")], ids=["tenant", "none"]
    )
    def test_a_new_override_closes_it_and_hands_over_the_scope(
        self, editor: Client, fields: dict[str, str], key: str
    ) -> None:
        closing = editor.post(ADD_URL + "?_popup=1", {**fields, "max_active": 3, "_popup": "1"})

        assert closing.templates[0].name == "admin/popup_response.html"
        assert json.loads(closing.context["popup_response_data"]) == {"value": key, "obj": key}
        assert overrides() == {key: (3, 1)}

    @pytest.mark.parametrize("key", ["a/b", ""])
    def test_a_changed_override_closes_it_and_hands_over_the_scope(self, editor: Client, key: str) -> None:
        policy.put_override(key or None, 5)
        fields = {"max_active": 4, "expected_version": 1, "_popup": "1"}

        closing = editor.post(partition_url(key or TENANTLESS) + "?_popup=1", fields)

        assert closing.templates[0].name == "admin/popup_response.html"
        handed = {"action": "change", "value": key, "new_value": key, "obj": key}
        assert json.loads(closing.context["popup_response_data"]) == handed
        assert overrides() == {key: (4, 2)}


class TestReset:
    def test_it_asks_first_then_resets_what_was_shown(self, editor: Client) -> None:
        for tenant in (None, "acme", "other"):
            policy.put_override(tenant, 5)
        chosen = {"action": "reset_overrides", "_selected_action": [TENANTLESS, "acme"]}

        asked = page_of(editor.post(partitions_url(), chosen))
        assert "2 overrides will be reset to the default cap." in asked.text
        assert overrides() == {"": (5, 1), "acme": (5, 1), "other": (5, 1)}
        answered = editor.post(partitions_url(), asked.fields, follow=True)

        assert messages_of(answered) == ["2 overrides were reset."]
        assert overrides() == {"": (None, 2), "acme": (None, 2), "other": (5, 1)}
        assert log() == [
            (TENANTLESS, "(tenantless)", "Cap override: 5 -> default (version 2)"),
            ("acme", "acme", "Cap override: 5 -> default (version 2)"),
        ]

    def test_an_override_that_was_changed_meanwhile_is_left_alone_and_the_rest_goes_on(
        self, editor: Client
    ) -> None:
        for tenant in ("a", "b", "c", "d"):
            policy.put_override(tenant, 5)
        policy.reset_override("d")
        asked = page_of(
            editor.post(
                partitions_url(), {"action": "reset_overrides", "_selected_action": ["a", "b", "c", "d"]}
            )
        )
        policy.put_override("b", 8)

        answered = editor.post(partitions_url(), asked.fields, follow=True)

        assert messages_of(answered) == [
            "2 overrides were reset.",
            "1 scope has no override.",
            "1 override was changed meanwhile and left alone.",
        ]
        assert overrides() == {"a": (None, 2), "b": (8, 2), "c": (None, 2), "d": (None, 2)}

    def test_without_the_versions_that_were_shown_nothing_is_reset(self, editor: Client) -> None:
        policy.put_override("acme", 5)

        post(editor, partitions_url(), action="reset_overrides", _selected_action="acme", post="yes")

        assert overrides() == {"acme": (5, 1)}

    @pytest.mark.parametrize("forged", ["nobody", "", "a\x00b", "x" * 256, TENANTLESS])
    def test_a_forged_id_is_not_found(self, editor: Client, forged: str) -> None:
        policy.put_override("acme", 5)
        fields = {"action": "reset_overrides", "_selected_action": ["acme", forged], "post": "yes"}

        assert editor.post(partitions_url(), {**fields, "expected_version": ["1", "0"]}).status_code == 404
        assert overrides() == {"acme": (5, 1)}


class TestPermissions:
    def test_without_any_nothing_is_shown(self) -> None:
        policy.put_override("acme", 5)
        nobody = person(name="nobody")

        for url in (partitions_url(), partition_url("acme"), partition_url("nobody"), ADD_URL, OVERVIEW_URL):
            assert nobody.get(url).status_code == 403, url

    def test_a_reader_sees_no_field_and_changes_nothing(self, reader: Client) -> None:
        policy.put_override("acme", 5)

        assert "max_active" not in page_of(reader.get(partition_url("acme"))).fields
        assert reader.post(partition_url("acme"), {"max_active": 4, "expected_version": 1}).status_code == 403
        assert reader.get(ADD_URL).status_code == 403
        assert reader.post(ADD_URL, {"tenant": "new", "max_active": 4}).status_code == 403
        assert "reset_overrides" not in reader.get(partitions_url()).content.decode()
        post(
            reader,
            partitions_url(),
            action="reset_overrides",
            _selected_action="acme",
            post="yes",
            expected_version=1,
        )
        assert overrides() == {"acme": (5, 1)}

    def test_the_permission_to_override_includes_seeing(self) -> None:
        policy.put_override("acme", 5)
        editor = person("override_cap", name="only")

        assert editor.get(partitions_url()).status_code == 200
        assert editor.get(partition_url("acme")).status_code == 200

    @pytest.mark.parametrize("permissions", [("change_partition",), ("add_partition", "delete_partition")])
    def test_djangos_own_write_permissions_open_nothing(self, permissions: tuple[str, ...]) -> None:
        policy.put_override("acme", 5)
        staff = person("view_partition", *permissions, name="django")

        assert staff.post(partition_url("acme"), {"max_active": 4, "expected_version": 1}).status_code == 403
        assert staff.get(ADD_URL).status_code == 403
        assert staff.post(partition_url("acme", "delete"), {"post": "yes"}).status_code == 403
        assert overrides() == {"acme": (5, 1)}

    def test_changes_need_a_token_against_forgery(self) -> None:
        policy.put_override("acme", 5)
        person("override_cap", name="careful")
        client = Client(enforce_csrf_checks=True)
        assert client.login(username="careful", password="secret")

        assert client.post(partition_url("acme"), {"max_active": 4, "expected_version": 1}).status_code == 403
        assert overrides() == {"acme": (5, 1)}


class TestOverview:
    def test_it_totals_the_scopes_and_names_the_full_and_the_next(self, reader: Client) -> None:
        for state in ("claimed", "claimed", "queued", "queued"):
            run_in(state, tenant_id="busy")
        run_in("queued", tenant_id="quiet")
        run_in("queued", tenant_id=None)
        count_runs()
        policy.put_override("busy", 1)

        response = reader.get(OVERVIEW_URL)

        text = page_of(response).text
        assert "unfinished runs 6 scopes with unfinished runs 3 at or over their cap 1 in debt 1" in text
        assert "2 of 1" in text
        assert "Refresh" not in response.headers
        assert reader.get(OVERVIEW_URL + "?refresh").headers["Refresh"] == "15"

    def test_the_ring_is_shown_from_the_cursor_on_and_wraps(self, reader: Client) -> None:
        for tenant in ("a", "b", "c"):
            run_in("queued", tenant_id=tenant)
            count_runs()
        position = policy.inspect("b").ring_position
        policy_in_force(scan_ring_position=position)

        response = reader.get(OVERVIEW_URL)

        _, rows = response.context["tables"][-1]
        assert [row["label"] for row in rows] == ["c", "a", "b"]

    def test_an_empty_domain_has_one_too(self, reader: Client) -> None:
        assert page_of(reader.get(OVERVIEW_URL)).text.count("None.") == 3
