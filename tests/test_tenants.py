"""What a tenant id may be, and whose a run is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from django.utils.functional import SimpleLazyObject

from tenantfair import runs
from tenantfair.backend import TenantTask, for_tenant
from tenantfair.compat import InvalidTask, InvalidTaskBackend
from tenantfair.exceptions import ConfigurationError, InvalidTenant
from tenantfair.middleware import TenantMiddleware
from tenantfair.models import Run
from tenantfair.runs import TENANTLESS
from tenantfair.tenants import current_tenant, tenant, validate_scope, validate_tenant
from tests import tasks_for_tests as tasks

BACKEND = "tenantfair.backend.TenantFairBackend"


def with_options(**options: Any) -> Any:
    return override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": options}})


def mode_none() -> Any:
    return override_settings(TENANTFAIR={"TENANT_MODE": "none"})


def tenant_of(result: Any) -> str | None:
    return runs.get(result.id).tenant_id


# What OPTIONS["tenant"] names in these tests.
def from_options() -> str:
    return "from-options"


def no_tenant() -> None:
    return None


def empty_tenant() -> str:
    return ""


def tenantless() -> Any:
    return TENANTLESS


LAZY = SimpleLazyObject(lambda: "acme")


class TestIds:
    """The rule itself is in test_tenant_rule; here is what is no text at all."""

    @pytest.mark.parametrize("invalid", [None, 1, True, b"a", ["a"], TENANTLESS, "\ud800", LAZY])
    def test_a_tenant_id_is_text(self, invalid: Any) -> None:
        with pytest.raises(InvalidTenant):
            validate_tenant(invalid)

    def test_no_tenant_is_the_tenantless_scope(self) -> None:
        assert validate_scope(None) == ""
        assert validate_scope("acme") == "acme"


class TestCurrentTenant:
    def test_it_is_current_inside_the_block_only_and_blocks_nest(self) -> None:
        seen = [current_tenant()]
        with tenant("outer"):
            with tenant("inner"):
                seen.append(current_tenant())
            seen.append(current_tenant())
        seen.append(current_tenant())

        assert seen == [None, "inner", "outer", None]

    def test_it_ends_with_an_exception(self) -> None:
        with pytest.raises(ValueError, match="no"), tenant("acme"):
            raise ValueError("no")

        assert current_tenant() is None

    @pytest.mark.parametrize("invalid", ["", None, " a", TENANTLESS])
    def test_only_a_tenant_can_be_current(self, invalid: Any) -> None:
        with pytest.raises(InvalidTenant), tenant(invalid):
            pass

    def test_other_threads_have_their_own(self) -> None:
        seen: list[str | None] = []
        with tenant("acme"):
            thread = threading.Thread(target=lambda: seen.append(current_tenant()))
            thread.start()
            thread.join()

        assert seen == [None]

    def test_concurrent_coroutines_have_their_own(self) -> None:
        async def within(name: str, barrier: asyncio.Barrier) -> str | None:
            with tenant(name):
                await barrier.wait()
                return current_tenant()

        async def both() -> list[str | None]:
            barrier = asyncio.Barrier(2)
            return await asyncio.gather(within("a", barrier), within("b", barrier))

        assert asyncio.run(both()) == ["a", "b"]


@pytest.mark.django_db
class TestWhoseRun:
    def test_a_bound_task_is_for_its_tenant(self) -> None:
        assert tenant_of(for_tenant(tasks.add, "acme").enqueue(1)) == "acme"

    def test_the_current_tenant_is_used_where_the_task_is_not_bound(self) -> None:
        with tenant("acme"):
            assert tenant_of(tasks.add.enqueue(1)) == "acme"

    @pytest.mark.parametrize("named", [from_options, "tests.test_tenants.from_options"])
    def test_the_callable_is_asked_where_none_is_current(self, named: Any) -> None:
        with with_options(tenant=named):
            assert tenant_of(tasks.add.enqueue(1)) == "from-options"

    def test_the_nearest_wins(self) -> None:
        with with_options(tenant=from_options), tenant("current"):
            assert tenant_of(for_tenant(tasks.add, "bound").enqueue(1)) == "bound"
            assert tenant_of(tasks.add.enqueue(1)) == "current"

    @pytest.mark.parametrize("named", [None, no_tenant, empty_tenant])
    def test_a_missing_tenant_never_becomes_the_tenantless_scope(self, named: Any) -> None:
        with (
            with_options(**({} if named is None else {"tenant": named})),
            pytest.raises(InvalidTask, match="no tenant"),
        ):
            tasks.add.enqueue(1)

        assert not Run.objects.exists()

    @pytest.mark.parametrize("named", [None, tenantless])
    def test_the_tenantless_scope_is_had_by_name(self, named: Any) -> None:
        with with_options(**({} if named is None else {"tenant": named})):
            task = tasks.add if named else for_tenant(tasks.add, TENANTLESS)

            assert tenant_of(task.enqueue(1)) is None

    @pytest.mark.conformance(106)
    def test_arguments_that_are_named_like_a_tenant_decide_nothing(self) -> None:
        named_alike = dict.fromkeys(["tenant", "tenant_id", "scope", "scope_key", "owner"], "other")

        assert tenant_of(for_tenant(tasks.echo, "acme").enqueue(named_alike, **named_alike)) == "acme"

    def test_the_tenantless_scope_by_name_beats_a_current_tenant(self) -> None:
        with tenant("acme"):
            assert tenant_of(for_tenant(tasks.add, TENANTLESS).enqueue(1)) is None

    @pytest.mark.conformance(106)
    @pytest.mark.parametrize("invalid", [" a", "a\0", "x" * 256, 7, "", None])
    def test_a_key_that_names_no_tenant_is_refused_and_never_means_the_current_one(
        self, invalid: Any
    ) -> None:
        with tenant("acme"), pytest.raises(InvalidTask, match="tenant"):
            for_tenant(tasks.add, invalid).enqueue(1)

        assert not Run.objects.exists()

    @pytest.mark.parametrize("invalid", [" a", "a\0", "x" * 256, 7])
    def test_a_callable_that_returns_no_valid_key_is_refused(self, invalid: Any) -> None:
        with with_options(tenant=lambda: invalid), pytest.raises(InvalidTask, match="tenant"):
            tasks.add.enqueue(1)

        assert not Run.objects.exists()

    def test_without_tenants_a_key_is_refused(self) -> None:
        with mode_none():
            with pytest.raises(InvalidTask, match="TENANT_MODE"):
                for_tenant(tasks.add, "acme").enqueue(1)
            with tenant("acme"), pytest.raises(InvalidTask, match="TENANT_MODE"):
                tasks.add.enqueue(1)

        assert not Run.objects.exists()

    def test_without_tenants_every_run_is_tenantless(self) -> None:
        with mode_none():
            assert tenant_of(tasks.add.enqueue(1)) is None
            assert tenant_of(for_tenant(tasks.add, TENANTLESS).enqueue(1)) is None

    async def _enqueue(self) -> Any:
        with tenant("acme"):
            return await tasks.add.aenqueue(1)

    def test_the_current_tenant_reaches_an_asynchronous_enqueue(self) -> None:
        from asgiref.sync import async_to_sync

        assert tenant_of(async_to_sync(self._enqueue)()) == "acme"

    @pytest.mark.parametrize("broken", ["no.such.callable", "tests.test_tenants.BACKEND", 7])
    def test_a_callable_that_is_none_is_a_configuration_error(self, broken: Any) -> None:
        with with_options(tenant=broken), pytest.raises(InvalidTaskBackend, match="tenant"):
            tasks.add.enqueue(1)


class TestBoundTasks:
    def test_a_bound_task_equals_the_task_it_was_made_from(self) -> None:
        bound = for_tenant(tasks.add, "acme")

        assert bound == tasks.add
        assert tasks.add == bound
        assert bound == for_tenant(tasks.add, "other")
        assert hash(bound) == hash(tasks.add)
        assert bound != tasks.echo
        assert bound != "acme"

    def test_a_changed_copy_keeps_its_tenant(self) -> None:
        bound: Any = for_tenant(tasks.add, "acme")
        changed = bound.using(queue_name="default")

        assert isinstance(changed, TenantTask)
        assert (changed.tenant, bound.using(tenant="other").tenant) == ("acme", "other")
        assert bound.using(tenant="other", queue_name="default") == tasks.add

    def test_binding_again_replaces_the_tenant(self) -> None:
        again: Any = for_tenant(for_tenant(tasks.add, "acme"), "other")

        assert again.tenant == "other"

    def test_a_bound_task_can_still_be_called(self) -> None:
        assert for_tenant(tasks.add, "acme").call(1) == 2


# What TENANT_FROM_REQUEST names in these tests.
def from_header(request: HttpRequest) -> str | None:
    return request.headers.get("X-Tenant")


def answer(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(current_tenant()))


async def answer_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(current_tenant()))


class TestMiddleware:
    @pytest.fixture(autouse=True)
    def configured(self) -> Iterator[None]:
        with override_settings(TENANTFAIR={"TENANT_FROM_REQUEST": "tests.test_tenants.from_header"}):
            yield

    def body(self, view: Any, **headers: str) -> str:
        found = TenantMiddleware(view)(RequestFactory().get("/", headers=headers))
        response: Any = asyncio.run(found) if asyncio.iscoroutine(found) else found
        return response.content.decode()

    @pytest.mark.parametrize("view", [answer, answer_async])
    def test_the_tenant_of_the_request_is_current_in_its_view(self, view: Any) -> None:
        assert self.body(view, **{"x-tenant": "acme"}) == "acme"
        assert current_tenant() is None

    @pytest.mark.parametrize("view", [answer, answer_async])
    def test_a_request_may_have_no_tenant(self, view: Any) -> None:
        assert self.body(view) == "None"

    @pytest.mark.parametrize("view", [answer, answer_async])
    @pytest.mark.parametrize("invalid", ["", "x" * 256, "e\u0301"])
    def test_an_id_that_names_no_tenant_is_a_bad_request(self, view: Any, invalid: str) -> None:
        with pytest.raises(BadRequest):
            self.body(view, **{"x-tenant": invalid})

    def test_django_runs_it_in_both_stacks(self) -> None:
        from asgiref.sync import iscoroutinefunction

        assert TenantMiddleware.sync_capable
        assert TenantMiddleware.async_capable
        assert iscoroutinefunction(TenantMiddleware(answer_async))
        assert not iscoroutinefunction(TenantMiddleware(answer))

    def test_it_needs_to_be_told_where_the_tenant_comes_from(self) -> None:
        with override_settings(TENANTFAIR={}), pytest.raises(ConfigurationError, match="TENANT_FROM_REQUEST"):
            TenantMiddleware(answer)
        with (
            override_settings(TENANTFAIR={"TENANT_FROM_REQUEST": from_header}),
            pytest.raises(ConfigurationError, match="dotted path"),
        ):
            TenantMiddleware(answer)
