"""TRUNCATE and Django's flush may empty the domain; what would contradict itself afterwards is refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from django.core.management import call_command
from psycopg import errors

from tests.rows import FINISH_ALL, Session, assert_exact, counts, enqueue, insert_run, positions, sessions

TABLES = ("policy", "partition", "schedule", "run")


@pytest.fixture
def db(transactional_db: None) -> Iterator[Session]:
    with sessions() as another:
        yield another()


def truncation(tables: tuple[str, ...]) -> str:
    return "TRUNCATE " + ", ".join(f"tenantfair_{table}" for table in tables)


SOME_TABLES = [some for size in range(1, 5) for some in itertools.combinations(TABLES, size)]


@pytest.mark.conformance(24)
@pytest.mark.parametrize("tables", SOME_TABLES, ids="+".join)
@pytest.mark.parametrize("in_one_transaction", [False, True])
def test_truncate_may_empty_the_domain_but_never_contradict_it(
    db: Session, tables: tuple[str, ...], in_one_transaction: bool
) -> None:
    enqueue(db, "a", 2)
    if in_one_transaction:
        db.execute("BEGIN")
        enqueue(db, "a", 3)
        enqueue(db, "b", 3)
    if tables == ("policy",) or {"partition", "schedule", "run"} <= set(tables):
        db.execute(truncation(tables))
        if in_one_transaction:
            db.execute("COMMIT")
        assert counts(db) == ({} if "run" in tables else {"a": 5, "b": 3} if in_one_transaction else {"a": 2})
    else:
        foreign_key = "partition" in tables and "schedule" not in tables
        with pytest.raises(
            errors.FeatureNotSupported if foreign_key else errors.IntegrityConstraintViolation
        ):
            db.execute(truncation(tables))
        db.execute("ROLLBACK")
        assert counts(db) == {"a": 2}
    assert_exact(db)
    enqueue(db, "c")
    assert counts(db)["c"] == 1
    assert_exact(db)


@pytest.mark.conformance(24)
def test_truncate_cascade_of_partitions_is_refused_while_runs_are_unfinished(db: Session) -> None:
    enqueue(db, "a")
    with pytest.raises(errors.IntegrityConstraintViolation):
        db.execute("TRUNCATE tenantfair_partition CASCADE")
    assert counts(db) == {"a": 1}
    db.execute("TRUNCATE tenantfair_partition, tenantfair_run CASCADE")
    assert counts(db) == {}


@pytest.mark.parametrize(
    ("tables", "allowed"),
    [
        (("run",), True),
        (("partition", "schedule"), True),
        (("schedule",), False),
        (("run", "schedule"), False),
    ],
)
def test_truncate_with_finished_runs_only(db: Session, tables: tuple[str, ...], allowed: bool) -> None:
    enqueue(db, "a")
    db.execute(FINISH_ALL)
    if allowed:
        db.execute(truncation(tables))
    else:
        with pytest.raises(errors.IntegrityConstraintViolation):
            db.execute(truncation(tables))
    assert_exact(db)
    enqueue(db, "a")
    assert counts(db) == {"a": 1}


@pytest.mark.parametrize("tables", [("run",), ("partition", "schedule")], ids="+".join)
def test_truncate_with_an_older_snapshot_does_not_overlook_newer_runs(
    db: Session, tables: tuple[str, ...]
) -> None:
    db.execute("INSERT INTO tenantfair_partition (scope_key) VALUES ('a')")
    with sessions() as another:
        blind = another()
        blind.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        blind.execute("SELECT FROM tenantfair_policy")
        enqueue(db, "a")
        with pytest.raises(errors.IntegrityConstraintViolation):
            blind.execute(truncation(tables))
        blind.execute("ROLLBACK AND CHAIN")
        blind.execute(truncation(TABLES))
        blind.execute("COMMIT")
    assert counts(db) == {}
    assert_exact(db)


def test_runs_enqueued_after_a_truncate_in_the_same_transaction_are_counted(db: Session) -> None:
    db.execute("BEGIN")
    enqueue(db, "a", 3)
    db.execute(truncation(TABLES))
    enqueue(db, "a", 2)
    db.execute("COMMIT")
    assert counts(db) == {"a": 2}
    assert_exact(db)


def test_restarted_identity_does_not_collide(db: Session) -> None:
    enqueue(db, "a")
    db.execute(truncation(TABLES) + " RESTART IDENTITY")
    enqueue(db, "b")
    enqueue(db, "c")
    assert positions(db) == {"b": 1, "c": 2}


def test_flush_command_leaves_a_usable_domain(db: Session) -> None:
    enqueue(db, "a", 2)
    insert_run(db, "b", "completed")
    call_command("flush", interactive=False, verbosity=0)
    assert counts(db) == {}
    assert db.execute("SELECT id, admission_mode, policy_version FROM tenantfair_policy").fetchall() == [
        (1, "legacy", 0)
    ]
    enqueue(db, "a", 1)
    assert counts(db) == {"a": 1}
    assert_exact(db)


@pytest.mark.parametrize("time", [1, 2])
def test_transactional_tests_clean_up_after_each_other(db: Session, time: int) -> None:
    assert counts(db) == {}
    assert db.execute("SELECT count(*) FROM tenantfair_policy").fetchone() == (1,)
    enqueue(db, "a", time)
    assert counts(db) == {"a": time}
