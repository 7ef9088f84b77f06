"""Rows that every claim and commit rewrites: there is room to do it in place, without new index entries."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tenantfair import policy
from tests.rows import Session, enqueue, sessions

CALLS = 300
CLAIM = """
    SELECT FROM tenantfair_claim(clock_timestamp(), clock_timestamp() - interval '1 hour', 1, 5, NULL, false)
"""


@pytest.fixture
def db(transactional_db: None) -> Iterator[Session]:
    policy.synchronize()
    with sessions() as another:
        yield another()


def updates(db: Session, table: str) -> tuple[int, int]:
    """How many rows of `table` were updated so far, and how many of them in place."""
    db.execute("SELECT pg_stat_force_next_flush()")
    db.execute("SELECT")  # the flush comes before the next statement
    return db.execute(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = %s::regclass", [table]
    ).fetchone()


@pytest.mark.parametrize("table", ["tenantfair_policy", "tenantfair_partition", "tenantfair_schedule"])
def test_hot_rows_are_rewritten_in_place(db: Session, table: str) -> None:
    policy.put_default(CALLS)
    enqueue(db, "a")
    before = updates(db, table)
    for _ in range(CALLS):
        enqueue(db, "a")
        db.execute(CLAIM)
    after = updates(db, table)
    done, in_place = after[0] - before[0], after[1] - before[1]
    assert done == CALLS
    assert in_place >= 0.9 * done


def buffers(db: Session) -> int:
    """Pages that one claim touches."""
    (plan,) = db.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {CLAIM}").fetchone()
    return sum(plan[0]["Plan"][f"Shared {kind} Blocks"] for kind in ("Hit", "Read"))


def test_claim_stays_cheap_under_an_old_snapshot(db: Session) -> None:
    """Versions of the policy row that somebody may still see pile up; a claim does not walk past them."""
    enqueue(db, "a", 20)
    db.execute("SET synchronous_commit = off")
    for _ in range(8):
        db.execute(CLAIM)
    fresh = buffers(db)
    with sessions() as another:
        reader = another()
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM tenantfair_policy")
        for _ in range(2_000):
            db.execute("UPDATE tenantfair_policy SET updated_at = clock_timestamp()")
        pages = db.execute("SELECT pg_relation_size('tenantfair_policy') / 8192").fetchone()[0]
        assert pages >= 20
        assert buffers(db) <= fresh + 8


def test_text_keys_have_one_index(db: Session) -> None:
    """An index for patterns, which Django adds to each, would be a second entry per new tenant."""
    assert db.execute("SELECT relname FROM pg_class WHERE relname LIKE 'tenantfair%\\_like'").fetchall() == []


def test_a_large_payload_leaves_its_row(db: Session) -> None:
    """Also one that compression brings below 2 kB, where PostgreSQL by itself would leave it."""
    document = json.dumps([{"id": number, "mail": f"c{number}@example.com"} for number in range(150)])
    for text in ("[]", document):
        db.execute(
            "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at, args)"
            " VALUES ('a', 'tests.task', now(), %s::jsonb)",
            [text],
        )
    stored = db.execute("SELECT pg_column_size(args) FROM tenantfair_run ORDER BY id").fetchall()
    assert stored[0][0] < 768 < stored[1][0] < 2_000
    toasted = db.execute(
        "SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = 'tenantfair_run'::regclass"
    ).fetchone()
    assert toasted != (0,)
