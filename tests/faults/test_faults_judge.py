"""The judge of the soak names what a forged diary tells it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.faults.diary import Diary
from tests.faults.judge import History, Stored, most_at_once, verdict

LEASE = 2.0
CAPS = {"acme": 2}


def judged(*lines: tuple[str, Any], rows: dict[str, Stored] | None = None) -> list[str]:
    history = History()
    for letter, facts in lines:
        history.add(letter, facts)
    stored = {run: Stored("running", None) for run in history.asked - history.rolled_back}
    return verdict(history, {**stored, **(rows or {})}, lease=LEASE, caps=CAPS, max_attempts=5)


def enqueued(*runs: str) -> tuple[tuple[str, Any], ...]:
    return ("e", [0.0, "", list(runs)]), ("k", [list(runs)])


def claimed(run: str, token: str, at: float, attempt: int = 1) -> tuple[str, Any]:
    return "c", [at + 0.01, [[run, token, "acme", at, attempt]]]


def sent(token: str, at: float, kind: str = "completed") -> tuple[str, Any]:
    return "f", [at, [[token, kind]]]


def accepted(token: str) -> tuple[str, Any]:
    return "a", [0.0, [token], []]


def refused(token: str) -> tuple[str, Any]:
    return "a", [0.0, [], [token]]


two_claims_of_r1 = (claimed("r1", "t1", 1.0), claimed("r1", "t2", 2.0))
SOUND = (*enqueued("r1"), claimed("r1", "t1", 1.0), sent("t1", 1.5), accepted("t1"))
COMPLETED = {"r1": Stored("completed", "t1")}


def test_a_sound_history_has_no_violation() -> None:
    assert judged(*SOUND, rows=COMPLETED) == []


@pytest.mark.parametrize(
    ("lines", "rows", "named"),
    [
        # Claimed again while the first holder had its lease and had sent nothing.
        ([*enqueued("r1"), claimed("r1", "t1", 1.0), claimed("r1", "t2", 2.0)], {}, "I13"),
        # The same, though the first holder's heartbeat had moved the end of its lease.
        (
            [*enqueued("r1"), claimed("r1", "t1", 1.0), ("h", [2.5, ["t1"]]), claimed("r1", "t2", 3.5)],
            {},
            "I13",
        ),
        # A revocation that was over before the claim ends nothing.
        (
            [*enqueued("r1"), ("x", [0.8, "r1"]), ("y", [0.9, "r1"]), *two_claims_of_r1],
            {},
            "I13",
        ),
        # A refused outcome ends no lease.
        (
            [
                *enqueued("r1"),
                claimed("r1", "t1", 1.0),
                sent("t1", 1.2),
                refused("t1"),
                claimed("r1", "t2", 1.5),
            ],
            {},
            "I13",
        ),
        (
            [*enqueued("r1", "r2"), claimed("r1", "t1", 1.0), claimed("r2", "t1", 1.0)],
            {},
            "I4",
        ),
        ([*enqueued("r1"), claimed("r1", "t1", 1.0, attempt=6)], {}, "I9"),
        # Lost after its commit was answered; there though it was rolled back; there and nobody's.
        ([("e", [0.0, "", []]), ("k", [["r9"]])], {}, "I14"),
        ([("e", [0.0, "", ["r1"]]), ("r", [["r1"]])], {"r1": Stored("running", None)}, "I14"),
        ([], {"r1": Stored("running", None)}, "I14"),
        ([*SOUND, accepted("t1")], COMPLETED, "I15"),
        ([*SOUND], {"r1": Stored("running", None)}, "I15"),
        ([*SOUND], {"r1": Stored("completed", "t2")}, "I15"),
        ([*SOUND, claimed("r1", "t2", 2.0)], COMPLETED, "I15"),
        (
            [*enqueued("r1", "r2", "r3"), *(claimed(f"r{n}", f"t{n}", 1.0 + n / 10) for n in (1, 2, 3))],
            {},
            "I16",
        ),
    ],
)
def test_each_forgery_is_named(lines: list[tuple[str, Any]], rows: dict[str, Stored], named: str) -> None:
    found = judged(*lines, rows=rows)

    assert found
    assert {text.split()[0] for text in found} == {named}


def test_what_ends_a_claim_ends_it_for_the_judge() -> None:
    three = enqueued("r1", "r2", "r3")
    two = claimed("r1", "t1", 1.0), claimed("r2", "t2", 1.0)
    # By a lease's end, an outcome without an answer, a revocation: then the third may follow.
    assert judged(*three, *two, claimed("r3", "t3", 3.1)) == []
    assert judged(*three, *two, sent("t1", 1.2, "yielded"), claimed("r3", "t3", 1.3)) == []
    assert judged(*three, *two, ("x", [1.2, "r1"]), claimed("r3", "t3", 1.3)) == []
    # One that was asked for before the claim and had its effect after it.
    assert judged(*three, ("x", [0.9, "r1"]), *two, ("y", [1.1, "r1"]), claimed("r3", "t3", 1.3)) == []


def test_the_most_at_once_counts_what_is_certainly_in_progress() -> None:
    history = History()
    for line in (
        claimed("r1", "t1", 1.0),
        claimed("r2", "t2", 1.1),
        sent("t1", 1.2),
        claimed("r3", "t3", 1.3),
    ):
        history.add(*line)

    assert most_at_once(history, LEASE) == {"acme": 2}


def test_a_line_that_was_cut_short_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "diary"
    Diary(path).write("k", ["r1"])
    with path.open("ab") as file:
        file.write(b'k [["r2"')

    assert History.read([path]).enqueued == {"r1"}
    assert json.loads(path.read_bytes().splitlines()[0][2:]) == [["r1"]]
