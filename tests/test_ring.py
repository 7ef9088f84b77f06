"""Places on the ring: who gets one, for how long, and what nobody may do to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import LiteralString

import pytest
from psycopg import errors

from tests.rows import (
    FINISH_ALL,
    Session,
    assert_exact,
    counts,
    enqueue,
    positions,
    script,
    sessions,
)

INTO_DECOY: LiteralString = "INSERT INTO decoy VALUES ('b', 'b', NULL, pg_current_xact_id(), 1)"
FINISH_DECOY: LiteralString = "UPDATE decoy SET finished_at = now()"
# The name of the fold's marker in this domain, as an SQL expression.
FOLDING = "'tenantfair.folding_' || 'tenantfair_run'::regclass::oid::text"


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
        [f"SELECT set_config({FOLDING}, '', true)"],
        [f"SELECT set_config({FOLDING}, '', false)"],
        [f"SELECT set_config({FOLDING}, '3', false)"],
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


@pytest.fixture
def outsider(db: Session) -> Iterator[Session]:
    """A session of a role with no rights on any table of ours."""
    db.execute("CREATE ROLE tf_outsider")
    with sessions() as another:
        (session := another()).execute("SET SESSION AUTHORIZATION tf_outsider")
        yield session
    db.execute("DROP OWNED BY tf_outsider; DROP ROLE tf_outsider")


FOR_ALL, FOR_EACH = (
    "FOR EACH STATEMENT EXECUTE FUNCTION tenantfair",
    "FOR EACH ROW EXECUTE FUNCTION tenantfair",
)


@pytest.mark.conformance(20)
@pytest.mark.parametrize(
    ("trigger", "statement"),
    [
        (f"INSERT ON decoy REFERENCING NEW TABLE AS new_runs {FOR_ALL}_run_inserted()", INTO_DECOY),
        (f"DELETE ON decoy REFERENCING OLD TABLE AS old_runs {FOR_ALL}_run_deleted()", "DELETE FROM decoy"),
        (f"UPDATE ON decoy {FOR_ALL}_run_updated()", FINISH_DECOY),
        (f"UPDATE ON decoy {FOR_EACH}_run_updated()", FINISH_DECOY),
        (f"TRUNCATE ON decoy {FOR_ALL}_truncate_guard()", "TRUNCATE decoy"),
        (f"INSERT ON decoy {FOR_EACH}_pending_fold()", INTO_DECOY),
        (f"INSERT ON decoy {FOR_EACH}_partition_schedule()", INTO_DECOY),
    ],
)
def test_no_count_moves_by_our_functions_on_a_table_of_somebody_else(
    db: Session, outsider: Session, trigger: LiteralString, statement: LiteralString
) -> None:
    """They run as the owner, and anybody can create a trigger that calls them."""
    enqueue(db, "a", 2)
    outsider.execute(
        "CREATE TEMP TABLE decoy"
        " (scope_key text, tenant_id text, finished_at timestamptz, xid xid8, delta bigint)"
    )
    outsider.execute("INSERT INTO decoy VALUES ('a', 'a', NULL, pg_current_xact_id(), 1)")
    outsider.execute("CREATE TRIGGER decoy AFTER " + trigger)
    with pytest.raises(errors.IntegrityConstraintViolation, match="decoy fires for tenantfair_"):
        outsider.execute(statement)
    assert counts(db) == {"a": 2}


def forge(session: Session, scope: str, delta: int) -> None:
    """Pretend that updates of this transaction have added something up and not noted it yet."""
    for name, value in (("noted_scope", f":{scope}"), ("delta_since", str(delta))):
        session.execute(
            "SELECT set_config('tenantfair.' || %s || '_' || 'tenantfair_run'::regclass::oid, %s, true)",
            [name, value],
        )


@pytest.mark.conformance(20)
@pytest.mark.parametrize(("scope", "delta"), [("a", -2), ("ghost", 7), ("", 1)])
def test_no_count_moves_by_settings_that_anybody_can_write(
    db: Session, outsider: Session, scope: str, delta: int
) -> None:
    enqueue(db, "a", 2)
    outsider.execute("BEGIN")
    forge(outsider, scope, delta)
    with pytest.raises(errors.IntegrityConstraintViolation, match="is not for hands"):
        outsider.execute("SELECT tenantfair_fold()")
    outsider.execute("ROLLBACK")
    assert counts(db) == {"a": 2}


@pytest.mark.conformance(20)
def test_a_role_that_may_only_insert_moves_no_count_by_such_settings(db: Session, outsider: Session) -> None:
    db.execute("GRANT INSERT ON tenantfair_run TO tf_outsider")
    outsider.execute("BEGIN")
    enqueue(outsider, "a")
    forge(outsider, "a", 5)
    with pytest.raises(errors.IntegrityConstraintViolation, match="is not for hands"):
        outsider.execute("COMMIT")
    assert counts(db) == {}


# For what ours call with any type, or with operands of two types: a form that fits exactly is preferred.
OVERLOADS: list[tuple[LiteralString, LiteralString]] = [
    ("cardinality(text[]) RETURNS integer", "RETURN 1"),
    ("unnest(text[]) RETURNS SETOF text", "RETURN NEXT 'x'"),
    ("unnest(text[], bigint[]) RETURNS TABLE (a text, b bigint)", "RETURN NEXT"),
    ("differs(oid, regclass) RETURNS boolean", "RETURN $1 <> $2::oid"),
    ("differs(numeric, integer) RETURNS boolean", "RETURN $1 <> $2::numeric"),
    ("seen_text(text[], text) RETURNS text[]", "RETURN array_append($1, $2)"),
    ("seen_bigint(bigint[], bigint) RETURNS bigint[]", "RETURN array_append($1, $2)"),
]


@pytest.mark.conformance(20)
def test_nothing_of_somebody_who_may_create_in_the_schema_runs_as_the_owner(
    db: Session, outsider: Session
) -> None:
    schema = db.execute("SELECT current_schema()").fetchone()[0]
    script(
        db,
        f"GRANT CREATE ON SCHEMA {schema} TO tf_outsider",
        "GRANT INSERT ON tenantfair_run TO tf_outsider",
        "CREATE TABLE seen (who text)",
        "GRANT INSERT ON seen TO PUBLIC",
    )
    try:
        for head, body in OVERLOADS:
            outsider.execute(
                f"CREATE FUNCTION {schema}.{head} LANGUAGE plpgsql AS"
                f" $$ BEGIN INSERT INTO {schema}.seen VALUES (current_user); {body}; END $$"
            )
        for left, right in (("oid", "regclass"), ("numeric", "integer")):
            outsider.execute(
                f"CREATE OPERATOR {schema}.<>"
                f" (FUNCTION = {schema}.differs, LEFTARG = {left}, RIGHTARG = {right})"
            )
        for kind in ("text", "bigint"):
            outsider.execute(
                f"CREATE AGGREGATE {schema}.array_agg({kind})"
                f" (SFUNC = {schema}.seen_{kind}, STYPE = {kind}[], INITCOND = '{{}}')"
            )
        outsider.execute("BEGIN")
        for tenant in ("a", "b"):
            enqueue(outsider, tenant)
        outsider.execute("COMMIT")
        enqueue(outsider, "c", 3)

        assert db.execute("SELECT DISTINCT who FROM seen").fetchall() == []
        assert counts(db) == {"a": 1, "b": 1, "c": 3}
    finally:
        script(db, "DROP TABLE seen", "DROP OWNED BY tf_outsider")


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
        CREATE TRIGGER host_note_written AFTER INSERT ON host_note
            FOR EACH ROW EXECUTE FUNCTION host_note_written();
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


@pytest.mark.conformance(12)
def test_place_of_a_deleted_scope_is_given_to_nobody_else(db: Session) -> None:
    enqueue(db, "a")
    db.execute(FINISH_ALL)
    before = positions(db)["a"]
    db.execute("DELETE FROM tenantfair_partition")
    enqueue(db, "b")
    assert positions(db)["b"] > before


def test_partition_deleted_after_an_enqueue_in_the_same_transaction_returns_at_commit(db: Session) -> None:
    db.execute("INSERT INTO tenantfair_partition (scope_key) VALUES ('a')")
    db.execute("BEGIN")
    enqueue(db, "a")
    script(db, "DELETE FROM tenantfair_partition", "COMMIT")
    assert counts(db) == {"a": 1}
    assert_exact(db)
