"""The idle check: whether a poll is worth a claim. It may say yes in vain, never no in vain."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tenantfair.claim import due_work_exists
from tenantfair.sql import load
from tests.claim_support import MAX_ATTEMPTS, NOW, Bench, Session, at, bench
from tests.test_claim_model import a_domain, describe, store

pytestmark = pytest.mark.django_db

# The same statement at the time of the bench.
AT_NOW = load("due_work_exists").replace("clock_timestamp()", f"timestamptz '{NOW.isoformat()}'")


@pytest.fixture
def domain(db: None) -> Iterator[Bench]:
    with bench() as found:
        yield found


def worth_a_claim(session: Session) -> bool:
    return bool(session.execute(AT_NOW).fetchone()[0])


def test_no_is_never_wrong(domain: Bench) -> None:
    """On random domains: whenever a claim gets anything, the check said yes; and both answers occur."""
    scopes = ["", *(f"t{number}" for number in range(40))]
    for scope in scopes:
        domain.override(scope, None)
    places = domain.positions()
    answers = []
    for seed in range(200):
        chance = random.Random(seed)
        state = a_domain(chance, places)
        state.budget = 64
        state.max_attempts = MAX_ATTEMPTS
        store(domain, chance, state)
        if seed % 2:
            domain.claim(300)
        said = worth_a_claim(domain.db)
        got = bool(domain.claim(1).outcomes)
        assert said or not got, f"seed {seed}\n{describe(state, 0, {})}"
        answers.append((said, got))
    assert answers.count((False, False)) > 10
    assert answers.count((True, True)) > 10


def test_no_where_nothing_can_be_granted(domain: Bench) -> None:
    assert not worth_a_claim(domain.db)
    domain.policy(cap=1)
    domain.waiting("waiting")
    domain.poisoned("poisoned")
    domain.queued("timer", wake=1)
    domain.finish(*domain.queued("finished"))
    for number in range(40):
        domain.claimed(f"full{number}")
        domain.queued(f"full{number}", 3)
    assert not worth_a_claim(domain.db)
    assert domain.claim(5).outcomes == []


@pytest.mark.parametrize(
    "work",
    [
        lambda domain: domain.queued("a"),
        lambda domain: domain.queued("a", wake=0),
        lambda domain: domain.queued(""),
        lambda domain: domain.ready("full0"),
        lambda domain: domain.expired("full0"),
        lambda domain: domain.queued("a", claim_attempts=MAX_ATTEMPTS),
        lambda domain: domain.override("full20", 2),
    ],
    ids=["queued", "due right now", "tenantless", "admitted", "expired", "poison", "a raised cap"],
)
def test_yes_to_the_one_thing_that_can_be_granted(domain: Bench, work: object) -> None:
    domain.policy(cap=1)
    for number in range(40):
        domain.claimed(f"full{number}")
        domain.queued(f"full{number}")
    assert not worth_a_claim(domain.db)
    work(domain)
    assert worth_a_claim(domain.db)


def test_a_missing_policy_row_is_yes(domain: Bench) -> None:
    """The claim then says malformed_policy, and the worker puts the row back."""
    domain.db.execute("DELETE FROM tenantfair_policy")

    assert worth_a_claim(domain.db)


def test_too_many_scopes_to_look_at_is_yes(domain: Bench) -> None:
    domain.policy(cap=1)
    for number in range(70):
        domain.claimed(f"full{number:02}")
        domain.queued(f"full{number:02}")
    domain.queued("zz")
    assert worth_a_claim(domain.db)


def test_check_reads_only_and_needs_no_lock(domain: Bench) -> None:
    run = domain.queued("a")[0]
    domain.locking_policy()
    domain.locking_partition("a")
    domain.locking_runs(run)
    reader = domain.session()
    reader.execute("SET lock_timeout = '1ms'")
    reader.execute("BEGIN READ ONLY")
    assert worth_a_claim(reader)
    held = reader.execute(
        "SELECT DISTINCT mode FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'"
    ).fetchall()
    assert [row.mode for row in held] == ["AccessShareLock"]
    assert reader.execute("SELECT pg_current_xact_id_if_assigned()").fetchone()[0] is None


@pytest.mark.django_db(transaction=True)
def test_check_uses_the_databases_clock_and_lease(domain: Bench) -> None:
    assert not due_work_exists()
    domain.insert("a", wake_at=at(3600 * 24 * 365 * 50))
    assert not due_work_exists()
    domain.db.execute("UPDATE tenantfair_policy SET lease_seconds = 3600")
    domain.db.execute(
        "INSERT INTO tenantfair_run (tenant_id, task_path, claim_token, claimed_at, tenant_admitted_at)"
        " VALUES ('a', 't', gen_random_uuid(), now() - interval '59 minutes', now())"
    )
    assert not due_work_exists()
    domain.db.execute("UPDATE tenantfair_policy SET lease_seconds = 3000")
    assert due_work_exists()
