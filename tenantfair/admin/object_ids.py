"""How a scope is named in an admin URL, a form field and the admin's log.

A scope goes by its key. Two kinds of keys no URL can carry: the tenantless scope's is empty, and one of dots
alone means a folder, which browsers resolve away. They go by names that no tenant can have: tenant ids do not
start with white space.
"""

from __future__ import annotations

from typing import Final

from django.contrib.admin.utils import quote
from django.utils.translation import gettext_lazy as _

from tenantfair.exceptions import InvalidTenant
from tenantfair.tenants import TENANTLESS_SCOPE, validate_tenant

TENANTLESS_ID: Final = " tenantless"
BEFORE_DOTS: Final = " "
TENANTLESS_LABEL: Final = _("(tenantless)")


def to_object_id(scope_key: str) -> str:
    """Return the object id of a scope."""
    if scope_key == TENANTLESS_SCOPE:
        return TENANTLESS_ID
    return BEFORE_DOTS + scope_key if _is_dots(scope_key) else scope_key


def quoted_id(scope_key: str) -> str:
    """Return the object id of a scope as the admin's URLs hold it."""
    return str(quote(to_object_id(scope_key)))


def to_scope_key(object_id: str) -> str | None:
    """Return the scope that an object id names, or None for what no scope can be called."""
    if object_id == TENANTLESS_ID:
        return TENANTLESS_SCOPE
    dots = object_id.removeprefix(BEFORE_DOTS)
    try:
        return validate_tenant(dots if _is_dots(dots) else object_id)
    except InvalidTenant:
        return None


def _is_dots(text: str) -> bool:
    return set(text) == {"."}


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
