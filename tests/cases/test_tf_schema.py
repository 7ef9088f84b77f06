"""A domain in a database alias of its own, with a router: all of it works there, nothing in the default."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction
from django.test import Client
from django.urls import reverse

from tenantfair import policy, runs
from tenantfair.backend import for_tenant
from tenantfair.exceptions import RunNotFound
from tenantfair.models import Run
from tenantfair.testing import drain
from tests.domains import scratch_domain
from tests.tasks_for_tests import approval, echo, enqueue_another

pytestmark = pytest.mark.django_db(transaction=True)


class Router:
    """Sends this app, and nothing else, to one alias."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return self.alias if model._meta.app_label == "tenantfair" else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return db == self.alias if app_label == "tenantfair" else None


@pytest.fixture
def jobs(settings: Any) -> Iterator[str]:
    with scratch_domain("jobs") as alias:
        settings.DATABASE_ROUTERS = [Router(alias)]
        settings.TENANTFAIR = {"DEFAULT_MAX_ACTIVE_RUNS": 3, "DATABASE": alias}
        yield alias


def test_a_domain_of_its_own_alias_works_from_end_to_end(jobs: str, admin_client: Client) -> None:
    result = for_tenant(echo, "acme").enqueue(1)
    parent = runs.enqueue(enqueue_another, args=[None], tenant_id="acme")
    asked = runs.enqueue(approval, tenant_id="acme")

    drain()
    runs.signal(asked, "yes")
    drain()

    assert [runs.get(run).state for run in (result.id, parent, asked)] == ["completed"] * 3
    assert echo.get_result(result.id).return_value == [[1], {}]
    assert policy.put_override("acme", 2).cap == 2
    run = Run.objects.using(jobs).get(run_id=result.id)
    pages = [reverse(f"admin:tenantfair_{model}_changelist") for model in ("run", "partition")]
    pages.append(reverse("admin:tenantfair_run_change", args=[run.pk]))
    assert [admin_client.get(page).status_code for page in pages] == [200] * 3
    for command in (["tenantfair_inspect"], ["tenantfair_caps", "list"]):
        call_command(*command)
    assert runs.prune(older_than=timedelta(0)).deleted == 4
    assert not Run.objects.using("default").exists()


def test_only_a_transaction_on_that_alias_takes_an_enqueue_back(jobs: str) -> None:
    with transaction.atomic():
        kept = runs.enqueue(echo, tenant_id="acme")
        transaction.set_rollback(True)
    with transaction.atomic(using=jobs):
        gone = runs.enqueue(echo, tenant_id="acme")
        transaction.set_rollback(True, using=jobs)

    assert runs.get(kept).state == "queued"
    with pytest.raises(RunNotFound):
        runs.get(gone)
