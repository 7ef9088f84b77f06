"""Installing, going back, going forward again, in any schema; and the files that migrations install."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from threading import Barrier
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import ProgrammingError, connections
from django.db.migrations.operations import RunSQL

import tenantfair
from tenantfair import policy, schema, sql
from tenantfair.models import Partition, Policy, Run, Schedule
from tests.domains import migrate, scratch_alias, scratch_domain
from tests.rows import connect, enqueue, in_background, result
from tests.snapshot import SNAPSHOT, dump
from tests.threads import in_django_thread, until_someone_waits_for

PAST = datetime(2020, 1, 1, tzinfo=UTC)

database = pytest.mark.django_db(transaction=True)


@pytest.fixture
def empty() -> Iterator[str]:
    """An alias that leads to an empty schema."""
    with scratch_alias("tf_mig") as alias:
        yield alias


def query(alias: str, statement: str) -> list[Any]:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def objects_of(alias: str) -> set[str]:
    """Name everything that stands in the alias' schema, but for Django's record of migrations."""
    found = query(
        alias,
        """
        WITH home AS (SELECT quote_ident(current_schema())::regnamespace AS oid)
        SELECT 'relation ' || relname FROM pg_class JOIN home ON relnamespace = home.oid
        UNION ALL
        SELECT 'function ' || proname FROM pg_proc JOIN home ON pronamespace = home.oid
        UNION ALL
        SELECT 'type ' || typname FROM pg_type JOIN home ON typnamespace = home.oid
        """,
    )
    return {name for (name,) in found if "django_migrations" not in name}


@database
def test_a_fresh_install_equals_the_committed_snapshot(empty: str) -> None:
    """`python -m tests.snapshot` writes the new one; its diff is part of the review."""
    migrate(empty)

    assert dump(empty).splitlines() == SNAPSHOT.read_text(encoding="utf-8").splitlines()


@pytest.mark.conformance(141)
@database
def test_two_installs_are_equal_whatever_their_schemas_are_called(empty: str) -> None:
    migrate(empty)
    with scratch_domain("Tf-Mig") as other:
        assert dump(other) == dump(empty)
        assert schema.problems(other) == []


@database
@pytest.mark.conformance(143)
def test_triggers_removed_and_installed_again_count_what_changed_meanwhile(empty: str) -> None:
    migrate(empty)
    insert = "INSERT INTO tenantfair_run (tenant_id, task_path, wake_at) VALUES ('%s', 'x.y', now())"
    query(empty, insert % "oldest")
    query(empty, insert % "old")
    migrate(empty, "0001")
    query(empty, insert % "old")
    query(empty, insert % "new")

    migrate(empty)

    ring = "SELECT scope_key, ring_position, unfinished_count FROM tenantfair_schedule ORDER BY ring_position"
    assert query(empty, ring) == [("oldest", 1, 1), ("old", 2, 2), ("new", 3, 1)]
    query(empty, insert % "later")
    assert query(empty, ring)[3] == ("later", 4, 1)


@pytest.mark.conformance(143)
@database
def test_back_to_zero_leaves_nothing_and_forward_again_is_a_fresh_install(empty: str) -> None:
    migrate(empty)
    Run.objects.using(empty).create(tenant_id="acme", task_path="t.t", wake_at=PAST)
    before = dump(empty)

    migrate(empty, "zero")
    assert objects_of(empty) == set()

    migrate(empty)
    assert dump(empty) == before


@pytest.mark.conformance(143)
@database
def test_back_to_the_tables_alone_keeps_the_runs(empty: str) -> None:
    migrate(empty)
    Run.objects.using(empty).create(tenant_id="acme", task_path="t.t", wake_at=PAST)

    migrate(empty, "0001")

    assert Run.objects.using(empty).count() == 1
    assert {name for name in objects_of(empty) if name.startswith("function")} == {
        "function tenantfair_new_run_id",
        "function tenantfair_policy_shape",
        "function tenantfair_run_shape",
    }


@pytest.mark.conformance(142)
@database
def test_a_failing_migration_leaves_nothing_of_itself(empty: str) -> None:
    migrate(empty, "0001")
    Run.objects.using(empty).create(tenant_id="acme", task_path="t.t", wake_at=PAST)
    # In the way of the one statement that does not replace what it finds, near the end of the migration.
    query(empty, "CREATE TABLE tenantfair_pending (in_the_way integer)")
    before = dump_without_policy(empty)

    with pytest.raises(ProgrammingError, match="tenantfair_pending"):
        migrate(empty)

    assert dump_without_policy(empty) == before
    assert not Policy.objects.using(empty).exists()
    assert Run.objects.using(empty).count() == 1
    query(empty, "DROP TABLE tenantfair_pending")
    Run.objects.using(empty).all().delete()
    migrate(empty)
    assert schema.problems(empty) == []


def dump_without_policy(alias: str) -> list[str]:
    return [line for line in dump(alias).splitlines() if not line.startswith("-- ROW")]


@pytest.mark.conformance(144)
@database
def test_everything_is_in_the_schema_that_was_migrated(empty: str) -> None:
    before = objects_of("default")

    migrate(empty)

    assert objects_of("default") == before
    elsewhere = query(
        "default",
        """
        SELECT nspname, proname FROM pg_proc JOIN pg_namespace AS n ON n.oid = pronamespace
        WHERE proname LIKE 'tenantfair%' AND nspname NOT IN ('public', 'tf_mig')
        """,
    )
    assert elsewhere == []


@pytest.mark.conformance(144)
@database
def test_a_domain_needs_nothing_in_public(empty: str) -> None:
    """Another search path at run time does not lead the functions astray either."""
    migrate(empty)
    policy.synchronize(empty)
    query(empty, "SET search_path = pg_catalog")
    query(
        empty,
        "INSERT INTO tf_mig.tenantfair_run (tenant_id, task_path, wake_at) VALUES ('acme', 't.t', now())",
    )
    query(empty, "SET search_path = tf_mig")

    assert policy.inspect("acme", using=empty).unfinished == 1


@pytest.mark.conformance(144)
@database
def test_two_domains_in_one_database_do_not_meet(empty: str) -> None:
    migrate(empty)
    with scratch_domain("tf_mig_2") as other:
        for alias, number in ((empty, 3), (other, 2), ("default", 1)):
            for _ in range(number):
                Run.objects.using(alias).create(tenant_id="acme", task_path="t.t", wake_at=PAST)
        policy.synchronize(other)

        counted = {
            alias: Schedule.objects.using(alias).get().unfinished_count for alias in (empty, other, "default")
        }
        assert counted == {empty: 3, other: 2, "default": 1}
        assert Policy.objects.using(empty).get().admission_mode == "legacy"


@pytest.mark.conformance(146)
@database
def test_concurrent_first_inserts_of_a_scope_make_one_partition_with_all_their_runs() -> None:
    barrier = Barrier(8)

    def insert() -> None:
        with connect() as session:
            barrier.wait(timeout=30)
            enqueue(session, "acme")

    for insertion in [in_background(insert) for _ in range(8)]:
        result(insertion)

    assert list(Partition.objects.values_list("scope_key", flat=True)) == ["acme"]
    assert list(Schedule.objects.values_list("partition", "unfinished_count")) == [("acme", 8)]
    assert Run.objects.count() == 8


@database
def test_the_models_need_no_further_migration() -> None:
    call_command("makemigrations", "tenantfair", check=True, dry_run=True, verbosity=0)


def run_sql_operations() -> Iterator[tuple[str, RunSQL]]:
    for name in schema.shipped_migrations():
        for operation in import_module(f"tenantfair.migrations.{name}").Migration.operations:
            if isinstance(operation, RunSQL):
                yield name, operation


def sql_files() -> set[str]:
    return {
        path.name.removesuffix(".sql") for path in files(sql.__name__).iterdir() if path.name.endswith(".sql")
    }


def is_versioned(name: str) -> bool:
    return re.fullmatch(r"\w+\.v[0-9]+", name) is not None


def is_reverse(name: str) -> bool:
    return name.endswith(".reverse")


def test_every_versioned_file_is_installed_by_exactly_one_migration() -> None:
    installed = Counter(str(operation.sql) for _, operation in run_sql_operations())

    for name in filter(is_versioned, sql_files()):
        assert installed[sql.install(name)] == 1, name


def test_every_reverse_file_takes_back_the_file_it_is_named_for() -> None:
    pairs = {str(operation.sql): str(operation.reverse_sql) for _, operation in run_sql_operations()}

    for name in filter(is_reverse, sql_files()):
        assert pairs[sql.install(name.removesuffix(".reverse"))] == sql.load(name), name


def test_every_statement_of_a_migration_can_be_taken_back() -> None:
    for name, operation in run_sql_operations():
        assert operation.reversible, name
        assert operation.reverse_sql is not RunSQL.noop, name


def test_every_other_file_is_loaded_by_name_somewhere() -> None:
    source = "\n".join(
        path.read_text(encoding="utf-8") for path in Path(tenantfair.__file__).parent.rglob("*.py")
    )

    for name in sql_files():
        if not is_versioned(name) and not is_reverse(name):
            assert f'"{name}"' in source, name


def test_functions_replace_and_never_drop() -> None:
    for name in filter(is_versioned, sql_files()):
        text = sql.load(name)
        assert "DROP " not in text, name
        assert not re.search(r"CREATE FUNCTION|CREATE TRIGGER", text), name


@database
def test_installing_the_triggers_waits_for_an_insert_in_flight(empty: str) -> None:
    """Triggers come under a lock that writers conflict with, so no row slips past them."""
    migrate(empty, "0001")
    path = "-c search_path=tf_mig"
    with connect(options=path) as writer, connect(options=f"{path} -c lock_timeout=50ms") as migrating:
        writer.execute("BEGIN")
        enqueue(writer, "acme")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            migrating.execute(sql.install("tenantfair_run_unfinished.v1"))


@pytest.mark.conformance(143)
@database
def test_installing_again_counts_what_was_in_flight(empty: str) -> None:
    """Writers are waited for first: no run is too late for the count and too early for a trigger."""

    def forwards() -> None:
        connections[empty].connect()
        migrate(empty)

    migrate(empty)
    migrate(empty, "0001")
    with connect(options="-c search_path=tf_mig") as writer, connect() as observer:
        writer.execute("BEGIN")
        enqueue(writer, "late")
        migrating = in_django_thread(forwards)
        until_someone_waits_for(writer, observer)
        writer.execute("COMMIT")
        migrating.result(timeout=30)

    assert query(empty, "SELECT scope_key, unfinished_count FROM tenantfair_schedule") == [("late", 1)]
