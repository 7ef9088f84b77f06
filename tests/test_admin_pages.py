"""What holds for every page of the admin: content security, themes, languages, staff limited to tenants."""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.contrib.admin import AdminSite, ModelAdmin
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.urls import path
from django.utils import translation

import tenantfair
from tenantfair import policy
from tenantfair.admin import PartitionAdmin, PolicyAdmin, RunAdmin
from tenantfair.models import Partition, Policy, Run
from tests.admin_pages import (
    EVERYTHING,
    OVERVIEW_URL,
    POLICY_URL,
    page_of,
    partition_url,
    partitions_url,
    person,
    run_url,
    runs_url,
)
from tests.factories import STATES, policy_in_force, run_in

pytestmark = pytest.mark.django_db

# Each has 12 admitted runs, 2 more than the default cap allows.
MANY_IN_DEBT = """
INSERT INTO tenantfair_run (tenant_id, task_path, args, status, wake_at, tenant_admitted_at)
SELECT 'rival-' || tenant, 'rival.task', '[]', 'running', now(), now()
FROM generate_series(1, 1000) AS tenants (tenant), generate_series(1, 12)
"""

PACKAGE = Path(tenantfair.__file__).parent
GERMAN = PACKAGE / "locale" / "de" / "LC_MESSAGES"
TRANSLATED = {"_", "gettext", "gettext_lazy", "ngettext", "ngettext_lazy"}


@pytest.fixture(autouse=True)
def domain() -> None:
    policy_in_force()
    for name in STATES:
        run_in(name, errors=[{"exception_class_path": "a.B", "traceback": "c"}])
    run_in("claimed", tenant_id=None)
    with connection.cursor() as cursor:
        cursor.execute("SELECT tenantfair_fold()")
    policy.put_override("acme", 1)


def every_page(client: Client) -> Iterator[str]:
    """Yield the HTML of every kind of page that this app adds to the admin."""
    newest = run_in("failed").pk
    for url in (
        "/admin/",
        "/admin/tenantfair/",
        runs_url(),
        runs_url("?state=failed&scope=acme"),
        runs_url("?q=nothing"),
        run_url(newest),
        run_url(newest).replace("change", "history"),
        partitions_url(),
        partition_url("acme"),
        partition_url(" tenantless"),
        partition_url("acme", "history"),
        "/admin/tenantfair/partition/add/",
        OVERVIEW_URL,
        OVERVIEW_URL + "?refresh",
        POLICY_URL,
    ):
        response = client.get(url)
        assert response.status_code == 200, url
        yield response.content.decode()
    for url, fields in (
        (runs_url(), {"action": "cancel_runs", "_selected_action": newest}),
        (runs_url(), {"action": "retry_runs", "_selected_action": newest}),
        (partitions_url(), {"action": "reset_overrides", "_selected_action": ["acme", " tenantless"]}),
        (partition_url("acme"), {"max_active": 4, "expected_version": 7}),
        (POLICY_URL, {"max_active": 0, "scan_budget": 32, "expected_version": 1}),
    ):
        response = client.post(url, fields)
        assert response.status_code == 200, url
        yield response.content.decode()


def test_a_strict_content_security_policy_refuses_nothing() -> None:
    from tests.admin_pages import Page

    for html in every_page(person(*EVERYTHING)):
        assert Page(html).forbidden == [], html[:300]


def test_colours_come_from_the_admins_variables_alone() -> None:
    css = (PACKAGE / "static" / "tenantfair" / "admin.css").read_text(encoding="utf-8")
    without_comments = re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL)

    colours = re.findall(r"(?:color|background|border)[a-z-]*:\s*([^;]+);", without_comments)
    assert len(colours) > 10
    assert [value for value in colours if re.search(r"#|rgb|hsl|white|black", value)] == []
    assert "url(" not in css
    assert "@import" not in css


def test_a_page_speaks_the_readers_language() -> None:
    client = person(*EVERYTHING)
    english = {text for text in catalog() if " " in text and "%" not in text}

    assert "Overview" in page_of(client.get(partitions_url())).text
    for url in (runs_url(), partitions_url(), POLICY_URL, OVERVIEW_URL, partition_url("acme")):
        with translation.override("de"):
            text = page_of(client.get(url)).text
        assert [left for left in english if left in text] == [], url


def catalog() -> dict[str, str]:
    """Return the compiled German texts, of plural ones the singular."""
    with (GERMAN / "django.mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]
    singular = {key: text for key, text in compiled.items() if isinstance(key, str) or key[1] == 0}
    return {key if isinstance(key, str) else key[0]: text for key, text in singular.items() if key}


def test_the_compiled_catalog_is_that_of_the_source() -> None:
    source = (GERMAN / "django.po").read_text(encoding="utf-8")
    entries = re.findall(
        r'^msgid ((?:".*"\n)+)(?:msgid_plural (?:".*"\n)+)?msgstr(?:\[0\])? ((?:".*"\n?)+)', source, re.M
    )
    parsed = {ast.literal_eval(f"({key})"): ast.literal_eval(f"({text})") for key, text in entries}
    parsed.pop("")

    assert "fuzzy" not in source
    assert [key for key, text in parsed.items() if not text] == []
    assert catalog() == parsed


def test_every_text_of_the_admin_is_in_the_catalog() -> None:
    known = catalog()
    used = {
        text
        for path in (PACKAGE / "admin").glob("*.py")
        for text in texts_of(ast.parse(path.read_text(encoding="utf-8")))
    }
    for template in (PACKAGE / "templates").rglob("*.html"):
        used |= set(re.findall(r'{%\s*translate "([^"]+)"', template.read_text(encoding="utf-8")))

    # Django has these itself.
    used -= {"Yes, I\u2019m sure", "No, take me back", "All", "Change history: %s"}
    assert used - known.keys() == set()


def texts_of(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in TRANSLATED:
            argument = node.args[0]
            if isinstance(argument, ast.Constant):
                yield str(argument.value)


def serve(settings: Any, pages: dict[type[Model], type[ModelAdmin]]) -> None:
    """Put an admin site with these pages, and no others of the app, in place of Django's own."""
    site, urls = AdminSite(), ModuleType("urls")
    for model, page in pages.items():
        site.register(model, page)
    vars(urls)["urlpatterns"] = [path("admin/", site.urls)]
    settings.ROOT_URLCONF = urls


PAGES = {Policy: PolicyAdmin, Partition: PartitionAdmin, Run: RunAdmin}
ADDRESSES = {
    Policy: ("/admin/tenantfair/policy/", POLICY_URL),
    Partition: ("/admin/tenantfair/partition/", "/admin/tenantfair/partition/acme/change/", OVERVIEW_URL),
    Run: ("/admin/tenantfair/run/",),
}


@pytest.mark.parametrize("other", [None, ModelAdmin], ids=["left-out", "replaced"])
@pytest.mark.parametrize("model", PAGES)
def test_the_pages_of_a_model_need_no_others(settings: Any, model: type[Model], other: Any) -> None:
    rest = {each: page for each, page in PAGES.items() if each is not model}
    serve(settings, rest if other is None else {**rest, model: other})
    client = person(*EVERYTHING)

    for url in (url for each in rest for url in ADDRESSES[each]):
        assert client.get(url, follow=True).status_code == 200, url


def test_a_link_to_another_model_is_for_those_who_may_look_there() -> None:
    few = person("view_policy", "override_cap", name="few")
    every = person("view_policy", "override_cap", "view_run", name="every")
    policies = person("change_policy", name="policies")

    for client, url, link, shown in (
        (few, partition_url("acme"), runs_url("?scope=acme"), False),
        (every, partition_url("acme"), runs_url("?scope=acme"), True),
        (policies, POLICY_URL, OVERVIEW_URL, False),
        (every, POLICY_URL, OVERVIEW_URL, True),
    ):
        assert (link in page_of(client.get(url)).links) == shown, (url, shown)


@pytest.mark.parametrize("model", ["run", "partition"])
def test_djangos_change_permission_lets_nobody_look(model: str) -> None:
    staff = person(f"add_{model}", f"change_{model}", f"delete_{model}", name="django")
    pk = {"run": run_in("failed").pk, "partition": "acme"}[model]

    assert f"/admin/tenantfair/{model}/" not in page_of(staff.get("/admin/")).links
    for view in ("", f"{pk}/change/", f"{pk}/history/", "overview/"):
        url = f"/admin/tenantfair/{model}/{view}"
        if (model, view) != ("run", "overview/"):
            assert staff.get(url).status_code == 403, url


def test_who_may_change_the_policy_sees_what_they_change() -> None:
    staff = person("change_policy", name="changer")

    assert page_of(staff.get("/admin/tenantfair/policy/", follow=True)).fields["max_active"] == ["10"]


def test_a_search_finds_a_full_scope_behind_a_thousand_fuller_ones() -> None:
    with connection.cursor() as cursor:
        cursor.execute(MANY_IN_DEBT)
        cursor.execute("SELECT tenantfair_fold()")

    found = person(*EVERYTHING).get(partitions_url("?load=full&q=acme")).context["cl"].result_list

    assert [partition.scope_key for partition in found] == ["acme"]


@pytest.mark.urls("tests.admin_limited_urls")
class TestStaffLimitedToTenants:
    @pytest.fixture
    def staff(self) -> Client:
        User.objects.create_superuser("acme", password="secret")
        client = Client()
        assert client.login(username="acme", password="secret")
        return client

    def test_lists_searches_and_the_overview_show_nothing_else(self, staff: Client) -> None:
        hidden = run_in("failed", tenant_id="rival", task_path="rival.task")
        with connection.cursor() as cursor:
            cursor.execute("SELECT tenantfair_fold()")
        policy.put_override("rival", 1)

        for url in (
            "/admin/tenantfair/run/",
            "/admin/tenantfair/run/?state=failed",
            "/admin/tenantfair/run/?scope=rival",
            "/admin/tenantfair/run/?state=failed&scope=rival",
            f"/admin/tenantfair/run/?q={hidden.run_id}",
            "/admin/tenantfair/partition/",
            "/admin/tenantfair/partition/?q=ri",
            "/admin/tenantfair/partition/?load=full",
            OVERVIEW_URL,
        ):
            response = staff.get(url)
            assert response.status_code == 200
            # The page repeats what was asked for, and nothing more.
            asked = re.sub(r"scope=rival|value=.rival.", "", response.content.decode())
            assert "rival" not in asked, url

    def test_pages_and_actions_know_nothing_else(self, staff: Client) -> None:
        hidden = run_in("failed", tenant_id="rival")
        policy.put_override("rival", 1)

        assert staff.get(f"/admin/tenantfair/run/{hidden.pk}/change/").status_code == 404
        assert staff.get("/admin/tenantfair/partition/rival/change/").status_code == 404
        retry = {"action": "retry_runs", "_selected_action": hidden.pk, "post": "yes"}
        assert staff.post("/admin/tenantfair/run/", retry).status_code == 404
        reset = {
            "action": "reset_overrides",
            "_selected_action": "rival",
            "post": "yes",
            "expected_version": 1,
        }
        assert staff.post("/admin/tenantfair/partition/", reset).status_code == 404

    @pytest.mark.parametrize("cap", [None, 3], ids=["known", "overridden"])
    @pytest.mark.parametrize("fields", [{"tenant": "rival"}, {"tenantless": "on"}], ids=["tenant", "none"])
    def test_what_is_not_seen_answers_alike_whatever_its_override(
        self, staff: Client, fields: dict[str, str], cap: int | None
    ) -> None:
        tenant = fields.get("tenant")
        policy.put_override(tenant, 3)
        if cap is None:
            policy.reset_override(tenant)

        response = staff.post("/admin/tenantfair/partition/add/", {**fields, "max_active": 1})

        assert response.status_code == 403
        assert Partition.objects.get(scope_key=tenant or "").max_active == cap

    def test_no_override_is_set_where_nothing_is_seen(self, staff: Client) -> None:
        response = staff.post("/admin/tenantfair/partition/add/", {"tenant": "rival", "max_active": 1})

        assert response.status_code == 403
        assert not Partition.objects.filter(scope_key="rival").exists()

    def test_an_override_of_theirs_is_shown_as_everywhere(self, staff: Client) -> None:
        response = staff.post("/admin/tenantfair/partition/add/", {"tenant": "acme", "max_active": 3})

        assert "it is now 1 (version 1), and you asked for 3." in page_of(response).text

    def test_their_full_scope_is_found_behind_a_thousand_fuller_ones(self, staff: Client) -> None:
        with connection.cursor() as cursor:
            cursor.execute(MANY_IN_DEBT)
            cursor.execute("SELECT tenantfair_fold()")

        for query in ("?load=full", "?load=debt"):
            shown = staff.get("/admin/tenantfair/partition/" + query).context["cl"].result_list
            assert [partition.scope_key for partition in shown] == ["acme"]
        assert staff.get(OVERVIEW_URL).context["full"] == 1

    def test_a_scope_of_theirs_is_changed_as_everywhere(self, staff: Client) -> None:
        staff.post("/admin/tenantfair/partition/acme/change/", {"max_active": 9, "expected_version": 1})

        assert policy.inspect("acme").cap == 9


def test_the_admin_passes_djangos_own_checks() -> None:
    call_command("check")
