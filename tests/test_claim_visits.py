"""One visit: what it locks, what it skips, how many it grants, and what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg import errors

from tests.claim_support import MAX_ATTEMPTS, Bench, at, bench, stopping_before_locks

pytestmark = pytest.mark.django_db


@pytest.fixture
def domain(db: None) -> Iterator[Bench]:
    with bench() as found:
        yield found


@pytest.fixture
def stopped(domain: Bench) -> str:
    return domain.function("claim_stopped", stopping_before_locks())


# Locks of others. Queues alone, admitted work, and expired work are claimed by statements of their own.

KINDS = ["queued", "ready", "expired"]


@pytest.mark.conformance(51)
@pytest.mark.parametrize("strength", ["UPDATE", "NO KEY UPDATE", "SHARE"])
@pytest.mark.parametrize("kind", KINDS)
def test_locked_partition_is_skipped_and_the_walk_goes_on(domain: Bench, strength: str, kind: str) -> None:
    getattr(domain, kind)("a")
    getattr(domain, kind)("b")
    domain.locking_partition("a", strength)
    found = domain.claim()
    assert (found.dispositions, found.scopes) == (["partition_lock_skip", "grant"], ["b"])
    assert found.denials == {"partition_lock_skip": 1}
    assert domain.epoch("a") == 0


@pytest.mark.conformance(51)
@pytest.mark.parametrize("kind", KINDS)
def test_key_share_on_a_partition_disturbs_nobody(domain: Bench, kind: str) -> None:
    getattr(domain, kind)("a")
    domain.locking_partition("a", "KEY SHARE")
    assert domain.claim().scopes == ["a"]


@pytest.mark.conformance(51)
@pytest.mark.parametrize("strength", ["UPDATE", "NO KEY UPDATE", "SHARE"])
def test_locked_partition_is_skipped_where_several_runs_of_each_queue_are_wanted(
    domain: Bench, strength: str
) -> None:
    domain.queued("a", 3)
    domain.queued("b", 3)
    domain.locking_partition("a", strength)
    found = domain.claim(3)
    assert found.dispositions == ["partition_lock_skip", "grant"] * 3
    assert found.scopes == ["b", "b", "b"]
    assert domain.epoch("a") == 0


@pytest.mark.conformance(51)
def test_key_share_disturbs_nobody_where_several_runs_of_each_queue_are_wanted(domain: Bench) -> None:
    domain.queued("a", 3)
    domain.queued("b", 3)
    domain.locking_partition("a", "KEY SHARE")
    assert domain.claim(3).scopes == ["a", "a", "b"]


@pytest.mark.conformance(52)
def test_locked_schedule_row_disturbs_nobody(domain: Bench) -> None:
    domain.queued("a")
    domain.holding("SELECT FROM tenantfair_schedule FOR UPDATE")
    assert domain.claim().scopes == ["a"]


@pytest.mark.conformance(53)
@pytest.mark.parametrize("kind", ["ready", "queued", "expired"])
def test_locked_page_is_not_replaced_by_what_stands_behind_it(domain: Bench, kind: str) -> None:
    domain.policy(cap=100)
    page = [getattr(domain, kind)("a")[0] for _ in range(16)]
    behind = getattr(domain, kind)("a")[0]
    before = domain.run(behind)
    domain.locking_runs(*page)
    found = domain.claim(8)
    assert found.outcomes == []
    assert found.dispositions == ["lock_miss"] * 32
    assert domain.run(behind) == before


@pytest.mark.conformance(54)
@pytest.mark.parametrize("kind", ["ready", "expired"])
def test_locked_admitted_row_does_not_stop_its_neighbours(domain: Bench, kind: str) -> None:
    rows = [getattr(domain, kind)("a")[0] for _ in range(4)]
    domain.locking_runs(rows[0], rows[2])
    found = domain.claim(4)
    assert domain.ids(found.outcomes) == [rows[1], rows[3]]
    assert found.dispositions[0] == "grant"


@pytest.mark.conformance(55)
@pytest.mark.parametrize("kind", KINDS)
def test_locked_row_sends_the_demand_to_the_next_scope(domain: Bench, kind: str) -> None:
    locked = getattr(domain, kind)("a")[0]
    getattr(domain, kind)("b")
    domain.locking_runs(locked)
    found = domain.claim()
    assert (found.dispositions, found.scopes) == (["lock_miss", "grant"], ["b"])


@pytest.mark.conformance(55)
def test_locked_row_stops_its_queue_alone_where_several_runs_of_each_are_wanted(domain: Bench) -> None:
    first = domain.queued("a", 3)
    other = domain.queued("b", 3)
    domain.locking_runs(first[1])
    found = domain.claim(3)
    assert domain.ids(found.outcomes) == [first[0], *other[:2]]


@pytest.mark.conformance(56)
@pytest.mark.parametrize(("kind", "number"), [("queued", 1), ("queued", 2), ("ready", 1), ("expired", 1)])
def test_open_transaction_with_a_row_that_points_at_the_run_does_not_lock_it_out(
    domain: Bench, kind: str, number: int
) -> None:
    found = [run for _ in range(number) for run in getattr(domain, kind)("a")]
    domain.db.execute("CREATE TABLE tests_child (run bigint REFERENCES tenantfair_run)")
    writer = domain.holding("INSERT INTO tests_child VALUES (%s)", [found[0]])
    claimed = domain.claim(number)
    assert (claimed.dispositions, domain.ids(claimed.outcomes)) == (["grant"], found)
    writer.rollback()
    domain.db.execute("DROP TABLE tests_child")


# Rows that change between the page and the lock


@pytest.mark.conformance(57)
@pytest.mark.parametrize("kind", ["queued", "ready", "expired"])
@pytest.mark.parametrize("change", ["rescheduled", "cancelled", "over the threshold"])
def test_row_that_changed_under_the_visit_is_stale(
    domain: Bench, stopped: str, kind: str, change: str
) -> None:
    run = getattr(domain, kind)("a")[0]
    domain.queued("b")

    def between() -> None:
        if change == "rescheduled":
            domain.park(run)
        elif change == "cancelled":
            domain.finish(run)
        else:
            domain.change(run, claim_attempts=MAX_ATTEMPTS)

    found = domain.while_stopped(between, stopped)
    assert (found.dispositions, found.scopes) == (["stale", "grant"], ["b"])
    assert found.denials == {"stale": 1}
    assert domain.epoch("a") == 0


@pytest.mark.conformance(57)
@pytest.mark.parametrize("kind", ["ready", "expired"])
def test_admitted_row_that_is_put_off_under_the_visit_is_stale_though_it_keeps_its_marker(
    domain: Bench, stopped: str, kind: str
) -> None:
    run = getattr(domain, kind)("a")[0]
    between = {"claim_token": None, "claimed_at": None, "wake_at": at(3600)}
    found = domain.while_stopped(lambda: domain.change(run, **between), stopped)
    assert (set(found.dispositions), found.outcomes) == ({"stale", "empty_page"}, [])


@pytest.mark.conformance(57)
def test_copy_with_the_gate_open_is_the_shipped_function(domain: Bench, stopped: str) -> None:
    domain.queued("a", 3)
    assert len(domain.claim(3, function=stopped).outcomes) == 3


# How many


@pytest.mark.conformance(58)
@pytest.mark.parametrize(("demand", "quanta"), [(3, [3]), (8, [8]), (9, [8, 1]), (20, [8, 8, 4])])
def test_visit_grants_at_most_eight_and_no_more_than_is_wanted(
    domain: Bench, demand: int, quanta: list[int]
) -> None:
    domain.policy(cap=100)
    domain.queued("a", 40)
    assert [row.outcome_count for row in domain.claim(demand).inspections] == quanta


@pytest.mark.conformance(59)
@pytest.mark.parametrize("demand", [257, 1000, 2147483647])
def test_call_makes_at_most_32_grants_of_8(domain: Bench, demand: int) -> None:
    domain.policy(cap=2147483647, budget=100)
    domain.queued("a", 2000)
    found = domain.claim(demand)
    assert [row.outcome_count for row in found.inspections] == [8] * 32
    assert len({row.run_id for row in found.outcomes}) == 256
    assert domain.epoch("a") == 32


@pytest.mark.conformance(37, 59)
def test_the_largest_demand_is_spread_like_any_other(domain: Bench) -> None:
    domain.policy(cap=2147483647, budget=100)
    for tenant in ("a", "b", "c"):
        domain.queued(tenant, 200)
    found = domain.claim(2147483647)
    assert [row.outcome_count for row in found.inspections] == [8] * 32
    assert found.call.demand == 2147483647


@pytest.mark.conformance(60, 77)
def test_admitted_rows_come_before_the_queue(domain: Bench) -> None:
    domain.policy(cap=100)
    queued = domain.queued("a", 5, wake=-1000)
    ready = domain.ready("a", 20)
    found = domain.claim(30)
    assert domain.ids(found.outcomes) == [*ready, *queued]
    assert [row.outcome_count for row in found.inspections[:4]] == [8, 8, 8, 1]


@pytest.mark.conformance(61)
def test_override_beats_the_default_and_null_inherits_it(domain: Bench) -> None:
    domain.queued("own", 20)
    domain.queued("inherits", 20)
    domain.override("own", 3)
    found = domain.claim(100)
    assert (found.scopes.count("own"), found.scopes.count("inherits")) == (3, 10)
    domain.override("own", None)
    assert domain.claim(100).scopes == ["own"] * 7
    domain.override("own", 15)
    assert domain.claim(100).scopes == ["own"] * 5


@pytest.mark.conformance(62, 63)
@pytest.mark.parametrize("cap", [1, 3])
def test_full_scope_is_denied_without_locking_anything_of_it(domain: Bench, cap: int) -> None:
    domain.policy(cap=cap)
    domain.claimed("a", cap)
    queued = domain.queued("a")[0]
    caller = domain.session()
    caller.execute("BEGIN")
    found = domain.claim(2, by=caller)
    assert found.dispositions == ["cap_debt_denial"] * 32
    assert found.denials == {"cap_debt_denial": 32}
    domain.db.execute("SELECT FROM tenantfair_run WHERE id = %s FOR UPDATE NOWAIT", [queued])
    domain.db.execute("SELECT FROM tenantfair_partition FOR UPDATE NOWAIT")
    caller.execute("COMMIT")
    assert domain.epoch("a") == 0


@pytest.mark.parametrize("cap", [1, 3])
def test_full_scope_with_future_work_alone_is_denied_nothing(domain: Bench, cap: int) -> None:
    domain.policy(cap=cap)
    domain.claimed("a", cap)
    domain.queued("a", wake=0.000001)
    assert domain.claim(2).denials == {"empty_page": 32}


@pytest.mark.conformance(63)
def test_rows_of_a_fruitless_visit_stay_locked_until_the_transaction_ends(domain: Bench) -> None:
    head, second = domain.queued("a")[0], domain.queued("a")[0]
    domain.locking_runs(head)
    caller = domain.session()
    caller.execute("BEGIN")
    found = domain.claim(2, by=caller)
    assert set(found.dispositions) == {"denied"}
    with pytest.raises(errors.LockNotAvailable):
        domain.db.execute("SELECT FROM tenantfair_run WHERE id = %s FOR UPDATE NOWAIT", [second])
    caller.execute("ROLLBACK")
    domain.db.execute("SELECT FROM tenantfair_run WHERE id = %s FOR UPDATE NOWAIT", [second])


def test_row_that_becomes_due_later_is_not_granted(domain: Bench) -> None:
    due, later = domain.queued("a", wake=0)[0], domain.queued("a", wake=0.000001)[0]
    assert domain.ids(domain.claim(5).outcomes) == [due]
    assert domain.run(later).wake_at == at(0.000001)
