"""Reads what several claims on one way around the ring came to, as if each had been fetched by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, tzinfo
from typing import Any, Final
from uuid import UUID

from django.db import DataError

from tenantfair.claim.base import Answer
from tenantfair.claim.decode import known_shape

_read: Final = json.JSONDecoder().raw_decode
_IDS: Final = ("run_id", "claim_token")
_TIMES: Final = ("claimed_at", "enqueued_at", "started_at", "eligible_at", "poisoned_at")


@known_shape()
def answers(answer: Answer, zone: tzinfo) -> list[Answer]:
    """Return one answer for each call, in order, of what `tenantfair_claim_lap` has returned.

    Times are in `zone`, as the driver's would be. Raises `DataError` where a time is one that Python has not,
    and `SchemaMismatch` where rows lack what this version reads.
    """
    ((rows,),) = answer.rows
    return [_answer(call) for call in _calls(_load(row, zone) for row in rows)]


def _calls(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Split rows after each that a call ends with."""
    call: list[dict[str, Any]] = []
    for row in rows:
        call.append(row)
        if row["row_kind"] != "outcome":
            yield call
            call = []


def _load(text: str, zone: tzinfo) -> dict[str, Any]:
    row: dict[str, Any]
    row, _ = _read(text)
    if row["row_kind"] == "outcome":
        row |= {name: UUID(row[name]) for name in _IDS if row[name] is not None}
        row |= {name: _time(row[name], zone) for name in _TIMES if row[name] is not None}
    return row


def _time(text: str, zone: tzinfo) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(zone)
    except (ValueError, OverflowError) as error:
        raise DataError(f"a time that Python has not: {text}") from error


def _answer(call: list[dict[str, Any]]) -> Answer:
    # An outcome has all columns; the row that ends a call has those that belong to it.
    columns = list({name: None for row in call for name in row})
    return Answer(columns, [tuple(map(row.get, columns)) for row in call])
