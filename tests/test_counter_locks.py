"""An open transaction holds no count: nobody waits for a stranger's commit, no two commits for each other."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import errors

from tests.rows import (
    FINISH_ALL,
    Session,
    assert_exact,
    counts,
    enqueue,
    in_background,
    insert_run,
    positions,
    put_into,
    result,
    script,
    sessions,
    until_blocked,
)

Another = Callable[..., Session]


@pytest.fixture
def session(transactional_db: None) -> Iterator[Another]:
    with sessions() as another:
        yield another


@pytest.fixture
def db(session: Another) -> Session:
    return session()


@pytest.fixture
def other(session: Another) -> Session:
    """Somebody who gives up rather than wait."""
    return session(options="-c lock_timeout=2s")


@pytest.mark.conformance(178)
@pytest.mark.parametrize("known", [True, False], ids=["existing tenant", "brand-new tenant"])
@pytest.mark.parametrize("opened", ["enqueue", "finish", "delete"])
def test_open_transaction_delays_nobody(db: Session, other: Session, known: bool, opened: str) -> None:
    theirs = [insert_run(db, "a" if known else "elsewhere", "claimed") for _ in range(3)]
    mine = insert_run(db, "a" if known else "elsewhere")
    db.execute("BEGIN")
    enqueue(db, "a", 2)
    if opened == "finish":
        put_into(db, mine, "completed")
    if opened == "delete":
        db.execute("DELETE FROM tenantfair_run WHERE id = %s", [mine])

    enqueue(other, "a", 5)
    put_into(other, theirs[0], "completed")
    put_into(other, theirs[1], "cancelled")
    other.execute("UPDATE tenantfair_run SET claimed_at = clock_timestamp() WHERE id = %s", [theirs[2]])
    other.execute("DELETE FROM tenantfair_run WHERE id = %s", [theirs[0]])
    for table in ("partition", "schedule"):
        other.execute(f"SELECT FROM tenantfair_{table} WHERE scope_key = 'a' FOR NO KEY UPDATE NOWAIT")
    other.execute("SELECT FROM tenantfair_policy FOR NO KEY UPDATE NOWAIT")
    enqueue(other, "b", 1)

    db.execute("COMMIT")
    assert_exact(db)


@pytest.mark.conformance(178)
def test_forced_fold_holds_its_counters_to_the_end_of_its_transaction(db: Session, other: Session) -> None:
    """What remains of the wait: documented for claims and inspections inside a transaction."""
    enqueue(db, "a")
    db.execute("BEGIN")
    enqueue(db, "a")
    db.execute("SELECT tenantfair_fold()")
    other.execute("SET lock_timeout = '50ms'")
    with pytest.raises(errors.LockNotAvailable):
        enqueue(other, "a")
    enqueue(other, "b")
    db.execute("COMMIT")
    assert counts(db) == {"a": 2, "b": 1}


@pytest.mark.conformance(177)
@pytest.mark.parametrize("known", [True, False], ids=["existing tenants", "brand-new tenants"])
def test_opposite_orders_do_not_meet(db: Session, other: Session, known: bool) -> None:
    if known:
        enqueue(db, "a")
        enqueue(db, "b")
    script(db, "BEGIN")
    script(other, "BEGIN")
    enqueue(db, "a")
    enqueue(other, "b")
    enqueue(db, "b")
    enqueue(other, "a")
    first = in_background(db.execute, "COMMIT")
    second = in_background(other.execute, "COMMIT")
    result(first)
    result(second)
    assert_exact(db)


@pytest.mark.conformance(177)
def test_counters_are_taken_in_scope_order(session: Another, db: Session, other: Session) -> None:
    """A commit that waits for the first of its scopes holds none of the later ones yet."""
    for scope in ("b", "a", "B", "é"):
        enqueue(db, scope)
    holder = session()
    script(holder, "BEGIN", "SELECT FROM tenantfair_schedule WHERE scope_key = 'B' FOR NO KEY UPDATE")
    db.execute("BEGIN")
    for scope in ("é", "b", "a", "B"):
        enqueue(db, scope)
    commit = in_background(db.execute, "COMMIT")
    until_blocked(other, db)
    other.execute("SELECT FROM tenantfair_schedule WHERE scope_key <> 'B' FOR NO KEY UPDATE NOWAIT")
    holder.execute("ROLLBACK")
    result(commit)
    assert counts(other) == {"b": 2, "a": 2, "B": 2, "é": 2}


def test_commit_that_waits_for_a_new_partition_holds_no_counter(
    session: Another, db: Session, other: Session
) -> None:
    enqueue(db, "a")
    holder = session()
    script(holder, "BEGIN", "INSERT INTO tenantfair_partition (scope_key) VALUES ('b')")
    db.execute("BEGIN")
    enqueue(db, "a")
    enqueue(db, "b")
    commit = in_background(db.execute, "COMMIT")
    until_blocked(other, db)
    enqueue(other, "a")
    holder.execute("ROLLBACK")
    result(commit)
    assert counts(other) == {"a": 3, "b": 1}


@pytest.mark.conformance(107, 178)
@pytest.mark.parametrize("scopes", [("a",), ("a", "b")], ids=["one scope", "two scopes"])
def test_commit_waits_for_nobody_who_changes_a_partition_that_is_there(
    session: Another, db: Session, other: Session, scopes: tuple[str, ...]
) -> None:
    """An administrator who edits a cap, and a claim that bumps an epoch, hold the partition's row."""
    for scope in scopes:
        enqueue(db, scope)
    holder = session()
    script(holder, "BEGIN", "UPDATE tenantfair_partition SET max_active = 5, admission_epoch = 1")
    other.execute("BEGIN")
    for scope in scopes:
        enqueue(other, scope)
    other.execute("COMMIT")
    assert counts(db) == dict.fromkeys(scopes, 2)


@pytest.mark.conformance(108)
def test_uncommitted_partition_of_an_administrator_delays_only_the_commit(
    db: Session, other: Session, session: Another
) -> None:
    admin = session()
    script(
        admin,
        "BEGIN",
        "INSERT INTO tenantfair_partition (scope_key, max_active, partition_version) VALUES ('a', 9, 12)",
    )
    db.execute("BEGIN")
    db.execute("SET LOCAL lock_timeout = '2s'")
    enqueue(db, "a")
    db.execute("SET LOCAL lock_timeout = 0")
    commit = in_background(db.execute, "COMMIT")
    until_blocked(other, db)
    admin.execute("COMMIT")
    result(commit)
    assert other.execute("SELECT max_active, partition_version FROM tenantfair_partition").fetchall() == [
        (9, 12)
    ]
    assert counts(other) == {"a": 1}
    assert_exact(other)


@pytest.mark.conformance(146)
def test_eight_first_enqueues_at_once_make_one_partition(session: Another, db: Session) -> None:
    enqueue(db, "earlier")
    barrier = threading.Barrier(8)

    def first_enqueue(mine: Session) -> None:
        mine.execute("BEGIN")
        enqueue(mine, "a")
        barrier.wait(timeout=20)
        mine.execute("COMMIT")

    for work in [in_background(first_enqueue, session()) for _ in range(8)]:
        result(work)
    assert counts(db) == {"earlier": 1, "a": 8}
    assert positions(db)["a"] == positions(db)["earlier"] + 1
    assert_exact(db)


@pytest.mark.parametrize("others", [[], ["b", "Z"]], ids=["alone", "among others"])
def test_idle_partition_deleted_while_a_commit_needs_it_is_made_anew(
    session: Another, db: Session, other: Session, others: list[str]
) -> None:
    db.execute("INSERT INTO tenantfair_partition (scope_key) VALUES ('a')")
    before = positions(db)["a"]
    admin = session()
    script(admin, "BEGIN", "DELETE FROM tenantfair_partition")
    db.execute("BEGIN")
    for scope in ["a", *others]:
        enqueue(db, scope)
    commit = in_background(db.execute, "COMMIT")
    until_blocked(other, db)
    admin.execute("COMMIT")
    result(commit)
    assert counts(other) == dict.fromkeys(["a", *others], 1)
    assert positions(other)["a"] > before
    assert_exact(other)


def test_partition_is_not_deleted_under_a_commit_that_counts_into_it(
    session: Another, db: Session, other: Session
) -> None:
    db.execute("INSERT INTO tenantfair_partition (scope_key) VALUES ('a')")
    script(db, "BEGIN")
    enqueue(db, "a")
    db.execute("SELECT tenantfair_fold()")
    admin = session()
    deletion = in_background(admin.execute, "DELETE FROM tenantfair_partition")
    until_blocked(other, admin)
    db.execute("COMMIT")
    with pytest.raises(errors.ForeignKeyViolation):
        result(deletion)
    assert counts(other) == {"a": 1}
    assert_exact(other)


@pytest.mark.parametrize("known", [True, False], ids=["existing tenant", "brand-new tenant"])
def test_repeatable_read_host_gets_40001_at_commit_at_worst(db: Session, other: Session, known: bool) -> None:
    if known:
        enqueue(other, "a")
    script(db, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT FROM tenantfair_run")
    enqueue(other, "a")
    enqueue(db, "a")
    with pytest.raises(errors.SerializationFailure):
        db.execute("COMMIT")
    script(db, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT FROM tenantfair_run")
    enqueue(other, "b")
    enqueue(db, "a")
    db.execute("COMMIT")
    assert_exact(other)


def test_rivals_over_a_few_tenants_never_deadlock_and_count_exactly(session: Another, db: Session) -> None:
    """8 sessions, 200 transactions each, over 5 random tenants of 12 that change all the time."""

    def rival(mine: Session, seed: int) -> list[str]:
        dice = random.Random(seed)
        failures = []
        for number in range(200):
            tenants = [f"t{tenant}-{number // 20}" for tenant in dice.sample(range(12), 5)]
            try:
                with mine.transaction():
                    for tenant in tenants:
                        act(mine, tenant, dice)
                    if dice.random() < 0.1:
                        raise psycopg.Rollback
            except psycopg.Error as error:
                failures.append(f"{error.sqlstate} {error}")
        return failures

    def act(mine: Session, tenant: str, dice: random.Random) -> None:
        picked = (
            "WHERE id IN (SELECT id FROM tenantfair_run WHERE tenant_id = %s AND finished_at IS {} NULL"
            " ORDER BY id LIMIT 2 FOR UPDATE SKIP LOCKED)"
        )
        action = dice.randrange(6)
        if action == 0:
            mine.execute(f"{FINISH_ALL} {picked.format('')}", [tenant])
        elif action == 1:
            mine.execute(f"DELETE FROM tenantfair_run {picked.format('NOT')}", [tenant])
        elif action == 2:
            mine.execute(f"DELETE FROM tenantfair_run {picked.format('')}", [tenant])
        else:
            enqueue(mine, tenant, dice.randint(1, 3))

    rivals = [in_background(rival, session(), seed) for seed in range(8)]
    assert [work.result(timeout=300) for work in rivals] == [[]] * 8
    assert_exact(db)
    assert len(set(positions(db).values())) == len(positions(db))
