"""What counts and by how much: every pair of states, through every way a row can be written."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from django.utils import timezone
from psycopg import errors

from tenantfair.models import Partition, Run, Schedule
from tests.rows import (
    FINISH_ALL,
    FINISHED,
    STATES,
    Session,
    assert_exact,
    counts,
    enqueue,
    insert_run,
    put_into,
    script,
    sessions,
)

FINISHING = {"status": "completed", "wake_at": None, "finished_at": timezone.now()}


@pytest.fixture
def db(transactional_db: None) -> Iterator[Session]:
    with sessions() as another:
        yield another()


@pytest.mark.conformance(14, 17)
@pytest.mark.parametrize("state", STATES)
def test_insert_and_delete_count_only_unfinished_runs(db: Session, state: str) -> None:
    insert_run(db, "a", state)
    assert counts(db) == ({} if state in FINISHED else {"a": 1})
    db.execute("DELETE FROM tenantfair_run")
    assert counts(db) == ({} if state in FINISHED else {"a": 0})


@pytest.mark.conformance(15, 16)
@pytest.mark.parametrize(("before", "after"), list(itertools.product(STATES, repeat=2)))
def test_every_pair_of_states(db: Session, before: str, after: str) -> None:
    """Only finishing and reviving move the count; a revived run of an unknown scope gets its partition."""
    run = insert_run(db, "a", before)
    put_into(db, run, after)
    assert_exact(db)
    put_into(db, run, after)
    assert_exact(db)
    assert counts(db).get("a", 0) == (0 if after in FINISHED else 1)


@pytest.mark.conformance(18)
def test_unfinished_run_creates_its_partition_and_a_finished_one_does_not(db: Session) -> None:
    insert_run(db, "done", "completed")
    assert counts(db) == {}
    insert_run(db, "open", "waiting")
    assert counts(db) == {"open": 1}
    put_into(db, db.execute("SELECT id FROM tenantfair_run WHERE tenant_id = 'done'").fetchone()[0], "queued")
    assert counts(db) == {"open": 1, "done": 1}


def test_tenantless_runs_have_a_partition_like_any_other(db: Session) -> None:
    enqueue(db, None, 2)
    assert counts(db) == {"": 2}
    db.execute(FINISH_ALL)
    assert counts(db) == {"": 0}


def test_insert_finish_and_delete_in_one_transaction(db: Session) -> None:
    db.execute("BEGIN")
    enqueue(db, "a", 3)
    script(db, FINISH_ALL, "DELETE FROM tenantfair_run", "COMMIT")
    assert counts(db) == {}
    assert_exact(db)


def test_net_zero_for_a_new_tenant_leaves_no_partition(db: Session) -> None:
    script(db, "BEGIN")
    enqueue(db, "a", 3)
    script(db, FINISH_ALL, "COMMIT")
    assert db.execute("SELECT count(*) FROM tenantfair_partition").fetchone() == (0,)
    assert_exact(db)


@pytest.mark.conformance(26)
def test_one_statement_over_many_scopes(db: Session) -> None:
    db.execute("""
        INSERT INTO tenantfair_run (tenant_id, task_path, wake_at)
        SELECT 't' || n % 7, 'tests.task', now() FROM generate_series(1, 70) AS n
    """)
    assert counts(db) == {f"t{n}": 10 for n in range(7)}
    db.execute(FINISH_ALL + " WHERE id % 2 = 0")
    assert_exact(db)
    db.execute("DELETE FROM tenantfair_run WHERE id % 3 = 0")
    assert_exact(db)


def test_modifying_ctes_of_one_statement_add_up(db: Session) -> None:
    enqueue(db, "a", 4)
    db.execute("""
        WITH enqueued AS (
            INSERT INTO tenantfair_run (tenant_id, task_path, wake_at)
            VALUES ('a', 'tests.task', now()), ('b', 'tests.task', now())
        ),
        finished AS (
            UPDATE tenantfair_run SET status = 'failed', wake_at = NULL, finished_at = now()
            WHERE id = (SELECT min(id) FROM tenantfair_run)
        )
        DELETE FROM tenantfair_run WHERE id = (SELECT max(id) FROM tenantfair_run)
    """)
    assert counts(db) == {"a": 3, "b": 1}
    assert_exact(db)


def test_copy_is_counted(db: Session) -> None:
    with (
        db.cursor() as cursor,
        cursor.copy("COPY tenantfair_run (tenant_id, task_path, wake_at) FROM STDIN") as copy,
    ):
        for number in range(20):
            copy.write_row((f"t{number % 2}", "tests.task", "2026-01-01 00:00+00"))
    assert counts(db) == {"t0": 10, "t1": 10}
    assert_exact(db)


def test_merge_is_counted(db: Session) -> None:
    keep, finish, drop = (insert_run(db, "a") for _ in range(3))
    db.execute(
        """
        MERGE INTO tenantfair_run AS run
        USING (VALUES (%s, 'keep'), (%s, 'finish'), (%s, 'drop'), (-1, 'add'), (-2, 'add'))
            AS wanted (id, what)
        ON run.id = wanted.id
        WHEN MATCHED AND what = 'finish'
            THEN UPDATE SET status = 'completed', wake_at = NULL, finished_at = now()
        WHEN MATCHED AND what = 'drop' THEN DELETE
        WHEN MATCHED THEN UPDATE SET updated_at = now()
        WHEN NOT MATCHED THEN INSERT (tenant_id, task_path, wake_at) VALUES ('b', 'tests.task', now())
        """,
        [keep, finish, drop],
    )
    assert counts(db) == {"a": 1, "b": 2}
    assert_exact(db)


def test_insert_on_conflict_do_nothing_counts_what_went_in(db: Session) -> None:
    run = insert_run(db, "a")
    db.execute(
        """
        INSERT INTO tenantfair_run (id, tenant_id, task_path, wake_at)
        OVERRIDING SYSTEM VALUE
        SELECT %s + n, 'a', 'tests.task', now() FROM generate_series(0, 2) AS n
        ON CONFLICT DO NOTHING
    """,
        [run],
    )
    assert counts(db) == {"a": 3}
    assert_exact(db)


@pytest.mark.parametrize(
    ("before", "after"), [("queued", "completed"), ("completed", "queued"), ("queued", "queued")]
)
def test_insert_on_conflict_do_update_counts_the_change(db: Session, before: str, after: str) -> None:
    run = insert_run(db, "a", before)
    db.execute(
        """
        INSERT INTO tenantfair_run (id, tenant_id, task_path, status, wake_at, finished_at)
        SELECT %(id)s + n, 'a', 'tests.task', %(status)s, wake_at, finished_at
        FROM generate_series(0, 1) AS n,
            (VALUES (CASE WHEN %(open)s THEN now() END, CASE WHEN NOT %(open)s THEN now() END))
                AS shape (wake_at, finished_at)
        ON CONFLICT (id) DO UPDATE
        SET status = excluded.status, wake_at = excluded.wake_at, finished_at = excluded.finished_at
        """,
        {"id": run, "status": "running" if after == "queued" else after, "open": after == "queued"},
    )
    assert db.execute("SELECT count(*) FROM tenantfair_run").fetchone() == (2,)
    assert_exact(db)


@pytest.fixture
def customers(db: Session) -> Iterator[None]:
    """A host's table whose rows take their runs with them."""
    db.execute("""
        CREATE TABLE host_customer (slug text COLLATE "C" PRIMARY KEY);
        INSERT INTO host_customer VALUES ('a'), ('b'), ('c');
        ALTER TABLE tenantfair_run ADD CONSTRAINT host_customer
            FOREIGN KEY (tenant_id) REFERENCES host_customer ON DELETE CASCADE;
    """)
    yield
    db.execute("DROP TABLE host_customer CASCADE")


@pytest.mark.usefixtures("customers")
def test_rows_deleted_by_a_cascade_from_the_host_are_counted(db: Session) -> None:
    for tenant in "abc":
        enqueue(db, tenant, 3)
        insert_run(db, tenant, "completed")
    db.execute("DELETE FROM host_customer WHERE slug < 'c'")
    assert counts(db) == {"a": 0, "b": 0, "c": 3}
    assert_exact(db)


@pytest.mark.conformance(25)
@pytest.mark.parametrize("tenant", ["'b'", "NULL"])
@pytest.mark.parametrize("also", ["", ", status = 'completed', wake_at = NULL, finished_at = now()"])
def test_run_never_changes_its_tenant(db: Session, tenant: str, also: str) -> None:
    enqueue(db, "a")
    with pytest.raises(errors.IntegrityConstraintViolation):
        db.execute(f"UPDATE tenantfair_run SET tenant_id = {tenant}{also}")
    assert counts(db) == {"a": 1}
    assert_exact(db)


def test_generated_scope_cannot_be_written(db: Session) -> None:
    enqueue(db, "a")
    with pytest.raises(errors.GeneratedAlways):
        db.execute("UPDATE tenantfair_run SET scope_key = 'b'")


def test_update_that_finishes_nobody_notes_nothing(db: Session) -> None:
    """Claims and heartbeats change running rows: they never touch the notes."""
    run = insert_run(db, "a")
    db.execute("BEGIN")
    for state in ("claimed", "ready", "claimed", "waiting", "queued", "poisoned"):
        put_into(db, run, state)
    db.execute("UPDATE tenantfair_run SET claimed_at = claimed_at, updated_at = now(), tenant_id = tenant_id")
    assert db.execute("SELECT count(*) FROM tenantfair_pending").fetchone() == (0,)
    db.execute("COMMIT")
    assert counts(db) == {"a": 1}


@pytest.mark.parametrize(
    "bypass", ["SET session_replication_role = replica", "ALTER TABLE tenantfair_run DISABLE TRIGGER USER"]
)
def test_switching_the_triggers_off_bypasses_the_count(db: Session, bypass: str) -> None:
    """Documented, not prevented: who may do this owns the consequences."""
    enqueue(db, "a", 2)
    db.execute(bypass)
    db.execute("DELETE FROM tenantfair_run")
    script(db, "RESET session_replication_role", "ALTER TABLE tenantfair_run ENABLE TRIGGER USER")
    assert counts(db) == {"a": 2}
    with pytest.raises(AssertionError):
        assert_exact(db)


def test_orm_paths_are_counted(db: Session) -> None:
    """save, bulk_create, bulk_create(ignore_conflicts), update, bulk_update, delete."""
    now = timezone.now()
    one = Run.objects.create(tenant_id="a", task_path="tests.task", wake_at=now)
    many = Run.objects.bulk_create(
        [Run(tenant_id=f"t{n % 3}", task_path="tests.task", wake_at=now) for n in range(30)], batch_size=7
    )
    assert_exact(db)
    Run.objects.bulk_create(
        [
            Run(run_id=r, tenant_id="a", task_path="tests.task", wake_at=now)
            for r in (one.run_id, many[0].run_id)
        ]
        + [Run(tenant_id="a", task_path="tests.task", wake_at=now)],
        ignore_conflicts=True,
    )
    assert counts(db)["a"] == 2
    one.status, one.wake_at, one.finished_at = "cancelled", None, now
    one.save()
    one.save()
    assert counts(db)["a"] == 1
    Run.objects.filter(tenant_id="t0").update(**FINISHING)
    for run in many[1:20]:
        run.status, run.wake_at, run.finished_at = "failed", None, now
    Run.objects.bulk_update(many[1:20], ["status", "wake_at", "finished_at"], batch_size=5)
    assert_exact(db)
    Run.objects.filter(tenant_id="t2").delete()
    one.delete()
    assert_exact(db)
    assert Partition.objects.count() == Schedule.objects.count() == 4


def test_role_that_may_only_insert_runs_can_enqueue(db: Session) -> None:
    role = f"tenantfair_test_{db.info.backend_pid}"
    db.execute(f"CREATE ROLE {role}")
    try:
        script(db, f"GRANT INSERT ON tenantfair_run TO {role}", f"SET ROLE {role}")
        enqueue(db, "new", 2)
        with pytest.raises(errors.InsufficientPrivilege):
            db.execute("SELECT FROM tenantfair_schedule")
        with pytest.raises(errors.InsufficientPrivilege):
            db.execute("INSERT INTO tenantfair_pending VALUES (pg_current_xact_id(), true, 'new', 5)")
        db.execute("RESET ROLE")
        assert counts(db) == {"new": 2}
    finally:
        script(db, "RESET ROLE", f"DROP OWNED BY {role}", f"DROP ROLE {role}")
