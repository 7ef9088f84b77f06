"""Whatever a host does with its session and its own triggers, the count moves once, with the commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import LiteralString

import pytest
from psycopg import errors

from tests.domains import scratch_domain
from tests.rows import Session, assert_exact, counts, enqueue, script, sessions

ENQUEUE = "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at) VALUES ('a', 'tests.task', now())"

FINISHED: LiteralString = (
    "tenantfair_run SET status = 'completed', wake_at = NULL, finished_at = now() WHERE finished_at IS NULL"
)
FINISH_ONE: LiteralString = (
    f"UPDATE {FINISHED} AND id = (SELECT min(id) FROM tenantfair_run WHERE finished_at IS NULL)"
)


@pytest.fixture
def session(transactional_db: None) -> Iterator[Callable[..., Session]]:
    with sessions() as another:
        yield another


@pytest.fixture
def other(session: Callable[..., Session]) -> Session:
    return session()


@pytest.fixture
def db(session: Callable[..., Session]) -> Session:
    return session()


@pytest.mark.parametrize("ending", ["COMMIT AND CHAIN", "ROLLBACK AND CHAIN"])
def test_chained_transactions_count_each_for_itself(db: Session, ending: str) -> None:
    script(db, "BEGIN", ENQUEUE)
    db.execute(ending)
    enqueue(db, "a", 10)
    db.execute("COMMIT AND CHAIN")
    enqueue(db, "a", 100)
    db.execute("COMMIT")
    assert counts(db) == {"a": 111 if ending.startswith("COMMIT") else 110}
    assert_exact(db)


@pytest.mark.parametrize(
    "reset", ["RESET ALL", "SET SESSION AUTHORIZATION DEFAULT", "DEALLOCATE ALL", "SET search_path = ''"]
)
def test_session_resets_in_the_middle_lose_nothing(db: Session, reset: str) -> None:
    script(db, "BEGIN", ENQUEUE)
    db.execute(reset)
    db.execute(
        "INSERT INTO public.tenantfair_run (tenant_id, task_path, wake_at) VALUES ('a', 'tests.task', now())"
    )
    db.execute(reset)
    script(db, "COMMIT", "RESET ALL")
    assert counts(db) == {"a": 2}
    assert_exact(db)


def test_error_caught_in_a_procedure_takes_its_notes_with_it(db: Session) -> None:
    db.execute("""
        DO $$
        BEGIN
            INSERT INTO tenantfair_run (tenant_id, task_path, wake_at) VALUES ('a', 'tests.task', now());
            BEGIN
                INSERT INTO tenantfair_run (tenant_id, task_path, wake_at) VALUES ('b', 'tests.task', now());
                PERFORM 1 / 0;
            EXCEPTION WHEN division_by_zero THEN
                NULL;
            END;
            INSERT INTO tenantfair_run (tenant_id, task_path, wake_at) VALUES ('c', 'tests.task', now());
        END
        $$
    """)
    assert counts(db) == {"a": 1, "c": 1}
    assert_exact(db)


@pytest.mark.parametrize(
    "ending", ["COMMIT PREPARED 'tenantfair-test'", "ROLLBACK PREPARED 'tenantfair-test'"]
)
def test_prepared_transaction_counts_when_it_ends(db: Session, other: Session, ending: str) -> None:
    """Until then it holds the counters it moved: commits for the same tenant wait, other tenants do not."""
    enqueue(db, "a")
    script(db, "BEGIN", ENQUEUE, "PREPARE TRANSACTION 'tenantfair-test'")
    try:
        other.execute("SET lock_timeout = '2s'")
        enqueue(other, "b")
        with pytest.raises(errors.LockNotAvailable):
            other.execute("SELECT FROM tenantfair_schedule WHERE scope_key = 'a' FOR NO KEY UPDATE NOWAIT")
        assert counts(other) == {"a": 1, "b": 1}
    finally:
        db.execute(ending)
    assert counts(db) == {"a": 2 if ending.startswith("COMMIT") else 1, "b": 1}
    assert_exact(db)


def test_table_can_be_altered_after_an_enqueue_in_the_same_transaction(db: Session) -> None:
    script(
        db,
        "BEGIN",
        ENQUEUE,
        "ALTER TABLE tenantfair_run ADD COLUMN of_the_host integer",
        "CREATE INDEX of_the_host ON tenantfair_run (of_the_host)",
        ENQUEUE,
        "ALTER TABLE tenantfair_run DROP COLUMN of_the_host",
        "COMMIT",
    )
    assert counts(db) == {"a": 2}
    assert_exact(db)


@pytest.fixture
def orders(db: Session) -> Iterator[None]:
    """A host's table whose own deferred trigger enqueues, and deletes its order, which enqueues once more."""
    db.execute("""
        CREATE TABLE host_order (tenant text, last boolean);
        CREATE FUNCTION host_order_placed() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO tenantfair_run (tenant_id, task_path, wake_at)
            VALUES (NEW.tenant, 'tests.task', now());
            IF NOT NEW.last THEN
                INSERT INTO host_order VALUES (NEW.tenant, true);
            END IF;
            RETURN NULL;
        END
        $$;
        CREATE CONSTRAINT TRIGGER host_order_placed AFTER INSERT ON host_order
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION host_order_placed();
    """)
    yield
    db.execute("DROP TABLE host_order; DROP FUNCTION host_order_placed()")


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    "statements",
    [
        ["INSERT INTO host_order VALUES ('a', true)"],
        ["INSERT INTO host_order VALUES ('a', false)"],
        ["INSERT INTO host_order VALUES ('a', true)", ENQUEUE],
        [ENQUEUE, "INSERT INTO host_order VALUES ('a', true)"],
        [ENQUEUE, "INSERT INTO host_order VALUES ('b', false)", ENQUEUE],
    ],
)
def test_runs_enqueued_by_a_deferred_trigger_of_the_host_are_counted(
    db: Session, statements: list[str]
) -> None:
    db.execute("BEGIN")
    for statement in statements:
        db.execute(statement)
    db.execute("COMMIT")
    assert_exact(db)
    assert sum(counts(db).values()) == db.execute("SELECT count(*) FROM tenantfair_run").fetchone()[0]


@pytest.mark.usefixtures("orders")
def test_fold_runs_behind_the_deferred_triggers_of_the_host(db: Session) -> None:
    """The counter still moves once, so that commits cannot deadlock over it."""
    enqueue(db, "a")
    script(db, "BEGIN", ENQUEUE, "INSERT INTO host_order VALUES ('a', true)", "COMMIT")
    db.execute("SELECT pg_stat_force_next_flush()")
    moved = db.execute("SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'tenantfair_schedule'")
    before = moved.fetchone()[0]
    script(db, "BEGIN", ENQUEUE, "INSERT INTO host_order VALUES ('a', true)", "COMMIT")
    db.execute("SELECT pg_stat_force_next_flush()")
    after = db.execute(
        "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'tenantfair_schedule'"
    ).fetchone()[0]
    assert after - before == 1
    assert counts(db) == {"a": 5}


@pytest.mark.conformance(31)
def test_hostile_search_path_and_shadow_tables_change_no_count(session: Callable[..., Session]) -> None:
    """The triggers of an enqueue, a finish and a deletion use the real tables, and the real operators."""
    hostile, other = session(), session()
    (schema,) = other.execute("SELECT current_schema()").fetchone()
    for table in ("policy", "partition", "schedule", "pending"):
        hostile.execute(f"CREATE TEMP TABLE tenantfair_{table} (LIKE {schema}.tenantfair_{table})")
    script(
        hostile,
        "CREATE SCHEMA hostile",
        "CREATE FUNCTION hostile.never(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT false'",
        "CREATE OPERATOR hostile.= (LEFTARG = text, RIGHTARG = text, FUNCTION = hostile.never)",
        "SET search_path = hostile, pg_temp, pg_catalog",
    )
    try:
        found = []
        for statement in (
            "INSERT INTO {}.tenantfair_run (tenant_id, task_path, wake_at)"
            " SELECT tenant, 'tests.task', now() FROM unnest('{{a,a,b}}'::text[]) AS tenant",
            "UPDATE {}.tenantfair_run SET status = 'completed', wake_at = NULL, finished_at = now()"
            " WHERE tenant_id OPERATOR(pg_catalog.=) 'b'",
            "DELETE FROM {}.tenantfair_run WHERE finished_at IS NULL",
        ):
            hostile.execute(statement.format(schema))
            found.append(counts(other))
        assert found == [{"a": 2, "b": 1}, {"a": 2, "b": 0}, {"a": 0, "b": 0}]
        shadows = hostile.execute(
            "SELECT (SELECT count(*) FROM pg_temp.tenantfair_schedule)"
            " + (SELECT count(*) FROM pg_temp.tenantfair_pending)"
        ).fetchone()
        assert shadows == (0,)
    finally:
        other.execute("DROP SCHEMA hostile CASCADE")


@pytest.fixture
def domains(db: Session) -> Iterator[tuple[str, str]]:
    """The schemas of two domains."""
    (here,) = db.execute("SELECT current_schema()").fetchone()
    with scratch_domain("tf_hosts"):
        yield here, "tf_hosts"


@pytest.mark.conformance(144)
@pytest.mark.parametrize("constraints", ["SET CONSTRAINTS ALL DEFERRED", "SET CONSTRAINTS ALL IMMEDIATE"])
def test_each_domain_of_one_transaction_counts_for_itself(
    db: Session, domains: tuple[str, str], constraints: str
) -> None:
    """As where a host keeps a schema for each of its customers and goes from one to the next."""

    def in_each(*statements: LiteralString) -> None:
        db.execute("BEGIN")
        db.execute(constraints)
        for statement in statements:
            for schema in domains:
                db.execute(f"SET LOCAL search_path = {schema}")
                db.execute(statement)
        db.execute("COMMIT")

    def found() -> list[dict[str, int]]:
        return [
            dict(
                db.execute(f"SELECT scope_key, unfinished_count FROM {schema}.tenantfair_schedule").fetchall()
            )
            for schema in domains
        ]

    in_each(ENQUEUE, ENQUEUE, ENQUEUE)
    assert found() == [{"a": 3}, {"a": 3}]
    in_each(FINISH_ONE, FINISH_ONE)
    assert found() == [{"a": 1}, {"a": 1}]
    in_each("DELETE FROM tenantfair_run WHERE finished_at IS NULL")
    assert found() == [{"a": 0}, {"a": 0}]


def test_what_one_domain_has_not_noted_yet_is_not_noted_in_another(
    db: Session, domains: tuple[str, str]
) -> None:
    """Of two UPDATEs in a statement only one is told its end; what the other added up waits for the fold."""
    for schema in domains:
        db.execute(f"SET search_path = {schema}")
        enqueue(db, "a", 3)
    db.execute("BEGIN")
    for schema in domains:
        db.execute(f"SET LOCAL search_path = {schema}")
        db.execute(
            "WITH others AS (UPDATE tenantfair_run SET claim_abandons = 0 WHERE tenant_id = 'b')"
            f" UPDATE {FINISHED} AND tenant_id = 'a'"
        )
    db.execute("COMMIT")
    for schema in domains:
        db.execute(f"SET search_path = {schema}")
        assert counts(db) == {"a": 0}
