"""System checks: one test per id, and what they leave alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core import checks as django_checks
from django.core.management import call_command
from django.db import connection, connections
from django.db.backends.postgresql import psycopg_any

from tenantfair import checks, policy, schema
from tests.domains import another_vendor, migrate, scratch_alias, scratch_domain

database = pytest.mark.django_db(transaction=True)

FAIR = {"DEFAULT_MAX_ACTIVE_RUNS": 7}


def found(databases: list[str] | None = None) -> dict[str | None, str]:
    """Run all of our checks and return message by id."""
    asked = [checks.check_settings, checks.check_connection, checks.check_tasks, checks.check_database]
    messages = [message for check in asked for message in check(None, databases=databases)]
    for message in messages:
        assert message.id in checks.CHECKS
        assert message.hint == checks.CHECKS[message.id].hint
        assert message.is_serious() == message.id.startswith("tenantfair.E")
    return {message.id: message.msg for message in messages}


def execute(alias: str, statement: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def domain(settings: Any) -> Iterator[str]:
    """A fresh install of its own, and settings that point there; its router follows."""
    with scratch_domain("tf_check") as alias:
        settings.TENANTFAIR = {**FAIR, "DATABASE": alias}
        settings.DATABASE_ROUTERS = [Router(alias)]
        yield alias


class Router:
    """Sends tenantfair to one alias."""

    def __init__(self, alias: str, *, migrates: bool = True) -> None:
        self.alias = alias
        self.migrates = migrates

    def db_for_read(self, model: Any, **_: Any) -> str | None:
        return self.alias if model._meta.app_label == "tenantfair" else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **_: Any) -> bool | None:
        return self.migrates if app_label == "tenantfair" else None


def test_the_settings_of_this_suite_pass() -> None:
    assert found() == {}


@database
def test_a_fresh_install_passes(domain: str) -> None:
    assert found([domain]) == {}


def test_ids_are_keys_and_each_says_what_and_how() -> None:
    for check_id, check in checks.CHECKS.items():
        assert check.id == check_id
        assert check.meaning.endswith(".")
        assert check.hint.endswith(".")


def test_registering_twice_runs_each_check_once() -> None:
    checks.register_checks()
    once = django_checks.registry.registry.get_checks()

    checks.register_checks()

    assert django_checks.registry.registry.get_checks() == once
    assert checks.check_database in django_checks.registry.registry.get_checks()


@pytest.mark.parametrize(
    "value", [{**FAIR, "LEASE_SECONDS": 0}, {**FAIR, "NO_SUCH_KEY": 1}, {**FAIR, "DATABASE": "nowhere"}, []]
)
def test_e001_settings_that_cannot_work(settings: Any, value: Any) -> None:
    settings.TENANTFAIR = value

    assert list(found(["default"])) == ["tenantfair.E001"]


def test_e002_no_default_cap(settings: Any) -> None:
    settings.TENANTFAIR = {}

    assert '{"DEFAULT_MAX_ACTIVE_RUNS": 4}' in found()["tenantfair.E002"]


def test_the_legacy_engine_needs_no_default_cap(settings: Any) -> None:
    settings.TENANTFAIR = {"TENANT_MODE": "none"}

    assert found() == {}


def test_e003_another_vendor(settings: Any) -> None:
    with another_vendor() as alias:
        settings.TENANTFAIR = {**FAIR, "DATABASE": alias}

        assert list(found([alias])) == ["tenantfair.E003"]
        assert schema.problems(alias) == ["found the database vendor sqlite, need postgresql"]
        policy.restore_policy_row(using=alias)


@database
@pytest.mark.parametrize("level", [psycopg_any.IsolationLevel.REPEATABLE_READ, 4])
def test_w003_an_isolation_level_in_the_options(settings: Any, level: Any) -> None:
    with scratch_alias("tf_check", isolation_level=level) as alias:
        settings.TENANTFAIR = {**FAIR, "DATABASE": alias}
        settings.DATABASE_ROUTERS = [Router(alias)]

        assert list(found()) == ["tenantfair.W003"]


@database
def test_read_committed_in_the_options_passes(settings: Any) -> None:
    level = psycopg_any.IsolationLevel.READ_COMMITTED
    with scratch_alias("tf_check", isolation_level=level) as alias:
        settings.TENANTFAIR = {**FAIR, "DATABASE": alias}
        settings.DATABASE_ROUTERS = [Router(alias)]

        assert found() == {}


@database
def test_w003_an_isolation_level_set_in_the_database(domain: str) -> None:
    execute(domain, "SET default_transaction_isolation = 'serializable'")

    assert found([domain]) == {"tenantfair.W003": f"transactions on {domain!r} start at serializable"}
    assert found() == {}


@pytest.mark.parametrize("path", ["nope.x", "tests.nothing", "tests.test_checks.FAIR"])
def test_e004_a_tenant_from_request_that_leads_nowhere(settings: Any, path: str) -> None:
    settings.TENANTFAIR = {**FAIR, "TENANT_FROM_REQUEST": path}

    assert found() == {"tenantfair.E004": f"there is no callable at {path!r}"}


def test_a_tenant_from_request_that_can_be_called_passes(settings: Any) -> None:
    settings.TENANTFAIR = {**FAIR, "TENANT_FROM_REQUEST": "tests.test_checks.found"}

    assert found() == {}


def test_e005_psycopg2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psycopg_any, "is_psycopg3", False)

    assert list(found()) == ["tenantfair.E005"]


def test_e006_a_router_that_keeps_the_tables_away(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [Router("default", migrates=False)]

    assert list(found(["default"])) == ["tenantfair.E006"]


@database
def test_e007_an_old_server(domain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MIN_SERVER_VERSION", 990_000)

    assert list(found([domain])) == ["tenantfair.E007"]
    assert schema.problems(domain)[0].endswith("need 99 or newer")


@database
def test_e008_another_encoding(settings: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS tf_check_latin")
        cursor.execute("CREATE DATABASE tf_check_latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    default = connections["default"].settings_dict
    connections.settings["latin"] = {**default, "NAME": "tf_check_latin"}
    connections["latin"].connect()
    settings.TENANTFAIR = {**FAIR, "DATABASE": "latin"}
    settings.DATABASE_ROUTERS = [Router("latin")]
    try:
        assert found(["latin"]) == {"tenantfair.E008": "the server encoding is LATIN1"}
        assert "found the server encoding LATIN1, need UTF8" in schema.problems("latin")
    finally:
        connections["latin"].close()
        del connections["latin"]
        del connections.settings["latin"]
        with connection.cursor() as cursor:
            cursor.execute("DROP DATABASE tf_check_latin")


@database
def test_e009_missing_triggers(domain: str) -> None:
    execute(domain, "DROP TRIGGER tenantfair_run_updated ON tenantfair_run")

    assert found([domain]) == {"tenantfair.E009": "trigger tenantfair_run.tenantfair_run_updated is missing"}


def beside(settings: Any, alias: str) -> None:
    """Name `alias` in an entry of TASKS, beside the one whose runs are where the settings say."""
    entry = {"BACKEND": "tenantfair.backend.TenantFairBackend"}
    settings.TASKS = {"default": entry, "gpu": {**entry, "OPTIONS": {"database": alias}}}


def test_another_vendor_in_the_options_of_tasks(settings: Any) -> None:
    with another_vendor() as alias:
        beside(settings, alias)

        assert found([alias]) == {"tenantfair.E003": f"the alias {alias!r} is SQLite"}


def test_another_vendor_to_listen_on(settings: Any) -> None:
    with another_vendor() as alias:
        settings.TENANTFAIR = {**FAIR, "LISTEN_DATABASE": alias}

        assert found() == {"tenantfair.E003": f"the alias {alias!r} is SQLite"}


@database
def test_routers_are_asked_about_the_options_of_tasks(settings: Any) -> None:
    """Only where tables may be: which alias to read and write they can answer for one domain alone."""
    with scratch_alias("tf_check") as alias:
        beside(settings, alias)
        settings.DATABASE_ROUTERS = [Router("default")]
        assert found() == {}

        settings.DATABASE_ROUTERS = [OnlyDefault("default")]
        assert list(found([alias])) == ["tenantfair.E006"]


class OnlyDefault(Router):
    """Lets tables be on `default` alone."""

    def allow_migrate(self, db: str, app_label: str, **_: Any) -> bool | None:
        return db == "default"


@database
def test_the_database_in_the_options_of_tasks_is_asked_too(settings: Any) -> None:
    with scratch_domain("tf_check") as alias:
        beside(settings, alias)
        assert found([alias]) == {}

        execute(alias, "DROP TRIGGER tenantfair_run_updated ON tenantfair_run")

        assert list(found([alias])) == ["tenantfair.E009"]
        assert found(["default"]) == {}


def test_options_of_tasks_that_cannot_work_are_left_to_their_own_check(settings: Any) -> None:
    beside(settings, "nowhere")

    assert found() == {}


@database
def test_pending_migrations_are_no_finding_so_that_migrate_can_apply_them(settings: Any) -> None:
    with scratch_alias("tf_check") as alias:
        settings.TENANTFAIR = {**FAIR, "DATABASE": alias}
        settings.DATABASE_ROUTERS = [Router(alias)]
        assert found([alias]) == {}

        migrate(alias, "0001")
        assert found([alias]) == {}

        call_command("migrate", "tenantfair", database=alias, verbosity=0, skip_checks=False)
        assert found([alias]) == {}


@database
def test_the_database_is_asked_only_where_the_caller_names_it(domain: str) -> None:
    execute(domain, "DROP TRIGGER tenantfair_run_updated ON tenantfair_run")

    assert found(None) == {}
    assert found(["default"]) == {}
    with connection.execute_wrapper(refuse), connections[domain].execute_wrapper(refuse):
        assert found() == {}


def refuse(*_: Any) -> None:
    raise AssertionError("a check asked the database")


@pytest.mark.parametrize(
    "tasks",
    [
        {},
        {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}},
        {"default": {"BACKEND": "nowhere.Backend"}},
        {"default": {}},
    ],
)
def test_w001_no_backend_is_ours(settings: Any, tasks: dict[str, Any]) -> None:
    settings.TASKS = tasks

    assert list(found()) == ["tenantfair.W001"]


def test_w002_a_router_that_asks_elsewhere(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [Router("elsewhere")]

    assert "'elsewhere'" in found()["tenantfair.W002"]
