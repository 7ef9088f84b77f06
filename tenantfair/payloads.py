"""JSON that PostgreSQL can hold, and error text that always fits.

Everything a host hands over (arguments, saved state, results, signals) passes through here before it meets
SQL. The limits are `max_payload_bytes` (UTF-8 bytes of the JSON text) and `max_payload_depth` (nested
containers) of the settings.
"""

from __future__ import annotations

import json
import math
import traceback
from collections.abc import Mapping, Sequence
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any, Final, NoReturn

from tenantfair.conf import Settings, get_settings
from tenantfair.exceptions import InvalidPayload

ERROR_BYTES: Final = 8192
_PATH_BYTES: Final = 512
_FRAMES: Final = 64
_CUT: Final = "\n[... cut ...]\n"
# Longer containers are written piece by piece, which ends early when they are too large.
_FLAT_ITEMS: Final = 64
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def encode(value: object, *, what: str, limits: Settings | None = None) -> str:
    """Return `value` as JSON text; `InvalidPayload`, naming `what`, when it cannot be stored unchanged.

    Refused are NaN and infinities, U+0000, lone surrogates, types JSON does not know, nesting beyond the
    depth limit and text beyond the size limit. Tuples become lists, as in `django.tasks`. `limits` saves
    reading the settings again for each of many values.
    """
    found = limits if limits is not None else get_settings()
    flat = _flat(value, found.max_payload_bytes)
    if flat is not None:
        return flat
    writer = _Writer(what, found.max_payload_bytes, found.max_payload_depth)
    try:
        writer.write(value, 0)
        text = "".join(writer.parts)
        size = size_of(text)
    except InvalidPayload:
        raise
    except UnicodeEncodeError as error:
        raise InvalidPayload(f"{what} holds a lone surrogate") from error
    except Exception as error:  # containers of the host's own run code of the host's own
        raise InvalidPayload(f"{what} cannot be read: {type(error).__name__}") from error
    if size > found.max_payload_bytes:
        raise InvalidPayload(f"{what} has {size} bytes of JSON, the limit is {found.max_payload_bytes}")
    return text


def normalize(value: object, *, what: str) -> Any:
    """Return `value` as it will come back out of the database; the checks are those of `encode`."""
    return json.loads(encode(value, what=what))


def size_of(text: str) -> int:
    """Return the bytes that the limits count for text returned by `encode`."""
    return len(text) if text.isascii() else len(text.encode())


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
        found = traceback.TracebackException.from_exception(exc, limit=-_FRAMES, compact=True)
        text = "".join(found.format())
    except Exception:  # the exception's own code runs here; its record must exist all the same
        text = f"{kind.__name__} (its traceback cannot be formatted)"
    return {
        "exception_class_path": safe_error_text(f"{kind.__module__}.{kind.__qualname__}", _PATH_BYTES),
        "traceback": safe_error_text(text),
    }


def _flat(value: object, max_bytes: int) -> str | None:
    """Return the text of a short flat list or object, which is what most payloads are; None for all others.

    A shortcut that only ever agrees with `_Writer`: whatever it doubts, it leaves to it.
    """
    try:
        if type(value) is dict and len(value) <= _FLAT_ITEMS:
            pairs = [f"{_name(key, max_bytes)}:{_scalar(item, max_bytes)}" for key, item in value.items()]
            text = "{" + ",".join(pairs) + "}"
        elif (type(value) is list or type(value) is tuple) and len(value) <= _FLAT_ITEMS:
            text = "[" + ",".join([_scalar(item, max_bytes) for item in value]) + "]"
        else:
            return None
        size = size_of(text)
    except (ValueError, RuntimeError):  # among them lone surrogates, and a container that changes meanwhile
        return None
    return None if size > max_bytes or "\\u0000" in text else text


def _name(key: object, max_bytes: int) -> str:
    if type(key) is str:
        return _scalar(key, max_bytes)
    raise ValueError


def _scalar(value: object, max_bytes: int) -> str:
    """Return the text of a string, a number, a boolean or None; `ValueError` for what only looks like one."""
    if type(value) is str and len(value) <= max_bytes:
        return encode_basestring(value)
    if type(value) is int:
        return repr(value)
    if type(value) is float and (text := repr(value)).strip("-.0123456789") == "":
        return text
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    raise ValueError


class _Writer:
    """Writes one value in one pass, and stops as soon as the text is longer than the limit."""

    def __init__(self, what: str, max_bytes: int, max_depth: int) -> None:
        self.what = what
        self.max_bytes = max_bytes
        self.max_depth = max_depth
        self.parts: list[str] = []
        self._length = 0

    def write(self, value: object, depth: int) -> None:
        match value:
            case None:
                self._add("null")
            case bool():
                self._add("true" if value else "false")
            case str():
                self._add(self._text(value))
            case int():
                self._add(self._integer(value))
            case float():
                self._add(self._float(value))
            case bytes():
                self._add(self._text(self._decoded(value)))
            case Mapping():
                self._object(value, self._deeper(depth))
            case Sequence():
                self._array(value, self._deeper(depth))
            case _:
                kind = type(value).__qualname__
                raise InvalidPayload(f"{self.what} holds a {kind}, which JSON does not know")

    def _array(self, value: Sequence[Any], depth: int) -> None:
        before = "["
        for item in value:
            self._add(before)
            self.write(item, depth)
            before = ","
        self._add("]" if before == "," else "[]")

    def _object(self, value: Mapping[Any, Any], depth: int) -> None:
        before = "{"
        names: set[str] = set()
        for key, item in value.items():
            name = self._name(key)
            if name in names:
                raise InvalidPayload(f"{self.what} holds an object with two keys {name}")
            names.add(name)
            self._add(before + name + ":")
            self.write(item, depth)
            before = ","
        self._add("}" if before == "," else "{}")

    def _name(self, key: object) -> str:
        """Return a key in quotes; numbers, booleans and None as `json.dumps` turns them into keys."""
        match key:
            case str():
                return self._text(key)
            case float():
                return f'"{self._float(key)}"'
            case None | bool():
                return f'"{json.dumps(key)}"'
            case int():
                return f'"{self._integer(key)}"'
            case _:
                raise InvalidPayload(f"{self.what} holds an object key that is a {type(key).__qualname__}")

    def _text(self, value: str) -> str:
        if len(value) > self.max_bytes:
            self._too_large()
        if "\0" in value:
            raise InvalidPayload(f"{self.what} holds the character U+0000")
        return encode_basestring(value)

    def _integer(self, value: int) -> str:
        try:
            return int.__repr__(value)
        except ValueError as error:
            raise InvalidPayload(f"{self.what} holds an integer of too many digits") from error

    def _float(self, value: float) -> str:
        if not math.isfinite(value):
            raise InvalidPayload(f"{self.what} holds {value}, which JSON does not know")
        text = float.__repr__(value)
        # jsonb spells 1e+16 as an integer, and what is read back would no longer be a float, nor equal.
        return f"{Decimal(text):f}.0" if "e+" in text else text

    def _decoded(self, value: bytes) -> str:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            raise InvalidPayload(f"{self.what} holds bytes that are not UTF-8") from error

    def _deeper(self, depth: int) -> int:
        if depth == self.max_depth:
            raise InvalidPayload(f"{self.what} is nested more than {self.max_depth} deep")
        return depth + 1

    def _add(self, part: str) -> None:
        self._length += len(part)
        if self._length > self.max_bytes:
            self._too_large()
        self.parts.append(part)

    def _too_large(self) -> NoReturn:
        raise InvalidPayload(f"{self.what} has more than {self.max_bytes} bytes of JSON")
