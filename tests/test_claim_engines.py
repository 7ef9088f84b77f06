"""What both engines promise to a caller of `claim_due()`, and that they never admit together."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection, transaction

from tenantfair.claim import Engine, claim_due, get_engine
from tenantfair.claim.legacy import Legacy
from tenantfair.claim.tenant_fair import TenantFair
from tenantfair.exceptions import ClaimUnavailable
from tests.claim_support import LEASE, MAX_ATTEMPTS, NOW, Bench, at, bench

pytestmark = pytest.mark.django_db(transaction=True)

POISONED = {"claim_attempts": MAX_ATTEMPTS}


@pytest.fixture
def domain(transactional_db: None) -> Iterator[Bench]:
    with bench() as found:
        yield found


@pytest.fixture(params=[TenantFair, Legacy], ids=["tenant_fair", "legacy"])
def engine(request: pytest.FixtureRequest, domain: Bench) -> Engine:
    if request.param is Legacy:
        domain.pristine()
    return request.param()


def claim(engine: Engine, demand: int = 10, **options: object) -> list[object]:
    batch = claim_due(demand, engine=engine, now=NOW, **options)
    return [*batch.leases, *batch.poisoned]


def ids(domain: Bench, outcomes: list[object]) -> list[int]:
    return domain.ids(outcomes)


# The contract of an engine


def test_lease_is_what_the_row_says(domain: Bench, engine: Engine) -> None:
    run = domain.queued("a")[0]
    (lease,) = claim(engine)
    row = domain.run(run)
    assert (lease.run_id, lease.claim_token, lease.claimed_at, lease.attempt) == (
        row.run_id,
        row.claim_token,
        NOW,
        1,
    )
    assert (lease.tenant_id, lease.task_path, lease.args, lease.kwargs) == ("a", "tests.task", [], {})
    assert (lease.work_class, lease.eligible_at, lease.started_at) == ("queued_ready", at(-100), NOW)
    assert (row.wake_at, row.claim_attempts, row.started_at, row.last_attempted_at) == (None, 1, NOW, NOW)
    assert len(row.worker_ids) == 1


def test_due_and_expired_are_claimed_and_nothing_else(domain: Bench, engine: Engine) -> None:
    wanted = [*domain.queued("a", wake=0), *domain.ready("a"), *domain.expired("a", since=-LEASE - 0.000001)]
    domain.queued("a", wake=0.000001)
    domain.claimed("a", since=-LEASE)
    domain.waiting("a")
    domain.poisoned("a")
    domain.finish(*domain.queued("a"))
    assert sorted(ids(domain, claim(engine))) == wanted
    assert claim(engine) == []


def test_oldest_of_one_tenant_come_first_and_demand_is_not_passed(domain: Bench, engine: Engine) -> None:
    rows = [domain.queued("a", wake=wake)[0] for wake in (-10, -30, -20, -40)]
    assert ids(domain, claim(engine, 3)) == [rows[3], rows[1], rows[2]]


def test_run_that_used_up_its_starts_is_poisoned(domain: Bench, engine: Engine) -> None:
    rows = [*domain.queued("a", **POISONED), *domain.ready("a", **POISONED), *domain.expired("a", **POISONED)]
    batch = claim_due(9, engine=engine, now=NOW)
    assert (batch.leases, sorted(domain.ids(batch.poisoned))) == ([], rows)
    for run in map(domain.run, rows):
        assert (run.poisoned_at, run.poison_reason) == (NOW, "max_claim_attempts_exceeded")
        assert (run.claim_token, run.wake_at, run.tenant_admitted_at, run.claimed_by) == (
            None,
            None,
            None,
            None,
        )
        assert run.claim_attempts == MAX_ATTEMPTS
    assert {each.work_class for each in batch.poisoned} == {"queued_ready", "admitted_ready", "expired"}


def test_run_is_started_max_attempts_times_in_all(domain: Bench, engine: Engine) -> None:
    run = domain.queued("a")[0]
    starts = 0
    while claim_due(1, engine=engine, now=NOW).leases:
        starts += 1
        domain.release(run)
    assert starts == MAX_ATTEMPTS
    assert domain.run(run).poisoned_at == NOW


def test_steal_replaces_the_token(domain: Bench, engine: Engine) -> None:
    run = domain.expired("a")[0]
    token = domain.run(run).claim_token
    (lease,) = claim(engine)
    assert lease.claim_token not in (None, token)
    assert (lease.attempt, lease.work_class, lease.eligible_at) == (2, "expired", at(-LEASE - 100))


@pytest.mark.parametrize("preference", [None, "ready", "expired"])
def test_preference_is_advice(domain: Bench, engine: Engine, preference: str | None) -> None:
    domain.queued("a")
    assert len(claim(engine, 1, preference=preference)) == 1


def test_locked_run_is_skipped(domain: Bench, engine: Engine) -> None:
    locked = domain.queued("a")[0]
    free = domain.queued("b")[0]
    domain.locking_runs(locked)
    assert ids(domain, claim(engine)) == [free]


def test_row_that_points_at_the_run_locks_nobody_out(domain: Bench, engine: Engine) -> None:
    run = domain.queued("a")[0]
    domain.locking_runs(run, strength="KEY SHARE")
    assert ids(domain, claim(engine)) == [run]


def test_database_clock_decides_unless_told_otherwise(domain: Bench, engine: Engine) -> None:
    domain.db.execute(
        "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at) VALUES ('a', 't', now() - interval '1 s')"
    )
    domain.db.execute(
        "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at) VALUES ('a', 't', now() + interval '1 h')"
    )
    assert len(claim_due(5, engine=engine).leases) == 1


def test_lease_and_attempts_are_the_domains(domain: Bench, engine: Engine) -> None:
    domain.db.execute("UPDATE tenantfair_policy SET lease_seconds = 600, max_attempts = 2")
    domain.claimed("a", since=-600)
    stolen = domain.claimed("a", since=-601)[0]
    poison = domain.queued("a", claim_attempts=2)[0]
    batch = claim_due(9, engine=engine, now=NOW)
    assert (domain.ids(batch.leases), domain.ids(batch.poisoned)) == ([stolen], [poison])


def test_empty_domain_is_an_empty_batch(domain: Bench, engine: Engine) -> None:
    batch = claim_due(3, engine=engine)
    assert (batch.leases, batch.poisoned, batch.call.demand, batch.call.outcomes) == ([], [], 3, 0)


def test_claim_inside_a_transaction_is_refused(domain: Bench, engine: Engine) -> None:
    run = domain.queued("a")[0]
    with transaction.atomic(), pytest.raises(ClaimUnavailable, match="open_transaction"):
        claim_due(1, engine=engine, now=NOW)
    with transaction.atomic():
        batch = claim_due(1, engine=engine, now=NOW, allow_in_transaction=True)
    assert domain.ids(batch.leases) == [run]


def test_claim_with_autocommit_off_is_refused(domain: Bench, engine: Engine) -> None:
    domain.queued("a")
    transaction.set_autocommit(False)
    try:
        with pytest.raises(ClaimUnavailable, match="open_transaction"):
            claim_due(1, engine=engine, now=NOW)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_other_isolation_levels_are_refused(domain: Bench, engine: Engine, isolation: str) -> None:
    domain.queued("a")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        with pytest.raises(ClaimUnavailable, match="unsupported_isolation"):
            claim_due(1, engine=engine, now=NOW, allow_in_transaction=True)


def test_read_only_transaction_is_refused(domain: Bench, engine: Engine) -> None:
    domain.queued("a")
    connection.ensure_connection()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION READ ONLY")
        with pytest.raises(ClaimUnavailable, match="read_only_transaction"), transaction.atomic():
            claim_due(1, engine=engine, now=NOW, allow_in_transaction=True)


def test_locked_policy_is_contention(domain: Bench, engine: Engine) -> None:
    domain.queued("a")
    before = domain.everything()
    holder = domain.locking_policy()
    with pytest.raises(ClaimUnavailable) as refusal:
        claim_due(1, engine=engine)
    assert (refusal.value.reason, refusal.value.phase) == ("lock_contention", "policy_cursor")
    holder.rollback()
    assert domain.everything() == before


def test_missing_policy_row_is_malformed(domain: Bench, engine: Engine) -> None:
    domain.db.execute("DELETE FROM tenantfair_policy")
    with pytest.raises(ClaimUnavailable, match="malformed_policy"):
        claim_due(1, engine=engine)


# The interlock


@pytest.mark.conformance(137)
def test_legacy_is_inactive_in_a_tenant_fair_domain(domain: Bench) -> None:
    domain.queued("a")
    before = domain.everything()
    with pytest.raises(ClaimUnavailable, match="inactive_engine"):
        claim_due(1, engine=Legacy())
    assert domain.everything() == before


@pytest.mark.conformance(137)
def test_legacy_does_not_wait_for_a_tenant_fair_call(domain: Bench) -> None:
    domain.queued("a", 2)
    caller = domain.session()
    caller.execute("BEGIN")
    assert domain.claim(by=caller).outcomes
    with pytest.raises(ClaimUnavailable, match="lock_contention"):
        claim_due(1, engine=Legacy())
    caller.execute("COMMIT")


@pytest.mark.conformance(138)
def test_tenant_fair_waits_for_nobody_but_its_mode(domain: Bench) -> None:
    domain.queued("a")
    domain.db.execute("UPDATE tenantfair_policy SET admission_mode = 'legacy'")
    with pytest.raises(ClaimUnavailable, match="inactive_engine"):
        claim_due(1, engine=TenantFair())
    domain.pristine()
    with pytest.raises(ClaimUnavailable, match="not_initialized"):
        claim_due(1, engine=TenantFair())


@pytest.mark.conformance(137, 138)
def test_open_legacy_claim_keeps_the_other_engine_out(domain: Bench) -> None:
    domain.pristine()
    domain.queued("a", 2)
    with transaction.atomic():
        assert claim_due(1, engine=Legacy(), now=NOW, allow_in_transaction=True).leases
        assert domain.claim().error.error_reason == "lock_contention"


@pytest.mark.conformance(139)
def test_legacy_keeps_a_marker_and_never_sets_one(domain: Bench) -> None:
    domain.pristine()
    marked = [domain.ready("a")[0], domain.expired("a")[0]]
    unmarked = domain.queued("a")[0]
    poison = domain.ready("a", **POISONED)[0]
    assert len(claim(Legacy())) == 4
    assert {domain.run(run).tenant_admitted_at for run in marked} == {at(-5000)}
    assert domain.run(unmarked).tenant_admitted_at is None
    assert domain.run(poison).tenant_admitted_at is None


def test_legacy_is_tenant_blind(domain: Bench) -> None:
    domain.pristine()
    hot = domain.queued("hot", 30, wake=-200)
    light = domain.queued("light")[0]
    assert ids(domain, claim(Legacy(), 31)) == [*hot, light]


def test_engine_comes_from_the_settings() -> None:
    assert get_engine().name == "tenant_fair"
