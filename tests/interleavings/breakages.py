"""Builds that are wrong on purpose: each loses one thing that the schedules must show to be lost.

A breakage changes the text of a function or of a statement at a place that must be there, or replaces a
call of Django's; `case` is the meeting whose schedules tell, by a problem that begins with `told_by`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager as Broken
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from unittest.mock import patch

from django.db.models import QuerySet

from tenantfair.runs import finishing, holder
from tenantfair.sql import load
from tests.interleavings import gates
from tests.interleavings.bed import install
from tests.interleavings.stage import Stage
from tests.test_claim_races import COUNT_TOO_EARLY

Edit = tuple[str | re.Pattern[str], str]


@dataclass(frozen=True)
class Breakage:
    rule: str
    case: str
    told_by: str
    broken: Callable[[Stage], Broken[None]]


def edited(text: str, edits: Sequence[Edit]) -> str:
    """Return the text with each edit made wherever its place is; a place that has gone is an error."""
    for old, new in edits:
        place = re.compile(re.escape(old)) if isinstance(old, str) else old
        text, number = place.subn(lambda found, new=new: new.replace("\\0", found[0]), text)
        if not number:
            raise LookupError(f"the text has no {place.pattern!r} to break")
    return text


def claim(*edits: Edit) -> Callable[[Stage], Broken[None]]:
    return lambda stage: _installed(stage, gates.gated_claim(edited(load("tenantfair_claim.v1"), edits)))


def fold(*edits: Edit) -> Callable[[Stage], Broken[None]]:
    return lambda stage: _installed(stage, gates.gated_fold(edited(load("tenantfair_fold.v1"), edits)))


@contextmanager
def _installed(stage: Stage, gated: gates.Gated) -> Iterator[None]:
    stage.control.execute(gated.installation.split("CREATE CONSTRAINT TRIGGER")[0])
    try:
        yield
    finally:
        install(stage.control)


def statement(module: object, name: str, *edits: Edit) -> Callable[[Stage], Broken[None]]:
    """Break a statement that a module of the package loads."""
    text = edited(load(name), edits)

    def loading(wanted: str) -> str:
        return text if wanted == name else load(wanted)

    return lambda stage: patch.object(module, "load", loading)


def without_row_locks(stage: Stage) -> Broken[None]:
    return patch.object(QuerySet, "select_for_update", lambda self, **_: self.all())


def intact(stage: Stage) -> Broken[None]:
    return nullcontext()


# Two claims at once: the door lets everybody through, and so does the policy row.
NO_POLICY_LOCK: Sequence[Edit] = (
    (
        "IF NOT pg_try_advisory_xact_lock(v_door) THEN",
        "IF NOT pg_try_advisory_xact_lock(v_door) AND false THEN",
    ),
    (
        "ORDER BY policy.id DESC LIMIT 1 FOR NO KEY UPDATE",
        "ORDER BY policy.id DESC LIMIT 1 FOR KEY SHARE",
    ),
)
NO_HEADS: Edit = ("IF v_plain AND", "IF false AND v_plain AND")

BREAKAGES = (
    Breakage("claims take the policy lock", "S1", "I18", claim(*NO_POLICY_LOCK)),
    Breakage(
        "the admitted are counted under the partition lock",
        "S1",
        "I1 ",
        claim(*NO_POLICY_LOCK, NO_HEADS, (re.compile(r" *-+\n *-- Partitions:"), f"{COUNT_TOO_EARLY}\\0")),
    ),
    Breakage("the cursor moves", "S2", "I18", claim(("scan_ring_position = v_cursor,", ""))),
    Breakage(
        "a grant steps the epoch",
        "S2",
        "I19",
        claim(("admission_epoch = part.admission_epoch + v_repeat,", "")),
    ),
    Breakage(
        "an expired lease is looked at again under its lock",
        "S11",
        "A took r1 over",
        claim(
            (
                re.compile(r"run\.tenant_admitted_at IS NOT NULL\n +AND run\.claimed_at < p_expired_before"),
                "true",
            )
        ),
    ),
    Breakage(
        "a finish gives its slot back",
        "S4 completed",
        "I5",
        fold(("unfinished_count + v_deltas[i]", "unfinished_count + greatest(v_deltas[i], 0)")),
    ),
    Breakage(
        "counts are locked in one order",
        "S18 known",
        "I25",
        fold(
            (
                "ORDER BY scope_key), pg_catalog.array_agg(delta ORDER BY scope_key)",
                "ORDER BY random()), array_agg(delta)",
            )
        ),
    ),
    Breakage(
        "a completion is fenced by the claim token",
        "S10 completed",
        "outcome: r1 | accepted",
        statement(
            finishing,
            "complete_runs",
            (re.compile(r"AND run\.claim_token [A-Z =]+ outcome\.claim_token"), ""),
        ),
    ),
    Breakage(
        "any outcome is fenced by the claim token",
        "S10 failed",
        "outcome: r1 | accepted",
        statement(finishing, "finish_runs", ("AND run.claim_token = outcome.claim_token", "")),
    ),
    Breakage(
        "a heartbeat is fenced by the claim token",
        "S11",
        "A had taken r1 over",
        statement(holder, "heartbeat_leases", ("AND run.claim_token = held.claim_token", "")),
    ),
    Breakage(
        "a wait looks for its signal under the lock",
        "S15",
        "the run waits",
        statement(
            finishing, "finish_runs", ("jsonb_array_length(run.pending_signals) > outcome.consumed", "false")
        ),
    ),
    Breakage(
        "a snooze gives the place among the admitted back",
        "S4 snoozed",
        "I3",
        statement(
            finishing,
            "finish_runs",
            ("('yielded', 'released', 'returned') THEN run.tenant", "('yielded', 'snoozed') THEN run.tenant"),
        ),
    ),
    Breakage(
        "a cancel locks the row that it judges",
        "S14 completed",
        "outcome: accepted | cancelled",
        without_row_locks,
    ),
)
