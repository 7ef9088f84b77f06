"""What may be stored as JSON, and error text that always may."""

from __future__ import annotations

import dataclasses
import enum
import json
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.db import connection
from hypothesis import example, given
from hypothesis import strategies as st

from tenantfair import payloads
from tenantfair.conf import get_settings
from tenantfair.exceptions import InvalidPayload
from tenantfair.models import Policy


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


class Colour(enum.StrEnum):
    RED = "red"


class Unreadable(Sequence[int]):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        raise RuntimeError("no")

    def __iter__(self) -> Iterator[int]:
        raise RuntimeError("no")


class Items(list[Any]):
    pass


class Object(dict[Any, Any]):
    pass


def of_a_class_of_its_own(value: Any) -> Any:
    """The same value in another container type, for which there is no short way."""
    if isinstance(value, (list, tuple)):
        return Items(value)
    return Object(value) if isinstance(value, dict) else value


def doubling() -> list[Any]:
    """2**60 leaves in sixty small lists."""
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    return value


UNSTORABLE = {
    "nan": float("nan"),
    "infinity": [float("-inf")],
    "nul": "a\x00",
    "nul in a key": {"a\x00": 1},
    "lone surrogate": "\ud800",
    "lone surrogate in a key": {"\udfff": 1},
    "set": {1, 2},
    "object": object(),
    "model instance": Policy(),
    "bytes that are no text": b"\xff",
    "tuple as key": {(1, 2): 3},
    "nan as key": {float("nan"): 1},
    "two keys alike": {1: "a", "1": "b"},
    "65 deep": nested(65),
    "20,000 deep": nested(20_000),
    "200 MB": "x" * 200_000_000,
    "a little too large": "x" * (256 * 1024 - 1),
    "too large in bytes only": "\N{SNOWMAN}" * (100 * 1024),
    "shared without end": doubling(),
    "an integer of 5,000 digits": 10**5000,
    "such an integer in a list": [10**5000],
    "a large string many times": ["x" * 1_000_000] * 60,
    "a sequence that raises": Unreadable(),
}


@pytest.mark.parametrize("value", UNSTORABLE.values(), ids=UNSTORABLE.keys())
def test_what_cannot_be_stored_is_refused_by_one_error(value: object) -> None:
    with pytest.raises(InvalidPayload, match=r"^result "):
        payloads.encode(value, what="result")
    with pytest.raises(InvalidPayload):
        payloads.normalize(value, what="result")


def test_the_error_of_a_cycle_is_its_depth() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(InvalidPayload, match="64 deep"):
        payloads.encode(cycle, what="state")


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ((1, [2, (3,)]), [1, [2, [3]]]),
        ({"a": (1,), 2: None, True: 1.5, None: "x"}, {"a": [1], "2": None, "true": 1.5, "null": "x"}),
        (Colour.RED, "red"),
        (b"text", "text"),
        (range(3), [0, 1, 2]),
        (True, True),
        ("\N{SNOWMAN}\x7f\x1f", "\N{SNOWMAN}\x7f\x1f"),
        (nested(64), nested(64)),
        ("x" * (256 * 1024 - 2), "x" * (256 * 1024 - 2)),
    ],
)
def test_values_come_out_as_django_tasks_normalises_them(value: object, stored: object) -> None:
    assert payloads.normalize(value, what="args") == stored
    assert json.loads(payloads.encode(value, what="args")) == stored
    assert type(payloads.normalize(value, what="args")) is type(stored)


def test_the_limits_are_those_of_the_settings(settings: Any) -> None:
    settings.TENANTFAIR = {"MAX_PAYLOAD_BYTES": 10, "MAX_PAYLOAD_DEPTH": 2}
    assert payloads.encode("12345678", what="args") == '"12345678"'
    with pytest.raises(InvalidPayload, match="limit is 10"):
        payloads.encode("\N{LATIN SMALL LETTER E WITH ACUTE}" * 5, what="args")
    with pytest.raises(InvalidPayload, match="2 deep"):
        payloads.encode([[[]]], what="args")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab\u2603'\"\\%{", max_size=4), inner),
    max_leaves=20,
)


@pytest.mark.django_db
def test_whatever_is_encoded_postgresql_gives_back() -> None:
    @given(json_values)
    def check(value: object) -> None:
        normal = payloads.normalize(value, what="result")
        with connection.cursor() as cursor:
            cursor.execute("SELECT %s::jsonb", [payloads.encode(value, what="result")])
            assert json.loads(cursor.fetchone()[0]) == normal

    check()


anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.binary(max_size=3),
        st.sampled_from([Colour.RED, enum.IntEnum("Number", "ONE").ONE, {1}, "\\u0000", "a\x00", "\ud800"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 1), st.booleans()), inner),
    ),
    max_leaves=10,
)


@given(anything, st.sampled_from([10, 40, 256 * 1024]))
def test_the_short_way_for_flat_values_says_what_the_long_way_says(value: Any, limit: int) -> None:
    limits = dataclasses.replace(get_settings(), max_payload_bytes=limit)

    def outcome(wrapped: object) -> tuple[str, object]:
        try:
            return "text", payloads.encode(wrapped, what="args", limits=limits)
        except InvalidPayload as error:
            return "refused", str(error)

    for flat in (value, [value, "x"], {"x": value}):
        assert outcome(flat) == outcome(of_a_class_of_its_own(flat))


any_text = st.text(st.characters(), max_size=300)


@given(any_text, st.integers(0, 400))
@example("\N{SNOWMAN}" * 100, 150)
def test_error_text_is_always_storable_and_bounded(text: str, limit: int) -> None:
    safe = payloads.safe_error_text(text, limit)
    assert len(safe.encode()) <= limit
    assert "\0" not in safe
    assert payloads.encode(safe, what="error")


def test_long_error_text_keeps_both_ends() -> None:
    safe = payloads.safe_error_text("first" + "\N{SNOWMAN}" * 10_000_000 + "last")
    assert len(safe.encode()) <= 8192
    assert safe.startswith("first")
    assert safe.endswith("last")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Hostile(Exception):
    def __init__(self) -> None:
        self.__notes__ = Unreadable()


def chained(length: int) -> BaseException:
    error = ValueError("0")
    for number in range(length):
        later = ValueError(str(number))
        later.__cause__ = error
        error = later
    return error


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a\x00\ud800" + "x" * 1_000_000),
        Unprintable(),
        Hostile(),
        chained(3_000),
        ExceptionGroup("g", [ValueError(str(n)) for n in range(10_000)]),
        KeyboardInterrupt(),
        SystemExit("x"),
        SyntaxError("x", ("f\x00", 1, 1, "\ud800")),
        type("N" * 100_000, (Exception,), {})(),
    ],
    ids=lambda error: type(error).__name__[:20],
)
def test_every_exception_has_a_record(error: BaseException) -> None:
    record = payloads.error_record(error)
    assert set(record) == {"exception_class_path", "traceback"}
    assert len(payloads.encode(record, what="error").encode()) < 50_000
    assert payloads.encode(record["traceback"], what="error")


def test_a_record_tells_class_and_traceback() -> None:
    def fail() -> None:
        raise ValueError("what happened")

    with pytest.raises(ValueError, match="happened") as raised:
        fail()
    record = payloads.error_record(raised.value)
    assert record["exception_class_path"] == "builtins.ValueError"
    assert record["traceback"] == "".join(traceback.format_exception(raised.value))


def test_formatting_that_fails_leaves_a_fixed_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise MemoryError

    monkeypatch.setattr(traceback.TracebackException, "from_exception", refuse)
    assert "cannot be formatted" in payloads.error_record(ValueError())["traceback"]
