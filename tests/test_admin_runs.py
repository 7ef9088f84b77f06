"""Runs in the admin: what is shown, to whom, and what the actions do."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client

from tenantfair.admin import paginator, run_list
from tenantfair.admin.mixins import MAX_CHOSEN
from tenantfair.models import Run
from tenantfair.runs import get
from tests.admin_pages import messages_of, page_of, person, run_url, runs_url
from tests.factories import STATES, policy_in_force, run_in
from tests.rows import sessions

pytestmark = pytest.mark.django_db

SECRET = "4f7c-payload-canary"
TRACEBACK = [{"exception_class_path": "shop.Refused", "traceback": f"Traceback ... {SECRET}"}]
DELETE = "/admin/tenantfair/run/{}/delete/"


@pytest.fixture(autouse=True)
def in_force() -> None:
    policy_in_force()


@pytest.fixture
def reader() -> Client:
    return person("view_run", name="reader")


@pytest.fixture
def operator() -> Client:
    return person("view_run", "cancel_run", "retry_run", name="operator")


def listed(client: Client, query: str) -> list[Run]:
    response = client.get(runs_url(query))
    assert response.status_code == 200, response.headers
    return list(response.context["cl"].result_list)


def state(run: Run) -> str:
    return get(run.run_id).state


def chosen(*runs: Run) -> list[int]:
    return [run.pk for run in runs]


def act(client: Client, action: str, *runs: Run) -> Any:
    """Choose runs, read the question and say yes."""
    asked = page_of(client.post(runs_url(), {"action": action, "_selected_action": chosen(*runs)}))
    return client.post(runs_url(), asked.fields, follow=True)


class TestList:
    def test_every_run_shows_its_state_and_never_the_raw_status(self, reader: Client) -> None:
        for name in STATES:
            run_in(name)

        rows = page_of(reader.get(runs_url())).text

        assert all(f" {name} acme " in rows for name in STATES)
        assert "running" not in rows

    @pytest.mark.parametrize("scope", ["", "&scope=acme"])
    @pytest.mark.parametrize("name", STATES)
    def test_a_state_lists_its_runs_and_no_others(self, reader: Client, name: str, scope: str) -> None:
        wanted = {run_in(each) and each: run_in(each) for each in STATES}[name]
        twin = Run.objects.filter(pk__lt=wanted.pk).order_by("-pk")[0]
        others = [run_in(each, tenant_id="other") for each in STATES]

        found = {run.pk for run in listed(reader, f"?state={name}{scope}")}

        expected = {wanted.pk, twin.pk} | ({others[STATES.index(name)].pk} if not scope else set())
        assert found == expected

    @pytest.mark.parametrize(("query", "tenant"), [("?scope=acme", "acme"), ("?scope=%20tenantless", None)])
    def test_a_scope_lists_its_runs_of_every_state_newest_first(
        self, reader: Client, query: str, tenant: str | None
    ) -> None:
        wanted = [run_in(name, tenant_id=tenant).pk for name in STATES]
        for other in ("acme", None, "acme-2"):
            if other != tenant:
                run_in("queued", tenant_id=other)

        assert [run.pk for run in listed(reader, query)] == wanted[::-1]

    def test_queued_runs_come_in_the_order_they_become_due(self, reader: Client) -> None:
        late, early = run_in("scheduled"), run_in("queued")
        earlier = run_in("queued", wake_at="2020-01-01T00:00Z")

        assert [run.pk for run in listed(reader, "?state=queued")] == [earlier.pk, early.pk]
        assert [run.pk for run in listed(reader, "?state=scheduled")] == [late.pk]

    def test_search_finds_a_run_by_its_whole_id_also_beyond_the_window(
        self, reader: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(run_list, "WINDOW", 1)
        wanted, newer = run_in("failed"), run_in("completed", finished_at="2026-01-01T00:00Z")

        for query in (
            f"?q={wanted.run_id}",
            f"?q=%20{str(wanted.run_id).upper()}",
            f"?q={wanted.run_id.hex}",
        ):
            assert [run.pk for run in listed(reader, query)] == [wanted.pk]
        assert [run.pk for run in listed(reader, f"?q={wanted.run_id}&state=failed&scope=acme")] == [
            wanted.pk
        ]
        assert listed(reader, f"?q={wanted.run_id}&state=queued") == []
        assert listed(reader, f"?q={wanted.run_id}&scope=other") == []
        # The domain's failed runs have an index of their own; those of a scope lie among all it finished.
        assert [run.pk for run in listed(reader, "?state=failed")] == [wanted.pk]
        assert newer.scope_key == wanted.scope_key
        assert listed(reader, f"?state=failed&scope={wanted.scope_key}") == []

    @pytest.mark.parametrize("term", ["acme", "%", str(uuid.UUID(int=0)), "'", "-1", "9" * 40])
    def test_anything_else_finds_nothing(self, reader: Client, term: str) -> None:
        run_in("queued")

        assert listed(reader, f"?q={term}") == []

    @pytest.mark.parametrize("query", ["?state=running", "?state=", "?scope=a%00b", "?scope=" + "x" * 300])
    def test_a_filter_that_cannot_be_is_refused(self, reader: Client, query: str) -> None:
        assert reader.get(runs_url(query)).headers["Location"].endswith("?e=1")

    @pytest.mark.parametrize(
        "query",
        [
            "?args__0=1",
            "?kwargs__contains=x",
            "?claim_token__isnull=0",
            "?task_path__contains=x",
            "?result=1",
        ],
    )
    def test_no_address_asks_about_payloads_or_tokens(self, reader: Client, query: str) -> None:
        assert reader.get(runs_url(query)).status_code == 400

    @pytest.mark.parametrize("limit", [{"status": "failed"}, lambda: {"status": "failed"}])
    def test_a_foreign_key_that_limits_its_choices_lists_them_to_choose_from(
        self, reader: Client, monkeypatch: pytest.MonkeyPatch, limit: Any
    ) -> None:
        monkeypatch.setattr(Run._meta, "related_fkey_lookups", [limit])
        failed, _ = run_in("failed"), run_in("completed")

        assert [run.pk for run in listed(reader, "?_to_field=id&_popup=1&status=failed")] == [failed.pk]
        assert [run.pk for run in listed(reader, "?status=failed&scope=acme&state=failed")] == [failed.pk]
        for query in ("?status=completed", "?status__gt=failed", "?status=failed&args=1"):
            assert reader.get(runs_url(query)).status_code == 400, query

    def test_the_scope_filter_leaves_such_a_limit_in_place(
        self, reader: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Run._meta, "related_fkey_lookups", [{"scope_key": "acme"}])
        run_in("failed")

        shown = reader.get(runs_url("?scope_key=acme&scope=acme")).context["cl"]
        _, scopes = shown.filter_specs
        (choice,) = scopes.choices(shown)

        assert choice["all"]["query"] == "?scope_key=acme"

    def test_no_column_sorts_the_table(self, reader: Client) -> None:
        runs = [run_in("queued").pk for _ in range(3)]

        for column in range(1, 9):
            assert [run.pk for run in listed(reader, f"?o={column}")] == runs[::-1]

    def test_pages_end_at_the_depth_and_older_runs_are_one_link_away(
        self, reader: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(paginator, "DEPTH", 60)
        runs = [run_in("completed").pk for _ in range(70)]

        first, last = reader.get(runs_url()), reader.get(runs_url("?p=2"))

        assert "Older runs" not in page_of(first).text
        assert [run.pk for run in last.context["cl"].result_list] == runs[::-1][50:60]
        (link,) = [link for link in page_of(last).links if "id__lt" in link]
        assert [run.pk for run in listed(reader, link)] == runs[::-1][60:]
        assert reader.get(runs_url("?p=3")).status_code == 302

    @pytest.mark.django_db(transaction=True)
    def test_an_estimate_from_before_a_large_delete_is_not_believed(
        self, reader: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(paginator, "DEPTH", 60)
        runs = [run_in("completed").pk for _ in range(70)]
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE tenantfair_run")
        Run.objects.filter(pk__in=runs[3:]).delete()

        for query in ("", "?p=2"):
            response = reader.get(runs_url(query))
            assert [run.pk for run in response.context["cl"].result_list] == runs[2::-1]
            assert response.context["cl"].result_count == 3
            assert "estimate" not in page_of(response).text

    def test_runs_deleted_between_count_and_page_leave_an_empty_page(
        self, reader: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(paginator, "DEPTH", 60)
        for _ in range(70):
            run_in("completed")
        page = paginator.BoundedPaginator.page

        def overtaken(*args: Any) -> Any:
            Run.objects.all().delete()
            return page(*args)

        monkeypatch.setattr(paginator.BoundedPaginator, "page", overtaken)

        assert "id__lt" not in page_of(reader.get(runs_url("?p=2"))).text


class TestPage:
    def test_payloads_and_tracebacks_are_for_those_who_may_see_them(self, reader: Client) -> None:
        columns = {name: [SECRET] for name in ("args", "state", "result", "pending_signals")}
        run = run_in("failed", **columns, kwargs={"x": SECRET}, errors=TRACEBACK)
        trusted = person("view_run", "view_payload", name="trusted")

        assert SECRET not in reader.get(run_url(run.pk)).content.decode()
        assert "shop.Refused" in page_of(reader.get(run_url(run.pk))).text
        assert page_of(trusted.get(run_url(run.pk))).text.count(SECRET) == 6
        for client in (reader, trusted):
            assert SECRET not in client.get(runs_url()).content.decode()

    def test_the_claim_token_is_for_nobody(self) -> None:
        run = run_in("claimed")
        trusted = person("view_run", "view_payload", "cancel_run", "retry_run", name="trusted")

        for url in (runs_url(), runs_url("?state=claimed"), run_url(run.pk)):
            assert str(run.claim_token) not in trusted.get(url).content.decode()

    def test_a_long_payload_is_cut(self) -> None:
        run = run_in("queued", args=["<&>" + "x" * 200_000])
        trusted = person("view_run", "view_payload", name="trusted")

        html = trusted.get(run_url(run.pk)).content.decode()

        assert len(html) < 60_000
        assert "<&>" not in html
        assert "more characters" in html

    @pytest.mark.parametrize("name", STATES)
    def test_it_offers_what_the_state_allows(self, operator: Client, name: str) -> None:
        actions = page_of(operator.get(run_url(run_in(name).pk))).fields.get("action", [])

        expected = []
        if name not in {"completed", "failed", "cancelled"}:
            expected.append("cancel_runs")
        if name in {"failed", "poisoned"}:
            expected.append("retry_runs")
        assert actions == expected

    @pytest.mark.parametrize("pk", ["0", "x", "-1", "1.0", "9" * 18, "9" * 19, "9" * 400, "٣", "1_00"])
    def test_a_forged_id_is_not_found(self, operator: Client, pk: str) -> None:
        run_in("queued")

        for view in ("change", "history"):
            assert operator.get(f"/admin/tenantfair/run/{pk}/{view}/").status_code == 404

    def test_nothing_is_added_changed_or_deleted(self) -> None:
        run = run_in("queued")
        staff = person("view_run", "add_run", "change_run", "delete_run", name="django")

        assert staff.get("/admin/tenantfair/run/add/").status_code == 403
        assert staff.post(run_url(run.pk), {"task_path": "os.system"}).status_code == 403
        assert staff.post(DELETE.format(run.pk), {"post": "yes"}).status_code == 403
        assert Run.objects.get().task_path == run.task_path


class TestActions:
    def test_nothing_changes_before_the_answer(self, operator: Client) -> None:
        run = run_in("failed")
        fields = {"action": "retry_runs", "_selected_action": run.pk}

        asked = page_of(operator.post(runs_url(), fields))
        operator.get(runs_url(), {**fields, "post": "yes"})

        assert "1 run will be queued again." in asked.text
        assert str(run.run_id) in asked.text
        assert state(run) == "failed"

    def test_cancel_ends_every_unfinished_run_and_counts_the_others(self, operator: Client) -> None:
        runs = {name: run_in(name) for name in STATES}

        answered = act(operator, "cancel_runs", *runs.values())

        assert {name: state(run) for name, run in runs.items()} == {
            **dict.fromkeys(STATES, "cancelled"),
            "completed": "completed",
            "failed": "failed",
        }
        assert messages_of(answered) == [
            "6 runs were cancelled.",
            "3 runs were left alone: their state does not allow it.",
        ]
        logged = LogEntry.objects.values_list("object_id", "change_message")
        unfinished = [name for name in STATES if name not in {"completed", "failed", "cancelled"}]
        assert set(logged) == {(str(runs[name].pk), "Cancelled.") for name in unfinished}

    def test_retry_queues_failed_and_poisoned_runs_again(self, operator: Client) -> None:
        runs = {name: run_in(name) for name in STATES}

        answered = act(operator, "retry_runs", *runs.values())

        assert {name: state(run) for name, run in runs.items() if state(run) != name} == {
            "failed": "queued",
            "poisoned": "queued",
        }
        assert messages_of(answered) == [
            "2 runs were queued again.",
            "7 runs were left alone: their state does not allow it.",
        ]

    @pytest.mark.django_db(transaction=True)
    def test_a_run_that_somebody_holds_does_not_stop_the_others(self, operator: Client) -> None:
        first, held, last = (run_in("queued") for _ in range(3))
        with sessions() as another:
            holder = another()
            holder.execute("BEGIN")
            holder.execute("SELECT FROM tenantfair_run WHERE id = %s FOR UPDATE", [held.pk])

            answered = act(operator, "cancel_runs", first, held, last)

        assert messages_of(answered) == [
            "2 runs were cancelled.",
            "1 run is held by another session at this moment and was left alone. Try again.",
        ]
        assert [state(run) for run in (first, held, last)] == ["cancelled", "queued", "cancelled"]

    def test_the_question_and_a_runs_page_lead_back_to_the_list_as_it_was_filtered(
        self, operator: Client
    ) -> None:
        run = run_in("failed")
        fields = {"action": "retry_runs", "_selected_action": run.pk}

        asked = operator.post(runs_url("?state=failed&scope=acme&p=1"), fields)
        page = operator.get(run_url(run.pk) + "?_changelist_filters=state%3Dfailed%26p%3D1")

        assert asked.context["changelist_url"] == runs_url("?state=failed&scope=acme")
        assert page.context["changelist_url"] == runs_url("?state=failed")

    def test_a_run_that_leaves_the_filter_meanwhile_is_still_the_chosen_one(self, operator: Client) -> None:
        run = run_in("claimed")

        fields = {"action": "cancel_runs", "_selected_action": run.pk, "post": "yes"}
        operator.post(runs_url("?state=queued"), fields)

        assert state(run) == "cancelled"

    @pytest.mark.parametrize("forged", ["0", "x", "", "-1", "9" * 19, "9" * 400, "1 OR 1=1"])
    def test_a_forged_id_is_not_found_and_nothing_is_done(self, operator: Client, forged: str) -> None:
        run = run_in("queued")
        fields = {"action": "cancel_runs", "_selected_action": [run.pk, forged], "post": "yes"}

        assert operator.post(runs_url(), fields).status_code == 404
        assert state(run) == "queued"

    def test_too_many_at_once_are_refused(self, operator: Client) -> None:
        run = run_in("queued")
        fields = {"action": "cancel_runs", "_selected_action": [run.pk, *range(MAX_CHOSEN)], "post": "yes"}

        answered = operator.post(runs_url(), fields, follow=True)

        assert messages_of(answered) == ["At most 400 can be chosen at once. Nothing was changed."]
        assert state(run) == "queued"

    def test_all_of_a_filtered_list_can_be_chosen_within_the_limit(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failed = [run_in("failed") for _ in range(3)]
        poisoned = run_in("poisoned")
        fields = {
            "action": "retry_runs",
            "_selected_action": failed[0].pk,
            "select_across": "1",
            "index": "0",
        }

        asked = page_of(operator.post(runs_url("?state=failed"), fields))
        assert sorted(asked.fields["_selected_action"]) == sorted(str(run.pk) for run in failed)
        operator.post(runs_url(), asked.fields, follow=True)
        assert {state(run) for run in failed} == {"queued"}
        assert state(poisoned) == "poisoned"

        monkeypatch.setattr("tenantfair.admin.mixins.MAX_CHOSEN", 2)
        fields["action"] = "cancel_runs"
        answered = operator.post(runs_url("?state=queued"), fields, follow=True)
        assert messages_of(answered) == ["At most 2 can be chosen at once. Nothing was changed."]


class TestPermissions:
    def test_without_any_nothing_is_shown(self) -> None:
        run = run_in("queued")
        nobody = person(name="nobody")

        for url in (runs_url(), run_url(run.pk), run_url(run.pk + 1)):
            assert nobody.get(url).status_code == 403

    @pytest.mark.parametrize(
        ("permission", "allowed", "refused"),
        [
            ("cancel_run", "cancel_runs", "retry_runs"),
            ("retry_run", "retry_runs", "cancel_runs"),
            ("change_run", None, "cancel_runs"),
            ("change_run", None, "retry_runs"),
        ],
    )
    def test_each_action_has_its_own(self, permission: str, allowed: str | None, refused: str) -> None:
        run = run_in("poisoned")
        staff = person("view_run", permission, name="some")

        offered = staff.get(runs_url()).content.decode()
        answered = staff.post(
            runs_url(), {"action": refused, "_selected_action": run.pk, "post": "yes"}, follow=True
        )

        assert f'value="{refused}"' not in offered
        assert (f'value="{allowed}"' in offered) == (allowed is not None)
        assert refused not in page_of(staff.get(run_url(run.pk))).fields.get("action", [])
        assert messages_of(answered) in (["No action selected."], [])
        assert state(run) == "poisoned"

    def test_changes_need_a_token_against_forgery(self) -> None:
        run = run_in("queued")
        person("view_run", "cancel_run", name="careful")
        client = Client(enforce_csrf_checks=True)
        assert client.login(username="careful", password="secret")
        fields = {"action": "cancel_runs", "_selected_action": run.pk, "post": "yes"}

        assert client.post(runs_url(), fields).status_code == 403
        assert state(run) == "queued"
