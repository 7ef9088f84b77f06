"""The example's own app: reading statements, booking them as runs of a customer's, and its pages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import django
import pytest
from django.conf import settings
from django.contrib import admin
from django.core import mail
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import call_command
from django.test import Client, override_settings

from example_project.statements.csvfile import BadStatement, Line, read_statement
from tenantfair import runs
from tenantfair.testing import drain

LOCMEM = "django.core.mail.backends.locmem.EmailBackend"
MAIL: dict[str, Any] = (
    {"MAILERS": {"default": {"BACKEND": LOCMEM}}} if django.VERSION >= (6, 1) else {"EMAIL_BACKEND": LOCMEM}
)
GOOD = 'date,text,amount\n2026-03-01,"Rent, March",-950.00\n\n2026-03-02, Salary ,3100\n'


@pytest.fixture
def site(db: None) -> Iterator[Client]:
    """The example's app in the test database, and a client for its pages; both are gone with the test."""
    apps = [*settings.INSTALLED_APPS, "example_project.statements"]
    with override_settings(INSTALLED_APPS=apps, ROOT_URLCONF="example_project.urls", **MAIL):
        call_command("migrate", "statements", verbosity=0)
        mail.outbox = []
        yield Client()
        # The default admin site is the process's own: what the app put there goes with the app.
        for model in [each for each in admin.site._registry if each._meta.app_label == "statements"]:
            admin.site.unregister(model)


@pytest.fixture
def customer(site: Client) -> Any:
    from example_project.statements.models import Customer

    return Customer.objects.create(name="Acme", slug="acme", email="books@acme.example")


def test_a_statement_is_read_line_by_line() -> None:
    assert read_statement(GOOD) == [
        Line(date(2026, 3, 1), "Rent, March", Decimal("-950.00")),
        Line(date(2026, 3, 2), "Salary", Decimal("3100")),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "line 1: the columns must be date,text,amount"),
        ("day,text,amount\n", "line 1: the columns must be date,text,amount"),
        ("date,text,amount\n", "the file has no transactions"),
        ("date,text,amount\n2026-03-01,Rent\n", "line 2: 2 columns instead of 3"),
        ("date,text,amount\n2026-03-01,Rent,1\n2026-02-30,Rent,1\n", "line 3: day"),
        ("date,text,amount\n2026-03-01,Rent,much\n", "line 2: 'much' is not an amount"),
        ("date,text,amount\n2026-03-01,Rent,NaN\n", "line 2: 'NaN' is not an amount of money"),
        ("date,text,amount\n2026-03-01,Rent,0.001\n", "line 2: '0.001' is not an amount of money"),
        ("date,text,amount\n2026-03-01,Rent,1e10\n", "line 2: '1e10' is not an amount of money"),
        ("date,text,amount\n2026-03-01, ,1\n", "line 2: the text must have 1 to 200 characters"),
        ('date,text,amount\n2026-03-01,"Rent,1\n', "line 2: unexpected end of data"),
    ],
)
def test_a_bad_statement_names_the_line(content: str, message: str) -> None:
    with pytest.raises(BadStatement, match=message):
        read_statement(content)


def test_an_upload_is_booked_by_a_run_of_its_customer(site: Client, customer: Any) -> None:
    from example_project.statements.models import Import, Transaction

    answer = site.post("/customers/acme/upload/", {"file": SimpleUploadedFile("march.csv", GOOD.encode())})
    statement = Import.objects.get()

    assert answer.status_code == 302
    assert answer["Location"] == "/customers/acme/"
    assert runs.get(statement.run_id).tenant_id == "acme"
    assert b"<td>queued</td>" in site.get("/customers/acme/").content

    drain()

    assert Transaction.objects.count() == 2
    assert b"<td>completed</td>" in site.get("/customers/acme/").content
    assert b"2 transactions booked" in site.get("/customers/acme/").content
    (message,) = mail.outbox
    assert (message.to, message.body) == (["books@acme.example"], "march.csv: 2 transactions booked.")


def test_a_bad_upload_is_refused_whole_and_the_customer_told(site: Client, customer: Any) -> None:
    from example_project.statements.models import Transaction
    from example_project.statements.uploads import submit

    statement = submit(customer, "bad.csv", GOOD + "2026-03-03,Books,free\n")
    drain()

    assert not Transaction.objects.exists()
    assert runs.get(statement.run_id).result == {"booked": 0, "problem": "line 5: 'free' is not an amount"}
    assert mail.outbox[0].body == "bad.csv: line 5: 'free' is not an amount."
    assert b"Refused: line 5: &#x27;free&#x27; is not an amount" in site.get("/customers/acme/").content


def test_a_run_that_starts_again_books_nothing_twice(customer: Any) -> None:
    from example_project.statements.models import Transaction
    from example_project.statements.tasks import book_import
    from example_project.statements.uploads import submit

    statement = submit(customer, "march.csv", GOOD)
    drain()

    assert book_import.call(statement.pk) == {"booked": 2, "problem": ""}
    assert Transaction.objects.count() == 2


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\xff\xfe", "The file is not text in UTF-8."),
        (b"date\x00", "The file is not text."),
        (b"x" * (256 * 1024 + 1), "The file is larger than 256 KiB."),
        (b"", "The submitted file is empty."),
    ],
)
def test_an_upload_that_is_no_text_is_refused_at_once(
    site: Client, customer: Any, content: bytes, complaint: str
) -> None:
    answer = site.post("/customers/acme/upload/", {"file": SimpleUploadedFile("march.csv", content)})

    assert answer.status_code == 200
    assert complaint in answer.content.decode()


def test_the_pages_show_customers_and_page_through_imports(site: Client, customer: Any) -> None:
    from example_project.statements.uploads import submit_many

    submit_many(customer, [(f"{number}.csv", GOOD) for number in range(51)], tenant_id="acme")

    front = site.get("/").content.decode()
    first, second = (site.get(f"/customers/acme/?page={page}").content.decode() for page in (1, 2))

    assert 'href="/customers/acme/"' in front
    assert '<td class="number">51</td>' in front
    assert "50.csv" in first
    assert "Page 1 of 2" in first
    assert "0.csv" in second
    assert "Page 2 of 2" in second
    assert site.get("/customers/nobody/").status_code == 404


def test_the_page_of_a_customer_costs_the_same_for_many_imports(
    site: Client, customer: Any, django_assert_num_queries: Any
) -> None:
    from example_project.statements.uploads import submit_many

    submit_many(customer, [(f"{number}.csv", GOOD) for number in range(20)], tenant_id="acme")

    with django_assert_num_queries(4):
        site.get("/customers/acme/")


def test_the_load_enqueues_each_customer_s_share(site: Client) -> None:
    from example_project.statements.models import Import
    from tenantfair.models import Run

    call_command("load", noisy=5, quiet=2, each=3, verbosity=0)

    counts = {slug: Run.objects.filter(tenant_id=slug).count() for slug in ("noisy", "quiet-01", "quiet-02")}
    assert counts == {"noisy": 5, "quiet-01": 3, "quiet-02": 3}
    assert len(drain()) == 11
    assert set(Import.objects.values_list("transaction_count", flat=True)) == {10}


@override_settings(TENANTFAIR={"TENANT_MODE": "none"})
def test_the_load_names_no_tenants_where_there_are_none(site: Client) -> None:
    from tenantfair.models import Run

    call_command("load", noisy=2, quiet=1, each=1, verbosity=0)

    assert set(Run.objects.values_list("tenant_id", flat=True)) == {None}


def test_the_migrations_are_those_of_the_models(site: Client) -> None:
    call_command("makemigrations", "statements", check=True, dry_run=True, verbosity=0)
