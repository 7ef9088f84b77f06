"""Who a run belongs to: what a tenant id may be, and which one is current.

A tenant id is a string in Unicode form NFC, 1..255 bytes of UTF-8, without control characters and without
white space at either end. Triggers hold the database to the same rule (`tenantfair_tenant_is_well_formed`).
`None` is the tenantless scope, whose scope key is `''`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from tenantfair.exceptions import InvalidTenant

MAX_BYTES: Final = 255
TENANTLESS_SCOPE: Final = ""

# One definition for both sides. Python's `str.isspace` and PostgreSQL's `\s` disagree with each other and
# between versions, so the white space that may not stand at either end is written out.
_CONTROL: Final = r"\u0001-\u001f\u007f-\u009f"
_SPACE: Final = r"\u0020\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
SCOPE_PATTERN: Final = rf"^(?!.*[{_CONTROL}])[^{_SPACE}](.*[^{_SPACE}])?$"

_CONTROL_CHARACTERS: Final = frozenset(chr(c) for c in (*range(0x20), *range(0x7F, 0xA0)))
_SPACE_CHARACTERS: Final = "".join(
    map(chr, (0x20, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000))
)

_current: ContextVar[str | None] = ContextVar("tenantfair_tenant", default=None)


def validate_tenant(tenant_id: object) -> str:
    """Return a valid `tenant_id` as a plain string; `InvalidTenant` says what is wrong with another."""
    # The type as well, because a lazy object claims to be an instance of whatever it stands for.
    if not isinstance(tenant_id, str) or not issubclass(type(tenant_id), str):
        raise InvalidTenant(f"a tenant id is a string, not {type(tenant_id).__name__}")
    if tenant_id == "":
        raise InvalidTenant("a tenant id is not empty; None is the tenantless scope")
    try:
        size = len(tenant_id.encode())
    except UnicodeEncodeError as error:
        raise InvalidTenant("a tenant id holds no lone surrogates") from error
    if size > MAX_BYTES:
        raise InvalidTenant(f"a tenant id has at most {MAX_BYTES} bytes of UTF-8, this one has {size}")
    if not _CONTROL_CHARACTERS.isdisjoint(tenant_id):
        raise InvalidTenant("a tenant id holds no control characters")
    if tenant_id.strip(_SPACE_CHARACTERS) != tenant_id:
        raise InvalidTenant("a tenant id neither starts nor ends with white space")
    if not unicodedata.is_normalized("NFC", tenant_id):
        raise InvalidTenant(
            "a tenant id is in Unicode form NFC; unicodedata.normalize('NFC', ...) makes it so"
        )
    # A member of an Enum that is a string, too, is its value in the database and its name in a text.
    return str.__str__(tenant_id)


def validate_scope(tenant_id: object) -> str:
    """Return the scope key of `tenant_id`: `''` for None, else the validated id."""
    return TENANTLESS_SCOPE if tenant_id is None else validate_tenant(tenant_id)


@contextmanager
def tenant(tenant_id: str) -> Iterator[None]:
    """Make `tenant_id` current for enqueues inside the block, in this thread or async task."""
    token = _current.set(validate_tenant(tenant_id))
    try:
        yield
    finally:
        _current.reset(token)


def current_tenant() -> str | None:
    """Return the tenant made current by `tenant()`, or None when none is."""
    return _current.get()
