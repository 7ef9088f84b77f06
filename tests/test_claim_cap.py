"""The cap: never passed, kept by its members, and given to the queue in strict order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.claim_support import MAX_ATTEMPTS, NOW, SHIPPED, Bench, at, bench, inserted, stopping_before_locks

pytestmark = pytest.mark.django_db


@pytest.fixture
def domain(db: None) -> Iterator[Bench]:
    with bench() as found:
        yield found


def claimed_ids(domain: Bench, demand: int = 1, **options: Any) -> list[int]:
    return domain.ids(domain.claim(demand, **options).outcomes)


# The cap


@pytest.mark.conformance(64)
def test_exactly_the_oldest_up_to_the_cap_are_admitted(domain: Bench) -> None:
    rows = [domain.queued("a", wake=-1000 + place)[0] for place in range(30)]
    assert claimed_ids(domain, 50) == rows[:10]
    assert claimed_ids(domain, 50) == []
    assert domain.admitted("a") == rows[:10]


@pytest.mark.conformance(66, 72)
def test_released_run_keeps_its_slot(domain: Bench) -> None:
    domain.policy(cap=1)
    first, second = domain.queued("a", 2)
    assert claimed_ids(domain) == [first]
    domain.release(first)
    assert claimed_ids(domain, 5) == [first]
    assert domain.admitted("a") == [first]
    assert domain.run(second).claim_token is None


@pytest.mark.conformance(67)
def test_run_that_is_scheduled_for_later_gives_its_slot_to_the_next(domain: Bench) -> None:
    domain.policy(cap=1)
    first, second = domain.queued("a", 2)
    assert claimed_ids(domain) == [first]
    domain.park(first)
    assert claimed_ids(domain, 5) == [second]


@pytest.mark.conformance(68)
def test_cohort_stays_while_it_yields(domain: Bench) -> None:
    domain.policy(cap=2)
    rows = domain.queued("a", 100)
    pollers = [domain.session(), domain.session()]
    for round_number in range(10):
        held = [run for poller in pollers for run in claimed_ids(domain, by=poller, attempts=100)]
        assert sorted(held) == rows[:2]
        domain.release(*held, wake=-90 + round_number)
    domain.park(rows[0])
    assert claimed_ids(domain, 5, attempts=100) == [rows[1], rows[2]]


@pytest.mark.conformance(69, 71)
def test_debt_is_worked_off_before_anything_is_promoted(domain: Bench) -> None:
    domain.policy(cap=3)
    rows = domain.queued("a", 5)
    assert claimed_ids(domain, 5) == rows[:3]
    domain.policy(cap=1)
    domain.release(*rows[:3])
    assert claimed_ids(domain, 5) == rows[:3]
    for number, run in enumerate(rows[:3]):
        found = domain.claim(5)
        assert set(found.dispositions) == {"cap_debt_denial"}, number
        domain.finish(run)
    assert claimed_ids(domain, 5) == [rows[3]]


@pytest.mark.conformance(70)
def test_raised_cap_promotes_the_oldest_and_keeps_the_member(domain: Bench) -> None:
    domain.policy(cap=1)
    rows = domain.queued("a", 3)
    assert claimed_ids(domain, 5) == rows[:1]
    domain.policy(cap=2)
    assert claimed_ids(domain, 5) == [rows[1]]
    assert domain.admitted("a") == rows[:2]


@pytest.mark.conformance(71, 79)
@pytest.mark.parametrize("cap", [1, 2])
def test_admitted_work_is_granted_at_or_above_the_cap(domain: Bench, cap: int) -> None:
    domain.policy(cap=cap)
    ready, expired = domain.ready("a", claim_attempts=1)[0], domain.expired("a")[0]
    queued = domain.queued("a")[0]
    before = domain.run(queued)
    found = domain.claim(5)
    assert sorted(domain.ids(found.outcomes)) == [ready, expired]
    assert [row.claim_attempt for row in found.outcomes] == [2, 2]
    assert domain.admitted("a") == [ready, expired]
    assert {domain.run(run).tenant_admitted_at for run in (ready, expired)} == {at(-5000)}
    assert domain.run(queued) == before


@pytest.mark.conformance(72)
def test_admitted_row_that_is_not_due_holds_its_slot_too(domain: Bench) -> None:
    domain.policy(cap=1)
    domain.ready("a", wake=1)
    domain.queued("a")
    assert set(domain.claim().dispositions) == {"cap_debt_denial"}


@pytest.mark.conformance(72)
def test_debt_is_counted_to_its_end_however_much_of_it_is_poisoned(domain: Bench) -> None:
    """Slots that poison frees belong to the debt, lap after lap of a call, also where some is locked."""
    domain.policy(cap=1)
    domain.ready("a", 24, wake=-1000, claim_attempts=MAX_ATTEMPTS)
    ordinary = domain.ready("a", 16)
    domain.queued("a", 8)
    domain.locking_runs(*ordinary[8:])
    found = domain.claim(64)
    assert (len(found.poisoned), domain.ids(found.leases)) == (24, ordinary[:8])
    assert domain.admitted("a") == ordinary


@pytest.mark.conformance(78)
def test_cohort_that_is_always_due_keeps_the_queue_out(domain: Bench) -> None:
    domain.policy(cap=1)
    first, second = domain.queued("a", 2)
    for _ in range(20):
        assert claimed_ids(domain, 2, attempts=100) == [first]
        domain.release(first)
    assert domain.run(second).claim_attempts == 0


@pytest.mark.conformance(79)
def test_promotion_marks_with_now_and_later_claims_keep_the_mark(domain: Bench) -> None:
    run = domain.queued("a")[0]
    assert claimed_ids(domain) == [run]
    assert (domain.run(run).tenant_admitted_at, domain.run(run).claimed_at) == (NOW, NOW)
    domain.release(run)
    assert claimed_ids(domain, now=at(5)) == [run]
    assert claimed_ids(domain, now=at(70)) == [run]
    stolen = domain.run(run)
    assert (stolen.tenant_admitted_at, stolen.claimed_at, stolen.claim_attempts) == (NOW, at(70), 3)


# FIFO


@pytest.mark.conformance(73)
def test_queue_is_promoted_by_due_time_then_id(domain: Bench) -> None:
    late, early, twin = (domain.queued("a", wake=wake)[0] for wake in (-10, -30, -30))
    middle = domain.queued("a", wake=-20)[0]
    assert claimed_ids(domain, 8) == [early, twin, middle, late]


@pytest.mark.conformance(74)
@pytest.mark.parametrize("demand", [1, 2, 8])
def test_locked_head_is_never_bypassed(domain: Bench, demand: int) -> None:
    rows = domain.queued("a", 4)
    holder = domain.locking_runs(rows[0])
    found = domain.claim(demand)
    assert found.outcomes == []
    assert not {"grant", "stale", "empty_page"} & set(found.dispositions)
    holder.rollback()
    assert claimed_ids(domain, demand) == rows[:demand]


@pytest.mark.conformance(74)
def test_locked_head_stops_its_own_scope_only(domain: Bench) -> None:
    """Also where other visits of the same plan lock nothing at all."""
    heads = [domain.queued(scope, 2)[0] for scope in ("a", "b", "c")]
    free = domain.queued("d", 2)
    domain.locking_runs(*heads)
    for demand in (4, 8):
        assert set(claimed_ids(domain, demand)) <= set(free)


@pytest.mark.conformance(74)
def test_locked_second_lets_only_the_head_through(domain: Bench) -> None:
    rows = domain.queued("a", 4)
    domain.locking_runs(rows[1])
    assert claimed_ids(domain, 8) == rows[:1]


@pytest.fixture
def stopped(domain: Bench) -> str:
    return domain.function("claim_stopped", stopping_before_locks())


@pytest.mark.conformance(75)
@pytest.mark.parametrize("careful", [False, True])
def test_older_row_that_appears_under_the_visit_denies_it(domain: Bench, stopped: str, careful: bool) -> None:
    """With poison in sight the visit goes another way through the function."""
    rows = [*domain.queued("a"), *domain.queued("a", claim_attempts=MAX_ATTEMPTS * careful)]
    older: list[int] = []
    found = domain.while_stopped(lambda: older.extend(domain.queued("a", wake=-1000)), stopped, 2)
    assert found.dispositions[0] == "denied"
    assert domain.ids(found.outcomes) == [*older, rows[0]]


@pytest.mark.conformance(76)
@pytest.mark.parametrize("careful", [False, True])
def test_head_that_moves_back_under_the_visit_denies_it(domain: Bench, stopped: str, careful: bool) -> None:
    head, second = domain.queued("a")[0], domain.queued("a")[0]
    domain.queued("a", wake=-50, claim_attempts=MAX_ATTEMPTS * careful)
    found = domain.while_stopped(lambda: domain.change(head, wake_at=at(-20)), stopped)
    assert found.dispositions == ["denied", "grant"]
    assert domain.ids(found.outcomes) == [second]


@pytest.mark.conformance(64)
def test_what_the_call_has_granted_counts_when_more_work_arrives_during_it(domain: Bench) -> None:
    """One scope alone on the ring, served over laps at once; the next plan sees more work than slots."""
    domain.policy(cap=25)
    rows = domain.queued("a", 20)
    text = inserted(
        SHIPPED, "        PERFORM tests_barrier();", before="v_outcomes := v_outcomes + cardinality"
    )
    stopped = domain.function("claim_stopped", text)
    more: list[int] = []
    found = domain.while_stopped(lambda: more.extend(domain.queued("a", 20)), stopped, demand=32)
    assert domain.ids(found.outcomes) == [*rows, *more[:5]]
    assert len(domain.admitted("a")) == 25
