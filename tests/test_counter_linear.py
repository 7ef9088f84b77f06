"""Counting n runs of one tenant costs n, however they are written: asserted by counts, never by time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.rows import FINISH_ALL, Session, assert_exact, counts, enqueue, script, sessions


@pytest.fixture
def db(transactional_db: None) -> Iterator[Session]:
    with sessions() as another:
        yield another()


def measured(db: Session, work: Callable[[], None]) -> tuple[int, int]:
    """Return how many buffers were touched during `work`, commits included, and how many counts moved."""

    def reading() -> tuple[int, int]:
        db.execute("SELECT pg_stat_force_next_flush()")
        return db.execute("""
            SELECT
                blks_hit + blks_read,
                (SELECT n_tup_upd FROM pg_stat_user_tables WHERE relname = 'tenantfair_schedule')
            FROM pg_stat_database
            WHERE datname = current_database()
        """).fetchone()

    before = reading()
    work()
    after = reading()
    return after[0] - before[0], after[1] - before[1]


def in_batches(db: Session, number: int) -> None:
    with db.transaction():
        for _ in range(number // 500):
            enqueue(db, "a", 500)


def one_by_one(db: Session, number: int) -> None:
    with db.transaction():
        for _ in range(number):
            enqueue(db, "a")


@pytest.mark.conformance(26)
@pytest.mark.parametrize(
    ("write", "few"),
    [(lambda db, n: enqueue(db, "a", n), 5_000), (in_batches, 5_000), (one_by_one, 500)],
    ids=["one statement", "batches of 500", "one by one"],
)
def test_enqueueing_is_linear(db: Session, write: Callable[[Session, int], None], few: int) -> None:
    enqueue(db, "a")
    enqueue(db, "b", 5_000)  # so that the indexes have the same height throughout
    few_buffers, few_moves = measured(db, lambda: write(db, few))
    many_buffers, many_moves = measured(db, lambda: write(db, few * 10))
    assert (few_moves, many_moves) == (1, 1)
    assert many_buffers <= 11 * few_buffers
    assert counts(db) == {"a": few * 11 + 1, "b": 5_000}


@pytest.mark.conformance(26)
@pytest.mark.parametrize("statement", [FINISH_ALL, "DELETE FROM tenantfair_run"], ids=["finish", "delete"])
def test_finishing_and_deleting_are_linear(db: Session, statement: str) -> None:
    found = []
    for number in (5_000, 50_000):
        db.execute("DELETE FROM tenantfair_run")
        db.execute("VACUUM tenantfair_run")
        enqueue(db, "a", number)
        found.append(measured(db, lambda: db.execute(statement)))
        assert counts(db) == {"a": 0}
    (few_buffers, few_moves), (many_buffers, many_moves) = found
    assert (few_moves, many_moves) == (1, 1)
    assert many_buffers <= 11 * few_buffers
    assert_exact(db)


@pytest.mark.conformance(26)
def test_finishing_one_by_one_in_one_transaction_is_linear(db: Session) -> None:
    found = []
    for number in (500, 5_000):
        db.execute("DELETE FROM tenantfair_run")
        db.execute("VACUUM tenantfair_run")
        enqueue(db, "a", number)
        ids = [row[0] for row in db.execute("SELECT id FROM tenantfair_run").fetchall()]

        def finish_each(ids: list[int] = ids) -> None:
            with db.transaction():
                for run in ids:
                    db.execute(f"{FINISH_ALL} WHERE id = %s", [run])

        found.append(measured(db, finish_each))
    (few_buffers, few_moves), (many_buffers, many_moves) = found
    assert (few_moves, many_moves) == (1, 1)
    assert many_buffers <= 11 * few_buffers
    assert_exact(db)


def test_each_scope_of_a_transaction_moves_once(db: Session) -> None:
    db.execute(
        "INSERT INTO tenantfair_partition (scope_key) SELECT 't' || n FROM generate_series(0, 99) AS n"
    )

    def work() -> None:
        script(db, "BEGIN")
        for shift in range(5):
            db.execute(
                "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at)"
                " SELECT 't' || (n + %s) %% 100, 'tests.task', now() FROM generate_series(1, 400) AS n",
                [shift],
            )
        script(db, FINISH_ALL + " WHERE id % 3 = 0", "DELETE FROM tenantfair_run WHERE id % 5 = 0", "COMMIT")

    assert measured(db, work)[1] == 100
    assert_exact(db)


def test_cost_of_a_commit_does_not_grow_with_the_ring(db: Session) -> None:
    """Also for a session whose plans are older than the ring."""
    enqueue(db, "a")
    db.execute("VACUUM ANALYZE tenantfair_partition, tenantfair_schedule")

    def three_scopes() -> None:
        db.execute("BEGIN")
        for tenant in ("a", "b", "c"):
            enqueue(db, tenant)
        db.execute("COMMIT")

    three_scopes()
    on_a_small_ring, _ = measured(db, three_scopes)
    db.execute(
        "INSERT INTO tenantfair_partition (scope_key) SELECT 't' || n FROM generate_series(1, 20000) AS n"
    )
    on_a_large_ring, moves = measured(db, three_scopes)
    assert moves == 3
    assert on_a_large_ring <= 2 * on_a_small_ring
