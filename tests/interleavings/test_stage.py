"""The tools themselves: gates, steps, replays, and that whatever can be wrong is seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tenantfair.claim.base import Call
from tenantfair.sql import load
from tests.interleavings import gates
from tests.interleavings.bed import connect
from tests.interleavings.case import Case
from tests.interleavings.explore import Explorer, orders
from tests.interleavings.look import Domain, violations
from tests.interleavings.operations import LONG_AGO, Told, enqueues
from tests.interleavings.replaying import replay
from tests.interleavings.specs import CASES
from tests.interleavings.stage import Stage
from tests.interleavings.state import State, runs
from tests.interleavings.walk import Failure

# Gates


@pytest.mark.parametrize("gated", [gates.gated_claim(), gates.gated_fold()], ids=lambda gated: gated.name)
def test_installed_text_without_its_gates_is_the_shipped_one(stage: Stage, gated: gates.Gated) -> None:
    assert gated.text != load(gated.name)
    assert gates.without_gates(gated.text) == load(gated.name)
    function = gated.name.removesuffix(".v1")
    (body,) = stage.control.execute("SELECT prosrc FROM pg_proc WHERE proname = %s", [function]).fetchone()
    assert gates.MARK in body
    assert gates.without_gates(body) in load(gated.name)


def test_every_statement_of_the_claim_that_touches_a_table_has_a_gate() -> None:
    gated = gates.gated_claim()
    assert gated.of(*gates.CLAIM_SECTIONS)
    assert len(set(gated.points)) == len(gated.points)


def test_section_that_has_gone_is_an_error() -> None:
    shipped = load("tenantfair_claim.v1")
    with pytest.raises(LookupError, match="'partitions'"):
        gates.gated_claim(shipped.replace("-- Partitions: ", "-- Something: "))


def test_gates_are_open_to_everybody_else(stage: Stage) -> None:
    stage.prepare(CASES["S1"].state.script(), gates.NO_ROW_GATE)
    stage.reset()
    with connect(stage.database) as session:
        session.execute("SET lock_timeout = '1ms'")
        rows = session.execute(
            "SELECT * FROM tenantfair_claim(now(), now() - interval '1 minute', 1, 5, NULL, false)"
        ).fetchall()
        assert [row[0] for row in rows] == ["outcome", "call"]
        assert session.execute("SHOW lock_timeout").fetchone() == ("1ms",)


# Steps


def test_step_of_one_session_moves_no_other(stage: Stage) -> None:
    seen = replay("S17", "AAABBB")
    assert [what[0] for what in seen.trace] == list(seen.order)


def test_session_that_waits_for_another_goes_on_when_it_may(stage: Stage) -> None:
    seen = replay("S1", "ABABAAAAAAAAAAAA")
    assert seen.order.startswith("AB")
    assert seen.trace.index("A:done") < seen.trace.index("B:policy1")
    assert (seen.word("A"), seen.word("B")) == ("r1", "nothing")


def test_same_order_is_the_same_schedule(stage: Stage) -> None:
    assert replay("S9", "ABBABABAAB").key == replay("S9", "ABBABABAAB").key


def test_schedules_that_differ_in_a_waiting_step_only_are_one(stage: Stage) -> None:
    assert replay("S1", "ABA").key == replay("S1", "AABA").key
    assert replay("S1", "ABA").key != replay("S1", "BAB").key


@pytest.mark.parametrize(("steps", "number"), [((8, 8), 12_870), ((4, 4, 4), 34_650)])
def test_orders_of_steps_are_counted(steps: tuple[int, ...], number: int) -> None:
    assert orders(steps) == number


def test_walk_of_two_independent_sessions_meets_every_order(stage: Stage) -> None:
    apart = Case(
        "apart",
        State(scopes={"a": None, "b": None}),
        {"A": enqueues("r8", scopes="a"), "B": enqueues("r9", scopes="b")},
    )
    walk = Explorer(stage, apart).all()
    assert walk.is_whole
    assert not walk.failures
    # insert, end, fold: three steps each, and nobody waits.
    assert len(walk.keys) == walk.played == orders([3, 3])


def test_failing_schedule_prints_itself_as_a_test(stage: Stage) -> None:
    case = replace(CASES["S2"], outcomes=frozenset({"never"}))
    failure = Explorer(stage, case).sample(1, 1).failures[0]
    source = failure.as_test()
    assert "outcome: " in source
    scope: dict[str, Any] = {"replay": replay}
    exec(source, scope)
    scope["test_schedule_of_s2"]()
    with_ends = Failure("S2", "AB", "A=End('rollback', 2)", ("x",)).as_test()
    assert """replay("S2", "AB", A=End('rollback', 2))""" in with_ends


# What is judged


def broken(change: Callable[[dict[str, Any]], Any], stage: Stage, **states: str) -> list[str]:
    """Return the numbers of the invariants that a change to a good domain breaks."""
    stage.prepare(State(runs(**states)).script(), gates.NO_ROW_GATE)
    stage.reset()
    text = stage.look()
    first = Domain(text)
    assert list(violations(first, first)) == []
    found = json.loads(text)
    change(found)
    return sorted({problem.split()[0] for problem in violations(Domain(json.dumps(found)), first)})


def run(**columns: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda found: found["runs"]["r1"].update(columns)


BREACHES: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "more admitted than the cap": ("I1", lambda found: found["policies"][0].update(max_active=0)),
    "a token without a place": ("I2", run(is_admitted=False)),
    "a parked place": ("I3", run(token=None, is_timed=False, is_waking=True, is_due=False)),
    "a token without its time": ("I4", run(is_timed=False)),
    "one token twice": ("I4", lambda found: found["runs"]["r2"].update(token=found["runs"]["r1"]["token"])),
    "a count too low": ("I5", lambda found: found["ring"]["a"].update(count=0)),
    "notes left": ("I5", lambda found: found.update(pending=1)),
    "no ring position": ("I6", lambda found: found["ring"].pop("a")),
    "no partition": ("I6", lambda found: found["partitions"].pop("a")),
    "off the ring": ("I6", lambda found: found["ring"]["a"].update(in_ring=False)),
    "moved back": ("I7", lambda found: found["ring"]["b"].update(position=0)),
    "no policy": ("I8", lambda found: found.update(policies=[])),
    "an impossible cursor": ("I8", lambda found: found["policies"][0].update(scan_ring_position=9)),
    "too many starts": ("I9", run(attempts=6)),
    "poisoned and admitted": ("I10", run(is_poisoned=True)),
    "finished and claimed": ("I10", run(status="completed", is_finished=True)),
    "finished without an end": ("I10", run(status="completed")),
}


@pytest.mark.parametrize("name", BREACHES)
def test_each_invariant_can_fail(stage: Stage, name: str) -> None:
    number, change = BREACHES[name]
    assert number in broken(change, stage, r1="a claimed", r2="b claimed")


def judged(stage: Stage, **told: Told) -> list[str]:
    """Return what is wrong where two claims of S2 were told this, after a schedule that was right."""
    explorer = Explorer(stage, CASES["S2"])
    seen = explorer.replay("A" * 12)
    assert seen.problems == []
    for letter, words in told.items():
        seen.jobs[letter].result = words
    return list(replace(CASES["S2"], outcomes=frozenset(), rule=None).judge(seen, seen.looks[0]))


def call(**changes: Any) -> Call:
    return Call(**{"demand": 1, "inspections": 1, "outcomes": 1, "before": (0, 2), "after": (1, 1)} | changes)


FORGERIES: dict[str, tuple[str, dict[str, Told]]] = {
    "two outcomes of one claim": ("I15", {"A": Told("", accepted=("r1",)), "B": Told("", accepted=("r1",))}),
    "one token for two claims": (
        "I4",
        {"A": Told("", leases=(("r1", "t", LONG_AGO),)), "B": Told("", leases=(("r2", "t", LONG_AGO),))},
    ),
    "a call from elsewhere": ("I18", {"A": Told("", call=call(before=(7, 7)))}),
    "a cursor left behind": ("I18", {"A": Told("", call=call(after=(0, 2)))}),
    "a call too long": ("I21", {"A": Told("", call=call(inspections=33))}),
    "more than was asked for": ("I21", {"A": Told("", call=call(outcomes=2))}),
    "a grant without a step of the epoch": (
        "I19",
        {"A": Told("", scopes=("a",)), "B": Told("", scopes=("a",))},
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_what_sessions_were_told_is_judged(stage: Stage, name: str) -> None:
    number, told = FORGERIES[name]
    assert number in {problem.split()[0] for problem in judged(stage, **told)}
