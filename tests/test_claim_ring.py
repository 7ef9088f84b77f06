"""The walk: which positions a call inspects, in which order, and where it leaves the cursor."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.claim_support import NOW, SHIPPED, Bench, at, bench, inserted

pytestmark = pytest.mark.django_db


@pytest.fixture
def domain(db: None) -> Iterator[Bench]:
    with bench() as found:
        yield found


def scopes(number: int) -> list[str]:
    return [f"t{place:02}" for place in range(number)]


@pytest.mark.conformance(40)
def test_empty_ring_inspects_nothing_and_keeps_the_cursor(domain: Bench) -> None:
    domain.override("a", 5)
    domain.policy(cursor=42, laps=3)
    found = domain.claim(5, trace=True)
    assert [row.row_kind for row in found.rows] == ["call"]
    call = found.call
    assert (call.inspections, call.outcome_count, found.denials) == (0, 0, {})
    assert (call.laps_before, call.cursor_before) == (call.laps_after, call.cursor_after) == (3, 42)
    assert domain.cursor() == (3, 42)


@pytest.mark.conformance(41)
def test_fruitless_call_inspects_a_whole_budget_of_distinct_scopes(domain: Bench) -> None:
    names = scopes(40)
    for name in names:
        domain.waiting(name)
    domain.policy(cursor=domain.position(names[-2]))
    found = domain.claim(3)
    assert found.visited == [names[-1], *names[:31]]
    assert (found.call.laps_after, found.call.cursor_after) == (1, domain.position(names[30]))


@pytest.mark.conformance(42)
def test_finished_scope_is_never_visited_and_keeps_its_position(domain: Bench) -> None:
    run, position = domain.queued("a")[0], domain.position("a")
    domain.waiting("b")
    domain.finish(run)
    assert set(domain.claim().visited) == {"b"}
    domain.queued("a")
    assert domain.position("a") == position
    assert set(domain.claim().visited) == {"a"}


@pytest.mark.conformance(43)
@pytest.mark.parametrize("size", [1, 3])
def test_short_ring_is_walked_round_until_the_budget_is_spent(domain: Bench, size: int) -> None:
    names = scopes(size)
    for name in names:
        domain.waiting(name)
    found = domain.claim(2)
    walk = (names * 32)[:32]
    assert found.visited == walk
    assert [row.ring_position for row in found.inspections] == [domain.position(name) for name in walk]
    assert domain.cursor() == (31 // size, domain.position(walk[-1]))


@pytest.mark.conformance(43)
@pytest.mark.parametrize("budget", [32, 100, 4096])
def test_budget_is_the_policys(domain: Bench, budget: int) -> None:
    domain.policy(budget=budget)
    for name in scopes(3):
        domain.waiting(name)
    assert domain.claim(2, trace=False).call.inspections == budget
    assert len(domain.claim(2).inspections) == budget


@pytest.mark.conformance(44)
def test_inspections_follow_each_other_from_the_stored_cursor(domain: Bench) -> None:
    for name in scopes(6):
        domain.queued(name, 2)
        domain.waiting(name)
    start = domain.position("t02")
    domain.policy(cursor=start)
    found = domain.claim(30)
    assert found.inspections[0].cursor_before == start
    for before, after in pairwise(found.inspections):
        assert before.cursor_after == after.cursor_before
    assert all(row.cursor_after == row.ring_position for row in found.inspections)
    assert [row.visit_ordinal for row in found.inspections] == list(range(1, 33))
    assert domain.cursor()[1] == found.inspections[-1].cursor_after


@pytest.mark.conformance(45, 46)
@pytest.mark.parametrize(("demand", "visits"), [(1, 1), (2, 2), (4, 4), (5, 5), (8, 5)])
def test_filled_demand_stops_the_walk_at_once(domain: Bench, demand: int, visits: int) -> None:
    names = scopes(5)
    for name in names:
        domain.queued(name, 9)
    found = domain.claim(demand)
    assert len(found.outcomes) == demand
    assert found.visited == names[:visits]
    assert domain.cursor() == (0, domain.position(names[visits - 1]))


@pytest.mark.conformance(45)
def test_walk_ends_at_the_last_position_of_its_plan_however_far_the_probe_has_looked(domain: Bench) -> None:
    names = scopes(14)
    for name in names[:4]:
        domain.waiting(name)
    for name in names[4:]:
        domain.queued(name, 9)
    found = domain.claim(2)
    assert (found.visited, found.scopes) == (names[:6], names[4:6])
    assert domain.cursor() == (0, domain.position(names[5]))


@pytest.mark.conformance(45)
@pytest.mark.parametrize("before", [0, 3, 32, 4096])
def test_what_the_last_call_walked_in_vain_is_remembered_and_changes_no_walk(
    domain: Bench, before: int
) -> None:
    names = scopes(14)
    for name in names[:4]:
        domain.waiting(name)
    for name in names[4:]:
        domain.queued(name, 9)
    domain.policy(fruitless=before)
    remembered = [before]
    for walk, served in ((names[:6], names[4:6]), (names[6:8], names[6:8])):
        found = domain.claim(2)
        assert (found.visited, found.scopes) == (walk, served)
        remembered.append(domain.db.execute("SELECT scan_fruitless FROM tenantfair_policy").fetchone()[0])
    assert remembered == [before, 4, 0]


@pytest.mark.conformance(43, 45)
@pytest.mark.parametrize("ahead", [1, 2])
def test_probe_that_looks_further_never_looks_past_the_end_of_its_lap(domain: Bench, ahead: int) -> None:
    names = scopes(5)
    for name in names:
        domain.waiting(name)
    domain.queued(names[0])
    domain.policy(cursor=domain.position(names[-1 - ahead]))
    found = domain.claim(1)
    assert (found.visited, found.scopes) == ([*names[-ahead:], names[0]], [names[0]])
    assert domain.cursor() == (1, domain.position(names[0]))


@pytest.mark.conformance(45, 48)
def test_work_that_comes_behind_the_probe_waits_for_the_next_lap(domain: Bench) -> None:
    stopped = domain.function(
        "claim_stopped", inserted(SHIPPED, "PERFORM tests_barrier();", before="v_before := v_look;")
    )
    for name in ("a", "b"):
        domain.waiting(name)
    domain.queued("c", 5)
    domain.policy(cursor=domain.position("a"))
    found = domain.while_stopped(lambda: domain.queued("b", 5), stopped)
    assert (found.visited, found.dispositions) == (["b", "c"], ["empty_page", "grant"])
    assert domain.claim(1).visited == ["a", "b"]


@pytest.mark.conformance(43)
def test_laps_of_one_call_are_told_from_one_look_at_the_whole_ring(domain: Bench) -> None:
    """What comes after the first, short look at the start of a lap is seen by the one that shows it whole."""
    stopped = domain.function(
        "claim_stopped",
        inserted(SHIPPED, "PERFORM tests_barrier();", after="v_chunk := least(v_chunk * 32, v_visits);"),
    )
    for name in ("a", "b"):
        domain.waiting(name)
    found = domain.while_stopped(lambda: domain.queued("a", 5), stopped)
    assert (found.visited, found.dispositions) == (["a"], ["grant"])


@pytest.mark.conformance(47)
def test_any_cursor_is_a_place_to_go_on_from(domain: Bench) -> None:
    """Beyond every position, at a deleted one, and between sparse ones."""
    for name in scopes(5):
        domain.queued(name, 9)
    for gone in ("t01", "t03"):
        domain.db.execute("DELETE FROM tenantfair_run WHERE scope_key = %s", [gone])
    deleted = domain.position("t01")
    domain.db.execute("DELETE FROM tenantfair_partition WHERE scope_key = 't01'")
    domain.policy(cursor=deleted)
    assert domain.claim(2).visited == ["t02", "t04"]
    domain.policy(cursor=10**12, laps=6)
    assert domain.claim(2).visited == ["t00", "t02"]
    assert domain.cursor()[0] == 7


@pytest.mark.conformance(48)
def test_scope_that_joins_under_a_plan_waits_for_the_next(domain: Bench) -> None:
    stopped = domain.function(
        "claim_stopped", inserted(SHIPPED, "PERFORM tests_barrier();", before="v_tried := NULL;")
    )
    domain.queued("a", 5)
    found = domain.while_stopped(lambda: domain.queued("b", 5), stopped, 2)
    assert found.visited == ["a"]
    assert domain.claim(1).visited == ["b"]


@pytest.mark.conformance(48)
@pytest.mark.parametrize(
    ("joining", "visited"),
    [("b", ["a", "b"]), ("d", ["a", "c", "d"])],
    ids=["at its place", "at a new place"],
)
def test_scope_that_joins_ahead_under_a_plan_is_visited_when_the_call_plans_again(
    domain: Bench, joining: str, visited: list[str]
) -> None:
    """The first plan sees `a` to `c` and plans for `a`, where a lock then leaves the demand open."""
    stopped = domain.function(
        "claim_stopped", inserted(SHIPPED, "PERFORM tests_barrier();", before="v_tried := NULL;")
    )
    (head,) = domain.queued("a")
    domain.finish(*domain.queued("b"))
    domain.waiting("c")
    domain.policy(fruitless=8)

    def meanwhile() -> None:
        domain.locking_runs(head)
        domain.queued(joining)

    found = domain.while_stopped(meanwhile, stopped)
    assert found.visited == visited
    assert (found.dispositions[0], found.dispositions[-1]) == ("lock_miss", "grant")
    assert found.call.laps_after == 0


@pytest.mark.conformance(49)
def test_calls_of_one_transaction_continue_each_other_and_roll_back_together(domain: Bench) -> None:
    for name in scopes(3):
        domain.queued(name, 5)
    before = domain.everything()
    caller = domain.session()
    caller.execute("BEGIN")
    assert domain.claim(2, by=caller).visited == ["t00", "t01"]
    assert domain.claim(3, by=caller).visited == ["t02"]
    assert domain.claim(1, by=caller).visited == ["t00"]
    caller.execute("ROLLBACK")
    assert domain.everything() == before


@pytest.mark.conformance(49)
def test_claim_sees_what_its_own_transaction_enqueued_and_finished(domain: Bench) -> None:
    old = domain.queued("a")[0]
    caller = domain.session()
    caller.execute("BEGIN")
    caller.execute(
        "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at) VALUES ('b', 'tests.task', %s)", [at(-1)]
    )
    caller.execute(
        "UPDATE tenantfair_run SET status = 'completed', wake_at = NULL, finished_at = now() WHERE id = %s",
        [old],
    )
    found = domain.claim(5, by=caller)
    assert (set(found.visited), found.scopes) == ({"b"}, ["b"])
    caller.execute("COMMIT")


@pytest.mark.conformance(50)
def test_scopes_with_nothing_due_are_inspected_and_empty(domain: Bench) -> None:
    domain.waiting("waiting")
    domain.poisoned("poisoned")
    domain.queued("timer", wake=3600)
    domain.claimed("claimed")
    domain.ready("early", wake=1)
    found = domain.claim(3, now=NOW)
    assert found.visited[:5] == ["waiting", "poisoned", "timer", "claimed", "early"]
    assert set(found.dispositions) == {"empty_page"}
    assert found.denials == {"empty_page": 32}
