"""Builds that have lost a lock, a fence, an order or a step: the schedules tell each of them."""

from __future__ import annotations

import pytest

from tests.interleavings.breakages import BREAKAGES, Breakage, intact
from tests.interleavings.explore import Explorer
from tests.interleavings.specs import CASES
from tests.interleavings.stage import Stage

MOST = 400


@pytest.mark.conformance(175)
@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda breakage: breakage.rule)
def test_schedules_tell_when_it_no_longer_holds_that(stage: Stage, breakage: Breakage) -> None:
    with breakage.broken(stage):
        failure = Explorer(stage, CASES[breakage.case]).first_failure(MOST, breakage.told_by)
    assert failure is not None, f"{MOST} schedules of {breakage.case} show nothing"
    with intact(stage):
        seen = Explorer(stage, CASES[breakage.case]).replay(failure.order)
    assert seen.problems == []
