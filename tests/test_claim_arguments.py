"""What a claim refuses before it looks at anything: arguments, transactions, policies not ready."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from psycopg import errors

from tenantfair.claim import claim_due
from tenantfair.exceptions import ClaimUnavailable
from tests.claim_support import (
    NOW,
    Bench,
    Session,
    at,
    bench,
    claims_observed,
    inserted,
    telling_its_patience,
)

pytestmark = pytest.mark.django_db

CALL = "SELECT * FROM tenantfair_claim(%s, %s, %s, %s, %s, %s)"
LAWFUL = {"now": NOW, "cutoff": at(-60), "demand": 1, "attempts": 5, "preference": None, "trace": False}


@pytest.fixture
def domain(db: None) -> Iterator[Bench]:
    with bench() as found:
        yield found


@pytest.mark.conformance(28)
@pytest.mark.parametrize(
    "wrong",
    [
        *({name: None} for name in ("now", "cutoff", "demand", "attempts", "trace")),
        {"demand": 0},
        {"demand": -1},
        {"attempts": 0},
        {"attempts": -1},
        {"cutoff": NOW + timedelta(microseconds=1)},
        {"preference": "queued"},
        {"preference": ""},
    ],
    ids=str,
)
def test_bad_argument_is_22023(domain: Bench, wrong: dict[str, Any]) -> None:
    domain.queued("a")
    before = domain.everything()
    with pytest.raises(errors.InvalidParameterValue):
        domain.db.execute(CALL, list({**LAWFUL, **wrong}.values()))
    assert domain.everything() == before


@pytest.mark.conformance(28)
@pytest.mark.parametrize("now", ["infinity", "-infinity"])
def test_infinite_now_is_22023(domain: Bench, now: str) -> None:
    with pytest.raises(errors.InvalidParameterValue):
        domain.db.execute(CALL, [now, "-infinity", 1, 5, None, False])


@pytest.mark.conformance(28)
def test_arguments_are_judged_before_the_transaction_is(domain: Bench) -> None:
    domain.db.execute("BEGIN READ ONLY")
    with pytest.raises(errors.InvalidParameterValue):
        domain.db.execute(CALL, list({**LAWFUL, "demand": 0}.values()))


@pytest.mark.conformance(29)
def test_cutoff_may_be_now(domain: Bench) -> None:
    at_now, before = domain.claimed("a", since=0)[0], domain.claimed("a", since=-1)[0]
    found = domain.claim(5, cutoff=NOW)
    assert domain.ids(found.outcomes) == [before]
    assert domain.run(at_now).claim_attempts == 1


@pytest.mark.conformance(30)
def test_there_is_one_overload_of_six_arguments(domain: Bench) -> None:
    found = domain.db.execute(
        "SELECT pg_get_function_identity_arguments(oid) AS arguments, prokind FROM pg_proc"
        " WHERE proname = 'tenantfair_claim' AND pronamespace = current_schema()::regnamespace"
    ).fetchall()
    assert [tuple(row) for row in found] == [
        (
            "p_now timestamp with time zone, p_expired_before timestamp with time zone, p_demand integer,"
            " p_max_attempts integer, p_preference text, p_trace boolean",
            "f",
        )
    ]
    with pytest.raises(errors.UndefinedFunction):
        domain.db.execute("SELECT tenantfair_claim(now(), now(), 1, 5, NULL, false, 10)")


@pytest.mark.conformance(31)
def test_hostile_search_path_and_shadow_tables_change_nothing(domain: Bench) -> None:
    run = domain.queued("a")[0]
    schema = domain.db.execute("SELECT current_schema()").fetchone()[0]
    assert (
        domain.db.execute("SELECT proconfig FROM pg_proc WHERE proname = 'tenantfair_claim'").fetchone()[0][0]
        == f"search_path={schema}, pg_temp"
    )
    caller = domain.session()
    for table in ("policy", "partition", "schedule", "run"):
        caller.execute(f"CREATE TEMP TABLE tenantfair_{table} (LIKE {schema}.tenantfair_{table})")
    caller.execute("SET search_path = pg_temp")
    caller.execute(
        "CREATE FUNCTION pg_temp.count(anyelement) RETURNS bigint LANGUAGE sql AS 'SELECT 7::bigint'"
    )
    found = caller.execute(
        f"SELECT * FROM {schema}.tenantfair_claim(%s, %s, %s, %s, %s, %s)", list(LAWFUL.values())
    )
    assert [row.row_kind for row in found.fetchall()] == ["outcome", "call"]
    assert domain.run(run).claim_token is not None
    assert caller.execute("SHOW search_path").fetchone()[0] == "pg_temp"


@pytest.mark.conformance(32, 39)
@pytest.mark.parametrize(
    "isolation", ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
)
def test_read_only_transaction_gets_an_error_row_and_no_xid(domain: Bench, isolation: str) -> None:
    domain.queued("a")
    before = domain.everything()
    caller = domain.session()
    caller.execute(f"BEGIN ISOLATION LEVEL {isolation} READ ONLY")
    found = domain.claim(by=caller)
    assert (found.error.error_reason, found.error.disposition) == (
        "read_only_transaction",
        "transaction_mode",
    )
    assert found.error.transaction_id is None
    assert caller.execute("SELECT pg_current_xact_id_if_assigned()").fetchone()[0] is None
    caller.execute("COMMIT")
    assert domain.everything() == before


@pytest.mark.conformance(32, 39)
@pytest.mark.parametrize("isolation", ["READ UNCOMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_only_read_committed_may_claim(domain: Bench, isolation: str) -> None:
    domain.queued("a")
    before = domain.everything()
    caller = domain.session()
    caller.execute(f"BEGIN ISOLATION LEVEL {isolation}")
    found = domain.claim(by=caller)
    assert (found.error.error_reason, found.error.disposition) == (
        "unsupported_isolation",
        "transaction_mode",
    )
    assert caller.execute("SELECT pg_current_xact_id_if_assigned()").fetchone()[0] is None
    caller.execute("COMMIT")
    assert domain.everything() == before


@pytest.mark.conformance(33)
def test_pristine_policy_is_not_initialized(domain: Bench) -> None:
    domain.queued("a")
    domain.pristine()
    before = domain.everything()
    assert domain.claim().error.error_reason == "not_initialized"
    assert domain.everything() == before


@pytest.mark.conformance(34)
def test_policy_that_is_not_ready(domain: Bench) -> None:
    domain.queued("a")
    domain.db.execute("UPDATE tenantfair_policy SET admission_mode = 'legacy'")
    assert domain.claim().error.error_reason == "inactive_engine"
    domain.pristine()
    domain.db.execute("UPDATE tenantfair_policy SET admission_mode = 'tenant_fair'")
    assert domain.claim().error.error_reason == "malformed_policy"
    domain.db.execute("DELETE FROM tenantfair_policy")
    missing = domain.claim().error
    assert (missing.error_reason, missing.disposition) == ("malformed_policy", "policy_readiness")
    domain.db.execute("INSERT INTO tenantfair_policy (id) VALUES (1)")


@pytest.mark.conformance(35)
@pytest.mark.parametrize("timeout", ["0", "10ms", "5s"])
def test_locked_policy_is_contention_and_changes_nothing(domain: Bench, timeout: str) -> None:
    """Whatever the caller would have waited: the statement timeout proves that 0 is not for ever."""
    domain.queued("a")
    before = domain.everything()
    holder = domain.locking_policy()
    caller = domain.session()
    caller.execute(f"SET lock_timeout = '{timeout}'; SET statement_timeout = '4s'")
    found = domain.claim(by=caller)
    assert (found.error.error_reason, found.error.disposition) == ("lock_contention", "policy_cursor")
    holder.rollback()
    assert domain.everything() == before
    assert domain.claim(by=caller).error is None


@pytest.mark.conformance(35)
def test_claim_in_flight_is_contention(domain: Bench) -> None:
    domain.queued("a", 2)
    first, second = domain.session(), domain.session()
    first.execute("BEGIN")
    assert domain.claim(by=first).outcomes
    found = domain.claim(by=second)
    assert (found.error.error_reason, found.error.disposition) == ("lock_contention", "policy_cursor")
    first.execute("COMMIT")
    assert domain.claim(by=second).outcomes


# The lock that a claim took before the policy row, once more and for the whole session.
TAKE_THE_DOOR = """
    SELECT pg_advisory_lock((classid::bigint << 32) | objid::bigint) FROM pg_locks
    WHERE locktype = 'advisory' AND pid = pg_backend_pid()
"""


def holding_the_door(domain: Bench) -> Session:
    """Return a session that stands in the door of claims; `pg_advisory_unlock_all()` lets the next one in."""
    holder = domain.session()
    holder.execute("BEGIN")
    assert domain.claim(by=holder).error is None
    holder.execute(TAKE_THE_DOOR)
    holder.execute("COMMIT")
    return holder


@pytest.mark.conformance(35)
def test_claims_queue_at_one_door_before_the_policy_row(domain: Bench) -> None:
    """An advisory lock lets its waiters in by turns; those of a row that is updated overtake each other."""
    domain.queued("a", 3)
    holder = holding_the_door(domain)
    found = domain.claim()
    assert (found.error.error_reason, found.error.disposition) == ("lock_contention", "policy_cursor")
    holder.execute("SELECT pg_advisory_unlock_all()")
    assert domain.claim().outcomes


PATIENCE = [
    ("0", "250ms"),
    ("10ms", "10ms"),
    ("249ms", "249ms"),
    ("250ms", "250ms"),
    ("251ms", "250ms"),
    ("5s", "250ms"),
]


def waits_told(domain: Bench, timeout: str) -> tuple[Session, list[str]]:
    """Return a session with that lock_timeout, and the list of what it will tell of its waits."""
    caller = domain.session()
    caller.execute(f"SET lock_timeout = '{timeout}'")
    told: list[str] = []
    caller.add_notice_handler(lambda notice: told.append(str(notice.message_primary)))
    return caller, told


@pytest.mark.conformance(35)
@pytest.mark.parametrize(("asked", "in_force"), PATIENCE)
def test_the_policy_row_is_waited_for_as_long_as_the_caller_would_and_250_ms_at_most(
    domain: Bench, asked: str, in_force: str
) -> None:
    function = domain.function("tests_claim_telling", telling_its_patience())
    domain.locking_policy()
    caller, told = waits_told(domain, asked)
    assert domain.claim(by=caller, function=function).error.error_reason == "lock_contention"
    assert told == [in_force]


@pytest.mark.conformance(35)
@pytest.mark.parametrize(("asked", "in_force"), PATIENCE)
def test_the_door_is_waited_for_as_long_as_the_caller_would_and_250_ms_at_most(
    domain: Bench, asked: str, in_force: str
) -> None:
    function = domain.function("tests_claim_telling", telling_its_patience())
    holding_the_door(domain)
    caller, told = waits_told(domain, asked)
    assert domain.claim(by=caller, function=function).error.error_reason == "lock_contention"
    assert told == [in_force]


@pytest.mark.conformance(35)
def test_what_was_waited_at_the_door_is_taken_off_the_wait_for_the_policy_row(domain: Bench) -> None:
    """A closed door opens when 240 of its 250 ms are over; the row is still locked."""
    text = telling_its_patience()
    for line in (
        "            PERFORM tests_barrier();",
        "            v_give_up_at := clock_timestamp() + interval '10 milliseconds';",
    ):
        text = inserted(text, line, after="v_give_up_at := clock_timestamp() + v_patience;")
    function = domain.function("tests_claim_telling", text)
    door = holding_the_door(domain)
    domain.locking_policy()
    caller, told = waits_told(domain, "0")

    def open_the_door() -> None:
        door.execute("SELECT pg_advisory_unlock_all()")

    found = domain.while_stopped(open_the_door, function, by=caller)
    assert found.error.error_reason == "lock_contention"
    at_the_door, at_the_row = told
    assert at_the_door == "250ms"
    assert at_the_row in {f"{left}ms" for left in range(1, 11)}


@pytest.mark.conformance(35, 63)
def test_key_share_on_the_policy_row_disturbs_nobody(domain: Bench) -> None:
    domain.queued("a")
    domain.holding("SELECT FROM tenantfair_policy FOR KEY SHARE")
    assert len(domain.claim().outcomes) == 1


@pytest.mark.conformance(36)
@pytest.mark.parametrize("timeout", ["0", "100ms", "250ms", "251ms", "5s", "2min"])
def test_lock_timeout_is_as_before(domain: Bench, timeout: str) -> None:
    caller = domain.session()
    caller.execute(f"SET lock_timeout = '{timeout}'")
    domain.queued("a")

    def after(step: Any) -> str:
        caller.execute("BEGIN")
        step()
        found = str(caller.execute("SHOW lock_timeout").fetchone()[0])
        caller.execute("COMMIT")
        return found

    assert after(lambda: domain.claim(by=caller)) == timeout
    holder = domain.locking_policy()
    assert after(lambda: domain.claim(by=caller)) == timeout
    holder.rollback()
    domain.pristine()
    assert after(lambda: domain.claim(by=caller)) == timeout
    assert caller.execute("SHOW lock_timeout").fetchone()[0] == timeout


@pytest.mark.conformance(37)
def test_savepoint_takes_the_whole_claim_back(domain: Bench) -> None:
    run = domain.queued("a")[0]
    before = domain.everything()
    caller = domain.session()
    caller.execute("SET lock_timeout = '5s'")
    caller.execute("BEGIN")
    caller.execute("SAVEPOINT before")
    assert domain.ids(domain.claim(by=caller).outcomes) == [run]
    caller.execute("ROLLBACK TO before")
    assert caller.execute("SHOW lock_timeout").fetchone()[0] == "5s"
    again = domain.claim(by=caller)
    assert len(again.outcomes) == 1
    assert (again.call.cursor_before, again.outcomes[0].claim_attempt) == (0, 1)
    caller.execute("ROLLBACK")
    assert domain.everything() == before


@pytest.mark.conformance(38, 172)
@pytest.mark.django_db(transaction=True)
def test_later_lock_wait_is_contention_without_a_phase(domain: Bench) -> None:
    domain.queued("a")
    domain.holding("LOCK TABLE tenantfair_schedule IN ACCESS EXCLUSIVE MODE")
    with claims_observed() as seen, pytest.raises(ClaimUnavailable) as refusal:
        claim_due(1)
    assert (refusal.value.reason, refusal.value.phase) == ("lock_contention", None)
    assert [(sent["result"], sent["phase"]) for sent in seen] == [("lock_contention", None)]


@pytest.mark.conformance(39)
def test_error_row_carries_nothing_but_the_error(domain: Bench) -> None:
    domain.queued("a")
    domain.pristine()
    found = domain.claim(7, trace=True)
    assert len(found.rows) == 1
    told = {name: value for name, value in found.error._asdict().items() if value is not None}
    assert told.pop("call_token")
    assert told.pop("transaction_id")
    assert told == {
        "row_kind": "error",
        "error_reason": "not_initialized",
        "disposition": "policy_readiness",
        "demand": 7,
        "outcome_count": 0,
        "epoch_delta": 0,
    }
