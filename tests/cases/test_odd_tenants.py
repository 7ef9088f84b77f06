"""Tenant ids that some layer could take for something else, through every layer."""

from __future__ import annotations

import pytest
from django.contrib.admin.utils import quote
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from tenantfair import policy
from tenantfair.backend import for_tenant
from tenantfair.compat import task_backends
from tenantfair.models import Partition, Run
from tests.factories import policy_in_force
from tests.rows import assert_exact, sessions
from tests.tasks_for_tests import echo
from tests.worker_parts import run_until_idle

pytestmark = pytest.mark.django_db(transaction=True)

ODD = [
    "\N{GRINNING FACE}",
    "\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL}",
    "\N{LATIN SMALL LETTER E WITH ACUTE}",
    "\u200f\u05e2\u05d1\u05e8\u05d9\u05ea",
    "\ufeff",
    "\u200b",
    "\N{LATIN SMALL LETTER E WITH ACUTE}" * 127 + "a",
    "x" * 255,
    *("None", "null", "0", "add", "tenantless", "(tenantless)", "-1", "--limit"),
    *(".", "..", "/", "a/b", "\\", "?x=1#y", "%", "%2F", "_", "_2F", "{}", "%s"),
    *("'\";--", "<script>alert(1)</script>", "{{ tenant }}", "$1"),
]


def test_each_is_a_tenant_like_any_other(admin_client: Client) -> None:
    policy_in_force()
    results = {tenant: for_tenant(echo, tenant).enqueue(tenant) for tenant in ODD}

    run_until_idle()

    for tenant, result in results.items():
        found = task_backends["default"].get_result(result.id)
        assert found.return_value == [[tenant], {}]
        assert policy.put_override(tenant, 3).scope_key == tenant
        call_command("tenantfair_inspect", f"--scope={tenant}")
        pages = [
            reverse("admin:tenantfair_run_change", args=[Run.objects.get(run_id=result.id).pk]),
            reverse("admin:tenantfair_partition_change", args=[quote(tenant)]),
        ]
        lists = [reverse(f"admin:tenantfair_{model}_changelist") for model in ("run", "partition")]
        answers = [admin_client.get(page) for page in pages]
        answers += [admin_client.get(page, {"q": tenant}) for page in lists]
        assert [answer.status_code for answer in answers] == [200] * 4, tenant
        assert not any("<script>alert" in answer.content.decode() for answer in answers)
    assert set(Partition.objects.values_list("scope_key", flat=True)) == set(ODD)
    with sessions() as another:
        assert_exact(another())
