"""S4, S9-S14: claims that meet the holder of a run, or somebody who ends it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.interleavings.case import Case
from tests.interleavings.operations import (
    AFTER,
    CAREFUL,
    OUTCOMES,
    Operation,
    beats,
    cancels,
    checkpoints,
    claims,
    interrupts,
    retries,
    settles,
)
from tests.interleavings.specs.rules import of, seen_from, stolen_only_when_expired
from tests.interleavings.state import RunRow, State, runs

HALF = runs(r1="a claimed", r2="a queued")
HELD = runs(r1="a claimed")
EXPIRED = runs(r1="a expired")
STOLEN = runs(r1="a expired", r2="a queued")
# Started as often as a run may be, so that a claim sets it aside.
WORN = [RunRow("r1", "a", "expired", {"claim_attempts": "5"}), *runs(r2="a queued")]

KEEPS_ITS_PLACE = ("yielded", "released")
ENDS = ("completed", "failed")


def finish_beside_claim(kind: str) -> Case:
    """The only slot is r1's; what its holder does with it decides what a claim may take."""
    after = AFTER[kind]
    if kind in KEEPS_ITS_PLACE:
        granted, rule = "r1 | accepted | r1 claimed@A, r2 queued", None
    else:
        granted, rule = f"r2 | accepted | r1 {after}, r2 claimed@A", seen_from("probe", "r2", unless=("r2",))
    return Case(
        f"S4 {kind}",
        State(HALF),
        {"A": claims(), "B": settles(kind, "r1")},
        of(f"nothing | accepted | r1 {after}, r2 queued", granted),
        rule,
    )


def finish_beside_steal(kind: str) -> Case:
    """The holder's outcome and the claim of its expired lease: one of the two, unless the run is given back
    first.
    """
    outcomes = of(
        f"nothing | accepted | r1 {AFTER[kind]}", "r1 | busy | r1 claimed@A", "r1 | lost | r1 claimed@A"
    )
    if kind in KEEPS_ITS_PLACE:
        outcomes |= of("r1 | accepted | r1 claimed@A")
    return Case(f"S10 {kind}", State(EXPIRED), {"A": claims(1, CAREFUL), "B": settles(kind, "r1")}, outcomes)


def finish_beside_cancel(kind: str) -> Case:
    if kind in ENDS:
        first = of(f"accepted | RunNotActive | r1 {kind}")
    else:
        first = of("accepted | cancelled | r1 cancelled")
    return Case(
        f"S14 {kind}",
        State(HELD),
        {"A": settles(kind, "r1"), "B": cancels("r1", row=True)},
        first | of("busy | cancelled | r1 cancelled", "lost | cancelled | r1 cancelled"),
    )


def worn(name: str, other: Operation, *outcomes: str, row: bool = False) -> Case:
    """A claim of two, which sets r1 aside and gives its slot to r2, beside something else that befalls r1."""
    return Case(f"S13 {name}", State(WORN), {"A": claims(2, CAREFUL), "B": other}, of(*outcomes))


def _cases() -> Iterator[Case]:
    yield from map(finish_beside_claim, OUTCOMES)
    freed = seen_from("probe", "r2", unless=("r2",))
    yield Case(
        "S9",
        State(runs(r1="a queued", r2="a queued")),
        {"A": claims(), "B": cancels("r1")},
        of(
            "nothing | cancelled | r1 cancelled, r2 queued",
            "r1 | cancelled | r1 cancelled, r2 queued",
            "r2 | cancelled | r1 cancelled, r2 claimed@A",
        ),
        freed,
    )
    yield Case(
        "S9 holder",
        State(HALF),
        {"A": claims(), "B": cancels("r1", row=True)},
        of("nothing | cancelled | r1 cancelled, r2 queued", "r2 | cancelled | r1 cancelled, r2 claimed@A"),
        freed,
    )
    yield Case(
        "S9 interrupt",
        State(HALF),
        {"A": claims(), "B": interrupts("r1", row=True)},
        of("nothing | queued | r1 queued, r2 queued", "r2 | queued | r1 queued, r2 claimed@A"),
        freed,
    )
    yield from map(finish_beside_steal, OUTCOMES)
    yield Case(
        "S10 cancel",
        State(STOLEN),
        {"A": claims(1, CAREFUL), "B": cancels("r1")},
        of(
            "nothing | cancelled | r1 cancelled, r2 queued",
            "r1 | cancelled | r1 cancelled, r2 queued",
            "r2 | cancelled | r1 cancelled, r2 claimed@A",
        ),
    )
    # A heartbeat passes a locked row by and says what is committed: the old holder still has it.
    yield Case(
        "S11",
        State(EXPIRED),
        {"A": claims(1, CAREFUL), "B": beats("r1")},
        of("nothing | held | r1 claimed@old", "r1 | held | r1 claimed@A", "r1 | lost | r1 claimed@A"),
        stolen_only_when_expired,
    )
    yield Case(
        "S11 checkpoint",
        State(EXPIRED),
        {"A": claims(1, CAREFUL), "B": checkpoints("r1")},
        of("nothing | 1 | r1 claimed@old", "r1 | StaleClaim | r1 claimed@A"),
        stolen_only_when_expired,
    )
    yield Case(
        "S12",
        State(EXPIRED),
        {"A": claims(1, CAREFUL), "B": claims(1, CAREFUL)},
        of("r1 | nothing | r1 claimed@A", "nothing | r1 | r1 claimed@B"),
    )
    yield Case(
        "S12 two",
        State(STOLEN, cap=2),
        {"A": claims(2, CAREFUL), "B": claims(1, CAREFUL)},
        of("r1+r2 | nothing | r1 claimed@A, r2 claimed@A", "r2 | r1 | r1 claimed@B, r2 claimed@A"),
    )
    yield Case(
        "S13",
        State(WORN),
        {"A": claims(1, CAREFUL), "B": claims(1, CAREFUL)},
        of("!r1 | r2 | r1 poisoned, r2 claimed@B", "r2 | !r1 | r1 poisoned, r2 claimed@A"),
    )
    yield worn(
        "completed",
        settles("completed", "r1"),
        "nothing | accepted | r1 completed, r2 queued",
        "r2 | accepted | r1 completed, r2 claimed@A",
        "r2+!r1 | busy | r1 poisoned, r2 claimed@A",
        "r2+!r1 | lost | r1 poisoned, r2 claimed@A",
    )
    yield worn(
        "released",
        settles("released", "r1"),
        "nothing | accepted | r1 ready, r2 queued",
        "r2+!r1 | accepted | r1 poisoned, r2 claimed@A",
        "r2+!r1 | busy | r1 poisoned, r2 claimed@A",
        "r2+!r1 | lost | r1 poisoned, r2 claimed@A",
    )
    yield worn(
        "heartbeat",
        beats("r1"),
        "nothing | held | r1 claimed@old, r2 queued",
        "r2+!r1 | held | r1 poisoned, r2 claimed@A",
        "r2+!r1 | lost | r1 poisoned, r2 claimed@A",
    )
    # Retried before it is poisoned, a run is left as it is.
    yield worn(
        "retry",
        retries("r1"),
        "r2+!r1 | claimed | r1 poisoned, r2 claimed@A",
        "r2+!r1 | queued | r1 queued, r2 claimed@A",
        "nothing | claimed | r1 claimed@old, r2 queued",
    )
    yield from map(finish_beside_cancel, OUTCOMES)
    yield Case(
        "S14 interrupt",
        State(HELD),
        {"A": settles("completed", "r1"), "B": interrupts("r1", row=True)},
        of(
            "accepted | RunNotActive | r1 completed",
            "busy | queued | r1 queued",
            "lost | queued | r1 queued",
        ),
    )


CASES = list(_cases())
