"""What the tests of the admin share: people with permissions, addresses, pages and their queries."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

EVERYTHING = (
    "view_policy",
    "change_policy",
    "view_partition",
    "override_cap",
    "view_run",
    "cancel_run",
    "retry_run",
    "view_payload",
)


def person(*permissions: str, name: str = "staff") -> Client:
    """Return the browser of a member of staff who has these permissions of the app and no others."""
    user = User.objects.create_user(name, password="secret", is_staff=True)
    user.user_permissions.set(
        Permission.objects.filter(content_type__app_label="tenantfair", codename__in=permissions)
    )
    client = Client()
    client.force_login(user)
    return client


def runs_url(query: str = "") -> str:
    return reverse("admin:tenantfair_run_changelist") + query


def run_url(pk: int) -> str:
    return reverse("admin:tenantfair_run_change", args=[pk])


def partitions_url(query: str = "") -> str:
    return reverse("admin:tenantfair_partition_changelist") + query


def partition_url(object_id: str, view: str = "change") -> str:
    return reverse(f"admin:tenantfair_partition_{view}", args=[quote(object_id)])


POLICY_URL = "/admin/tenantfair/policy/1/change/"
OVERVIEW_URL = "/admin/tenantfair/partition/overview/"


class Page(HTMLParser):
    """A page taken apart: its text, its fields, and what a strict content security policy would refuse."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.fields: dict[str, list[str]] = {}
        self.links: list[str] = []
        self.forbidden: list[str] = []
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self._inside = tag
        if tag == "input" and found.get("name"):
            self.fields.setdefault(str(found["name"]), []).append(found.get("value") or "")
        if tag == "a" and found.get("href"):
            self.links.append(str(found["href"]))
        inline = [name for name in found if name == "style" or name.startswith("on")]
        if inline or tag == "style" or (tag == "script" and "src" not in found):
            self.forbidden.append(self.get_starttag_text() or tag)
        address = found.get("src") or (found.get("href") if tag == "link" else None) or ""
        if "//" in address or address.startswith("data:"):
            self.forbidden.append(address)

    def handle_data(self, data: str) -> None:
        if data.strip() and self._inside not in {"script", "style"}:
            self.words.append(" ".join(data.split()))

    @property
    def text(self) -> str:
        return " ".join(self.words)


def page_of(response: Any) -> Page:
    assert response.status_code == 200, (response.status_code, response.headers)
    return Page(response.content.decode())


def messages_of(response: Any) -> list[str]:
    """Return what the response told the person, after a redirect too."""
    return [str(message) for message in response.context["messages"]]


def ask(client: Client, url: str) -> tuple[Any, list[str]]:
    """Get a page and return it with every statement that it took."""
    with CaptureQueriesContext(connection) as captured:
        response = client.get(url)
    return response, [query["sql"] for query in captured.captured_queries]


def sequential_scans(statement: str, table: str = "tenantfair_run") -> list[dict[str, Any]]:
    """Return the parts of a statement's plan that would read the whole table."""
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (FORMAT JSON) " + statement.replace("%", "%%"), [])
        found = cursor.fetchone()[0]
    plan = found if isinstance(found, list) else json.loads(found)
    return [node for node in _nodes(plan[0]["Plan"]) if _reads_whole(node, table)]


def _reads_whole(node: dict[str, Any], table: str) -> bool:
    return node["Node Type"] == "Seq Scan" and node.get("Relation Name") == table


def _nodes(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [node, *(inner for child in node.get("Plans", []) for inner in _nodes(child))]
