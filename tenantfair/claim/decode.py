"""Rows of a claim statement to leases and poisoned runs; both engines return the same columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from typing import Any, Final

from tenantfair.claim.base import Lease, Poisoned
from tenantfair.exceptions import ClaimUnavailable, SchemaMismatch

Row = Mapping[str, Any]

_lease_columns: Final = itemgetter(
    *("claim_attempt" if name == "attempt" else name for name in Lease._fields)
)


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


def refuse_error_row(rows: Sequence[Row]) -> None:
    """Raise `ClaimUnavailable` when the call was refused; such a call has returned just that row."""
    for row in rows:
        if row["row_kind"] == "error":
            phase = "policy_cursor" if row["disposition"] == "policy_cursor" else None
            raise ClaimUnavailable(row["error_reason"], phase)


def decode_outcomes(rows: Sequence[Row]) -> tuple[list[Lease], list[Poisoned]]:
    """Return the outcome rows as leases and poisoned runs, each in the order they were granted."""
    outcomes = sorted(
        (row for row in rows if row["row_kind"] == "outcome"),
        key=lambda row: (row["visit_ordinal"], row["outcome_ordinal"]),
    )
    return (
        [Lease._make(_lease_columns(row)) for row in outcomes if row["claim_token"] is not None],
        [_poisoned(row) for row in outcomes if row["claim_token"] is None],
    )


def _poisoned(row: Row) -> Poisoned:
    return Poisoned(
        run_id=row["run_id"],
        tenant_id=row["tenant_id"],
        task_path=row["task_path"],
        poisoned_at=row["poisoned_at"],
        poison_reason=row["poison_reason"],
        work_class=row["work_class"],
    )
