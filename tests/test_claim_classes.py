"""Ready and expired work, poison, and the order in which one visit serves them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings

from tenantfair.policy import synchronize
from tests.claim_support import LEASE, MAX_ATTEMPTS, NOW, Bench, bench

pytestmark = pytest.mark.django_db

POISONED = {"claim_attempts": MAX_ATTEMPTS}


@pytest.fixture
def domain(db: None) -> Iterator[Bench]:
    with bench() as found:
        yield found


# Classes


@pytest.mark.conformance(80)
@pytest.mark.parametrize(
    ("preference", "served"), [("ready", "ready"), ("expired", "expired"), (None, "expired")]
)
def test_demand_one_honours_the_preference_and_else_age(
    domain: Bench, preference: str | None, served: str
) -> None:
    rows = {"ready": domain.ready("a", wake=-50), "expired": domain.expired("a", since=-LEASE - 1)}
    assert domain.ids(domain.claim(preference=preference).outcomes) == rows[served]


@pytest.mark.conformance(80)
def test_preference_holds_behind_a_locked_head_too(domain: Bench) -> None:
    head, second = domain.ready("a")[0], domain.ready("a")[0]
    domain.expired("a", since=-10_000)
    domain.locking_runs(head)
    assert domain.ids(domain.claim(preference="ready").outcomes) == [second]


@pytest.mark.conformance(81)
def test_admitted_work_beats_the_preferred_class_of_the_queue(domain: Bench) -> None:
    domain.queued("a", wake=-100_000)
    domain.expired("a")
    assert domain.claim(preference="ready").classes == ["expired"]


@pytest.mark.conformance(82)
@pytest.mark.parametrize(
    ("there", "preference"), [("ready", "expired"), ("queued", "expired"), ("expired", "ready")]
)
def test_empty_preferred_class_falls_back(domain: Bench, there: str, preference: str) -> None:
    run = getattr(domain, there)("a")[0]
    assert domain.ids(domain.claim(preference=preference).outcomes) == [run]


@pytest.mark.conformance(80)
@pytest.mark.parametrize("preference", ["ready", "expired"])
def test_preference_means_nothing_at_demand_two(domain: Bench, preference: str) -> None:
    domain.ready("a", 3, wake=-10)
    domain.expired("a", 3)
    assert domain.claim(2, preference=preference).classes == ["expired", "admitted_ready"]


@pytest.mark.conformance(83)
def test_classes_of_different_scopes_are_both_served(domain: Bench) -> None:
    domain.ready("r", 3)
    domain.expired("e")
    found = domain.claim(3)
    assert (found.scopes, found.classes) == (["r", "r", "e"], ["admitted_ready", "admitted_ready", "expired"])


@pytest.mark.conformance(84, 94)
def test_poison_counts_toward_the_demand(domain: Bench) -> None:
    domain.queued("a")
    domain.expired("b", **POISONED)
    domain.queued("c", 2)
    found = domain.claim(3)
    assert found.scopes == ["a", "b", "c"]
    assert [row.claim_token is None for row in found.outcomes] == [False, True, False]


@pytest.mark.conformance(85)
def test_queued_head_is_served_beside_much_expired_work(domain: Bench) -> None:
    domain.policy(cap=100)
    expired = domain.expired("a", 40)
    head = domain.queued("a")[0]
    assert domain.ids(domain.claim(2).outcomes) == [expired[0], head]


@pytest.mark.conformance(85)
def test_queued_head_without_a_slot_keeps_nobody_out(domain: Bench) -> None:
    domain.policy(cap=1)
    expired = domain.expired("a", 16)
    domain.queued("a")
    domain.locking_runs(*expired[:15])
    assert domain.ids(domain.claim(2).outcomes) == expired[15:]


@pytest.mark.conformance(86)
def test_expired_head_comes_first_and_the_next_scope_is_served(domain: Bench) -> None:
    queued = domain.queued("a", 7)
    expired = domain.expired("a")
    target = domain.queued("b")
    found = domain.claim(9)
    assert domain.ids(found.outcomes)[0] == expired[0]
    assert set(domain.ids(found.outcomes)) == {*queued, *expired, *target}
    assert found.visited[:2] == ["a", "b"]


@pytest.mark.conformance(87, 88)
@pytest.mark.parametrize(("demand", "rows"), [(2, 2), (2, 9), (4, 3), (10, 9)])
def test_no_slot_is_held_for_a_class_without_work(domain: Bench, demand: int, rows: int) -> None:
    domain.queued("a", rows)
    assert len(domain.claim(demand).outcomes) == min(demand, rows)


# Poison


@pytest.mark.conformance(89)
def test_queued_row_at_the_threshold_is_poisoned(domain: Bench) -> None:
    run = domain.queued("a", **POISONED)[0]
    found = domain.claim()
    told = found.outcomes[0]
    assert (told.claim_token, told.claimed_at, told.claim_attempt) == (None, None, MAX_ATTEMPTS)
    assert (told.poisoned_at, told.poison_reason) == (NOW, "max_claim_attempts_exceeded")
    row = domain.run(run)
    assert (row.status, row.poisoned_at, row.poison_reason) == ("running", NOW, "max_claim_attempts_exceeded")
    assert (row.wake_at, row.claim_token, row.claimed_at, row.tenant_admitted_at) == (None, None, None, None)
    assert (row.claim_attempts, row.worker_ids, row.started_at, row.last_attempted_at) == (
        MAX_ATTEMPTS,
        [],
        None,
        None,
    )


@pytest.mark.conformance(90)
def test_queued_poison_needs_a_slot_and_blocks_what_is_behind_it(domain: Bench) -> None:
    domain.policy(cap=1)
    holder = domain.claimed("a")[0]
    poison = domain.queued("a", **POISONED)[0]
    behind = domain.queued("a")[0]
    denied = domain.claim(3)
    assert (set(denied.dispositions), denied.denials) == ({"cap_debt_denial"}, {"cap_debt_denial": 32})
    domain.finish(holder)
    assert domain.ids(domain.claim(3).outcomes) == [poison, behind]


@pytest.mark.conformance(90)
def test_queued_poison_waits_for_a_slot_beside_admitted_work_too(domain: Bench) -> None:
    domain.policy(cap=2)
    domain.claimed("a")
    ready = domain.ready("a")[0]
    poison = domain.queued("a", **POISONED)[0]
    domain.queued("a")
    assert domain.ids(domain.claim(5).outcomes) == [ready]
    assert domain.run(poison).poisoned_at is None


@pytest.mark.conformance(91)
def test_poison_behind_a_full_cap_is_left_alone(domain: Bench) -> None:
    domain.policy(cap=32)
    rows = domain.queued("a", 32)
    poison = domain.queued("a", **POISONED)[0]
    assert sorted(domain.ids(domain.claim(256).outcomes)) == rows
    assert domain.run(poison).poisoned_at is None


@pytest.mark.conformance(92)
def test_queued_poison_uses_no_slot(domain: Bench) -> None:
    domain.policy(cap=1)
    poison = domain.queued("a", 2, **POISONED)
    rows = domain.queued("a", 2)
    found = domain.claim(8)
    assert domain.ids(found.outcomes) == [*poison, rows[0]]
    assert [row.outcome_count for row in found.inspections[:1]] == [3]
    assert domain.admitted("a") == rows[:1]


@pytest.mark.conformance(93)
@pytest.mark.parametrize("kind", ["ready", "expired"])
def test_admitted_poison_frees_its_slot_within_the_visit(domain: Bench, kind: str) -> None:
    domain.policy(cap=1)
    poison = getattr(domain, kind)("a", **POISONED)[0]
    head = domain.queued("a", 2)[0]
    found = domain.claim(5)
    assert domain.ids(found.outcomes) == [poison, head]
    assert found.inspections[0].outcome_count == 2
    assert domain.epoch("a") == 1
    assert domain.admitted("a") == [head]


@pytest.mark.conformance(93)
def test_slot_freed_behind_a_locked_poison_reaches_the_queued_head(domain: Bench) -> None:
    domain.policy(cap=2)
    locked = domain.expired("a", since=-1000, **POISONED)[0]
    poison = domain.expired("a", **POISONED)[0]
    head = domain.queued("a")[0]
    domain.locking_runs(locked)
    found = domain.claim(5)
    assert domain.ids(found.outcomes) == [poison, head]
    assert found.inspections[0].outcome_count == 2


@pytest.mark.conformance(94)
def test_poison_counts_toward_the_quantum(domain: Bench) -> None:
    domain.policy(cap=100)
    domain.queued("a", 20, **POISONED)
    found = domain.claim(9)
    assert [row.outcome_count for row in found.inspections] == [8, 1]
    assert found.leases == []


@pytest.mark.conformance(95)
def test_run_is_started_exactly_max_attempts_times(domain: Bench) -> None:
    run = domain.queued("a", claim_attempts=MAX_ATTEMPTS - 1)[0]
    assert [row.claim_attempt for row in domain.claim().leases] == [MAX_ATTEMPTS]
    domain.change(run, claimed_at=domain.run(run).claimed_at.replace(year=2025))
    assert domain.ids(domain.claim().poisoned) == [run]
    assert domain.claim(5).outcomes == []


@pytest.mark.conformance(96)
def test_admitted_rows_are_head_then_poison_then_age(domain: Bench) -> None:
    oldest, second, youngest = (domain.ready("a", wake=wake)[0] for wake in (-300, -200, -100))
    poison = domain.ready("a", wake=-50, **POISONED)[0]
    assert domain.ids(domain.claim(8).outcomes) == [oldest, poison, second, youngest]


@pytest.mark.conformance(96)
def test_head_has_no_privilege_once_its_class_was_served(domain: Bench) -> None:
    domain.ready("a")
    oldest = domain.ready("b", wake=-300)[0]
    poison = domain.ready("b", wake=-50, **POISONED)[0]
    assert domain.ids(domain.claim(5).outcomes)[1:] == [poison, oldest]


@pytest.mark.conformance(96)
def test_demand_one_serves_admitted_poison_before_older_work(domain: Bench) -> None:
    domain.ready("a", wake=-300)
    poison = domain.ready("a", wake=-50, **POISONED)[0]
    assert domain.ids(domain.claim().outcomes) == [poison]


# Steal


@pytest.mark.conformance(97)
def test_lease_ends_one_microsecond_after_its_length(domain: Bench) -> None:
    alive = domain.claimed("a", since=-LEASE)[0]
    over = domain.claimed("a", since=-LEASE - 0.000001)[0]
    token = domain.run(over).claim_token
    found = domain.claim(5)
    assert domain.ids(found.outcomes) == [over]
    assert found.outcomes[0].claim_token not in (None, token)
    assert domain.run(alive).claimed_at < NOW


@pytest.mark.conformance(98)
@pytest.mark.django_db(transaction=True)
def test_claims_of_the_legacy_engine_are_recovered_once_adopted(domain: Bench) -> None:
    run = domain.expired("a", tenant_admitted_at=None)[0]
    assert domain.claim(5).outcomes == []
    domain.pristine()
    with override_settings(TENANTFAIR={"DEFAULT_MAX_ACTIVE_RUNS": 10}):
        assert synchronize().adopted == 1
    found = domain.claim(5)
    assert (domain.ids(found.outcomes), found.classes) == ([run], ["expired"])


def test_outcome_rows_say_which_class_they_served(domain: Bench) -> None:
    domain.ready("ready")
    domain.queued("queued", **POISONED)
    domain.expired("expired")
    told: dict[str, Any] = {
        row.scope_key: (row.work_class, row.disposition) for row in domain.claim(3).outcomes
    }
    assert told == {
        "ready": ("admitted_ready", "admitted_reacquisition"),
        "queued": ("queued_ready", "queued_promotion"),
        "expired": ("expired", "expired_recovery"),
    }
