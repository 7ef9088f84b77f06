"""What the judge is told, and what it says."""

from __future__ import annotations

from collections.abc import Sequence, Set
from enum import StrEnum
from typing import NamedTuple

from tenantfair.certify.bound import Counts, shares
from tenantfair.certify.ring import Cursor


class Reason(StrEnum):
    """Why a window is not eligible."""

    RING = "a scope joined or left the ring"
    CAP = "a cap changed"
    POLICY = "the policy changed"
    FUNCTION = "a function was replaced"
    MISSING = "a claim is missing from the record"
    ROLLED_BACK = "a claim was rolled back"
    NOT_ADMISSIBLE = "the scope could, or might, not be granted anything for a time"
    DISTURBED = "somebody was changing the scope's runs or partition when it was inspected in vain"
    LATE = "the scope became grantable only during the call that served it"
    BEGAN = "it had begun before the recording"
    OPEN = "the recording ended first"
    DAWN = "the bound depends on whether it began with one claim or the next"
    VIOLATED = "a rule was broken in it"


class Rule(StrEnum):
    """What a claim must never do."""

    BOUND = "a scope is passed over no more often than the bound allows"
    CURSOR = "a claim moves the cursor in the transaction of its grants"
    WALK = "the cursor moves from place to place and grants only where it comes by"
    BUDGET = "a call makes no more visits than the scan budget, nor more than 32 grants"
    STOPPED = "a call that was not filled makes all its visits"
    QUANTUM = "a grant has 1..8 outcomes"
    EPOCH = "each grant moves the scope's epoch by one"
    FAILURES = "a scope that can be granted something is not inspected in vain"
    CAP = "no more runs are admitted than the cap allows"


class Violation(NamedTuple):
    """One rule broken: whose, at which claim (from 1, None outside of all), and what was seen."""

    rule: Rule
    scope: str | None
    call: int | None
    detail: str


class Grant(NamedTuple):
    """What one call gave to one scope in one go; more than one epoch are as many visits in a row."""

    scope: str
    epochs: int
    outcomes: int


class Call(NamedTuple):
    """One committed claim. `admissible` are the scopes that could be granted something during all of it,
    `dawning` those that came to it since the last call, before this one or during it, and `disturbed` those
    whose runs others were changing."""

    before: Cursor
    after: Cursor
    grants: Sequence[Grant]
    admissible: Set[str]
    dawning: Set[str] = frozenset()
    disturbed: Set[str] = frozenset()


class Window(NamedTuple):
    """An eligible window that has closed, or that had used up its calls."""

    scope: str
    cohort: int
    ring: int
    failures: int
    budget: int
    seen: Counts
    limit: Counts

    @property
    def ratio(self) -> float:
        return max(shares(self.seen, self.limit))

    @property
    def holds(self) -> bool:
        return all(seen <= limit for seen, limit in zip(self.seen, self.limit, strict=True))
