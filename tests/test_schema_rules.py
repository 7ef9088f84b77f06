"""Every rule about a single row holds in the database itself, for raw SQL as for the ORM."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone
from psycopg import errors

from tenantfair.models import Partition, Policy, Run
from tests.rows import STATES, Session, insert_run, sessions

INITIALISED = {"max_active": "4", "policy_version": "1", "initialized_at": "now()"}
HUGE = "2147483648"

# What breaks each rule: for a run, the state it starts from and the columns that are wrong.
RUN_RULES: dict[str, list[tuple[str, dict[str, str]]]] = {
    "tenantfair_run_claim_pair": [
        ("claimed", {"claimed_at": "NULL"}),
        ("queued", {"claimed_at": "now()"}),
        ("waiting", {"claimed_at": "now()"}),
        ("completed", {"claimed_at": "now()"}),
        ("poisoned", {"claimed_at": "now()"}),
    ],
    "tenantfair_run_poison_pair": [
        ("poisoned", {"poison_reason": "NULL"}),
        ("queued", {"poison_reason": "'why'"}),
        ("failed", {"poison_reason": "'why'"}),
    ],
    "tenantfair_run_running_shape": [
        ("claimed", {"wake_at": "now()"}),
        ("queued", {"wake_at": "NULL"}),
        ("ready", {"wake_at": "NULL"}),
    ],
    "tenantfair_run_poisoned_shape": [
        ("poisoned", {"wake_at": "now()"}),
        ("poisoned", {"claim_token": "gen_random_uuid()", "claimed_at": "now()"}),
        ("poisoned", {"tenant_admitted_at": "now()"}),
    ],
    "tenantfair_run_idle_shape": [
        (state, wrong)
        for state in ("waiting", "completed", "failed", "cancelled")
        for wrong in (
            {"wake_at": "now()"},
            {"claim_token": "gen_random_uuid()", "claimed_at": "now()"},
            {"tenant_admitted_at": "now()"},
            {"poisoned_at": "now()", "poison_reason": "'why'"},
        )
    ],
    "tenantfair_run_status": [
        *((state, {"finished_at": "NULL"}) for state in ("completed", "failed", "cancelled")),
        *((state, {"finished_at": "now()"}) for state in ("queued", "claimed", "waiting", "poisoned")),
        *(("queued", {"status": wrong, "wake_at": "NULL"}) for wrong in ("'paused'", "''", "'RUNNING'")),
    ],
    "tenantfair_run_wake_range": [
        ("queued", {"wake_at": wrong})
        for wrong in ("'infinity'", "'-infinity'", "'10000-01-01 00:00+00'", "'0001-12-31 23:59:59+00 BC'")
    ],
    "tenantfair_run_counters": [
        ("queued", {column: "-1"})
        for column in ("claim_attempts", "claim_abandons", "failures", "checkpoint_seq", "retry_limit")
    ],
    "tenantfair_run_tenant": [],
}
POLICY_RULES: dict[str, list[dict[str, str]]] = {
    "tenantfair_policy_single": [{"id": "2"}, {"id": "0"}],
    "tenantfair_policy_mode": [{"admission_mode": "'x'"}, {"admission_mode": "''"}],
    "tenantfair_policy_shape": [
        {"policy_version": "-1"},
        {"policy_version": "1"},
        {"max_active": "4"},
        {"initialized_at": "now()"},
        {"policy_version": "1", "initialized_at": "now()"},
        INITIALISED | {"max_active": "NULL"},
        INITIALISED | {"max_active": "0"},
        INITIALISED | {"policy_version": "0"},
        INITIALISED | {"initialized_at": "NULL"},
    ],
    "tenantfair_policy_configured": [{"configured_max_active": "0"}, {"configured_max_active": "-1"}],
    "tenantfair_policy_lease": [{"lease_seconds": "0"}, {"lease_seconds": "86401"}],
    "tenantfair_policy_attempts": [{"max_attempts": "0"}, {"max_attempts": "32768"}],
    "tenantfair_policy_budget": [{"scan_budget": "31"}, {"scan_budget": "4097"}],
    "tenantfair_policy_cursor": [
        {"scan_ring_position": "-1"},
        {"scan_laps": "-1"},
        {"scan_fruitless": "-1"},
    ],
}
PARTITION_RULES: dict[str, list[dict[str, str]]] = {
    "tenantfair_partition_cap": [{"max_active": "0"}, {"max_active": "-1"}],
    "tenantfair_partition_counters": [{"partition_version": "-1"}, {"admission_epoch": "-1"}],
    "tenantfair_partition_scope": [],
}
# Reached only past a guard; tests/test_ring.py and tests/test_counter_commit.py do.
SCHEDULE_RULES = {"tenantfair_schedule_position", "tenantfair_schedule_count"}


@pytest.fixture
def db(transactional_db: None) -> Iterator[Session]:
    with sessions() as another:
        yield another()


def broken(rules: dict[str, list]) -> list:
    return [
        pytest.param(rule, wrong, id=f"{rule}-{wrong}") for rule, wrongs in rules.items() for wrong in wrongs
    ]


def test_every_check_constraint_has_a_test_here(db: Session) -> None:
    found = db.execute(
        "SELECT conname FROM pg_constraint WHERE contype = 'c' AND conname LIKE 'tenantfair\\_%'"
    ).fetchall()
    # The two functions name the rules of their tables; a trigger checks a new scope key.
    assert {name for (name,) in found} == {
        "tenantfair_run_shape",
        "tenantfair_policy_shape",
        *PARTITION_RULES.keys() - {"tenantfair_partition_scope"},
        *SCHEDULE_RULES,
    }
    for table, rules in (("run", RUN_RULES), ("policy", POLICY_RULES)):
        (source,) = db.execute(
            f"SELECT prosrc FROM pg_proc WHERE proname = 'tenantfair_{table}_shape'"
        ).fetchone()
        named = set(re.findall(rf"'(tenantfair_{table}_\w+)'", source))
        assert named == rules.keys()


@pytest.mark.conformance(1)
@pytest.mark.django_db
def test_fresh_domain_has_one_pristine_policy_row() -> None:
    policy = Policy.objects.get()
    assert policy.pk == 1
    assert (policy.admission_mode, policy.max_active, policy.configured_max_active) == ("legacy", None, None)
    assert (policy.policy_version, policy.scan_ring_position, policy.scan_laps) == (0, 0, 0)
    assert (policy.lease_seconds, policy.max_attempts, policy.scan_budget) == (60, 5, 32)
    assert policy.initialized_at is None


@pytest.mark.conformance(2, 3)
@pytest.mark.parametrize(("rule", "wrong"), broken(POLICY_RULES))
def test_policy_rules(db: Session, rule: str, wrong: dict[str, str]) -> None:
    """By UPDATE of the row, and by INSERT in its place."""
    before = db.execute("SELECT * FROM tenantfair_policy").fetchall()
    changes = ", ".join(f"{column} = {value}" for column, value in wrong.items())
    with pytest.raises(errors.CheckViolation) as caught:
        db.execute(f"UPDATE tenantfair_policy SET {changes}")
    assert caught.value.diag.constraint_name == rule
    values = {"id": "1"} | wrong
    db.execute("BEGIN")
    db.execute("DELETE FROM tenantfair_policy")
    with pytest.raises(errors.CheckViolation):
        db.execute(
            f"INSERT INTO tenantfair_policy ({', '.join(values)}) VALUES ({', '.join(values.values())})"
        )
    db.execute("ROLLBACK")
    assert db.execute("SELECT * FROM tenantfair_policy").fetchall() == before


@pytest.mark.conformance(3)
def test_policy_is_pristine_or_initialised_whole(db: Session) -> None:
    """All combinations, so that no null slips through a comparison."""
    accepted = set()
    for cap, version, at in itertools.product(
        ("NULL", "0", "1", "2147483647"), ("0", "1"), ("NULL", "now()")
    ):
        try:
            db.execute(
                f"UPDATE tenantfair_policy"
                f" SET max_active = {cap}, policy_version = {version}, initialized_at = {at}"
            )
        except errors.CheckViolation:
            continue
        accepted.add((cap, version, at))
    assert accepted == {("NULL", "0", "NULL"), ("1", "1", "now()"), ("2147483647", "1", "now()")}


@pytest.mark.parametrize("column", ["max_active", "configured_max_active", "lease_seconds", "scan_budget"])
def test_policy_integers_have_an_upper_end(db: Session, column: str) -> None:
    with pytest.raises((errors.NumericValueOutOfRange, errors.CheckViolation)):
        db.execute(f"UPDATE tenantfair_policy SET {column} = {HUGE}")


@pytest.mark.conformance(4)
@pytest.mark.parametrize(("rule", "wrong"), broken(PARTITION_RULES))
def test_partition_rules(db: Session, rule: str, wrong: dict[str, str]) -> None:
    with pytest.raises(errors.CheckViolation) as caught:
        db.execute(
            f"INSERT INTO tenantfair_partition (scope_key, {', '.join(wrong)})"
            f" VALUES ('a', {', '.join(wrong.values())})"
        )
    assert caught.value.diag.constraint_name == rule
    assert db.execute("SELECT count(*) FROM tenantfair_partition").fetchone() == (0,)
    assert db.execute("SELECT count(*) FROM tenantfair_schedule").fetchone() == (0,)


@pytest.mark.conformance(7, 8, 9, 10)
@pytest.mark.parametrize(
    ("rule", "state", "wrong"),
    [
        pytest.param(rule, state, wrong, id=f"{rule}-{state}-{wrong}")
        for rule, wrongs in RUN_RULES.items()
        for state, wrong in wrongs
    ],
)
def test_run_rules(db: Session, rule: str, state: str, wrong: dict[str, str]) -> None:
    """By INSERT of the wrong row, and by UPDATE of a right one."""
    with pytest.raises(errors.CheckViolation) as caught:
        insert_run(db, "a", state, **wrong)
    assert caught.value.diag.constraint_name == rule
    run = insert_run(db, "a", state)
    changes = ", ".join(f"{column} = {value}" for column, value in wrong.items())
    with pytest.raises(errors.CheckViolation) as caught:
        db.execute(f"UPDATE tenantfair_run SET {changes} WHERE id = %s", [run])
    assert caught.value.diag.constraint_name == rule


@pytest.mark.conformance(7, 8, 9, 10)
def test_run_has_a_known_shape_or_is_refused(db: Session) -> None:
    """All combinations of status and nulls against the rule as the documentation words it."""
    optional = {
        "wake_at": "now()",
        "claim_token": "gen_random_uuid()",
        "claimed_at": "now()",
        "tenant_admitted_at": "now()",
        "poisoned_at": "now()",
        "poison_reason": "'why'",
        "finished_at": "now()",
    }
    statuses = ("running", "waiting", "completed", "failed", "cancelled")
    for status, *present in itertools.product(statuses, *[(False, True)] * len(optional)):
        has = dict(zip(optional, present, strict=True))
        values = {column: value for column, value in optional.items() if has[column]} | {
            "status": f"'{status}'"
        }
        try:
            insert_run(db, "a", "waiting", **values)
            accepted = True
        except errors.CheckViolation:
            accepted = False
        assert accepted == shape_is_right(status, has), values


def shape_is_right(status: str, has: dict[str, bool]) -> bool:
    running = status == "running"
    poisoned = has["poisoned_at"]
    healthy = running and not poisoned
    return (
        has["claim_token"] == has["claimed_at"]
        and poisoned == has["poison_reason"]
        and (not healthy or has["wake_at"] != has["claim_token"])
        and (running or not (has["claim_token"] or has["wake_at"] or poisoned or has["tenant_admitted_at"]))
        and (not poisoned or not (has["claim_token"] or has["wake_at"] or has["tenant_admitted_at"]))
        and (healthy or not has["tenant_admitted_at"])
        and has["finished_at"] == (status in ("completed", "failed", "cancelled"))
    )


@pytest.mark.parametrize("state", STATES)
def test_every_state_is_accepted(db: Session, state: str) -> None:
    insert_run(db, "a", state)


@pytest.mark.parametrize("wake_at", ["'0001-01-01 00:00+00'", "'9999-12-31 23:59:59.999999+00'"])
def test_ends_of_the_calendar_can_be_read_back(db: Session, wake_at: str) -> None:
    run = insert_run(db, "a", "queued", wake_at=wake_at)
    assert Run.objects.get(pk=run).wake_at.year in (1, 9999)


@pytest.mark.conformance(2, 4, 7)
@pytest.mark.django_db
def test_orm_meets_the_same_rules() -> None:
    for write in (
        lambda: Policy.objects.create(id=2),
        lambda: Policy.objects.update(max_active=0, policy_version=1, initialized_at=timezone.now()),
        lambda: Partition.objects.create(scope_key="a", max_active=0),
        lambda: Run.objects.create(tenant_id="a", task_path="tests.task"),
        lambda: Run.objects.create(tenant_id="", task_path="tests.task", wake_at=timezone.now()),
        lambda: Run.objects.create(tenant_id=" a", task_path="tests.task", wake_at=timezone.now()),
    ):
        with pytest.raises(IntegrityError), transaction.atomic():
            write()
    assert not Run.objects.exists()
    assert not Partition.objects.exists()


@pytest.mark.conformance(6)
def test_tenantless_run_has_the_empty_scope_key(db: Session) -> None:
    insert_run(db, None)
    insert_run(db, "a")
    assert db.execute("SELECT tenant_id, scope_key FROM tenantfair_run ORDER BY id").fetchall() == [
        (None, ""),
        ("a", "a"),
    ]


@pytest.mark.conformance(11)
def test_ring_index_holds_exactly_the_scopes_with_unfinished_runs(db: Session) -> None:
    for tenant, state in (("a", "queued"), ("b", "completed"), ("c", "waiting")):
        db.execute("INSERT INTO tenantfair_partition (scope_key) VALUES (%s)", [tenant])
        insert_run(db, tenant, state)
    (predicate,) = db.execute(
        "SELECT pg_get_expr(indpred, indrelid) FROM pg_index"
        " WHERE indexrelid = 'tenantfair_schedule_ring'::regclass"
    ).fetchone()
    indexed = db.execute(
        f"SELECT scope_key, unfinished_count FROM tenantfair_schedule WHERE {predicate} ORDER BY 1"
    )
    assert indexed.fetchall() == [("a", 1), ("c", 1)]


@pytest.mark.conformance(11)
def test_each_run_is_in_exactly_one_index_of_its_scope(db: Session) -> None:
    """Disjoint partial indexes: every further one would cost an entry per claim."""
    expected = dict.fromkeys(STATES, "history") | {
        "queued": "queued",
        "scheduled": "queued",
        "ready": "ready",
        "claimed": "claimed",
        "waiting": "waiting",
        "poisoned": "poisoned",
    }
    predicates = db.execute(r"""
        SELECT substr(relname, length('tenantfair_run_') + 1), pg_get_expr(indpred, indrelid)
        FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
        WHERE indrelid = 'tenantfair_run'::regclass AND pg_get_indexdef(indexrelid, 1, true) = 'scope_key'
    """).fetchall()
    runs = {state: insert_run(db, "a", state) for state in STATES}
    found = {
        state: [
            name
            for name, holds in predicates
            if db.execute(f"SELECT {holds} FROM tenantfair_run WHERE id = %s", [run]).fetchone()[0]
        ]
        for state, run in runs.items()
    }
    assert found == {state: [name] for state, name in expected.items()}
