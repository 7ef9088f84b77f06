"""Rows of a claim statement to leases and poisoned runs; both engines return the same columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tenantfair.claim.base import Lease, Poisoned
from tenantfair.exceptions import ClaimUnavailable, SchemaMismatch

Row = Mapping[str, Any]


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
        [_lease(row) for row in outcomes if row["claim_token"] is not None],
        [_poisoned(row) for row in outcomes if row["claim_token"] is None],
    )


def _lease(row: Row) -> Lease:
    return Lease(
        run_id=row["run_id"],
        claim_token=row["claim_token"],
        claimed_at=row["claimed_at"],
        attempt=row["claim_attempt"],
        checkpoint_seq=row["checkpoint_seq"],
        tenant_id=row["tenant_id"],
        task_path=row["task_path"],
        args=row["args"],
        kwargs=row["kwargs"],
        state=row["state"],
        signals=row["signals"],
        failures=row["failures"],
        retry_limit=row["retry_limit"],
        abandons=row["abandons"],
        queue_name=row["queue_name"],
        backend=row["backend"],
        enqueued_at=row["enqueued_at"],
        started_at=row["started_at"],
        errors=row["errors"],
        worker_ids=row["worker_ids"],
        work_class=row["work_class"],
        eligible_at=row["eligible_at"],
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
