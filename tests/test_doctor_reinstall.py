"""Functions and triggers that are damaged are created anew, and what moved without them is counted."""

from __future__ import annotations

from contextlib import closing
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connections

from tenantfair import doctor, schema
from tenantfair.doctor.repair import RepairBlocked
from tenantfair.exceptions import SchemaMismatch
from tests.doctor_damage import alias, connect_there, damage, write
from tests.domains import migrate
from tests.rows import assert_exact, enqueue
from tests.snapshot import dump
from tests.threads import in_django_thread, until_someone_waits_for

__all__ = ["alias"]

pytestmark = pytest.mark.django_db(transaction=True)

CLAIM = "tenantfair_claim(timestamptz, timestamptz, integer, integer, text, boolean)"
DAMAGES = (
    f"DROP FUNCTION {CLAIM}",
    f"ALTER FUNCTION {CLAIM} RESET ALL",
    "DROP PROCEDURE tenantfair_claim_lap",
    "ALTER PROCEDURE tenantfair_claim_lap SECURITY DEFINER",
    "DROP TRIGGER tenantfair_run_deleted ON tenantfair_run",
    "ALTER TABLE tenantfair_run DISABLE TRIGGER tenantfair_run_inserted",
    "ALTER TABLE tenantfair_run ENABLE REPLICA TRIGGER tenantfair_run_updated",
    "DROP FUNCTION tenantfair_run_updated CASCADE",
    "ALTER FUNCTION tenantfair_fold SECURITY INVOKER",
    "CREATE OR REPLACE FUNCTION tenantfair_run_deleted() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER"
    " SET search_path FROM CURRENT AS 'BEGIN RETURN NULL; END'",
    "DROP TRIGGER tenantfair_pending_fold ON tenantfair_pending",
    "ALTER TABLE tenantfair_pending DISABLE TRIGGER tenantfair_pending_fold",
    "DROP TRIGGER tenantfair_pending_fold ON tenantfair_pending;"
    " CREATE TRIGGER tenantfair_pending_fold AFTER INSERT ON tenantfair_pending"
    " FOR EACH ROW WHEN (NEW.opens) EXECUTE FUNCTION tenantfair_pending_fold()",
    "DROP FUNCTION tenantfair_schedule_guard CASCADE; DROP FUNCTION tenantfair_truncate_guard CASCADE",
    "ALTER FUNCTION tenantfair_run_shape RESET search_path; ALTER FUNCTION tenantfair_new_run_id VOLATILE",
)


@pytest.mark.parametrize("statement", DAMAGES)
def test_each_damage_is_put_right_and_named(alias: str, statement: str) -> None:
    whole = dump(alias)
    damage(statement)
    assert dump(alias) != whole

    doctor.reinstall(alias)

    assert dump(alias) == whole
    assert doctor.examine(alias).fits


def test_what_was_put_right_is_named(alias: str) -> None:
    damage("DROP TRIGGER tenantfair_run_deleted ON tenantfair_run", "DROP PROCEDURE tenantfair_claim_lap")

    assert [str(change) for change in doctor.reinstall(alias)] == [
        "trigger tenantfair_run.tenantfair_run_deleted is missing: put right",
        "found 0 functions tenantfair_claim_lap, need exactly tenantfair_claim_lap(timestamp with time zone,"
        " integer, text, bigint, bigint, interval, text[]): put right",
    ]
    assert doctor.reinstall(alias) == []


def test_functions_of_a_schema_that_was_renamed_find_their_tables_again(alias: str) -> None:
    home = connections[alias].settings_dict["OPTIONS"]["options"].rpartition("=")[2].strip('"')
    with connections[alias].cursor() as cursor:
        cursor.execute(f"ALTER SCHEMA {home} RENAME TO tf_moved")
        cursor.execute("SET search_path = tf_moved")
        try:
            assert schema.problems(alias)
            doctor.reinstall(alias)
            assert schema.problems(alias) == []
            cursor.execute(
                "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at) VALUES ('moved', 'a.b', now())"
            )
            cursor.execute("SELECT unfinished_count FROM tenantfair_schedule WHERE scope_key = 'moved'")
            assert cursor.fetchone() == (1,)
        finally:
            cursor.execute(f"ALTER SCHEMA tf_moved RENAME TO {home}")


def test_the_command_counts_what_moved_without_triggers(alias: str) -> None:
    damage("DROP TRIGGER tenantfair_run_inserted ON tenantfair_run", write("tenant_id", "'unseen'"))

    out = StringIO()
    call_command("tenantfair_doctor", "--reinstall", "--fix", database=alias, stdout=out)

    assert out.getvalue().splitlines() == [
        "changed  trigger tenantfair_run.tenantfair_run_inserted is missing: put right",
        "changed  partition of 'unseen': added",
        "changed  count of 'unseen': was 0, is 1",
        "nothing found",
    ]
    with closing(connect_there()) as session:
        assert_exact(session)


def test_nothing_is_changed_while_a_writer_stays_in_the_way(alias: str) -> None:
    damage("DROP TRIGGER tenantfair_run_deleted ON tenantfair_run", f"DROP FUNCTION {CLAIM}")
    broken = dump(alias)
    with closing(connect_there()) as writer:
        writer.execute("BEGIN")
        enqueue(writer, "acme")

        with pytest.raises(RepairBlocked, match="nothing was changed"):
            doctor.reinstall(alias, lock_timeout_ms=50)

    assert dump(alias) == broken


@pytest.mark.parametrize(
    ("statement", "remedy"),
    [
        ("ALTER TABLE tenantfair_run DROP COLUMN claim_abandons CASCADE", "tenantfair_doctor"),
        ("DELETE FROM django_migrations WHERE name = '0002_install'", "migrate tenantfair"),
    ],
)
def test_tables_are_not_made_anew(alias: str, statement: str, remedy: str) -> None:
    damage(statement, f"DROP FUNCTION {CLAIM}")

    with pytest.raises(SchemaMismatch, match=remedy):
        doctor.reinstall(alias)

    assert any("tenantfair_claim(" in problem for problem in schema.problems(alias))


def test_what_belongs_to_a_table_is_left_and_still_named(alias: str) -> None:
    damage("DROP INDEX tenantfair_run_queued", "DROP TRIGGER tenantfair_run_deleted ON tenantfair_run")

    (change,) = doctor.reinstall(alias)

    assert change.name == "trigger tenantfair_run.tenantfair_run_deleted is missing"
    assert schema.problems(alias) == ["index tenantfair_run_queued is missing"]


def test_a_writer_of_a_new_tenant_commits_before_it(alias: str) -> None:
    """It takes the tables in the writers' order, so that neither waits for what the other holds."""

    def in_a_thread() -> None:
        connections[alias].connect()
        doctor.reinstall(alias)

    with closing(connect_there()) as writer, closing(connect_there()) as observer:
        writer.execute("BEGIN")
        enqueue(writer, "newcomer")
        reinstalling = in_django_thread(in_a_thread)
        until_someone_waits_for(writer, observer)
        writer.execute("COMMIT")
        reinstalling.result(timeout=30)
        assert_exact(observer)


def test_migrating_to_nothing_works_afterwards(alias: str) -> None:
    doctor.reinstall(alias)
    migrate(alias, "zero")
    assert not schema.has_tables(alias)
