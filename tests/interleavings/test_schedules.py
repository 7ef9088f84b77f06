"""A fixed sample of the schedules of every meeting; `make proof PART=schedules` walks them all."""

from __future__ import annotations

import pytest

from tests.interleavings.actors import ROLLBACK, TERMINATE
from tests.interleavings.explore import Explorer
from tests.interleavings.replaying import replay
from tests.interleavings.seen import End
from tests.interleavings.specs import CASES, spec_of
from tests.interleavings.stage import Stage
from tests.interleavings.walk import Walk

SEED = 7


def sampled(stage: Stage, name: str, number: int, **ends: End) -> Walk:
    walk = Explorer(stage, CASES[name], ends).sample(number, SEED)
    assert not walk.failures, "\n".join(failure.as_test() for failure in walk.failures)
    return walk


@pytest.mark.conformance(174)
@pytest.mark.parametrize("name", CASES)
def test_sample_of_schedules_ends_as_it_may(stage: Stage, name: str) -> None:
    assert sampled(stage, name, 4).keys


@pytest.mark.parametrize("end", [End(ROLLBACK), End(TERMINATE, 2)], ids=str)
@pytest.mark.parametrize(
    "name", [name for name in CASES if name == spec_of(CASES[name]) or name == "S4 completed"]
)
def test_session_that_does_not_commit_leaves_no_trace(stage: Stage, name: str, end: End) -> None:
    sampled(stage, name, 1, A=end)


def test_specifications_are_complete() -> None:
    assert {spec_of(case) for case in CASES.values()} == {f"S{number}" for number in range(1, 22)}


@pytest.mark.conformance(174)
def test_every_order_of_three_claims_grants_two_slots_in_turn(stage: Stage) -> None:
    """Claims queue up at the door, so the 34,650 orders of 3 x 4 steps come to a few that differ."""
    walk = Explorer(stage, CASES["S3"]).all()
    assert walk.is_whole
    assert not walk.failures
    assert walk.orders_covered({"A": 4, "B": 4, "C": 4}) == 34_650


def test_older_run_that_is_there_at_the_recheck_is_not_passed_by(stage: Stage) -> None:
    late = Explorer(stage, CASES["S7"]).follow("A:(heads2|recheck)", "B", "A")
    assert (late.problems, late.word("A")) == ([], "r9")
    too_late = Explorer(stage, CASES["S7"]).follow("A", "B")
    assert (too_late.problems, too_late.word("A")) == ([], "r1")


def test_finish_of_the_old_holder_is_lost_after_a_steal(stage: Stage) -> None:
    assert replay("S10 completed", "A" * 20).word("B") == "lost"
    assert replay("S10 completed", "B" * 20).word("A") == "nothing"
