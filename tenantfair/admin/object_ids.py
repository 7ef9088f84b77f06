"""How a scope is named in an admin URL, a form field and the admin's log.

A scope goes by its key. The tenantless scope's key is empty and no URL can carry that, so it goes by a name
that no tenant can have: tenant ids do not start with white space.
"""

from __future__ import annotations

from typing import Final

from django.contrib.admin.utils import quote
from django.utils.translation import gettext_lazy as _

from tenantfair.exceptions import InvalidTenant
from tenantfair.tenants import TENANTLESS_SCOPE, validate_tenant

TENANTLESS_ID: Final = " tenantless"
TENANTLESS_LABEL: Final = _("(tenantless)")


def to_object_id(scope_key: str) -> str:
    """Return the object id of a scope."""
    return TENANTLESS_ID if scope_key == TENANTLESS_SCOPE else scope_key


def quoted_id(scope_key: str) -> str:
    """Return the object id of a scope as the admin's URLs hold it."""
    return str(quote(to_object_id(scope_key)))


def to_scope_key(object_id: str) -> str | None:
    """Return the scope that an object id names, or None for what no scope can be called."""
    if object_id == TENANTLESS_ID:
        return TENANTLESS_SCOPE
    try:
        return validate_tenant(object_id)
    except InvalidTenant:
        return None


def to_tenant(scope_key: str) -> str | None:
    """Return the tenant id that the policy facade takes for a scope."""
    return None if scope_key == TENANTLESS_SCOPE else scope_key


def scope_label(scope_key: str) -> str:
    """Return how people see a scope."""
    return str(TENANTLESS_LABEL) if scope_key == TENANTLESS_SCOPE else scope_key


class Named:
    """Stands in for a partition in Django's templates, with the object id for a key and a label to print."""

    def __init__(self, scope_key: str) -> None:
        self.pk = to_object_id(scope_key)
        self.label = scope_label(scope_key)

    def __str__(self) -> str:
        return self.label
