"""How often a scope may be passed over, and how often it was."""

from __future__ import annotations

from typing import Final, NamedTuple

QUANTUM: Final = 8
GRANTS: Final = 32


class Counts(NamedTuple):
    """What went before a scope's grant; `calls` include the one with the grant."""

    grants: int
    outcomes: int
    calls: int


def bound(*, cohort: int, ring: int, failures: int, budget: int, quantum: int = QUANTUM) -> Counts:
    """Return the most that may go before a grant.

    `cohort` are the scopes granted something until then, this one included (A), `ring` those with unfinished
    runs (H), `failures` the inspections of this one that failed in a row (L), `budget` the inspections of a
    call (S), `quantum` the outcomes of a grant (Q).
    """
    rounds = failures + 1
    grants = rounds * (cohort - 1)
    return Counts(grants, quantum * grants, grants + rounds * -(-(ring - cohort + 1) // budget))


def shares(seen: Counts, limit: Counts) -> tuple[float, ...]:
    """Return how much of its limit each count takes up; above 1 is a breach."""
    return tuple(have / (most or 1) for have, most in zip(seen, limit, strict=True))
