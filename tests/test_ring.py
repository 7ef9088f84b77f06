"""Places on the ring: who gets one, for how long, and what nobody may do to them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from django.core.management import call_command
from psycopg import errors

from tests.rows import FINISH_ALL, Session, assert_exact, counts, enqueue, insert_run, positions, script, sessions

TABLES = ("policy", "partition", "schedule", "run")


@pytest.fixture
def db(transactional_db: None) -> Iterator[Session]:
    with sessions() as another:
        yield another()


@pytest.mark.conformance(12)
def test_new_partition_gets_one_place_behind_all_earlier_ones(db: Session) -> None:
    for scope in ("b", "a", ""):
        db.execute("INSERT INTO tenantfair_partition (scope_key) VALUES (%s)", [scope])
    assert counts(db) == {"b": 0, "a": 0, "": 0}
    found = positions(db)
    assert 0 < found["b"] < found["a"] < found[""]


@pytest.mark.conformance(12)
def test_scopes_of_one_transaction_are_placed_in_scope_order(db: Session) -> None:
    script(db, "BEGIN")
    for tenant in ("c", "Z", "é", "a"):
        enqueue(db, tenant)
    db.execute("COMMIT")
    assert sorted(positions(db), key=positions(db).get) == ["Z", "a", "c", "é"]


@pytest.mark.conformance(13)
def test_no_position_is_burnt(db: Session) -> None:
    """Not by a conflict that is ignored, nor by enqueues for a known scope, nor by a rolled back enqueue."""
    enqueue(db, "a")
    before = positions(db)["a"]
    for _ in range(5):
        db.execute("INSERT INTO tenantfair_partition (scope_key) VALUES ('a') ON CONFLICT DO NOTHING")
        enqueue(db, "a")
        db.execute("BEGIN")
        enqueue(db, "never")
        db.execute("ROLLBACK")
    enqueue(db, "b")
    assert positions(db) == {"a": before, "b": before + 1}


@pytest.mark.conformance(15)
def test_scope_keeps_its_place_at_zero(db: Session) -> None:
    enqueue(db, "a")
    place = positions(db)
    db.execute(FINISH_ALL)
    assert db.execute("SELECT unfinished_count, in_ring FROM tenantfair_schedule").fetchall() == [(0, False)]
    enqueue(db, "a")
    assert db.execute("SELECT unfinished_count, in_ring FROM tenantfair_schedule").fetchall() == [(1, True)]
    assert positions(db) == place


@pytest.mark.conformance(20)
@pytest.mark.parametrize("count", [0, 1, 3, 4, "NULL"])
def test_direct_write_of_another_count_is_refused(db: Session, count: int | str) -> None:
    enqueue(db, "a", 2)
    with pytest.raises(errors.IntegrityConstraintViolation):
        db.execute(f"UPDATE tenantfair_schedule SET unfinished_count = {count}")
    assert counts(db) == {"a": 2}


@pytest.mark.conformance(20)
def test_direct_write_of_the_same_count_is_allowed(db: Session) -> None:
    enqueue(db, "a", 2)
    db.execute("UPDATE tenantfair_schedule SET unfinished_count = 2")
    assert counts(db) == {"a": 2}


@pytest.mark.conformance(20)
@pytest.mark.parametrize(
    "before",
    [
        ["SELECT tenantfair_fold()"],
        ["SELECT set_config('tenantfair.folding', '', true)"],
        ["SET tenantfair.folding = ''"],
        ["SET tenantfair.folding = '3'"],
        ["SET CONSTRAINTS ALL IMMEDIATE"],
        ["SAVEPOINT s", "SELECT tenantfair_fold()", "ROLLBACK TO s"],
    ],
)
def test_direct_write_is_refused_whatever_the_transaction_did_before(db: Session, before: list[str]) -> None:
    db.execute("BEGIN")
    enqueue(db, "a", 2)
    db.execute("COMMIT AND CHAIN")
    enqueue(db, "a", 2)
    for statement in before:
        db.execute(statement)
    with pytest.raises(errors.IntegrityConstraintViolation):
        db.execute("UPDATE tenantfair_schedule SET unfinished_count = 7")
    db.execute("ROLLBACK")
    assert counts(db) == {"a": 2}


@pytest.mark.conformance(20)
def test_direct_write_from_a_trigger_of_the_host_is_refused(db: Session) -> None:
    enqueue(db, "a", 2)
    db.execute("""
        CREATE TABLE host_note (n integer);
        CREATE FUNCTION host_note_written() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            UPDATE tenantfair_schedule SET unfinished_count = 0;
            RETURN NULL;
        END
        $$;
        CREATE TRIGGER host_note_written AFTER INSERT ON host_note FOR EACH ROW EXECUTE FUNCTION host_note_written();
    """)
    try:
        with pytest.raises(errors.IntegrityConstraintViolation):
            db.execute("INSERT INTO host_note VALUES (1)")
        assert counts(db) == {"a": 2}
    finally:
        script(db, "DROP TABLE host_note", "DROP FUNCTION host_note_written()")


@pytest.mark.conformance(21)
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("ring_position = DEFAULT", errors.IntegrityConstraintViolation),
        ("ring_position = 99", errors.GeneratedAlways),
        ("scope_key = 'b'", errors.IntegrityConstraintViolation),
    ],
)
def test_scope_and_position_are_for_life(db: Session, change: str, error: type[Exception]) -> None:
    enqueue(db, "a")
    before = positions(db)
    with pytest.raises(error):
        db.execute(f"UPDATE tenantfair_schedule SET {change}")
    assert positions(db) == before


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ("(scope_key) VALUES ('unknown')", errors.ForeignKeyViolation),
        ("(scope_key) VALUES ('a')", errors.UniqueViolation),
        ("(scope_key, unfinished_count) VALUES ('unknown', 1)", errors.IntegrityConstraintViolation),
        ("(scope_key, ring_position) VALUES ('unknown', 1)", errors.GeneratedAlways),
        ("(scope_key, ring_position) OVERRIDING SYSTEM VALUE VALUES ('unknown', -1)", errors.CheckViolation),
    ],
)
def test_places_cannot_be_made_by_hand(db: Session, values: str, error: type[Exception]) -> None:
    enqueue(db, "a")
    with pytest.raises(error):
        db.execute(f"INSERT INTO tenantfair_schedule {values}")
    assert counts(db) == {"a": 1}


def test_partition_cannot_be_renamed(db: Session) -> None:
    enqueue(db, "a")
    with pytest.raises(errors.ForeignKeyViolation):
        db.execute("UPDATE tenantfair_partition SET scope_key = 'b'")


@pytest.mark.conformance(22)
def test_partition_with_unfinished_runs_cannot_be_deleted(db: Session) -> None:
    enqueue(db, "a")
    for table in ("partition", "schedule"):
        with pytest.raises(errors.ForeignKeyViolation):
            db.execute(f"DELETE FROM tenantfair_{table}")
    assert counts(db) == {"a": 1}
    assert_exact(db)


@pytest.mark.conformance(23)
def test_idle_partition_takes_its_place_with_it_and_returns_behind_the_others(db: Session) -> None:
    enqueue(db, "a")
    enqueue(db, "b")
    db.execute(FINISH_ALL)
    before = positions(db)
    with pytest.raises(errors.IntegrityConstraintViolation):
        db.execute("DELETE FROM tenantfair_schedule")
    db.execute("DELETE FROM tenantfair_partition WHERE scope_key = 'a'")
    assert positions(db) == {"b": before["b"]}
    enqueue(db, "a")
    assert positions(db)["a"] > before["b"]
    assert_exact(db)


def test_partition_deleted_after_an_enqueue_in_the_same_transaction_returns_at_commit(db: Session) -> None:
    db.execute("INSERT INTO tenantfair_partition (scope_key) VALUES ('a')")
    db.execute("BEGIN")
    enqueue(db, "a")
    script(db, "DELETE FROM tenantfair_partition", "COMMIT")
    assert counts(db) == {"a": 1}
    assert_exact(db)


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
        with pytest.raises(errors.FeatureNotSupported if foreign_key else errors.IntegrityConstraintViolation):
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
    [(("run",), True), (("partition", "schedule"), True), (("schedule",), False), (("run", "schedule"), False)],
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
    assert db.execute("SELECT id, admission_mode, policy_version FROM tenantfair_policy").fetchall() == [(1, "legacy", 0)]
    enqueue(db, "a", 1)
    assert counts(db) == {"a": 1}
    assert_exact(db)


@pytest.mark.parametrize("time", [1, 2])
def test_transactional_tests_clean_up_after_each_other(db: Session, time: int) -> None:
    assert counts(db) == {}
    assert db.execute("SELECT count(*) FROM tenantfair_policy").fetchone() == (1,)
    enqueue(db, "a", time)
    assert counts(db) == {"a": time}
