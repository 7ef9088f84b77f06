"""The count moves once, at commit, and comes back with every kind of rollback."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import errors

from tests.rows import FINISH_ALL, Session, assert_exact, counts, enqueue, insert_run, script, sessions

ENQUEUE = "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at) VALUES ('a', 'tests.task', now())"


@pytest.fixture
def session(transactional_db: None) -> Iterator[Callable[..., Session]]:
    with sessions() as another:
        yield another


@pytest.fixture
def other(session: Callable[..., Session]) -> Session:
    """Somebody who sees only what is committed."""
    return session()


@pytest.fixture
def db(session: Callable[..., Session]) -> Session:
    return session()


@pytest.mark.conformance(14)
def test_count_appears_at_commit_together_with_its_run(db: Session, other: Session) -> None:
    db.execute("BEGIN")
    enqueue(db, "a", 3)
    assert counts(other) == {}
    db.execute("COMMIT")
    assert counts(other) == {"a": 3}
    assert_exact(other)


@pytest.mark.conformance(14)
def test_count_is_visible_in_its_own_transaction_after_a_fold(db: Session) -> None:
    script(db, "BEGIN", ENQUEUE, "SELECT tenantfair_fold()")
    assert counts(db) == {"a": 1}
    db.execute("ROLLBACK")
    assert counts(db) == {}


def test_rollback_leaves_neither_run_nor_partition(db: Session) -> None:
    script(db, "BEGIN", ENQUEUE, "ROLLBACK")
    assert db.execute("SELECT count(*) FROM tenantfair_partition").fetchone() == (0,)
    assert_exact(db)


def test_savepoint_rollback_takes_back_only_its_own_part(db: Session) -> None:
    script(db, "BEGIN", ENQUEUE, "SAVEPOINT s")
    enqueue(db, "a", 10)
    enqueue(db, "b", 10)
    script(db, "ROLLBACK TO s", ENQUEUE, "COMMIT")
    assert counts(db) == {"a": 2}
    assert_exact(db)


def test_first_note_lost_in_a_savepoint_is_opened_again(db: Session) -> None:
    script(db, "BEGIN", "SAVEPOINT s", ENQUEUE, "ROLLBACK TO s", ENQUEUE, "COMMIT")
    assert counts(db) == {"a": 1}
    assert_exact(db)


@pytest.mark.parametrize(
    "first",
    [
        "INSERT INTO tenantfair_run (task_path, status, finished_at) VALUES ('tests.task', 'failed', now())",
        "INSERT INTO tenantfair_run (task_path) SELECT 'tests.task' WHERE false",
        "DELETE FROM tenantfair_run WHERE false",
    ],
    ids=["finished", "nobody", "nobody deleted"],
)
def test_statement_that_notes_nothing_keeps_no_later_one_from_being_counted(db: Session, first: str) -> None:
    db.execute("BEGIN")
    db.execute(first)
    script(db, ENQUEUE, "COMMIT")
    assert counts(db) == {"a": 1}
    assert_exact(db)


@pytest.mark.parametrize("ends", ["RELEASE {}", "ROLLBACK TO {}"])
def test_nested_savepoints(db: Session, ends: str) -> None:
    db.execute("BEGIN")
    for depth in range(4):
        db.execute(f"SAVEPOINT s{depth}")
        enqueue(db, f"t{depth % 2}", depth + 1)
    db.execute(ends.format("s2"))
    enqueue(db, "t0")
    script(db, "SAVEPOINT again", FINISH_ALL, "ROLLBACK TO again", "COMMIT")
    assert counts(db) == ({"t0": 5, "t1": 6} if ends.startswith("RELEASE") else {"t0": 2, "t1": 2})
    assert_exact(db)


@pytest.mark.conformance(19)
@pytest.mark.parametrize("change", [FINISH_ALL, "DELETE FROM tenantfair_run"])
def test_count_below_zero_fails_the_commit_and_changes_nothing(db: Session, change: str) -> None:
    run = insert_run(db, "a")
    script(
        db,
        "SET session_replication_role = replica",
        "UPDATE tenantfair_schedule SET unfinished_count = 0",
        "RESET session_replication_role",
        "BEGIN",
    )
    db.execute(change)
    with pytest.raises(errors.CheckViolation):
        db.execute("COMMIT")
    assert counts(db) == {"a": 0}
    assert db.execute("SELECT id, status FROM tenantfair_run").fetchall() == [(run, "running")]
    assert db.execute("SELECT count(*) FROM tenantfair_pending").fetchone() == (0,)


def test_failed_fold_inside_a_savepoint_leaves_the_transaction_usable(db: Session) -> None:
    enqueue(db, "a")
    script(
        db,
        "SET session_replication_role = replica",
        "UPDATE tenantfair_schedule SET unfinished_count = 0",
        "RESET session_replication_role",
        "BEGIN",
        "SAVEPOINT s",
        "DELETE FROM tenantfair_run",
    )
    with pytest.raises(errors.CheckViolation):
        db.execute("SELECT tenantfair_fold()")
    db.execute("ROLLBACK TO s")
    with pytest.raises(errors.IntegrityConstraintViolation):
        db.execute("UPDATE tenantfair_schedule SET unfinished_count = 1")
    script(db, "ROLLBACK TO s", ENQUEUE, "COMMIT")
    assert counts(db) == {"a": 1}


def test_set_constraints_immediate_counts_at_once_and_deferred_counts_later(db: Session) -> None:
    script(db, "BEGIN", ENQUEUE, "SET CONSTRAINTS ALL IMMEDIATE")
    assert counts(db) == {"a": 1}
    enqueue(db, "a", 2)
    enqueue(db, "b", 1)
    db.execute("UPDATE tenantfair_run SET status = 'waiting', wake_at = NULL WHERE tenant_id = 'b'")
    assert counts(db) == {"a": 3, "b": 1}
    db.execute("SET CONSTRAINTS ALL DEFERRED")
    enqueue(db, "a", 4)
    assert counts(db) == {"a": 3, "b": 1}
    db.execute("COMMIT")
    assert counts(db) == {"a": 7, "b": 1}
    assert_exact(db)


def test_immediate_fold_rolled_back_to_a_savepoint_is_done_again_at_commit(db: Session) -> None:
    script(db, "BEGIN", ENQUEUE, "SAVEPOINT s", "SET CONSTRAINTS ALL IMMEDIATE", "ROLLBACK TO s")
    assert counts(db) == {}
    db.execute("COMMIT")
    assert counts(db) == {"a": 1}
    assert_exact(db)


def test_forced_fold_rolled_back_to_a_savepoint_is_done_again_at_commit(db: Session) -> None:
    script(db, "BEGIN", ENQUEUE, "SAVEPOINT s", ENQUEUE, "SELECT tenantfair_fold()", ENQUEUE)
    assert counts(db) == {"a": 2}
    script(db, "ROLLBACK TO s", "COMMIT")
    assert counts(db) == {"a": 1}
    assert_exact(db)


def test_forced_fold_inside_a_released_savepoint_stays(db: Session) -> None:
    script(
        db,
        "BEGIN",
        "SAVEPOINT s",
        ENQUEUE,
        "SELECT tenantfair_fold()",
        "RELEASE s",
        ENQUEUE,
        "COMMIT",
    )
    assert counts(db) == {"a": 2}
    assert_exact(db)


def test_transaction_may_fold_more_than_once(db: Session) -> None:
    script(db, "BEGIN", ENQUEUE, "SELECT tenantfair_fold()", ENQUEUE, "SELECT tenantfair_fold()")
    assert counts(db) == {"a": 2}
    script(db, ENQUEUE, FINISH_ALL, "SELECT tenantfair_fold()")
    assert counts(db) == {"a": 0}
    script(db, ENQUEUE, "COMMIT")
    assert counts(db) == {"a": 1}
    assert_exact(db)


def test_fold_with_nothing_noted_does_nothing(db: Session) -> None:
    script(db, "SELECT tenantfair_fold()", "BEGIN", "SELECT tenantfair_fold()", "COMMIT")
    assert counts(db) == {}


def test_error_at_commit_reaches_the_caller_with_its_sqlstate(db: Session) -> None:
    enqueue(db, "a")
    script(
        db,
        "SET session_replication_role = replica",
        "UPDATE tenantfair_schedule SET unfinished_count = 0",
        "RESET session_replication_role",
    )
    with pytest.raises(psycopg.IntegrityError) as caught:
        db.execute("DELETE FROM tenantfair_run")
    assert (caught.value.sqlstate, caught.value.diag.constraint_name) == (
        "23514",
        "tenantfair_schedule_count",
    )
