"""Going on around the ring in one exchange: `claim_due(until=...)` and its procedure (decision 0017)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DataError, OperationalError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from psycopg import errors

from tenantfair.certify import clean
from tenantfair.claim import ClaimBatch, claim_due, lap, tenant_fair
from tenantfair.claim.legacy import Legacy
from tenantfair.exceptions import ClaimUnavailable, SchemaMismatch
from tenantfair.models import Policy, Run, Schedule
from tests.certify.scene import certified
from tests.claim_support import claims_observed
from tests.factories import policy_in_force, run_in
from tests.rows import sessions

pytestmark = pytest.mark.django_db(transaction=True)

BUDGET = 32
CALLS = 32


@pytest.fixture(autouse=True)
def domain(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is: no walk of these tests ends because it takes long."""
    policy_in_force()
    monkeypatch.setattr(tenant_fair, "LONGEST_WALK", timedelta(minutes=1))


@pytest.fixture
def observed() -> Iterator[list[dict[str, Any]]]:
    with claims_observed() as seen:
        yield seen


def idle(scopes: int) -> None:
    """So many further scopes on the ring that nothing can be granted to."""
    there, tomorrow = Schedule.objects.count(), datetime.now(UTC) + timedelta(days=1)
    Run.objects.bulk_create(
        Run(tenant_id=f"idle {there + number}", task_path="tests.task", wake_at=tomorrow)
        for number in range(scopes)
    )


@contextmanager
def on_the_policy(statement: str, condition: str = "true") -> Iterator[None]:
    """Let a trigger run a PL/pgSQL statement whenever a transaction that has moved the cursor commits."""
    with connection.cursor() as statements:
        statements.execute(
            f"CREATE FUNCTION on_the_policy() RETURNS trigger LANGUAGE plpgsql AS $$"
            f" BEGIN {statement}; RETURN NULL; END $$"
        )
        statements.execute(
            "CREATE CONSTRAINT TRIGGER zz_on_the_policy AFTER UPDATE ON tenantfair_policy DEFERRABLE"
            f" INITIALLY DEFERRED FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION on_the_policy()"
        )
    try:
        yield
    finally:
        with connection.cursor() as statements:
            statements.execute("DROP TRIGGER zz_on_the_policy ON tenantfair_policy")
            statements.execute("DROP FUNCTION on_the_policy()")


def cursor() -> tuple[int, int]:
    policy = Policy.objects.get()
    return policy.scan_laps, policy.scan_ring_position


def go_on(demand: int = 1, **options: Any) -> ClaimBatch:
    """Claim on for one lap from where the cursor is."""
    laps, position = cursor()
    return claim_due(demand, until=(laps + 1, position), **options)


def inspections(batch: ClaimBatch) -> list[int]:
    return [call.inspections for call in (*batch.earlier, batch.call)]


def test_calls_go_on_until_one_is_granted_something() -> None:
    idle(2 * BUDGET + 5)
    last = run_in("queued", tenant_id="last")

    batch = go_on()

    assert [lease.run_id for lease in batch.leases] == [last.run_id]
    assert inspections(batch) == [BUDGET, BUDGET, 6]
    assert [call.outcomes for call in batch.earlier] == [0, 0]
    assert [call.denials["empty_page"] for call in batch.earlier] == [BUDGET, BUDGET]


def test_each_call_begins_where_the_one_before_it_ended() -> None:
    idle(3 * BUDGET)

    batch = go_on()

    calls = [*batch.earlier, batch.call]
    assert len(calls) == 4
    assert [call.after for call in calls[:-1]] == [call.before for call in calls[1:]]
    assert (calls[0].before, calls[-1].after) == ((0, 0), cursor())


def test_a_call_that_is_granted_less_than_was_wanted_is_the_last() -> None:
    """Whoever goes on has fewer places left."""
    idle(BUDGET)
    run_in("queued", tenant_id="one")
    idle(2 * BUDGET)
    run_in("queued", tenant_id="two")

    batch = go_on(5)

    assert [lease.tenant_id for lease in batch.leases] == ["one"]
    assert inspections(batch) == [BUDGET, BUDGET]


def test_the_walk_ends_where_it_was_told_to() -> None:
    idle(2 * BUDGET + 5)

    batch = go_on()

    assert inspections(batch) == [BUDGET] * 3
    assert batch.call.after >= (1, 0) > batch.earlier[-1].after
    assert (batch.leases, batch.poisoned) == ([], [])


def test_a_place_that_is_passed_already_means_one_call() -> None:
    """As when somebody else has moved the cursor meanwhile."""
    idle(2 * BUDGET)
    claim_due(1)

    assert inspections(claim_due(1, until=(0, 1))) == [BUDGET]


def test_no_more_than_32_calls_are_made_at_once() -> None:
    idle((CALLS + 1) * BUDGET)

    assert inspections(go_on()) == [BUDGET] * CALLS


@pytest.mark.parametrize("limit", ["of an exchange", "of a statement"])
def test_slow_calls_are_not_put_together(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker must hear in time that it is to stop, and half of the time for a statement is enough.

    The first commit takes longer than that, so the second call is the last.
    """
    idle(3 * BUDGET)
    claim_due(1)  # makes the plans, which may take long
    with connection.cursor() as statements, on_the_policy("PERFORM pg_sleep(0.5)"):
        if limit == "of an exchange":
            monkeypatch.setattr(tenant_fair, "LONGEST_WALK", timedelta(milliseconds=100))
        else:
            statements.execute("SET statement_timeout = 1000")
        calls = inspections(go_on())
        statements.execute("RESET statement_timeout")

    assert calls in ([BUDGET], [BUDGET] * 2)


def test_an_empty_ring_means_one_call() -> None:
    assert inspections(go_on()) == [0]


def test_every_call_is_a_transaction_of_its_own() -> None:
    """So the policy row is free in between, and a failure takes back nothing that others have seen."""
    idle(2 * BUDGET + 5)
    with connection.cursor() as statements:
        statements.execute("CREATE TABLE moves (xid xid8, setting text)")
    try:
        with on_the_policy(
            "INSERT INTO moves VALUES (pg_current_xact_id(), current_setting('synchronous_commit'))"
        ):
            go_on()
        with connection.cursor() as statements:
            statements.execute("SELECT xid, setting FROM moves")
            moves = statements.fetchall()
    finally:
        with connection.cursor() as statements:
            statements.execute("DROP TABLE moves")

    assert len({xid for xid, _ in moves}) == len(moves) == 3
    assert {setting for _, setting in moves} == {"off"}


def test_a_failure_on_the_way_keeps_what_the_calls_before_it_did() -> None:
    """None of them was granted anything, so nobody misses a lease."""
    idle(3 * BUDGET)
    with (
        on_the_policy(
            "RAISE EXCEPTION 'no further' USING ERRCODE = 'query_canceled'", "OLD.scan_ring_position > 0"
        ),
        pytest.raises(OperationalError),
    ):
        go_on()

    laps, position = cursor()
    assert laps == 0
    assert Schedule.objects.filter(ring_position__lte=position).count() == BUDGET


def test_each_call_is_observed_and_all_share_the_time(observed: list[dict[str, Any]]) -> None:
    idle(2 * BUDGET)
    run_in("queued", tenant_id="last")

    go_on()

    assert [sent["result"] for sent in observed] == ["ok"] * 3
    assert [sent["inspections"] for sent in observed] == [BUDGET, BUDGET, 1]
    assert [sent["outcomes"] for sent in observed] == [Counter(), Counter(), Counter(promotion=1)]
    assert [sent["denials"]["empty_page"] for sent in observed] == [BUDGET, BUDGET, 0]
    assert len({sent["duration"] for sent in observed}) == 1


def test_a_refusal_is_raised_and_observed_once(observed: list[dict[str, Any]]) -> None:
    idle(1)
    with sessions() as another:
        holder = another()
        holder.execute("BEGIN")
        holder.execute("SELECT FROM tenantfair_policy FOR UPDATE")
        with pytest.raises(ClaimUnavailable) as refusal:
            go_on()

    assert (refusal.value.reason, refusal.value.phase) == ("lock_contention", "policy_cursor")
    assert [(sent["result"], sent["phase"]) for sent in observed] == [("lock_contention", "policy_cursor")]


def test_a_refusal_on_the_way_is_the_last_of_what_is_observed(observed: list[dict[str, Any]]) -> None:
    idle(3 * BUDGET)
    another_engine = "UPDATE tenantfair_policy SET admission_mode = 'legacy'"
    with (
        on_the_policy(another_engine, "NEW.admission_mode = 'tenant_fair'"),
        pytest.raises(ClaimUnavailable, match="inactive_engine"),
    ):
        go_on()

    assert [(sent["result"], sent["inspections"]) for sent in observed] == [
        ("ok", BUDGET),
        ("inactive_engine", 0),
    ]


def test_the_walk_ends_where_it_was_told_to_whoever_moved_the_cursor() -> None:
    idle(5 * BUDGET)
    with on_the_policy("UPDATE tenantfair_policy SET scan_laps = scan_laps + 1", "NEW.scan_laps = 0"):
        batch = go_on()

    assert inspections(batch) == [BUDGET] * 2
    assert (batch.earlier[0].after[0], batch.call.before[0]) == (0, 1)


def test_lease_and_attempts_are_the_policys() -> None:
    Policy.objects.update(lease_seconds=10, max_attempts=2)
    now = datetime.now(UTC)
    idle(BUDGET)
    expired = run_in("claimed", tenant_id="a", claimed_at=now - timedelta(seconds=11))
    run_in("claimed", tenant_id="a", claimed_at=now - timedelta(seconds=9))
    spent = run_in("queued", tenant_id="b", claim_attempts=2)

    batch = go_on(4, now=now)

    assert [(lease.run_id, lease.work_class) for lease in batch.leases] == [(expired.run_id, "expired")]
    assert [run.run_id for run in batch.poisoned] == [spent.run_id]


@pytest.mark.conformance(166)
@pytest.mark.parametrize("calls_before", [1, 2, 3])
@pytest.mark.parametrize("preference", ["ready", "expired"])
def test_the_preference_alternates_from_call_to_call(preference: str, calls_before: int) -> None:
    idle(calls_before * BUDGET)
    run_in("claimed", tenant_id="last")
    run_in("ready", tenant_id="last")

    (lease,) = go_on(preference=preference).leases

    ready_is_first = (preference == "ready") == (calls_before % 2 == 0)
    assert lease.work_class == ("admitted_ready" if ready_is_first else "expired")


def test_it_is_refused_inside_a_transaction_whatever_a_single_call_may() -> None:
    idle(1)
    with transaction.atomic(), pytest.raises(ClaimUnavailable, match="open_transaction"):
        claim_due(1, until=(1, 0), allow_in_transaction=True)
    assert cursor() == (0, 0)


def test_the_procedure_itself_cannot_run_inside_a_transaction() -> None:
    idle(2 * BUDGET)
    with sessions() as another:
        session = another()
        session.execute("BEGIN")
        with pytest.raises(errors.InvalidTransactionTermination):
            session.execute("CALL tenantfair_claim_lap(NULL, 1, NULL, 1, 0, '1 minute', '{}')")


def test_an_engine_without_a_ring_makes_one_call() -> None:
    policy_in_force(admission_mode="legacy")
    run_in("queued")

    batch = claim_due(1, engine=Legacy(), until=(1, 0))

    assert (len(batch.leases), batch.earlier) == (1, ())


@pytest.mark.parametrize("use_tz", [True, False], ids=["zones", "no zones"])
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/St_Johns", "Europe/Berlin"])
def test_a_lease_is_what_a_single_call_returns(
    settings: Any, monkeypatch: pytest.MonkeyPatch, use_tz: bool, zone: str
) -> None:
    connections["default"].close()
    # The zone of the sessions, with USE_TZ and without.
    monkeypatch.setitem(connections["default"].settings_dict, "TIME_ZONE", zone if use_tz else None)
    settings.TIME_ZONE, settings.USE_TZ = zone, use_tz
    payload = {
        "kwargs": {"é": [1.5, None, "\N{SNOWMAN}"]},
        "state": {"place": 7},
        "pending_signals": [{"kind": "go"}],
        "errors": [{"error": "E"}],
        "worker_ids": ["w"],
        "checkpoint_seq": 2**60,
        "failures": 2,
    }
    # The second pass of an hour that comes twice in Berlin.
    now = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    for tenant in ("a", "b"):
        run_in("queued", tenant_id=tenant, wake_at=now - timedelta(minutes=1), **payload)
    try:
        alone, walking = claim_due(1, now=now).leases[0], go_on(now=now).leases[0]
    finally:
        connections["default"].close()

    assert (alone.tenant_id, walking.tenant_id) == ("a", "b")
    unlike = {"run_id", "claim_token", "tenant_id", "enqueued_at", "eligible_at"}
    for name, value in alone._asdict().items():
        other = getattr(walking, name)
        assert type(other) is type(value)
        assert name in unlike or other == value
        assert getattr(other, "tzinfo", None) == getattr(value, "tzinfo", None)
        assert getattr(other, "fold", 0) == getattr(value, "fold", 0)
    assert (walking.kwargs, walking.checkpoint_seq) == (payload["kwargs"], 2**60)


def test_a_run_that_is_poisoned_on_the_way_is_an_outcome() -> None:
    idle(BUDGET)
    poisoned = run_in("queued", tenant_id="last", claim_attempts=5)

    batch = go_on()

    assert [(run.run_id, run.poison_reason) for run in batch.poisoned] == [
        (poisoned.run_id, "max_claim_attempts_exceeded")
    ]
    poisoned.refresh_from_db()
    assert batch.poisoned[0].poisoned_at == poisoned.poisoned_at


def test_a_number_that_python_cannot_read_spoils_its_own_lease_alone() -> None:
    good, bad = run_in("queued"), run_in("queued")
    with connection.cursor() as statements:
        statements.execute(
            "UPDATE tenantfair_run SET kwargs = jsonb_build_object('n', repeat('9', 5000)::numeric)"
            " WHERE id = %s",
            [bad.pk],
        )

    leases = {lease.run_id: lease for lease in go_on(2).leases}

    assert (leases[good.run_id].args, leases[bad.run_id].args) == ([1], None)


def test_a_time_that_python_has_not_is_the_same_error_as_from_a_single_call() -> None:
    for tenant in ("a", "b"):
        run_in("queued", tenant_id=tenant)
    with connection.cursor() as statements:
        statements.execute("UPDATE tenantfair_run SET enqueued_at = 'infinity'")

    with pytest.raises(DataError):
        claim_due(1)
    with pytest.raises(DataError):
        go_on()


@pytest.mark.parametrize("commits", ["synchronous", "asynchronous"])
def test_leases_wait_for_the_disk_where_claims_do(settings: Any, commits: str) -> None:
    settings.TENANTFAIR = {**settings.TENANTFAIR, "CLAIM_COMMITS": commits}
    idle(BUDGET)
    run_in("queued", tenant_id="last")

    with CaptureQueriesContext(connection) as log:
        assert len(go_on().leases) == 1

    statements = [query["sql"] for query in log if "scan_laps" not in query["sql"]]
    flushes = ["pg_logical_emit_message" in statement for statement in statements]
    assert flushes == ([False, True] if commits == "synchronous" else [False])


def test_a_walk_in_vain_waits_for_no_disk() -> None:
    idle(2 * BUDGET)

    with CaptureQueriesContext(connection) as log:
        go_on()

    assert not any("pg_logical_emit_message" in query["sql"] for query in log)


def test_leases_whose_wait_for_the_disk_failed_are_handed_to_nobody() -> None:
    def lost(execute: Any, sql: str, *rest: Any) -> Any:
        if "pg_logical_emit_message" in sql:
            raise OperationalError("the connection is gone")
        return execute(sql, *rest)

    run = run_in("queued")
    with connection.execute_wrapper(lost), pytest.raises(OperationalError):
        go_on()

    run.refresh_from_db()
    assert run.claim_token is not None


@pytest.mark.parametrize("missing", ["poisoned_at", "run_id", "row_kind", "cursor_after"])
def test_rows_of_another_shape_are_said_to_be_that(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    run_in("queued")
    load = lap.json.JSONDecoder().raw_decode

    def without(text: str) -> tuple[dict[str, Any], int]:
        row, end = load(text)
        return {name: value for name, value in row.items() if name != missing}, end

    monkeypatch.setattr(lap, "_read", without)
    with pytest.raises(SchemaMismatch):
        go_on()


def test_a_certificate_counts_the_calls_of_a_walk_one_by_one() -> None:
    idle(2 * BUDGET)
    run_in("queued", tenant_id="last")
    try:
        certificate = certified(go_on)
    finally:
        clean()

    assert (certificate.calls, list(certificate.violations)) == (3, [])
