"""Rotation: how soon a scope is served, whatever its neighbours have; and what the legacy engine does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from math import ceil

import pytest

from tenantfair.sql import load
from tests.claim_support import NOW, Bench, at, bench

pytestmark = pytest.mark.django_db

BUDGET, QUANTUM = 32, 8


@pytest.fixture
def domain(db: None) -> Iterator[Bench]:
    with bench() as found:
        yield found


def served_until(domain: Bench, target: str, demand: int, ring: int) -> None:
    """Claim until the target gets a grant, and hold what went before against the bound with L = 0.

    Nothing is locked, so no complete inspection of the target may fail: grants of others <= A - 1, their
    outcomes <= Q (A - 1), calls <= (A - 1) + ceil((H - A + 1) / S); A counts those granted, target included.
    """
    competitors: Counter[str] = Counter()
    outcomes = calls = 0
    while True:
        found = domain.claim(demand)
        calls += 1
        assert len(found.outcomes) == demand, f"underfilled: {len(found.outcomes)} of {demand}"
        for visit in found.inspections:
            if visit.scope_key == target and visit.outcome_count:
                cohort = len(competitors) + 1
                assert sum(competitors.values()) <= cohort - 1
                assert outcomes <= QUANTUM * (cohort - 1)
                assert calls <= (cohort - 1) + ceil((ring - cohort + 1) / BUDGET)
                return
            if visit.outcome_count:
                competitors[visit.scope_key] += 1
                outcomes += visit.outcome_count
        assert calls < 100


@pytest.fixture
def legacy(domain: Bench) -> Callable[[int], list[int]]:
    """Claim through the statement of the legacy engine; return ids in the order of the outcomes."""
    domain.pristine()

    def claim(demand: int) -> list[int]:
        rows = domain.db.execute(
            load("legacy_claim"), {"now": NOW, "demand": demand, "unflushed": False}
        ).fetchall()
        return domain.ids(sorted(rows, key=lambda row: row.outcome_ordinal))

    return claim


def hot_and_target(domain: Bench, hot: int) -> tuple[list[int], int]:
    return domain.queued("hot", hot, wake=-1000), domain.queued("target", wake=-1)[0]


@pytest.mark.conformance(158)
@pytest.mark.parametrize("hot", [2, 10, 1000])
def test_legacy_serves_all_older_work_first(
    domain: Bench, legacy: Callable[[int], list[int]], hot: int
) -> None:
    rows, target = hot_and_target(domain, hot)
    served = []
    while not served or served[-1] != target:
        served += legacy(1)
        domain.finish(served[-1])
    assert served == [*rows, target]


@pytest.mark.conformance(159)
@pytest.mark.parametrize("hot", [2, 10, 1000])
def test_target_is_served_second_however_much_stands_before_it(domain: Bench, hot: int) -> None:
    rows, target = hot_and_target(domain, hot)
    first = domain.ids(domain.claim().outcomes)
    domain.finish(*first)
    assert first == rows[:1]
    assert domain.ids(domain.claim().outcomes) == [target]


@pytest.mark.conformance(160)
def test_one_hot_among_twelve_light_tenants_is_served_once_a_lap(domain: Bench) -> None:
    domain.policy(cap=10_000)
    domain.queued("hot", 5000, wake=-10_000)
    for number in range(12):
        domain.queued(f"light{number}")
    served = Counter(scope for _ in range(13) for scope in domain.claim().scopes)
    assert served == {"hot": 1} | {f"light{number}": 1 for number in range(12)}


@pytest.mark.conformance(161)
@pytest.mark.parametrize("ring", [2, 4, 8])
@pytest.mark.parametrize("demand", range(2, 11))
@pytest.mark.parametrize("deep", ["one", "all"])
def test_small_ring_serves_everybody_within_the_bound(
    domain: Bench, ring: int, demand: int, deep: str
) -> None:
    domain.policy(cap=10_000)
    names = [f"t{place}" for place in range(ring)]
    for name in names:
        domain.queued(name, 120 if deep == "all" or name == "t0" else 40)
    for name in reversed(names):
        served_until(domain, name, demand, ring)


@pytest.mark.conformance(162)
@pytest.mark.parametrize("tenants", [4, 8])
def test_call_serves_every_deep_tenant(domain: Bench, tenants: int) -> None:
    domain.policy(cap=10_000)
    names = [f"t{place}" for place in range(tenants)]
    for name in names:
        domain.queued(name, 200)
    for _ in range(16):
        found = domain.claim(10)
        assert len(found.outcomes) == 10
        assert set(found.scopes) == set(names)


@pytest.mark.conformance(161, 162)
@pytest.mark.parametrize(("demand", "calls"), [(50, 4), (256, 4)])
def test_lap_of_a_hundred_tenants_serves_every_one(domain: Bench, demand: int, calls: int) -> None:
    """At most 32 grants a call, so a hundred tenants take four calls, each of them filled."""
    domain.policy(cap=10_000)
    domain.insert("t000", 1, wake_at=at(-1))
    domain.db.execute(
        "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at)"
        " SELECT 't' || lpad((n / 24)::text, 3, '0'), 't', %s"
        " FROM generate_series(0, 2399) AS n",
        [at(-100)],
    )
    served: Counter[str] = Counter()
    for _ in range(calls):
        found = domain.claim(demand)
        assert len(found.outcomes) == demand
        served += Counter(found.scopes)
    assert len(served) == 100
    served_until(domain, "t099", demand, 100)


@pytest.mark.conformance(163)
def test_full_tenants_cost_the_free_one_nothing(domain: Bench) -> None:
    domain.policy(cap=1)
    for scope in ("a", "b"):
        domain.claimed(scope)
        domain.queued(scope, 5)
    domain.queued("c", 5)
    found = domain.claim()
    assert (found.visited, found.scopes) == (["a", "b", "c"], ["c"])
    assert found.denials == {"cap_debt_denial": 2}


@pytest.mark.conformance(163)
def test_what_a_tenant_without_work_leaves_is_spread_in_the_same_lap(domain: Bench) -> None:
    """As many positions as runs are wanted promise one run each; where one has none, another gives two."""
    names = [f"t{place:02}" for place in range(32)]
    for name in names:
        runs = domain.queued(name, 4)
        if name == "t05":
            domain.park(*runs)
    found = domain.claim(32)
    assert found.call.inspections == 32
    assert found.scopes == ["t00", *(name for name in names if name != "t05")]


@pytest.mark.conformance(163)
def test_ring_shorter_than_the_demand_is_seen_in_depth(domain: Bench) -> None:
    for name in ("a", "b", "c"):
        domain.queued(name, 4)
    found = domain.claim(9)
    assert [row.outcome_count for row in found.inspections] == [3, 3, 3]
