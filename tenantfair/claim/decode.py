"""Rows of a claim statement to leases and poisoned runs; both engines return the same columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final

from tenantfair.claim.base import Answer, Lease, Poisoned
from tenantfair.exceptions import ClaimUnavailable, SchemaMismatch

# The server writes nothing around a value, so none of what `json.loads` does about that is needed.
_read: Final = json.JSONDecoder().raw_decode
_LEASE_COLUMNS: Final = ["claim_attempt" if name == "attempt" else name for name in Lease._fields]
_ORDER: Final = ("visit_ordinal", "outcome_ordinal")
_POISONED: Final = [each.name for each in fields(Poisoned)]
# Places in a lease. In this order: an unreadable column clears `args`, which must be read by then.
_JSON_PLACES: Final = [
    Lease._fields.index(name) for name in ("args", "kwargs", "state", "signals", "errors", "worker_ids")
]
_ARGS: Final = Lease._fields.index("args")


@contextmanager
def known_shape() -> Iterator[None]:
    """Raise `SchemaMismatch` where rows lack what this version reads: another version's function answered."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise another_shape(repr(error)) from error


def another_shape(what: str) -> SchemaMismatch:
    """Return the error for a claim function that does not answer as this version expects."""
    return SchemaMismatch(
        [f"a claim returned rows that this version cannot read ({what})"],
        "Run `manage.py migrate tenantfair` and restart the workers.",
    )


def rows_of_kind(answer: Answer, kind: str) -> list[dict[str, Any]]:
    """Return the rows of one kind by the names of their columns; for kinds of which there are few."""
    place = answer.columns.index("row_kind")
    return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows if row[place] == kind]


def refuse_error_row(answer: Answer) -> None:
    """Raise `ClaimUnavailable` when the call was refused; such a call has returned just that row."""
    for row in rows_of_kind(answer, "error"):
        phase = "policy_cursor" if row["disposition"] == "policy_cursor" else None
        raise ClaimUnavailable(row["error_reason"], phase)


def is_unflushed(answer: Answer) -> bool:
    """Return whether the claim's commit was not waited for; the legacy engine's always is."""
    return "unflushed" in answer.columns and any(
        row[answer.columns.index("unflushed")] for row in answer.rows[:1]
    )


def decode_outcomes(answer: Answer) -> tuple[list[Lease], list[Poisoned]]:
    """Return the outcome rows as leases and poisoned runs, each in the order they were granted."""
    kind = answer.columns.index("row_kind")
    outcomes = [row for row in answer.rows if row[kind] == "outcome"]
    if not outcomes:
        return [], []
    token, order, lease, poisoned = _readers(tuple(answer.columns))
    outcomes.sort(key=order)
    return (
        [_lease(lease(row)) for row in outcomes if row[token] is not None],
        [
            Poisoned(**dict(zip(_POISONED, poisoned(row), strict=True)))
            for row in outcomes
            if row[token] is None
        ],
    )


# What picks values out of a row.
_Reader = Callable[[tuple[Any, ...]], tuple[Any, ...]]


@lru_cache(maxsize=8)
def _readers(columns: tuple[str, ...]) -> tuple[int, _Reader, _Reader, _Reader]:
    """Return where a row has its token, and what reads its place, a lease and a poisoned run."""
    places = {name: place for place, name in enumerate(columns)}
    order, lease, poisoned = (
        itemgetter(*(places[name] for name in names)) for names in (_ORDER, _LEASE_COLUMNS, _POISONED)
    )
    return places["claim_token"], order, lease, poisoned


def _lease(columns: Sequence[Any]) -> Lease:
    """Return the lease with its JSON read.

    What Python cannot read, such as a number of 5,000 digits, was written past the package. The claim is
    committed, so the row keeps its lease, with arguments that fit no task: its run fails and says so, and its
    neighbours lose nothing.
    """
    values = list(columns)
    for place in _JSON_PLACES:
        text = values[place]
        # Most of them are empty.
        if text == "[]":
            values[place] = []
        elif text == "{}":
            values[place] = {}
        elif text is not None:
            try:
                values[place], _ = _read(text)
            except (ValueError, RecursionError):
                values[place] = []
                values[_ARGS] = None
    return Lease._make(values)
