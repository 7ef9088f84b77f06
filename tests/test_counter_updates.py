"""Updates that finish many runs are noted together, and lose nothing whatever comes in between."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rows import FINISH_ALL, Session, assert_exact, counts, enqueue, insert_run, script, sessions

REVIVE_ALL = "UPDATE tenantfair_run SET status = 'running', wake_at = now(), finished_at = NULL"


@pytest.fixture
def db(transactional_db: None) -> Iterator[Session]:
    with sessions() as another:
        yield another()


def notes(db: Session) -> list[int]:
    """The notes of the session's open transaction, in the order they were made."""
    return [row[0] for row in db.execute("SELECT delta FROM tenantfair_pending ORDER BY ctid").fetchall()]


def test_mass_finish_of_one_tenant_is_two_notes(db: Session) -> None:
    enqueue(db, "a", 1_000)
    script(db, "BEGIN", FINISH_ALL)
    assert notes(db) == [-1, -999]
    db.execute("COMMIT")
    assert counts(db) == {"a": 0}
    assert_exact(db)


def test_each_change_of_tenant_is_noted(db: Session) -> None:
    for tenant in ("a", "a", "a", None, None, "a", "b"):
        insert_run(db, tenant)
    script(db, "BEGIN", FINISH_ALL)
    assert notes(db) == [-1, -2, -1, -1, -1, -1]
    db.execute("COMMIT")
    assert counts(db) == {"a": 0, "": 0, "b": 0}
    assert_exact(db)


def test_statements_of_one_transaction_add_up(db: Session) -> None:
    enqueue(db, "a", 100)
    enqueue(db, "b", 100)
    script(db, "BEGIN", FINISH_ALL + " WHERE id % 2 = 0", REVIVE_ALL + " WHERE id % 4 = 0", "SAVEPOINT s")
    script(db, FINISH_ALL, "ROLLBACK TO SAVEPOINT s", FINISH_ALL + " WHERE tenant_id = 'b'", "COMMIT")
    assert counts(db) == {"a": 75, "b": 0}
    assert_exact(db)


def test_one_statement_that_finishes_some_and_revives_others(db: Session) -> None:
    enqueue(db, "a", 10)
    db.execute(FINISH_ALL + " WHERE id % 2 = 0")
    db.execute("""
        UPDATE tenantfair_run SET
            status = CASE WHEN finished_at IS NULL THEN 'completed' ELSE 'running' END,
            wake_at = CASE WHEN finished_at IS NULL THEN NULL ELSE now() END,
            finished_at = CASE WHEN finished_at IS NULL THEN now() END
    """)
    assert counts(db) == {"a": 5}
    assert_exact(db)


def test_two_updates_in_one_statement(db: Session) -> None:
    enqueue(db, "a", 10)
    enqueue(db, "b", 10)
    db.execute(
        f"WITH first AS ({FINISH_ALL} WHERE tenant_id = 'a' RETURNING id) {FINISH_ALL} WHERE tenant_id = 'b'"
    )
    assert counts(db) == {"a": 0, "b": 0}
    assert_exact(db)


@pytest.mark.parametrize("tenant", ["a", None])
def test_settings_that_are_reset_between_two_updates_lose_nothing(db: Session, tenant: str | None) -> None:
    enqueue(db, tenant, 30)
    script(
        db, "BEGIN", FINISH_ALL + " WHERE id % 3 = 0", "RESET ALL", FINISH_ALL + " WHERE id % 3 = 1", "COMMIT"
    )
    assert counts(db) == {tenant or "": 10}
    assert_exact(db)


def test_immediate_constraints_count_each_row(db: Session) -> None:
    enqueue(db, "a", 5)
    script(db, "BEGIN", "SET CONSTRAINTS ALL IMMEDIATE", FINISH_ALL + " WHERE id % 2 = 0")
    assert_exact(db)
    script(db, REVIVE_ALL + " WHERE id % 2 = 0")
    assert_exact(db)
    db.execute("ROLLBACK")
    assert counts(db) == {"a": 5}


@pytest.fixture
def finishing_host(db: Session) -> Iterator[None]:
    """A host whose own trigger finishes runs in statements that never name `finished_at`."""
    script(
        db,
        """
        CREATE FUNCTION host_finishes() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            NEW.status := 'completed';
            NEW.wake_at := NULL;
            NEW.finished_at := now();
            RETURN NEW;
        END $$
        """,
        "CREATE TRIGGER host_finishes BEFORE UPDATE OF queue_name ON tenantfair_run FOR EACH ROW"
        " EXECUTE FUNCTION host_finishes()",
    )
    yield
    script(db, "ROLLBACK", "DROP FUNCTION host_finishes() CASCADE")


@pytest.mark.usefixtures("finishing_host")
@pytest.mark.parametrize("between", ["SELECT", "SELECT tenantfair_fold()", "SAVEPOINT s"])
def test_runs_finished_by_a_trigger_of_the_host_are_counted(db: Session, between: str) -> None:
    for tenant in ("a", None):
        enqueue(db, tenant, 30)
    db.execute("BEGIN")
    for rest in range(3):
        db.execute("UPDATE tenantfair_run SET queue_name = 'x' WHERE id %% 3 = %s", [rest])
        db.execute(between)  # type: ignore[call-overload]
    script(db, REVIVE_ALL + " WHERE id % 3 = 0", "COMMIT")
    assert counts(db) == {"a": 10, "": 10}
    assert_exact(db)


@pytest.mark.usefixtures("finishing_host")
@pytest.mark.parametrize("tenant", ["a", None])
def test_runs_finished_by_nothing_but_a_trigger_of_the_host_are_counted(
    db: Session, tenant: str | None
) -> None:
    enqueue(db, tenant, 30)
    db.execute("UPDATE tenantfair_run SET queue_name = 'x' WHERE id % 3 = 0")
    assert counts(db) == {tenant or "": 20}
    assert_exact(db)


@pytest.mark.usefixtures("finishing_host")
def test_emptied_tables_keep_nothing_of_what_was_added_up(db: Session) -> None:
    enqueue(db, "a", 30)
    script(
        db,
        "BEGIN",
        "UPDATE tenantfair_run SET queue_name = 'x'",
        "TRUNCATE tenantfair_run, tenantfair_schedule, tenantfair_partition",
        "COMMIT",
    )
    assert counts(db) == {}
    assert_exact(db)
    enqueue(db, "a", 3)
    assert counts(db) == {"a": 3}


@pytest.mark.usefixtures("finishing_host")
def test_runs_finished_by_a_trigger_of_the_host_after_a_truncate_are_counted(db: Session) -> None:
    enqueue(db, "a", 3)
    script(
        db,
        "BEGIN",
        FINISH_ALL,
        "TRUNCATE tenantfair_run, tenantfair_schedule, tenantfair_partition",
    )
    for _ in range(3):
        insert_run(db, "a")
    script(
        db,
        "UPDATE tenantfair_run SET queue_name = 'x' WHERE id = (SELECT max(id) FROM tenantfair_run)",
        "COMMIT",
    )
    assert counts(db) == {"a": 2}
    assert_exact(db)


def test_triggers_of_the_host_that_finish_more_runs_meanwhile(db: Session) -> None:
    """Rows counted by a statement inside a statement are noted with those around them."""
    for _ in range(20):
        enqueue(db, "a")
        enqueue(db, "b")
    script(
        db,
        """
        CREATE FUNCTION host_chains() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            UPDATE tenantfair_run SET status = 'cancelled', wake_at = NULL, finished_at = now()
            WHERE id = NEW.id + 1 AND finished_at IS NULL;
            RETURN NULL;
        END $$
        """,
        "CREATE TRIGGER a_host_chains AFTER UPDATE ON tenantfair_run FOR EACH ROW"
        " WHEN (NEW.status = 'completed') EXECUTE FUNCTION host_chains()",
    )
    try:
        db.execute(FINISH_ALL + " WHERE tenant_id = 'a' AND id % 4 <> 0")
        assert_exact(db)
    finally:
        db.execute("DROP FUNCTION host_chains() CASCADE")
