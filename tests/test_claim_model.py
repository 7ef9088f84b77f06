"""The claim function against the model of `tests/model.py`, on random states of a domain.

TENANTFAIR_MODEL_STATES says how many states are tried (default 300); TENANTFAIR_MODEL_SEED where they begin.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from tests import model
from tests.claim_support import LEASE, Bench, Claimed, at, bench

STATES = int(os.environ.get("TENANTFAIR_MODEL_STATES", "300"))
SEED = int(os.environ.get("TENANTFAIR_MODEL_SEED", "0"))
BLOCK = 50
MAX_ATTEMPTS = 3
SCOPES = ["", *(f"t{number:02}" for number in range(40))]

KINDS = ("queued", "ready", "live", "expired", "later", "waiting", "poisoned", "completed")
MIXES = {
    "queues": (10, 1, 1, 0, 1, 0, 0, 0),
    "ready": (3, 10, 2, 0, 1, 0, 0, 1),
    "expired": (5, 3, 3, 8, 1, 1, 0, 0),
    "debt": (5, 5, 8, 5, 0, 0, 0, 0),
    "deep debt": (3, 12, 0, 3, 0, 0, 0, 0),
    "dormant": (1, 0, 3, 0, 8, 4, 3, 2),
    "all": (5, 4, 3, 4, 2, 1, 1, 1),
}


@dataclass
class State:
    """One random domain and the calls to be made on it."""

    domain: model.Domain
    calls: list[dict[str, Any]]
    poison: float
    columns: list[tuple[Any, ...]] = field(default_factory=list)


@contextmanager
def arena(seed: int) -> Iterator[Bench]:
    """Yield a bench whose scopes have their places on the ring in an order of the seed's."""
    with bench() as found:
        shuffled = random.Random(seed).sample(SCOPES, len(SCOPES))
        for scope in shuffled:
            found.override(scope, None)
        found.db.execute("SET synchronous_commit = off")
        with found.any_budget():
            yield found


@pytest.fixture
def domain(db: None) -> Iterator[Bench]:
    with arena(SEED) as found:
        yield found


@pytest.mark.parametrize("block", range(0, STATES, BLOCK))
def test_function_does_what_the_model_says(domain: Bench, block: int) -> None:
    places = domain.positions()
    for seed in range(SEED + block, SEED + min(block + BLOCK, STATES)):
        try:
            compare(domain, seed, places)
        except AssertionError as difference:
            raise AssertionError(f"seed {seed}: {difference}") from difference
    domain.db.execute("VACUUM tenantfair_run")


@pytest.mark.parametrize("seed", [11394, 48408, 82067])
def test_poison_far_behind_admitted_runs_comes_first_in_its_own_lap(domain: Bench, seed: int) -> None:
    """One scope alone on the ring, with more admitted runs than a page; found by 100,000 states."""
    compare(domain, seed, domain.positions())


@pytest.mark.parametrize("seed", [2000863])
def test_poison_in_sight_makes_a_visit_careful_though_its_page_ends_before(domain: Bench, seed: int) -> None:
    """Ten admitted runs leave six places of the page, and the poison is the seventh of the queue."""
    compare(domain, seed, domain.positions())


def compare(bench: Bench, seed: int, places: dict[str, int]) -> None:
    chance = random.Random(seed)
    domain = a_domain(chance, places)
    store(bench, chance, domain)
    holder = hold_locks(bench, domain)
    try:
        now = 0
        for _ in range(chance.choice((1, 1, 2, 3))):
            arguments = {
                "demand": chance.choice((1, 1, 2, 3, 4, 5, 8, 9, 10, 17, 33, 64, 300)),
                "preference": chance.choice((None, "ready", "expired")),
            }
            trace = chance.random() < 0.7
            before = Counter({scope: domain.admitted(scope) for scope in places})
            context = describe(domain, now, arguments)
            found = bench.claim(**arguments, now=at(now), attempts=MAX_ATTEMPTS, trace=trace)
            expected = domain.claim(now=at(now), expired_before=at(now - LEASE), **arguments)
            assert_same(bench, domain, found, expected, trace, context)
            for scope in places:
                assert domain.admitted(scope) <= max(domain.cap_of(scope), before[scope]), context
            live_on(bench, chance, domain, now)
            now += chance.choice((0, 5, LEASE + 1))
    finally:
        if holder is not None:
            holder.close()


def a_domain(chance: random.Random, places: dict[str, int]) -> model.Domain:
    scopes = chance.sample(list(places), chance.choice((1, 1, 2, 2, 3, 4, 5, 8, 12, 34, 40)))
    mix = MIXES[chance.choice(list(MIXES))]
    poison = chance.choice((0, 0, 0.1, 0.5))
    locks = chance.choice((0, 0, 0.1, 0.4))
    deep = chance.choice((0, 0.2, 0.7)) if len(scopes) < 10 else 0.05
    rows = []
    for scope in scopes:
        for _ in range(chance.randint(9, 50) if chance.random() < deep else chance.randint(0, 4)):
            row = a_row(chance, scope, chance.choices(KINDS, mix)[0])
            if row.parked is None:
                row.attempts = (
                    MAX_ATTEMPTS if chance.random() < poison else chance.randint(0, MAX_ATTEMPTS - 1)
                )
                row.locked = chance.random() < locks
            rows.append(row)
    return model.Domain(
        positions=places,
        rows=rows,
        cap=chance.choice((1, 1, 2, 3, 5, 10, 2147483647)),
        overrides={scope: chance.choice((1, 2, 5, 20)) for scope in scopes if chance.random() < 0.3},
        locked_scopes={scope for scope in scopes if chance.random() < locks / 2},
        budget=chance.choice((1, 2, 3, 4, 5, 8, 9, 32, 32, 40)),
        max_attempts=MAX_ATTEMPTS,
        cursor=chance.choice((0, *places.values(), max(places.values()) + 7)),
        laps=chance.randint(0, 3),
    )


def a_row(chance: random.Random, scope: str, kind: str) -> model.Row:
    due = at(chance.choice((-200, -100, -70, -3, -2, -1, 0)))
    match kind:
        case "queued" | "ready":
            return model.Row(0, scope, wake_at=due, admitted=kind == "ready")
        case "live":
            return model.Row(0, scope, claimed_at=at(chance.choice((-LEASE, -59, -1, 0))), admitted=True)
        case "expired":
            return model.Row(
                0,
                scope,
                claimed_at=at(-LEASE) - timedelta(microseconds=chance.choice((1, 2, 10**8))),
                admitted=True,
            )
        case "later":
            return model.Row(0, scope, wake_at=at(chance.choice((1, 30))), admitted=chance.random() < 0.3)
    return model.Row(0, scope, parked=kind)


def store(bench: Bench, chance: random.Random, domain: model.Domain) -> None:
    """Make the tables say what the domain says, and learn the rows' ids."""
    db = bench.db
    with db.transaction():
        db.execute("DELETE FROM tenantfair_run")
        rows = db.execute(
            """
            INSERT INTO tenantfair_run (
                tenant_id, task_path, status, wake_at, claim_token, claimed_at, tenant_admitted_at,
                claim_attempts, poisoned_at, poison_reason, finished_at
            )
            SELECT
                nullif(row.scope, ''), 'tests.task',
                CASE WHEN row.parked IN ('waiting', 'completed') THEN row.parked ELSE 'running' END,
                row.wake_at, CASE WHEN row.claimed_at IS NOT NULL THEN gen_random_uuid() END, row.claimed_at,
                CASE WHEN row.admitted THEN %s::timestamptz END, row.attempts,
                CASE WHEN row.parked = 'poisoned' THEN now() END,
                CASE WHEN row.parked = 'poisoned' THEN 'test' END,
                CASE WHEN row.parked = 'completed' THEN now() END
            FROM unnest(
                %s::text[], %s::timestamptz[], %s::timestamptz[], %s::boolean[], %s::integer[], %s::text[]
            ) WITH ORDINALITY AS row (scope, wake_at, claimed_at, admitted, attempts, parked, place)
            ORDER BY row.place
            RETURNING id
            """,
            [
                at(-5000),
                [row.scope for row in domain.rows],
                [row.wake_at for row in domain.rows],
                [row.claimed_at for row in domain.rows],
                [row.admitted for row in domain.rows],
                [row.attempts for row in domain.rows],
                [row.parked for row in domain.rows],
            ],
        ).fetchall()
        for row, stored in zip(domain.rows, rows, strict=True):
            row.id = stored.id
        db.execute(
            """
            UPDATE tenantfair_partition AS part
            SET admission_epoch = 0, max_active = wanted.cap
            FROM unnest(%s::text[], %s::integer[]) AS wanted (scope_key, cap)
            WHERE part.scope_key = wanted.scope_key
            """,
            [list(domain.positions), [domain.overrides.get(scope) for scope in domain.positions]],
        )
        bench.policy(
            domain.cap,
            budget=domain.budget,
            cursor=domain.cursor,
            laps=domain.laps,
            # How far the first look goes must change nothing.
            fruitless=random.Random(domain.cursor).choice((0, 1, 5, 32, 4096)),
        )


def hold_locks(bench: Bench, domain: model.Domain) -> Any:
    runs, scopes = [row.id for row in domain.rows if row.locked], list(domain.locked_scopes)
    if not runs and not scopes:
        return None
    holder = bench.session()
    holder.execute("BEGIN")
    holder.execute("SELECT FROM tenantfair_run WHERE id = ANY (%s) FOR UPDATE", [runs])
    holder.execute("SELECT FROM tenantfair_partition WHERE scope_key = ANY (%s) FOR UPDATE", [scopes])
    return holder


def live_on(bench: Bench, chance: random.Random, domain: model.Domain, now: int) -> None:
    """Some holders give their runs back, some finish them."""
    held = [
        row for row in domain.rows if row.claimed_at is not None and not row.locked and chance.random() < 0.3
    ]
    given_back = [row for row in held if chance.random() < 0.5]
    finished = [row for row in held if row not in given_back]
    for row in given_back:
        row.claimed_at, row.wake_at = None, at(now)
    for row in finished:
        row.claimed_at, row.admitted, row.parked = None, False, "completed"
    if given_back:
        bench.release(*(row.id for row in given_back), wake=now)
    if finished:
        bench.finish(*(row.id for row in finished))


def assert_same(
    bench: Bench, domain: model.Domain, found: Claimed, expected: model.Call, trace: bool, context: str
) -> None:
    assert found.error is None, context
    ids = dict(bench.db.execute("SELECT run_id, id FROM tenantfair_run").fetchall())
    outcomes = [
        model.Outcome(
            row.visit_ordinal,
            row.outcome_ordinal,
            ids[row.run_id],
            row.scope_key,
            row.work_class,
            row.claim_token is None,
            row.claim_attempt,
            row.eligible_at,
        )
        for row in found.outcomes
    ]
    assert_equal(outcomes, expected.outcomes, "outcomes", context)
    inspections = [
        model.Inspection(
            row.visit_ordinal,
            row.cursor_before,
            row.cursor_after,
            row.scope_key,
            row.disposition,
            row.outcome_count,
        )
        for row in found.inspections
    ]
    assert_equal(inspections, expected.inspections if trace else [], "inspections", context)
    assert all(row.epoch_delta == (row.disposition == "grant") for row in found.inspections), context
    denials = Counter(each.disposition for each in expected.inspections if each.disposition != "grant")
    assert_equal(found.denials, dict(denials), "denials", context)
    assert (found.call.inspections, found.call.outcome_count) == (len(expected.inspections), len(outcomes)), (
        context
    )
    assert (found.call.laps_after, found.call.cursor_after) == (domain.laps, domain.cursor), context
    assert bench.cursor() == (domain.laps, domain.cursor), context
    stored = bench.db.execute(
        "SELECT id, wake_at, claimed_at, tenant_admitted_at IS NOT NULL, claim_attempts,"
        " CASE WHEN poisoned_at IS NOT NULL THEN 'poisoned' WHEN status <> 'running' THEN status END"
        " FROM tenantfair_run ORDER BY id"
    ).fetchall()
    rows = [
        (row.id, row.wake_at, row.claimed_at, row.admitted, row.attempts, row.parked)
        for row in sorted(domain.rows, key=lambda row: row.id)
    ]
    assert_equal([tuple(row) for row in stored], rows, "rows", context)
    epochs = bench.db.execute(
        "SELECT scope_key, admission_epoch FROM tenantfair_partition WHERE admission_epoch > 0"
    )
    assert_equal(
        dict(epochs.fetchall()), {scope: n for scope, n in domain.epochs.items() if n}, "epochs", context
    )


def assert_equal(found: Any, expected: Any, what: str, context: str) -> None:
    if found == expected:
        return
    if isinstance(found, list):
        place = next(
            (i for i, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), None
        )
        at_place = min(len(found), len(expected)) if place is None else place
        found, expected = (each[max(0, at_place - 1) : at_place + 3] for each in (found, expected))
    raise AssertionError(f"{what}\n  found    {found}\n  expected {expected}\n{context}")


def describe(domain: model.Domain, now: int, arguments: dict[str, Any]) -> str:
    ring = ", ".join(f"{position}:{scope or 'none'}" for position, scope in domain.ring())
    lines = [
        f"{arguments} now={now} budget={domain.budget} cap={domain.cap} overrides={domain.overrides}",
        f"cursor={domain.cursor} laps={domain.laps} locked={domain.locked_scopes}",
        f"ring {ring}",
    ]
    for row in sorted(domain.rows, key=lambda row: (domain.positions[row.scope], row.id)):
        due = (row.wake_at or row.claimed_at or at(0)) - at(0)
        kind = row.parked or ("claimed" if row.claimed_at else "ready" if row.admitted else "queued")
        lines.append(
            f"  {row.scope or 'none'} {row.id} {kind} {due.total_seconds():+.6f} attempts={row.attempts}"
            + (" LOCKED" if row.locked else "")
        )
    return "\n".join(lines)
