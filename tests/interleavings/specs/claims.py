"""S1-S3, S5-S8, S20: claims that meet claims, caps and enqueues."""

from __future__ import annotations

from tests.interleavings.case import Case
from tests.interleavings.operations import (
    EARLIEST,
    claims,
    enqueues,
    enqueues_many,
    puts_budget,
    puts_default,
    puts_override,
    resets_override,
)
from tests.interleavings.specs.rules import fifo, of, seen_from
from tests.interleavings.state import State, runs

TWO = runs(r1="a queued", r2="a queued")
APART = runs(r1="a queued", r2="b queued")
HALF = runs(r1="a claimed", r2="a queued")
SCOPE_A = frozenset({"a"})

ONE_SLOT = of("r1 | nothing | r1 claimed@A, r2 queued", "nothing | r1 | r1 claimed@B, r2 queued")
ONE_EACH = of("r1 | r2 | r1 claimed@A, r2 claimed@B", "r2 | r1 | r1 claimed@B, r2 claimed@A")


def second_slot(word: str) -> frozenset[str]:
    """r1 has one slot; whether r2 gets another depends on who comes first."""
    return of(f"nothing | {word} | r1 claimed@old, r2 queued", f"r2 | {word} | r1 claimed@old, r2 claimed@A")


# A cap that is lowered before the partition is locked is the one that holds, and one lowered after all
# makes debt.
lowered = seen_from("(heads1|partitions)", "nothing", unless=("nothing",))
raised = seen_from("probe", "r2", unless=("r2",))

CASES = [
    Case("S1", State(TWO), {"A": claims(), "B": claims()}, ONE_SLOT, fifo(("r1",))),
    Case("S1 demand 2", State(TWO), {"A": claims(2), "B": claims(2)}, ONE_SLOT, fifo(("r1",))),
    Case("S1 cap 2", State(TWO, cap=2), {"A": claims(), "B": claims()}, ONE_EACH, fifo(("r1", "r2"))),
    Case("S2", State(APART), {"A": claims(), "B": claims()}, ONE_EACH, fifo(("r1", "r2"))),
    Case(
        "S2 demand 2",
        State(APART),
        {"A": claims(2), "B": claims()},
        of("r1+r2 | nothing | r1 claimed@A, r2 claimed@A", "r2 | r1 | r1 claimed@B, r2 claimed@A"),
    ),
    Case(
        "S3",
        State(runs(r1="a queued", r2="a queued", r3="a queued"), cap=2),
        {letter: claims(only=("policy", "write")) for letter in "ABC"},
        rule=fifo(("r1", "r2")),
    ),
    Case(
        "S5",
        State(HALF, scopes={"a": 2}),
        {"A": claims(), "B": puts_override("a", 1)},
        second_slot("cap 1"),
        lowered,
        may_owe=SCOPE_A,
    ),
    Case(
        "S5 expected",
        State(HALF, scopes={"a": 2}),
        {"A": claims(), "B": puts_override("a", 1, expected=1)},
        second_slot("cap 1"),
        lowered,
        may_owe=SCOPE_A,
    ),
    Case(
        "S5 reset",
        State(HALF, scopes={"a": 2}),
        {"A": claims(), "B": resets_override("a")},
        second_slot("cap None"),
        lowered,
        may_owe=SCOPE_A,
    ),
    Case("S6", State(HALF), {"A": claims(), "B": puts_override("a", 2)}, second_slot("cap 2"), raised),
    Case(
        "S6 expected",
        State(HALF),
        {"A": claims(), "B": puts_override("a", 2, expected=1)},
        second_slot("cap 2"),
        raised,
    ),
    # An older run that is there when the queue is read again is never passed by.
    Case(
        "S7",
        State(runs(r1="a queued")),
        {"A": claims(), "B": enqueues("r9", scopes="a", due=EARLIEST)},
        of("r1 | enqueued | r1 claimed@A, r9 queued", "r9 | enqueued | r1 queued, r9 claimed@A"),
        seen_from("(heads2|recheck)", "r9", unless=("r9",)),
    ),
    Case(
        "S7 demand 2",
        State(runs(r1="a queued"), cap=2),
        {"A": claims(2), "B": enqueues_many("r8", "r9", scopes="aa", due=EARLIEST)},
        of(
            "r1 | enqueued | r1 claimed@A, r8 queued, r9 queued",
            "r1+r8 | enqueued | r1 claimed@A, r8 claimed@A, r9 queued",
            "r8+r9 | enqueued | r1 queued, r8 claimed@A, r9 claimed@A",
        ),
        seen_from("(heads2|recheck)", "r8+r9", unless=("r1+r8", "r8+r9")),
    ),
    Case(
        "S8",
        State(runs(r1="a queued")),
        {"A": claims(2), "B": enqueues("r9", scopes="b")},
        of("r1 | enqueued | r1 claimed@A, r9 queued", "r1+r9 | enqueued | r1 claimed@A, r9 claimed@A"),
        seen_from("probe", "r1+r9", unless=("r1+r9",)),
    ),
    Case(
        "S8 empty ring",
        State(scopes={"a": None}),
        {"A": claims(), "B": enqueues("r9", scopes="b")},
        of("nothing | enqueued | r9 queued", "r9 | enqueued | r9 claimed@A"),
        seen_from("probe", "r9", unless=("r9",)),
    ),
    Case(
        "S8 two",
        State(runs(r1="a queued")),
        {"A": claims(2), "B": enqueues_many("r8", "r9", scopes="bc")},
        of(
            "r1 | enqueued | r1 claimed@A, r8 queued, r9 queued",
            "r1+r8 | enqueued | r1 claimed@A, r8 claimed@A, r9 queued",
        ),
        seen_from("probe", "r1+r8", unless=("r1+r8",)),
    ),
    Case(
        "S20",
        State(HALF, cap=2),
        {"A": claims(), "B": puts_default(1)},
        second_slot("cap 1"),
        seen_from("policy", "nothing", unless=("nothing",)),
        may_owe=SCOPE_A,
    ),
    Case(
        "S20 raise",
        State(HALF),
        {"A": claims(), "B": puts_default(2)},
        second_slot("cap 2"),
        seen_from("policy", "r2", unless=("r2",)),
    ),
    Case(
        "S20 budget",
        State(TWO),
        {"A": claims(), "B": puts_budget(64)},
        of("r1 | budget 64 | r1 claimed@A, r2 queued"),
    ),
]
