"""Django's own tests of `django.tasks`, run against this backend (`tests.django_suite` says where from).

They were written for Django's test doubles. `EXCLUDED` names each that asks for more than any task backend
promises, with the reason; a name that Django's suite no longer has is an error here.
"""

from __future__ import annotations

import sys
from typing import Any

import django
from django.test import TestCase, override_settings

from tests import django_suite

sys.path.append(str(django_suite.fetch()))

from tasks import test_dummy_backend, test_tasks

DOUBLE = "reads or clears the list that the test double keeps in memory"
CLASS = "asserts the class of the test double"
PRIORITY = "sets a priority, which this backend refuses by its flag; test_backend has it refused"
SYNC = "calls the database synchronously from a coroutine, which Django itself forbids"

EXCLUDED = {
    "DummyBackendTestCase": {
        "test_clear": DOUBLE,
        "test_enqueue_task": DOUBLE,
        "test_enqueue_task_async": DOUBLE,
        "test_refresh_result": DOUBLE,
        "test_refresh_result_async": DOUBLE,
        "test_using_correct_backend": CLASS,
    },
    "TaskTestCase": {
        "test_chained_using": PRIORITY,
        "test_enqueue_task": DOUBLE,
        "test_enqueue_task_async": DOUBLE,
        "test_get_backend": CLASS,
        "test_invalid_priority": PRIORITY,
        "test_refresh_result": SYNC,
        "test_using_correct_backend": CLASS,
        "test_using_priority": PRIORITY,
    },
}


def tenant() -> str:
    return "suite"


def _backend(queues: list[str]) -> dict[str, Any]:
    return {
        "BACKEND": "tenantfair.backend.TenantFairBackend",
        "QUEUES": queues,
        "OPTIONS": {"tenant": "tests.test_django_suite.tenant"},
    }


def against_us(suite: type[Any], tasks: dict[str, Any]) -> type[TestCase]:
    """Return Django's test case with this backend's settings and a database, without what is excluded."""
    excluded = EXCLUDED[suite.__name__]
    unknown = [name for name in excluded if not hasattr(suite, name)]
    assert unknown == [], f"Django {django.__version__} has no such tests: {unknown}"
    body = {"databases": {"default"}, "setUp": lambda self: None, **dict.fromkeys(excluded)}
    return override_settings(TASKS=tasks)(type(f"{suite.__name__}AgainstUs", (suite, TestCase), body))


_IMMEDIATE = f"{test_tasks.ImmediateBackend.__module__}.ImmediateBackend"

TestDummyBackend = against_us(test_dummy_backend.DummyBackendTestCase, {"default": _backend([])})
TestTasks = against_us(
    test_tasks.TaskTestCase,
    {
        "default": _backend(["default", "queue_1"]),
        "immediate": {"BACKEND": _IMMEDIATE, "QUEUES": []},
        "missing": {"BACKEND": "does.not.exist"},
    },
)
