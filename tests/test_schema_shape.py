"""The shape of the database that a start insists on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections

from tenantfair import doctor, runs, schema
from tenantfair.exceptions import SchemaMismatch
from tenantfair.models import Policy
from tenantfair.testing import drain
from tests import tasks_for_tests as tasks
from tests.domains import migrate, scratch_alias, scratch_domain

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def alias() -> Iterator[str]:
    """A fresh install to damage."""
    with scratch_domain("tf_shape") as found:
        yield found


def execute(alias: str, statement: str) -> list[Any]:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


def test_a_fresh_install_has_no_problem(alias: str) -> None:
    assert schema.problems(alias) == []
    schema.verify(alias)


def test_every_installed_function_and_trigger_is_one_that_is_needed(alias: str) -> None:
    """What a migration adds has to be added to the shape as well, and the other way round."""
    objects = schema._objects(alias)

    assert {found.name: found.detail for found in objects if found.kind == "function"} == schema.FUNCTIONS
    assert {found.name: found.detail for found in objects if found.kind == "trigger"} == schema.TRIGGERS
    assert [found for found in objects if found.fault] == []


@pytest.mark.parametrize("name", ["tf_shape", "select", "Tf-shape"])
@pytest.mark.parametrize("installed_with", ["off", "on"])
def test_the_shape_does_not_depend_on_how_names_are_quoted(name: str, installed_with: str) -> None:
    """`quote_all_identifiers` may be set for a role or a database, at the install or at any time after it."""
    with scratch_alias(name) as alias:
        execute(alias, f"SET quote_all_identifiers = {installed_with}")
        migrate(alias)
        for setting in ("off", "on"):
            execute(alias, f"SET quote_all_identifiers = {setting}")

            assert schema.problems(alias) == []
            assert execute(alias, "SHOW quote_all_identifiers") == [(setting,)]


@pytest.mark.parametrize("quoting", ["off", "on"])
@pytest.mark.parametrize("name", ["tf_moved", "select", 'Tf "odd" shape'])
def test_a_path_that_the_server_quoted_name_by_name_is_right(alias: str, name: str, quoting: str) -> None:
    """As a dump has it: the names of a path, to be quoted when they are restored."""
    quoted = '"' + name.replace('"', '""') + '"'
    execute(alias, f"ALTER SCHEMA tf_shape RENAME TO {quoted}")
    try:
        execute(alias, f"SET search_path = {quoted}")
        assert "function tenantfair_fold is not bound to its schema" in schema.problems(alias)
        execute(alias, f"SET quote_all_identifiers = {quoting}")
        execute(alias, f"ALTER FUNCTION tenantfair_fold() SET search_path TO {quoted}, 'pg_temp'")
        assert "function tenantfair_fold is not bound to its schema" not in schema.problems(alias)
    finally:
        execute(alias, f"ALTER SCHEMA {quoted} RENAME TO tf_shape")


def test_a_path_that_only_looks_like_the_schemas_is_not_its_path() -> None:
    """Without quotes, capitals are small letters and lead to another schema."""
    with scratch_domain("Tf_shape") as alias:
        execute(alias, 'SET search_path = tf_shape, "Tf_shape"')
        execute(alias, "ALTER FUNCTION tenantfair_fold() SET search_path TO tf_shape, pg_temp")

        assert schema.problems(alias) == ["function tenantfair_fold is not bound to its schema"]


def test_a_type_of_the_hosts_that_bears_the_name_of_a_built_in_is_another_type(alias: str) -> None:
    execute(alias, f"DROP FUNCTION {CLAIM}")
    execute(alias, "CREATE DOMAIN tf_shape.text AS pg_catalog.text")
    lookalike = CLAIM.replace("text", "tf_shape.text")
    execute(alias, f"CREATE FUNCTION {lookalike} RETURNS integer LANGUAGE sql AS 'SELECT 1'")

    (found,) = (one for one in schema.problems(alias) if one.startswith("found "))

    assert "integer, tf_shape.text, boolean), need" in found


CLAIM = "tenantfair_claim(timestamptz, timestamptz, integer, integer, text, boolean)"
LAP = "tenantfair_claim_lap(timestamptz, integer, text, bigint, bigint, interval, text[])"
DAMAGES = {
    "ALTER TABLE tenantfair_run DROP COLUMN tenant_admitted_at CASCADE": (
        "column tenantfair_run.tenant_admitted_at is missing"
    ),
    "ALTER TABLE tenantfair_policy DROP COLUMN configured_max_active CASCADE": (
        "column tenantfair_policy.configured_max_active is missing"
    ),
    f"DROP FUNCTION {CLAIM}": "found 0 functions tenantfair_claim, need exactly tenantfair_claim(timestamp",
    "CREATE FUNCTION tenantfair_claim(integer) RETURNS integer LANGUAGE sql AS 'SELECT 1'": (
        "found 2 functions tenantfair_claim, need exactly tenantfair_claim(timestamp"
    ),
    f"DROP FUNCTION {CLAIM};"
    "CREATE FUNCTION tenantfair_claim(text) RETURNS text LANGUAGE sql AS 'SELECT $1'": (
        "found tenantfair_claim(text), need tenantfair_claim(timestamp"
    ),
    f"DROP FUNCTION {CLAIM};"
    f"CREATE PROCEDURE {CLAIM} LANGUAGE sql SET search_path FROM CURRENT AS 'SELECT 1'": (
        "function tenantfair_claim is not a plain function"
    ),
    f"DROP PROCEDURE {LAP}": "found 0 functions tenantfair_claim_lap, need exactly tenantfair_claim_lap(",
    f"DROP PROCEDURE {LAP};"
    f"CREATE FUNCTION {LAP} RETURNS text LANGUAGE sql SET search_path FROM CURRENT AS 'SELECT 1::text'": (
        "function tenantfair_claim_lap is not a procedure"
    ),
    f"ALTER PROCEDURE {LAP} SET search_path FROM CURRENT": (
        "function tenantfair_claim_lap is bound, so it cannot commit"
    ),
    f"ALTER PROCEDURE {LAP} SECURITY DEFINER": "function tenantfair_claim_lap is bound, so it cannot commit",
    f"ALTER FUNCTION {CLAIM} RESET search_path": "function tenantfair_claim is not bound to its schema",
    f"ALTER FUNCTION {CLAIM} RESET enable_seqscan": (
        "function tenantfair_claim is without the settings of its plans"
    ),
    f"ALTER FUNCTION {CLAIM} SECURITY DEFINER": (
        "function tenantfair_claim is run with the rights of its owner"
    ),
    "ALTER FUNCTION tenantfair_run_deleted() SECURITY INVOKER": (
        "function tenantfair_run_deleted is not run with the rights of its owner"
    ),
    "ALTER TABLE tenantfair_partition DISABLE TRIGGER ALL;"
    "ALTER TABLE tenantfair_partition ENABLE TRIGGER USER": (
        "constraint tenantfair_schedule_partition is disabled"
    ),
    "DROP TRIGGER tenantfair_run_updated ON tenantfair_run": (
        "trigger tenantfair_run.tenantfair_run_updated is missing"
    ),
    "ALTER TABLE tenantfair_run DISABLE TRIGGER tenantfair_run_deleted": (
        "trigger tenantfair_run.tenantfair_run_deleted is disabled"
    ),
    "ALTER TABLE tenantfair_run ENABLE REPLICA TRIGGER tenantfair_run_deleted": (
        "trigger tenantfair_run.tenantfair_run_deleted is disabled"
    ),
    "DROP TRIGGER tenantfair_pending_fold ON tenantfair_pending;"
    "CREATE TRIGGER tenantfair_pending_fold AFTER INSERT ON tenantfair_pending"
    " FOR EACH ROW EXECUTE FUNCTION tenantfair_pending_fold()": (
        "trigger tenantfair_pending.tenantfair_pending_fold is not deferred"
    ),
    "DROP TABLE tenantfair_pending": "column tenantfair_pending.delta is missing",
    "DROP INDEX tenantfair_partition_override": "index tenantfair_partition_override is missing",
    "DROP INDEX tenantfair_schedule_ring": "index tenantfair_schedule_ring is missing",
    "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'tenantfair_run_queued'::regclass": (
        "index tenantfair_run_queued is not valid"
    ),
    "ALTER TABLE tenantfair_run DROP CONSTRAINT tenantfair_run_shape": (
        "constraint tenantfair_run_shape is missing"
    ),
    "ALTER TABLE tenantfair_run DROP CONSTRAINT tenantfair_run_shape;"
    "ALTER TABLE tenantfair_run ADD CONSTRAINT tenantfair_run_shape CHECK (status <> '') NOT VALID": (
        "constraint tenantfair_run_shape is not validated"
    ),
    "ALTER TABLE tenantfair_schedule DROP CONSTRAINT tenantfair_schedule_partition": (
        "constraint tenantfair_schedule_partition is missing"
    ),
    "DROP TABLE tenantfair_run CASCADE": "table tenantfair_run is missing",
    "DELETE FROM django_migrations WHERE name = '0002_install'": "migration 0002_install is not applied",
    "INSERT INTO django_migrations (app, name, applied) VALUES ('tenantfair', '0999_later', now())": (
        "found migration 0999_later applied, which this version does not have"
    ),
}


@pytest.mark.conformance(126)
@pytest.mark.parametrize(("damage", "problem"), DAMAGES.items(), ids=DAMAGES.values())
def test_each_damage_is_named_with_what_was_found_and_what_is_needed(
    alias: str, damage: str, problem: str
) -> None:
    execute(alias, damage)

    found = schema.problems(alias)

    assert [one for one in found if one.startswith(problem)]
    with pytest.raises(SchemaMismatch) as caught:
        schema.verify(alias)
    assert caught.value.problems == found


@pytest.mark.conformance(126)
def test_a_database_without_the_tables_names_the_command_that_makes_them() -> None:
    with scratch_alias("tf_shape") as empty, pytest.raises(SchemaMismatch) as caught:
        schema.verify(empty)

    assert "table tenantfair_run is missing" in caught.value.problems
    assert "Run `manage.py migrate tenantfair --database=scratch_tf_shape`." in str(caught.value)


def test_a_database_of_a_later_version_asks_for_that_version(alias: str) -> None:
    execute(
        alias, "INSERT INTO django_migrations (app, name, applied) VALUES ('tenantfair', '0999_x', now())"
    )

    assert schema.remedy(alias) == "Install the version of tenantfair that this database was migrated with."


def test_a_renamed_schema_leaves_functions_that_look_elsewhere(alias: str) -> None:
    execute(alias, "ALTER SCHEMA tf_shape RENAME TO tf_moved")
    execute(alias, "SET search_path = tf_moved")
    try:
        assert "function tenantfair_fold is not bound to its schema" in schema.problems(alias)
    finally:
        execute(alias, "ALTER SCHEMA tf_moved RENAME TO tf_shape")


def test_what_a_host_adds_to_our_tables_is_no_problem(alias: str) -> None:
    execute(alias, "ALTER TABLE tenantfair_run ADD COLUMN note text")
    execute(alias, "CREATE INDEX host_index ON tenantfair_run (task_path)")
    execute(alias, "CREATE FUNCTION host() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    execute(alias, "CREATE TRIGGER host AFTER INSERT ON tenantfair_run FOR EACH ROW EXECUTE FUNCTION host()")

    assert schema.problems(alias) == []


def test_the_shape_is_that_of_the_schema_that_the_search_path_finds_first(alias: str) -> None:
    """The default alias has an install too; damage there is not damage here."""
    execute(alias, "DROP TRIGGER tenantfair_run_updated ON tenantfair_run")

    assert schema.problems("default") == []


def test_the_installed_bodies_are_those_of_the_shipped_files(alias: str) -> None:
    shipped = {}
    # What has a version is what a migration installs.
    for path in files("tenantfair.sql").glob("*.v*.sql"):
        for name, body in re.findall(r"AS \$(\w+)\$(.*?)\$\1\$", path.read_text(encoding="utf-8"), re.DOTALL):
            shipped[name] = hashlib.md5(body.encode()).hexdigest()
    installed = {
        name: hashlib.md5(body.encode()).hexdigest() for name, body in schema.function_sources(alias).items()
    }

    assert installed == shipped


@pytest.mark.parametrize("how", ["migrations are off", "migrations ran"])
def test_tables_made_without_migrations_get_their_triggers_and_their_policy_row(
    settings: Any, how: str
) -> None:
    """`pytest --no-migrations` and TEST["MIGRATE"] = False create the tables alone."""
    if how == "migrations are off":
        settings.MIGRATION_MODULES = {"tenantfair": None}
    with scratch_alias("tf_shape") as alias:
        if how == "migrations ran":
            migrate(alias)
        else:
            call_command("migrate", run_syncdb=True, database=alias, verbosity=0)
        for _ in range(2):
            schema.install_unmigrated(alias)

        assert schema.problems(alias) == []
        assert Policy.objects.using(alias).get().policy_version == 0


@pytest.fixture
def unmigrated(settings: Any) -> Iterator[str]:
    """As TEST["MIGRATE"] = False leaves it: migrations are off for `migrate` and on again for the tests."""
    usual = settings.MIGRATION_MODULES
    with scratch_alias("tf_shape") as found:
        settings.MIGRATION_MODULES = {"tenantfair": None}
        call_command("migrate", run_syncdb=True, database=found, verbosity=0)
        settings.MIGRATION_MODULES = usual
        yield found


def test_a_complete_schema_without_a_recorded_migration_has_no_problem(unmigrated: str) -> None:
    runs.enqueue(tasks.add, args=[1], tenant_id="acme", using=unmigrated)

    assert [outcome.result for outcome in drain(using=unmigrated)] == [2]
    assert schema.problems(unmigrated) == []
    assert schema.pending_migrations(unmigrated) == []


def test_an_incomplete_schema_without_a_recorded_migration_is_not_one_to_migrate(unmigrated: str) -> None:
    """Migrating would fail, since the tables are there; what is missing can be put back."""
    execute(unmigrated, "DROP TRIGGER tenantfair_run_updated ON tenantfair_run")

    assert schema.problems(unmigrated) == ["trigger tenantfair_run.tenantfair_run_updated is missing"]
    assert "tenantfair_doctor --reinstall" in schema.remedy(unmigrated)
    doctor.reinstall(unmigrated)
    assert schema.problems(unmigrated) == []


def test_tables_half_migrated_are_left_to_the_migrations() -> None:
    with scratch_alias("tf_shape") as alias:
        migrate(alias, "0001")

        schema.install_unmigrated(alias)

        assert not schema.is_installed(alias)
        assert schema.pending_migrations(alias) == ["0002_install"]
