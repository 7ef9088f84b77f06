"""The tenant of a request, current while its view runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.core.exceptions import BadRequest
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string

from tenantfair.conf import SETTING, get_settings
from tenantfair.exceptions import ConfigurationError, InvalidTenant
from tenantfair.tenants import tenant, validate_tenant

Handler = Callable[[HttpRequest], HttpResponseBase] | Callable[[HttpRequest], Awaitable[HttpResponseBase]]


class TenantMiddleware:
    """Makes a tenant current for what a request enqueues.

    `TENANTFAIR["TENANT_FROM_REQUEST"]` is the dotted path of a synchronous callable that is given the request
    and returns a tenant id, or None for a request that has no tenant. An id that cannot name a tenant ends
    the request with 400. The body of a streaming response is sent after the tenant is no longer current.
    Works in synchronous and asynchronous stacks.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Handler) -> None:
        path = get_settings().tenant_from_request
        if path is None:
            raise ConfigurationError(
                f"TenantMiddleware needs {SETTING}['TENANT_FROM_REQUEST'], the dotted path of a callable"
            )
        self.get_response = get_response
        self.tenant_of: Callable[[HttpRequest], str | None] = import_string(path)
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if self.is_async:
            return self._answer(request)
        with _current(self.tenant_of(request)):
            return self.get_response(request)

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        found = await sync_to_async(self.tenant_of, thread_sensitive=True)(request)
        with _current(found):
            return await cast("Awaitable[HttpResponseBase]", self.get_response(request))


def _current(tenant_id: str | None) -> AbstractContextManager[None]:
    """Return the block in which `tenant_id` is current; `BadRequest` when it cannot name a tenant."""
    if tenant_id is None:
        return nullcontext()
    try:
        return tenant(validate_tenant(tenant_id))
    except InvalidTenant as error:
        raise BadRequest(str(error)) from error
