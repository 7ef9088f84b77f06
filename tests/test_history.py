"""The judge of histories: finds nothing in a sound one, and names the one rule that a forged one breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests import oracle
from tests.history import HISTORY, judge
from tests.records import (
    Accepted,
    Called,
    Claimed,
    Due,
    Enqueued,
    Executed,
    Held,
    History,
    Inspected,
    Promoted,
    Trouble,
    Window,
)

# Two tenants, one run each at a time: a at place 1, b at place 2; the second call goes round twice.
CALLS = (
    Called((0, 0), (0, 2), [Inspected(0, 1, "a", 1, 1), Inspected(1, 2, "b")]),
    Called((0, 2), (0, 2), [], committed=False),
    Called((0, 2), (2, 1), [Inspected(2, 1, "a", 1, 1), Inspected(1, 2, "b", 1, 1), Inspected(2, 1, "a")]),
)
RING: oracle.Ring = ((1, "a"), (2, "b"))
TRACE = oracle.Trace(
    RING,
    (0, 0),
    [
        oracle.Call(
            1, (0, 0), (0, 1), (oracle.Visit(1, 0, 1, "a", "grant", 1, 1),), {"a", "b"}, {"a": 1}, {"a": 1}
        ),
        oracle.Call(
            1, (0, 1), (0, 2), (oracle.Visit(1, 1, 2, "b", "grant", 1, 1),), {"a", "b"}, {"b": 1}, {"b": 1}
        ),
    ],
    (0, 2),
)
SOUND = History(
    executed=(
        Executed("a1", "a", "t1", 1, 2),
        Executed("a2", "a", "t2", 3, 9, lease_ok=False),
        Executed("a2", "a", "t3", 8, 10),
        Executed("b1", "b", "t4", 3, 10),
    ),
    accepted=(
        Accepted("a1", "t1", "completed"),
        Accepted("a2", "t3", "failed"),
        Accepted("b1", "t4", "yielded"),
    ),
    enqueued=(
        Enqueued("a1", True),
        Enqueued("a2", True),
        Enqueued("b1", True),
        Enqueued("b2", None),
        Enqueued("c1", False),
        Enqueued("old", True),
    ),
    stored={"a1": "completed", "a2": "failed", "b1": "running"},
    removed={"old"},
    claimed=(
        Claimed("a1", "a", "t1", 0.5, 1),
        Claimed("a2", "a", "t2", 2.5, 1),
        Claimed("a2", "a", "t3", 7.5, 1, promoted=False),
        Claimed("b1", "b", "t4", 2.5, 1),
    ),
    promoted=(
        Promoted("a", "a1", 0.1, 1, at=0.4, visible=0.2),
        Promoted("a", "a2", 0.2, 2, at=2.4, visible=0.3),
    ),
    calls=CALLS,
    epochs={"a": 2, "b": 1},
    steady={"a", "b"},
    windows=(Window(TRACE, "b", {"a", "b"}, 0),),
    due=(Due("a", 0.2, 0.5, 1), Due("b", 0.2, 2.5, 3)),
    held=(Held("b1", True, 10, None, 60, 1), Held("a2", False, 10, 72, 60, 1)),
    troubles=(Trouble("55P03", claim_waited=0.26), Trouble(idle_in_transaction=0.2)),
    logged=("57P01", "57P01"),
    allowed={"57P01"},
)


def without(records: Any, place: int) -> Any:
    return (*records[:place], *records[place + 1 :])


def altered(records: Any, place: int, **changes: Any) -> Any:
    return (*records[:place], replace(records[place], **changes), *records[place + 1 :])


def called(**changes: Any) -> Any:
    return {"calls": altered(CALLS, 2, **changes)}


FORGED: list[tuple[str, dict[str, Any]]] = [
    ("I13", {"executed": altered(SOUND.executed, 1, lease_ok=True), "claimed": ()}),
    ("I13", {"accepted": (*SOUND.accepted, Accepted("a2", "t2", "yielded"))}),
    ("I14", {"stored": {"a2": "failed", "b1": "running"}}),
    ("I14", {"stored": {**(SOUND.stored or {}), "c1": "running"}}),
    ("I14", {"stored": {**(SOUND.stored or {}), "x": "running"}}),
    ("I15", {"accepted": (*SOUND.accepted, Accepted("b1", "t4", "yielded"))}),
    ("I15", {"accepted": (*SOUND.accepted, Accepted("a1", "t9", "completed"))}),
    ("I15", {"accepted": altered(SOUND.accepted, 0, outcome="failed")}),
    ("I16", {"executed": (*SOUND.executed, Executed("b2", "b", "t5", 4, 5))}),
    ("I16", {"claimed": (*SOUND.claimed, Claimed("b2", "b", "t5", 4, 1))}),
    ("I17", {"promoted": SOUND.promoted[::-1]}),
    ("I18", {"calls": altered(CALLS, 1, committed=True, after=(0, 1))}),
    ("I18", called(after=(1, 1))),
    ("I18", called(visits=altered(CALLS[2].visits, 1, before=2))),
    ("I19", {"epochs": {"a": 3, "b": 1}}),
    ("I19", {"epochs": {"a": 2}}),
    (
        "I20",
        {
            "calls": (
                Called((0, 0), (1, 1), [Inspected(0, 1, "a", 1), Inspected(1, 1, "a", 1)]),
                Called((1, 1), (1, 2), [Inspected(1, 2, "b", 1)]),
            )
        },
    ),
    ("I20", {"windows": (replace(SOUND.windows[0], trace=replace(TRACE, entries=TRACE.entries[:1])),)}),
    ("I21", called(visits=altered(CALLS[2].visits, 0, locked=17))),
    ("I21", called(visits=altered(CALLS[2].visits, 0, outcomes=257))),
    (
        "I21",
        {
            "calls": [Called((0, 0), (32, 1), [Inspected(place > 0, 1, "a", 1) for place in range(33)])],
            "epochs": {"a": 33},
            "steady": {"a"},
        },
    ),
    ("I22", {"due": altered(SOUND.due, 1, at=3.3)}),
    ("I22", {"due": altered(SOUND.due, 1, at=None)}),
    ("I23", {"held": altered(SOUND.held, 1, gone=72.1)}),
    ("I23", {"held": altered(SOUND.held, 1, gone=None)}),
    ("I24", {"troubles": (Trouble("40P01"),)}),
    ("I24", {"troubles": (Trouble(claim_waited=0.6),)}),
    ("I24", {"troubles": (Trouble(idle_in_transaction=1.1),)}),
    ("I25", {"logged": ("57P01", "XX000")}),
]


def test_sound_history_has_no_violation() -> None:
    assert judge(SOUND) == []


def test_nothing_recorded_is_nothing_judged() -> None:
    assert judge(History()) == []


@pytest.mark.parametrize(("invariant", "changes"), FORGED, ids=[name for name, _ in FORGED])
def test_forged_history_is_named_by_the_rule_it_breaks(invariant: str, changes: dict[str, Any]) -> None:
    assert {found.invariant for found in judge(replace(SOUND, **changes))} == {invariant}


def test_every_rule_of_histories_is_broken_here() -> None:
    assert {name for name, _ in FORGED} == set(HISTORY)
