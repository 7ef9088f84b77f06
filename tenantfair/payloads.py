"""JSON that PostgreSQL can hold, and error text that always fits.

Everything a host hands over (arguments, saved state, results, signals) passes through here before it meets
SQL. The limits are `max_payload_bytes` (UTF-8 bytes of the JSON text) and `max_payload_depth` (nested
containers) of the settings.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tenantfair.conf import get_settings
from tenantfair.exceptions import InvalidPayload

ERROR_BYTES: Final = 8192
_PATH_BYTES: Final = 512
_FRAMES: Final = 64
_CUT: Final = "\n[... cut ...]\n"
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def encode(value: object, *, what: str) -> str:
    """Return `value` as JSON text; `InvalidPayload`, naming `what`, when it cannot be stored unchanged.

    Refused are NaN and infinities, U+0000, lone surrogates, types JSON does not know, nesting beyond the
    depth limit and text beyond the size limit. Tuples become lists, as in `django.tasks`.
    """
    return _checked(value, what)[1]


def normalize(value: object, *, what: str) -> Any:
    """Return `value` as it will come back out of the database; the checks are those of `encode`."""
    return _checked(value, what)[0]


def size_of(text: str) -> int:
    """Return the bytes that the limits count for text returned by `encode`."""
    return len(text.encode())


def safe_error_text(text: str, limit_bytes: int = ERROR_BYTES) -> str:
    """Return `text` without U+0000 and lone surrogates, at most `limit_bytes` of UTF-8 long.

    Longer text keeps its beginning and its end, where the message of a traceback stands.
    """
    cut = len(text) > limit_bytes
    if cut:
        # A character has at least one byte, so this bounds the work on text of any length.
        text = text[:limit_bytes] + text[-limit_bytes:]
    clean = text.replace("\0", _REPLACEMENT).encode("utf-8", "replace")
    if not cut and len(clean) <= limit_bytes:
        return clean.decode()
    room = max(limit_bytes - len(_CUT), 0)
    head, tail = clean[: room // 2], clean[len(clean) - (room - room // 2) :]
    return (head.decode("utf-8", "ignore") + _CUT + tail.decode("utf-8", "ignore"))[:limit_bytes]


def error_record(exc: BaseException) -> dict[str, str]:
    """Return what is kept of an exception: its class path and its traceback, storable whatever it holds."""
    kind = type(exc)
    try:
        text = "".join(traceback.TracebackException.from_exception(exc, limit=-_FRAMES, compact=True).format())
    except Exception:  # the exception's own code runs here; its record must exist all the same
        text = f"{kind.__name__} (its traceback cannot be formatted)"
    return {
        "exception_class_path": safe_error_text(f"{kind.__module__}.{kind.__qualname__}", _PATH_BYTES),
        "traceback": safe_error_text(text),
    }


def _checked(value: object, what: str) -> tuple[Any, str]:
    found = get_settings()
    walk = _Walk(what, found.max_payload_bytes, found.max_payload_depth)
    try:
        normal = walk.normal(value, 0)
        text = json.dumps(normal, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        size = size_of(text)
    except InvalidPayload:
        raise
    except UnicodeEncodeError as error:
        raise InvalidPayload(f"{what} holds a lone surrogate") from error
    except ValueError as error:
        raise InvalidPayload(f"{what} holds a number that JSON cannot: {error}") from error
    except Exception as error:  # containers of the host's own run code of the host's own
        raise InvalidPayload(f"{what} cannot be read: {type(error).__name__}") from error
    if size > found.max_payload_bytes:
        raise InvalidPayload(f"{what} has {size} bytes of JSON, the limit is {found.max_payload_bytes}")
    return normal, text


class _Walk:
    """One pass over a value. Its budget is a lower bound of the JSON text's size, so it ends early."""

    def __init__(self, what: str, max_bytes: int, max_depth: int) -> None:
        self.what = what
        self.max_bytes = max_bytes
        self.max_depth = max_depth
        self.spent = 0

    def normal(self, value: object, depth: int) -> Any:
        match value:
            case None | bool():
                self._spend(1)
                return value
            case str():
                return self._text(value)
            case int():
                self._spend(1)
                return int(value)
            case float():
                self._spend(1)
                return float(value)
            case bytes():
                self._spend(len(value))
                try:
                    return self._text(value.decode())
                except UnicodeDecodeError as error:
                    raise InvalidPayload(f"{self.what} holds bytes that are not UTF-8") from error
            case Mapping():
                self._descend(depth)
                return self._object(value, depth + 1)
            case Sequence():
                self._descend(depth)
                return [self.normal(item, depth + 1) for item in value]
            case _:
                raise InvalidPayload(f"{self.what} holds a {type(value).__qualname__}, which JSON does not know")

    def _object(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        normal: dict[str, Any] = {}
        for key, item in value.items():
            name = self._key(key)
            if name in normal:
                raise InvalidPayload(f"{self.what} holds an object with two keys {name!r}")
            normal[name] = self.normal(item, depth)
        return normal

    def _key(self, key: object) -> str:
        if isinstance(key, str):
            return self._text(key)
        if key is None or isinstance(key, (bool, int, float)):
            # As json.dumps writes such keys; NaN is refused there.
            return self._text(json.dumps(self.normal(key, 0), allow_nan=False))
        raise InvalidPayload(f"{self.what} holds an object key that is a {type(key).__qualname__}")

    def _text(self, value: str) -> str:
        self._spend(len(value) + 2)
        if "\0" in value:
            raise InvalidPayload(f"{self.what} holds the character U+0000")
        return str.__str__(value)

    def _descend(self, depth: int) -> None:
        self._spend(2)
        if depth >= self.max_depth:
            raise InvalidPayload(f"{self.what} is nested more than {self.max_depth} deep")

    def _spend(self, size: int) -> None:
        self.spent += size
        if self.spent > self.max_bytes:
            raise InvalidPayload(f"{self.what} has more than {self.max_bytes} bytes of JSON")
