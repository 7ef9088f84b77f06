"""The example's judge: what it lets pass, what it condemns, and what it declines to judge."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from example_project import judge as rules
from example_project.judge import Bound, bound, judge
from example_project.record import Record, RunMoved, ScopeChanged, Snapshot, Turn

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Story:
    """A record, told event by event: each is a transaction, committed before the next begins."""

    def __init__(self, *, cap: int = 100, budget: int = 32) -> None:
        self.cap, self.budget = cap, budget
        self.turns: list[Turn] = []
        self.runs: list[RunMoved] = []
        self.scopes: list[ScopeChanged] = []
        self.queues: dict[str, list[UUID]] = {}
        self.xid = 0
        self.cursor = self.written = (0, 0)
        self.statement = 0

    def begin(self) -> int:
        self.xid += 1
        return self.xid

    def enqueue(self, scope: str, count: int, due: datetime = NOON) -> None:
        """Enqueue runs of a scope; its first ones put it on the ring."""
        xid = self.begin()
        queue = self.queues.setdefault(scope, [])
        if not queue:
            self.scopes.append(ScopeChanged(len(self.scopes), xid, scope, "joined", None))
        for _ in range(count):
            run_id = UUID(int=len(self.runs) + 1)
            queue.append(run_id)
            self._move(xid, scope, run_id, "gone", "queued", due)

    def leave(self, scope: str) -> None:
        self.scopes.append(ScopeChanged(len(self.scopes), self.begin(), scope, "left", None))

    def override(self, scope: str, cap: int) -> None:
        self.scopes.append(ScopeChanged(len(self.scopes), self.begin(), scope, "cap", cap))

    def policy(self) -> None:
        """Change the policy; every story begins so, as a worker's start does."""
        self._turn(self.begin(), is_call=False)

    def call(
        self, *grants: tuple[str, int], unseen: frozenset[int] = frozenset(), at: datetime = NOON
    ) -> None:
        """One claim call with its grants in the order of the visits, as (scope, number of outcomes)."""
        xid = self.begin()
        for scope, outcomes in grants:
            self.statement += 1
            for _ in range(outcomes):
                self._move(xid, scope, self.queues[scope].pop(0), "queued", "claimed", None)
        self.cursor = (self.cursor[0] + 1, self.cursor[1])
        self._turn(xid, is_call=True, unseen=unseen, at=at)

    def finish(self, scope: str, run_id: UUID) -> int:
        xid = self.begin()
        self._move(xid, scope, run_id, "claimed", "gone", None)
        return xid

    def told(self) -> Record:
        return Record(self.turns, self.runs, self.scopes)

    def _move(
        self, xid: int, scope: str, run_id: UUID, before: str, after: str, due: datetime | None
    ) -> None:
        move = RunMoved(len(self.runs), xid, NOON, self.statement, scope, run_id, before, after, due)
        self.runs.append(move)

    def _turn(
        self, xid: int, *, is_call: bool, unseen: frozenset[int] = frozenset(), at: datetime = NOON
    ) -> None:
        before, self.written = self.written, self.cursor
        snapshot = Snapshot(min({xid, *unseen}), xid + 1, unseen | {xid})
        self.turns.append(Turn(xid, snapshot, is_call, at, before, self.cursor, self.cap, self.budget))


def three_tenants(**limits: int) -> Story:
    """Two busy tenants and the target, all with work on the ring before the first call."""
    story = Story(**limits)
    for scope in ("hot", "warm", "target"):
        story.enqueue(scope, 50)
    story.policy()
    return story


@pytest.mark.parametrize(
    ("cohort", "ring", "failures", "expected"),
    [
        (1, 1, 0, (0, 0, 1)),
        (2, 2, 0, (1, 8, 2)),
        (2, 2, 1, (2, 16, 4)),
        (2, 35, 0, (1, 8, 3)),
        (10, 100, 0, (9, 72, 12)),
        (5, 1000, 2, (12, 96, 108)),
        (33, 33, 0, (32, 256, 33)),
        (1, 501, 0, (0, 0, 16)),
        (1, 33, 0, (0, 0, 2)),
    ],
)
def test_the_bound_follows_its_formulas(
    cohort: int, ring: int, failures: int, expected: tuple[int, int, int]
) -> None:
    assert bound(cohort, ring, 32, failures=failures) == Bound(*expected)


def test_the_bound_knows_small_budgets_and_quanta() -> None:
    assert bound(2, 3, 2, failures=1, quantum=2) == Bound(2, 4, 4)
    assert bound(3, 3, 1, failures=2, quantum=2) == Bound(6, 12, 9)


@pytest.mark.parametrize(
    ("cohort", "ring", "budget", "failures", "quantum"),
    [(0, 1, 32, 0, 8), (2, 1, 32, 0, 8), (1, 1, 0, 0, 8), (1, 1, 32, -1, 8), (1, 1, 32, 0, 0)],
)
def test_there_is_no_bound_for_what_is_no_window(
    cohort: int, ring: int, budget: int, failures: int, quantum: int
) -> None:
    with pytest.raises(ValueError, match="no window"):
        bound(cohort, ring, budget, failures=failures, quantum=quantum)


def test_a_window_at_its_bound_passes() -> None:
    story = three_tenants()
    story.call(("hot", 8))
    story.call(("warm", 8))
    story.call(("target", 1))

    verdict = judge(story.told())

    window = verdict.eligible[-1]
    assert (window.scope, window.ring) == ("target", 3)
    assert window.seen == window.limit == Bound(2, 16, 3)
    assert not verdict.breaches


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param([[("hot", 1)], [("hot", 1)], [("target", 1)]], id="one competitor twice"),
        pytest.param([[("hot", 9)], [("target", 1)]], id="more outcomes than a grant has"),
        pytest.param([[("hot", 1)], [], [], [("target", 1)]], id="too many calls"),
        pytest.param([[("hot", 1), ("warm", 1), ("hot", 1), ("target", 1)]], id="twice within one call"),
    ],
)
def test_a_window_above_its_bound_is_a_breach(calls: list[list[tuple[str, int]]]) -> None:
    story = three_tenants()
    for grants in calls:
        story.call(*grants)

    assert [window.scope for window in judge(story.told()).breaches] == ["target"]


def test_what_comes_after_the_target_in_its_call_is_not_held_against_it() -> None:
    story = three_tenants()
    story.call(("target", 1), ("hot", 8), ("warm", 8))

    assert judge(story.told()).eligible[0].seen == Bound(0, 0, 1)


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        pytest.param(lambda story: story.enqueue("new", 1), rules.RING_CHANGED, id="a scope joins"),
        pytest.param(lambda story: story.leave("warm"), rules.RING_CHANGED, id="a scope leaves"),
        pytest.param(lambda story: story.override("warm", 7), rules.RING_CHANGED, id="an override"),
        pytest.param(lambda story: story.policy(), rules.POLICY_CHANGED, id="the policy changes"),
        pytest.param(
            lambda story: (story.call(), story.turns.pop()), rules.CALL_MISSING, id="a call is missing"
        ),
    ],
)
def test_a_window_in_which_something_changed_is_refused_and_never_passed(
    event: Callable[[Story], object], reason: str
) -> None:
    story = three_tenants()
    story.call(("hot", 1))
    event(story)
    story.call(("target", 1))

    verdict = judge(story.told())

    assert verdict.ineligible[reason] >= 1
    assert "target" not in {window.scope for window in verdict.eligible if window.seen.calls > 1}


def test_a_window_that_opens_during_a_call_is_refused() -> None:
    story = Story(cap=1)
    story.enqueue("hot", 50)
    story.enqueue("target", 2)
    story.policy()
    story.call(("target", 1))
    story.finish("target", UUID(int=51))
    story.call(("target", 1))

    verdict = judge(story.told())

    assert [window.scope for window in verdict.eligible] == ["target"]
    assert verdict.ineligible == {rules.OPENED_LATE: 1}


def test_a_tenant_whose_next_run_is_not_due_is_not_waiting() -> None:
    story = Story()
    story.enqueue("hot", 50)
    story.enqueue("target", 1, due=NOON + timedelta(seconds=1))
    story.policy()
    for _ in range(5):
        story.call(("hot", 1))
    story.call(at=NOON + timedelta(seconds=1))
    story.call(("target", 1), at=NOON + timedelta(seconds=1))

    assert judge(story.told()).eligible[-1].seen == Bound(0, 0, 2)


def test_a_target_that_ceases_to_be_admissible_is_refused() -> None:
    story = Story()
    story.enqueue("hot", 50)
    story.enqueue("target", 1)
    story.policy()
    story.call(("hot", 1))
    story.call(("hot", 1), at=NOON - timedelta(seconds=1))

    assert judge(story.told()).ineligible[rules.NOT_ADMISSIBLE] == 1


def test_what_happened_before_the_first_turn_opens_no_window() -> None:
    story = Story()
    story.enqueue("target", 1)
    story.call(("target", 1))

    verdict = judge(story.told())

    assert not verdict.eligible
    assert verdict.ineligible == {rules.OPENED_LATE: 1}


def test_a_cap_is_exceeded_when_a_freed_slot_is_used_before_its_commit() -> None:
    """The slot of a run whose finish the claim could not see yet is still taken."""
    held, exceeded = Story(cap=1), Story(cap=1)
    for story in (held, exceeded):
        story.enqueue("target", 2)
        story.policy()
        story.call(("target", 1))
        finish = story.finish("target", UUID(int=1))
        story.call(("target", 1), unseen=frozenset({finish} if story is exceeded else ()))

    assert not judge(held.told()).over_cap
    assert judge(held.told()).peaks == {"target": (1, 1)}
    assert judge(exceeded.told()).over_cap == ["target: 2 admitted, the cap is 1"]


def test_an_override_is_the_cap_that_counts() -> None:
    story = Story(cap=1)
    story.enqueue("target", 2)
    story.override("target", 2)
    story.policy()
    story.call(("target", 2))

    assert judge(story.told()).peaks == {"target": (2, 2)}
    assert not judge(story.told()).over_cap


def test_windows_of_a_tenant_alone_on_the_ring_are_told_apart() -> None:
    story = Story()
    story.enqueue("target", 2)
    story.policy()
    story.call(("target", 1))

    verdict = judge(story.told())

    assert len(verdict.eligible) == 1
    assert verdict.contended == []


def test_a_snapshot_reads_its_text_form() -> None:
    snapshot = Snapshot.parse("10:15:11,13")

    assert [xid for xid in range(8, 17) if snapshot.sees(xid)] == [8, 9, 10, 12, 14]
    assert Snapshot.parse("10:10:") == Snapshot(10, 10, frozenset())
